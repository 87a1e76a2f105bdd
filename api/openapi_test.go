package api_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/skeinmq/skein/api"
)

func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestDocumentIsValid(t *testing.T) {
	doc := document(t)
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("version %s", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for name, op := range operations(doc) {
		if op.OperationID == "" || ids[op.OperationID] || op.Summary == "" || len(op.Tags) != 1 || doc.Tags.Get(op.Tags[0]) == nil {
			t.Errorf("%s: id %q, summary %q, tags %v", name, op.OperationID, op.Summary, op.Tags)
		}
		ids[op.OperationID] = true
	}
}

// operations are those of the document by "METHOD /path".
func operations(doc *openapi3.T) map[string]*openapi3.Operation {
	ops := map[string]*openapi3.Operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			ops[method+" "+path] = op
		}
	}
	return ops
}

// Every path of the handlers is described, and every described path is theirs.
func TestEveryRouteIsDescribed(t *testing.T) {
	b := startBroker(t)
	described := operations(document(t))
	silent := map[string]bool{ // refusals of what published clients may try
		"GET /v1/topic/{topic}/messages": true,
		"POST /v1/topic/messages":        true,
	}
	routes := map[string]bool{}
	for _, r := range slices.Concat(b.client.Routes(), b.metrics.Routes()) {
		routes[r] = true
		if described[r] == nil && !silent[r] {
			t.Errorf("%s is served, but not described", r)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(described)) {
		if !routes[name] {
			t.Errorf("%s is described, but not served", name)
		}
	}
}

// Refusals that every operation with a body, a change or a name has are described for each alike.
func TestRefusalsAreDescribedAlike(t *testing.T) {
	for name, op := range operations(document(t)) {
		has := func(status string) bool { return op.Responses.Value(status) != nil }
		method, path, _ := strings.Cut(name, " ")
		if op.RequestBody != nil && (!has("413") || !has("415") || !has("400")) {
			t.Errorf("%s has a body, but not all of 400, 413, 415", name)
		}
		if strings.Contains(path, "{") && !has("400") {
			t.Errorf("%s has a name in its path, but no 400", name)
		}
		for _, status := range []string{"421", "500", "503", "504"} {
			if method != "GET" && !strings.HasPrefix(path, "/v1/consumer/register") && !has(status) {
				t.Errorf("%s changes something, but has no %s", name, status)
			}
		}
		for status, r := range op.Responses.Map() {
			problem := r.Value.Content["application/problem+json"]
			if code := 0; status >= "400" && !strings.HasPrefix(path, "/status") && !strings.HasPrefix(path, "/healthz") {
				if _, err := fmt.Sscan(status, &code); err != nil || problem == nil {
					t.Errorf("%s %s is no problem", name, status)
				}
			}
		}
	}
}
