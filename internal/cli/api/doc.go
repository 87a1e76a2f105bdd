// Package api is the HTTP client of the command line: one method for each request of docs/http-api.md that the commands
// need, with answers decoded into plain structs and refusals into *Error.
//
// A Client knows one or more brokers. A request that certainly did not reach one (the connection could not be made) goes
// to the next; nothing else is retried here, because only the caller knows whether a repetition is harmless. The package
// keeps the outcomes of a write apart, as docs/design.md section 6 does: see Outcome.
package api
