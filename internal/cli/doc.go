// Package cli is the client side of the command line: produce, consume, topics, groups, cluster and bench, as cobra
// commands that cmd/broker adds to its root. They talk HTTP to a broker like any other client (docs/http-api.md; bench
// also the binary protocol of docs/wire.md 4), so they import none of the broker's own packages.
//
// Habits, from kcat, rpk and the nats CLI: results go to stdout and everything else to stderr; --json wherever a script
// may read; tables are aligned; an error says what to do next. Exit codes: see ExitCode. docs/cli.md lists every command
// and flag, and a test compares it with the commands.
package cli
