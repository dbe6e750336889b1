// Package journal keeps the log of one partition on disk: append-only segment files, group commit, recovery, retention and
// verified reads. docs/JOURNAL.md specifies the bytes, the crash contract of every operation and the recovery tables.
//
//	topic's writer ──Append──► pending ──► group ──► slot ──pwritev2 DSYNC──► segment file
//	                                          (at most MaxInFlight at a time, Syncers' goroutines)
//	topic ◄──OnProgress── durable: a completed prefix
//
// A batch is never copied: its bytes go from the slice given to Append to the file in one vectored write, behind a header of 64 bytes
// that covers what the batch's own CRC does not. Whatever is appended while writes are under way shares the next one.
//
// # Ownership and threads
//
// One goroutine at a time appends to a log. Its state is under one mutex that is never held across a system call. All disk work
// is done by the goroutines of two bounded pools that all logs of a broker share: [Syncers] write, sync, make, seal and remove
// files; [Readers] read what is not in memory any more. A log has no goroutine of its own, and an idle one no open file.
//
// # What it does not do
//
// It does not open batches, check what clients send, hold a tail in memory, or know topics, consumers and producers. It does not
// retry a failed sync, skip damage in silence, or remove what it cannot read. It keeps no state outside of the segments: an index can
// be made again at any time.
package journal
