//go:build !race

package data_test

// slower is by how much fewer seeds the crash tests run with.
const slower = 1
