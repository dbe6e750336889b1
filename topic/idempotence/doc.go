// Package idempotence is the state by which a partition recognises what a producer sends again: per producer an epoch and the last five
// batches, by the rules of Kafka's idempotent producers (KIP-98, KIP-360).
//
//	Check ──Append──► the caller assigns offsets ──► Appended ──► Settle   it is stored
//	                                                         └─► Truncate it was refused after all, and never was
//
// A State is pure: no goroutine, clock or I/O, and no allocation for a producer that it knows. One goroutine at a time may use
// it, so that a check and the append that follows it are one step. It is as long-lived as its partition's log: AppendSnapshot
// writes it down where a segment begins, and LoadSnapshot and Replay make it again from there.
//
// # Bounds
//
// A producer is forgotten when its last append was a day ago, and when there are too many: the one whose last append is the longest ago
// goes first. A forgotten producer carries on as an unknown one does, with any sequence; only its duplicates are no longer
// recognised.
//
// # What it does not do
//
// It does not hand out producer ids, and does not know when a batch is durable: a duplicate of a batch that is not must be confirmed
// no sooner than that batch.
package idempotence
