// Package recordbatch is the codec of chunks: Kafka record batches of magic 2, as described in docs/formats.md, "Chunk".
// A chunk is the unit of compression, checksum, write and, between brokers, replication. The package knows bytes only:
// no disk, no network, no topics.
//
// What it guarantees:
//   - ParseHeader and Check accept a batch only when it is whole, within bounds and dense (one offset for each record),
//     and Check only when its CRC-32C holds. What the CRC leaves out (base offset, length, epoch, magic) is compared with
//     the log by package data.
//   - A Decoder never panics, never reads past the batch and never allocates from a number it has not checked: a batch
//     unpacks to at most MaxUncompressed bytes and MaxRecords records, whatever its bytes say.
//   - What a Builder seals, any reader of Kafka batches can read; the tests hold it against franz-go.
//
// Compression costs more than all other work on a record together, so encoders are few (one for each processor, used
// last in first out, so that their tables stay in the cache), work on whole chunks, and are left out where they do not
// pay (Payoff).
package recordbatch
