// Package recordbatch is the codec of chunks: Kafka record batches of magic 2, as described in docs/formats.md. A chunk
// is the unit of compression, checksum, write and, between brokers, replication. The package knows bytes only: no
// disk, no network, no topics.
package recordbatch
