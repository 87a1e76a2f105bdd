// Package api holds the description of Skein's HTTP API as an OpenAPI 3.1 document. A broker serves it at
// /v1/openapi.yaml, and a test of this package holds it against running handlers: every path of theirs is described,
// every described path is theirs, and their answers fit the schemas. docs/http-api.md tells the same for people.
package api

import _ "embed"

// OpenAPI is the document, YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
