// Package arch holds the picture of ARCHITECTURE.md as tables and compares them with what the go command sees: which
// package imports which, and which modules are direct dependencies.
package arch
