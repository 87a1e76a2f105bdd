// Package memfs is the test twin of the disk: a file system and a key-value store in memory that forget what was not
// made durable. Crash is a power cut: bytes that no Sync covered, files and removals that no SyncDir covered and updates
// of the KV that were not synchronous survive or vanish by chance, sector by sector, so the last write may be torn. Kill
// is SIGKILL: everything that was written stays. CrashAt stops the world at the n-th step that changes something; Fail
// is asked before each step and may refuse it; a capacity makes ENOSPC. All chance comes from one seed.
//
// A failed Sync behaves as on Linux (F21): the bytes stay visible, count as clean, and never become durable unless they
// are written again.
package memfs
