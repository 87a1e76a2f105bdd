// Package data is the store of a broker: logs of chunks on one disk (docs/design.md, section 5).
//
// A log is one partition of one topic: segment files of chunks, each with a sparse index. Commit takes a round of chunks
// for any number of logs and returns when it is durable by the flush policy (P5): with FlushAlways the chunks go to the
// page cache of their segments, and one record with all of them goes to the commit journal, which is flushed once for
// the whole round. A checkpoint flushes the segments later, in the background, and lets the journal file be used again.
// docs/adr/0001-commit-journal.md tells why.
//
// Guarantees:
//
//   - An acknowledged chunk survives SIGKILL and, with FlushAlways, a power cut at any point, once and at its offset.
//     With FlushInterval a power cut takes what was not flushed.
//   - Nothing is served that does not pass its checksum and does not fit its place: offset, length, epoch. What is
//     damaged is reported by exact ranges of offsets, everything else is served.
//   - Room is checked before an offset is given. A failed write or sync makes the log (or, for the journal, the store)
//     refuse appends until it has been written again and checked; the outcome of what was in flight is told apart as
//     not written or unknown.
//   - Reads never wait for a flush, and one log that idles costs a few hundred bytes of memory and no open file.
//
// The package knows disks and nothing else: who may append, which generation, which topic exists is for its callers.
// Every step (commit, checkpoint, retention, repair) is a plain function over the FS, KV and clock of Config, so that a
// simulator can drive it; Run only calls them in time. Package memfs is the twin of FS and KV for tests.
package data
