// Package harness starts real broker processes on loopback addresses of their own and talks to them as a client
// would. It imports nothing of the broker: what it knows, it knows from docs/http-api.md and docs/wire.md. Each broker
// has the default ports on an address out of 127.0.0.0/8, so many can run side by side and the examples of the docs
// fit all of them.
//
// A test package builds the broker once:
//
//	func TestMain(m *testing.M) { harness.Main(m) }
package harness
