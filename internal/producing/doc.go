// Package producing takes records in and gets them stored: docs/design.md, section 6.
//
// The Coalescer gathers the records of all requests into chunks, one open chunk per log, and writes the chunks of all
// logs in rounds: while one round is being written, the next one fills. A request is answered when the round that holds
// its records is committed; nothing is answered as written before that.
//
// Two doors feed it. Producer is the HTTP door (docs/http-api.md); on HTTP/1.1, FastPath serves its plain requests
// without net/http and leaves the rest to it. BinaryServer is the door for the binary protocol of docs/wire.md, section 4.
// The Coalescer also appends the records of internal logs (Append).
//
// Guarantees:
//   - Records of one log that come over one connection, or in requests one after the other, are stored in that order.
//   - Requests that do not overlap in time never share a chunk.
//   - Memory is bounded: what requests and unwritten rounds hold is counted against one budget. Past it, HTTP requests
//     are refused and binary connections are not read.
//   - An answer tells written, not written and unknown apart.
//   - A request with an idempotency key is stored once however often it is sent, within the bounds of Idempotency.
//
// The package leaves to others: where bytes go on disk (Committer), who leads a range (Leadership), which topics there
// are (Topics), ports and connections of HTTP (package httpd).
package producing
