// Package token hashes keys to positions of the ring and does the arithmetic of the ring: where parts begin, which part
// a token falls into, in which order ordinals stand. It follows rules R1 to R3 of docs/design.md and section 6 of
// docs/wire.md, so that published clients compute the same owner. Pure functions, standard library only.
package token
