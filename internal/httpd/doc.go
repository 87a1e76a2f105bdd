// Package httpd is what all HTTP doors share: a server for HTTP/1.1 and cleartext HTTP/2 on one port, refusals as
// application/problem+json (RFC 9457), path cleaning, and request bodies with bounds and content encodings. It knows
// nothing of topics or groups.
package httpd
