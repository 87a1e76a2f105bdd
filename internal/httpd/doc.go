// Package httpd is what all HTTP doors share: a server for HTTP/1.1 and cleartext HTTP/2 on one port, a router,
// refusals as application/problem+json (RFC 9457), and request bodies with bounds and content encodings. It knows
// nothing of groups, records or where topics live.
//
// # Guarantees
//
//   - One port speaks HTTP/1.1 and HTTP/2 with prior knowledge. A header above its limit is answered with 431 (HTTP/2
//     clients that ignore the announced limit are disconnected) and never held in memory; slow headers and idle
//     connections are closed.
//   - A panic of a handler is logged once and answered with 500. http.ErrAbortHandler cuts the connection silently.
//   - When the context of Server.Run ends no further connection is accepted, HTTP/2 clients get GOAWAY and HTTP/1.1
//     answers carry "Connection: close". Running requests are waited for up to Config.DrainTimeout; then their contexts
//     are cancelled and their connections closed. Handlers that wait for something to happen (long polls) select on
//     Draining and answer at once.
//   - Paths are cleaned, not redirected: doubled and trailing slashes are dropped, and the segments "." and ".." are
//     handed to handlers as they are, so that "/v1/topic/../messages" is refused by its handler as a wrong name.
//
// # What it leaves to others
//
// Handlers answer by Refuse, RefuseError or WriteJSON, or write their own bytes. Memory budgets and the meaning of a
// body are theirs.
package httpd
