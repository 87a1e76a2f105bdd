// Package localdb is the small database of a broker: what it has promised and decided, notes of its logs, and views of
// internal logs that can be built again. It is a thin layer over badger, an embedded store of sorted keys.
//
// What it guarantees:
//   - An Update is stored whole or not at all, however the process ends. With sync it is durable when it returns, and so
//     is every update before it.
//   - One process at a time has the folder open, a folder of a newer schema or of another ordinal is refused before
//     anything in it changes, and a table or a log that does not hold what was written to it makes Open fail (ErrDamaged):
//     a broker that has forgotten a promise must not go on (O5).
//   - The disk id stays with the folder, the start number grows by one at each Open, durably (P5, O15).
//   - After an error of a write or sync nothing more is written in this process (P5). Failed tells, so that it can end.
//
// Keys begin with a prefix that tells their owner: "m/" this package, "n/" notes of package data, "p/" views of positions,
// "g/" generations and promises, "t/" the view of topics. The folder holds LOCK, SCHEMA, ballast, and badger's files in kv.
//
// # Damage
//
// Badger takes the first record of its write-ahead log that it cannot read for the end, and drops what follows: a flipped
// bit would take back synced updates without a word. So Open reads the log first. A good record behind one that cannot be
// read is damage, unless a stop of the machine explains it: among updates that were not synced, some sectors can be on disk
// and some before them not. Sectors that were never written are zero at their end, and each record tells how many
// transactions before it were not known to be durable when it was written, so the two can be kept apart. What cannot be
// told from a write cut short is damage to the last records of a log, with nothing readable behind it.
//
// # Full disks
//
// Badger maps its files into memory, and a page that a full disk cannot back ends the process with SIGBUS. So its write-
// ahead logs, the one in use and the next, have their room on disk before a byte is written to them, as have the manifest
// and the file of discard statistics; the value log stays empty, as values are kept with their keys. Before badger goes on
// to the next log, which also writes a table of up to 2 MiB, and before a compaction, which only DB.compact starts, the
// disk must have that room and some more; else the update is refused with topology.ErrDiskFull. Of a ballast of 4 MiB so
// much is given up as it takes to open or close on a full disk; that is enough for one full log and some that are not. A
// process killed while several full logs waited to become tables (that takes milliseconds each) needs more, from the owner
// of the disk (Config.EnsureRoom); without it Open fails with topology.ErrDiskFull, and nothing is lost.
//
// One gap stays: badger gives no hand in making a table, so another process that takes several MiB in the few
// milliseconds between that look at the disk and the last page of the table can still end this one. Nothing is lost then:
// the log holds all of it.
//
// # Cost
//
// Measured on 2 cores and a virtual disk, badger v4.9.6. Open takes 4 ms when empty, and 16 ms with 240,000 keys in 24 MB
// of tables (5,000 topics of 24 partitions, a note and a position each), which are read and verified then, and about 20 ms
// more after a kill with a full log, which is read, checked and made a table. Idle, it uses 2 MiB of memory of its own, and
// 25 MiB of page cache are mapped for these tables; 0.01 % of a core, as no compactor of badger runs. On disk it takes 7 MiB
// before anything is stored, 4 of them the ballast. An update of one key takes 26 us, with sync 0.5 ms, and 500 keys in one
// take 2.4 ms; a Get takes 5 us.
package localdb
