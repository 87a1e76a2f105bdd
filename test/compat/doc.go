// Package compat proves that the published Go client of PolarStreams works against Skein unmodified: it runs that
// client's own integration suite, and a few more things that applications do with it. It is a module of its own, so
// nothing that the client needs becomes a dependency of the broker, and nothing of ours changes which versions the
// client is built with.
//
// What the suite asks of one broker (docs/wire.md, 0 and 7, says why):
//
//   - discovery on 9250 answers HTTP/1.1 with length 1, one name and a producerBinaryPort that is not 0;
//   - 9254 answers STARTUP at once, PRODUCE on its stream, 64 of them at a time under one key;
//   - 9252 speaks HTTP/2 with prior knowledge; a consumer is a connection that has registered by a JSON POST;
//   - three records sent one after the other without a key make three items, though the group registers afterwards and
//     begins at the latest record: a log with a single record is begun at that record;
//   - twelve records sent one after the other with one key make twelve items, one a poll, with offsets 0 to 11;
//   - the same consumer id on a second connection begins at the last commit; a commit is answered 204;
//   - a poll with nothing to deliver is a 204 at once, and the client itself waits.
package compat
