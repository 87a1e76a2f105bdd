//go:build race

package data_test

// slower is by how much fewer seeds the crash tests run with: the race detector makes them as much slower.
const slower = 8
