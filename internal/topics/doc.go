// Package topics is the catalogue: which topics exist, with which id, partitions and settings (docs/design.md, section
// 5, rules T1 to T3).
//
// The truth is the internal log __topics. It has 12 partitions; each record has the name of a topic as key and the topic
// as value, JSON as topology.Topic encodes it, with the state "active" or "deleted". The catalogue is a function of that
// log:
//
//   - The first record of a name makes the topic. A later one with the same id changes it.
//   - A record with another id while the topic lives lost a race between two creations, and changes nothing.
//   - A record with the state deleted removes the topic of that id, for ever: no later record brings the id back (T3).
//     The name is free again.
//
// localdb holds the view: the topics, the ids of the deleted ones, and for each partition of the log the offset up to
// which it is applied, changed together in one transaction. So a crash between the append and the view is made good at
// the next start, which applies the tail. The view is also in memory: Lookup takes no lock.
//
// Only the leader of a name changes its topic (T1): the Appender refuses where this broker does not lead.
//
// After a deletion the data of the topic and of its positions log goes. That is repeated for a while, since a produce
// request that looked the topic up before may still write to it, and again at each start.
package topics
