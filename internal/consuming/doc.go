// Package consuming serves consumers: groups and their members, who gets which partition, polls in three forms, long
// polls, commits, positions that survive restarts, and reads without a group (docs/design.md, section 7; docs/wire.md,
// section 5).
//
// Guarantees:
//
//   - At least once. A position moves only over records that were delivered, and over what cannot be: records that the
//     form of the answer leaves out, damage, and what is outside the log. Delivered means that a receipt (ack) or a commit
//     names the answer, or that the same origin asks again and has reached the answer: it was written to its end, and the
//     request comes over the same connection or the kernel says that the client has confirmed all of it. An origin is a
//     connection, or a consumer id for consumers that name it in each request. What another origin or member has open is
//     delivered again from the committed position. A member that does not own a partition cannot move its position.
//   - A stored position is a record of the positions log of its partition (topology.LogID.Positions). What is kept of it
//     in memory and in localdb is a function of that log below its high watermark, so it can be thrown away and built
//     again. A partition is served only once its view covers the log; until then polls wait or fail, and never take the
//     reset policy instead.
//   - Where a group starts is decided when it meets the topic: at registration, or when a topic that it registered for
//     comes to exist. See Service.bind.
//   - Answers in JSON are valid JSON whatever bytes were produced. Binary answers are exactly those of docs/wire.md, 5.2.1.
//   - One that reads its answer slowly slows nobody else: while an answer is written no lock is held, its time is
//     bounded, and the memory of all answers is bounded by handing out smaller ones.
//   - A partition costs a few bytes before it is delivered or has a position. A long poll that waits costs a goroutine and
//     no work, and holds no buffers; it is woken by the store when a partition of its member advances.
//   - Who owns which partition is computed when somebody asks, and holds until it is computed again. The store never waits
//     for that.
//
// Locks, in the order they are taken: subscription.binding (where a group begins on a topic, on disk), topicPositions.loading
// (positions that are loaded from disk), positions.saveMu, Service.mu (who is registered), group.mu (members, cursors, open
// answers of one group), positions.mu (which positions are to be written), positionLog.mu (positions of one partition).
// From Service.mu on no disk, log, connection or computation is waited for.
//
// The package does not decide who leads a partition, stores no records itself and knows no other broker.
package consuming
