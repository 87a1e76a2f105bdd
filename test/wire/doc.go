// Package wire holds tests of the client protocol, written from docs/wire.md alone: what goes to the broker and what
// comes back is spelled out byte by byte over plain sockets, and no code of the broker takes part. Each test names the
// section that it follows.
package wire
