// Package topic owns the broker's state: the registry of topics, their partitions with rings, cursors and publishers.
//
//	Registry ─ Topic ─ Partition ─┬─ core    the rules: a step function without goroutine, clock or I/O
//	                              ├─ ring    the newest batches, bounded in bytes
//	                              ├─ writer  one goroutine while there is work, none otherwise
//	                              └─ log     of topics in files: the journal, read where the ring has it no more
//
// A partition's state has one owner at a time, whoever holds its lock: the reactor on which bytes arrive while the
// partition is idle (inline), its writer goroutine while it is busy, a reactor that takes batches for a consumer. What the
// core decides leaves as effects (results for publishers, wake-ups for consumers), which its owner hands to a Sink per event
// loop before it lets go of the lock; sinks are flushed after that.
//
// What this package does not do: it touches no socket, knows no frame, and touches files only through packages journal and
// catalogue.
package topic
