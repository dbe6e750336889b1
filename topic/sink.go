package topic

import "github.com/lightio/lightq/codec"

// A Sink carries a partition's effects to the event loop that waits for them. Its methods may be called from any
// goroutine and do not block.
type Sink interface {
	// Confirmed tells what became of batches, in order for each publisher. The slice is the partition's; the sink
	// copies what it keeps. Called with the partition's lock held: it must not call back.
	Confirmed(results []Result)
	// Wake says that a cursor which had nothing to take has something now, or was cut off. Called with the
	// partition's lock held: it must not call back.
	Wake(cur *Cursor)
	// Flush is called after the lock was released, once after any number of the other two.
	Flush()
}

// A Result is what became of one published batch.
type Result struct {
	Publisher *Publisher
	Epoch     uint32
	Number    uint64 // of the batch in the publisher's epoch
	Bytes     int    // size of the batch: the window that it gives back
	codec.Result
}
