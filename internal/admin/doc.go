// Package admin is the API of operators on port 9250: topics, consumer groups, the cluster, health and readiness, the
// OpenAPI document; and the metrics and profiles of port 9253. docs/http-api.md describes it, api/openapi.yaml pins it.
//
// It holds no state. What it shows and changes belongs to others, whom it knows by small interfaces; it parses, calls and
// answers. Refusals are problems (RFC 9457) that name what was wrong and what is allowed.
package admin
