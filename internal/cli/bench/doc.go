// Package bench loads a broker and measures it from the client's side: produce over the binary protocol (docs/wire.md 4)
// or HTTP, draining a topic as a group, and the way from produce to consume. Records carry a run, a key and a number
// that counts per key, so that a drain can check that every record is there exactly once and in order per key.
//
// Latencies of an open loop (a rate is given) count from when a record was due, not from when it could be sent, so a
// broker that stalls is not measured as if the load had stalled with it.
package bench
