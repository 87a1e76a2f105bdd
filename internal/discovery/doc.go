// Package discovery knows which brokers there are: their number N with its epoch (R4), their hosts by ordinal, and the
// answer to clients that ask for them (docs/wire.md, section 2). It reads settings and does not talk to brokers.
//
// What exists is the static list. Sources that change while the broker runs will satisfy the same interface.
package discovery
