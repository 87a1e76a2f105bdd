// Package ownership decides who leads which range of the ring, in generations that are closed exactly once
// (docs/design.md, section 3). It decides and moves nothing: storage is injected, and what it decides is read by the
// doors through small interfaces.
//
// What exists is the case of a cluster of one broker: Solo. Its generation covers the whole ring, and each start of the
// process closes the generation before and opens the next (O15), so the version of a generation tells the runs of the
// broker apart and serves as leader epoch of what is written.
package ownership
