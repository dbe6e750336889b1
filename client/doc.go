// Package client publishes to and consumes from a LightQ broker over its native protocol (docs/PROTOCOL.md).
//
//	c, err := client.Dial(ctx, "tcp://127.0.0.1:5500")
//
//	p, err := c.Producer(ctx, "orders")                 co, err := c.Consumer(ctx, "orders")
//	receipt, err := p.Publish(ctx, client.Message{…})   for r, err := range co.Records(ctx) { … }
//
// A Client has one connection for administration; each Producer and each Consumer has one of its own. Nothing
// reconnects a Producer or Consumer: after a *ConnError make a new one (a Consumer with From(AtOffset) of its last
// Position).
//
// # Batches
//
// Records are encoded as they are published, straight into the bytes that will be written; keys, values and headers
// are copied before the call returns. When a batch is sent depends on how full the pipe is, so that one setting
// serves a single message as well as ten million:
//
//   - While few batches are unconfirmed (less than four and 64 KiB), a record leaves at once, by the caller's own write.
//   - Otherwise records gather until the batch is full (BatchBytes), which the caller then writes; or until confirms have
//     brought the pipe near to idle; or for 1 ms at the most.
//   - When records come so fast that a batch fills within half a millisecond, only full batches are sent, whatever the pipe
//     looks like. The end of such a burst leaves within 1 ms, or with Flush.
//   - With Linger(d), a batch is sent when it is full or d old, or with Flush.
//
// A publish method blocks, until its context ends, when the open batch is full and the window that the broker
// granted is used up. A producer's memory is bounded by that: per partition with records at hand a batch being
// filled and one being written.
//
// With Compress, each batch's records are compressed as one block when the batch is sent, outside of all locks, by whoever
// sends it. Consumers decompress in Records and Batch.Open, within MaxDecompressedBytes.
//
// # Groups
//
// A consumer gets every record of its partitions. With Group it shares them with the group's other members, batch by
// batch; offsets then jump, and may go back.
//
// # Outcomes
//
// The broker gives one result per batch: Receipt of Publish, the callback of PublishAsync, OnBatch, and the error
// of Flush tell it. A refused record is reported with the broker's code and not sent again. What stood behind it on
// the same partition is refused as well (codec.CodeStaleEpoch), so that records never overtake each other; the
// producer then reopens the partition by itself and goes on with what is published next. A *ConnError leaves open
// whether the record was stored. At codec.LevelNone a record counts as done once it is written; a refusal then only
// shows in OnBatch and Flush.
//
// # Goroutines
//
// All methods of Client and Producer may be called from any goroutine. Callbacks run on the producer's reader
// goroutine; while one runs, no confirm is taken, so it must be short and must not call the producer. A producer
// has three goroutines: the reader, a keeper that writes what is due while no publisher comes by, and one for
// heartbeats. The reader never waits for a write: a broker that waits for its confirms to be read, and therefore
// does not read, would never be waited out.
//
// A consumer has one for heartbeats only. Whoever iterates reads the socket, checks every batch's CRC and grants
// new credit, so that no hop between goroutines lies between the socket and the loop body. One iteration at a time;
// breaking out of the loop and iterating anew goes on where it was left. A consumer that does not iterate costs the
// broker its credit and nothing more.
//
// # Lifetimes
//
// The slices of a Batch or Record are views of the consumer's buffers, valid until the next iteration: copy what is
// to stay. Every Client, Producer and Consumer must be closed; closing the Client closes the others.
//
// # Errors
//
// *codec.WireError is what the broker said: errors.Is(err, codec.CodeUnknownTopic). *PartitionError says which
// partition it is about, *ConnError that a connection failed, *GapError that records are lost for a consumer,
// *BatchError that those of a batch cannot be read, ErrClosed that Close was called. Retryable tells whether trying again makes sense.
package client
