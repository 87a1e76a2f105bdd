// Package topology holds the plain values that brokers agree on: ordinals, generations, topics, logs, offsets. They
// have no behaviour beyond arithmetic, naming and validation, do no I/O and import nothing but token. The words are
// those of docs/design.md, section 1.
package topology
