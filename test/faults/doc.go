// Package faults holds tests with real broker processes that are killed, starved, damaged and overloaded. They take
// minutes, one needs root (it mounts a small tmpfs), and so they run only with the build tag faults:
//
//	go test -tags faults ./test/faults
//
// Randomness comes from one seed, which a failure prints: -seed N runs it again.
package faults
