// Package client publishes to and consumes from a LightQ broker over its native protocol (docs/PROTOCOL.md).
//
//	c, err := client.Dial(ctx, "tcp://127.0.0.1:5500")
//
//	p, err := c.Producer(ctx, "orders")                 co, err := c.Consumer(ctx, "orders")
//	receipt, err := p.Publish(ctx, client.Message{…})   for r, err := range co.Records(ctx) { … }
//
// A Client has one connection for administration; each Producer and each Consumer has one of its own.
//
// # Connections
//
// Dial takes one address or several with commas between. Every connection tries them in their order, from the first, and
// takes the one that answers. Several brokers share nothing: the others are for when the first is away.
//
// A connection that is lost comes back by itself: after a failure of the network, the end of the stream, a go-away or three
// heartbeat intervals of silence. The pauses between the attempts double, from 50 ms to 5 s, with a random part
// (WithReconnect), and go on until Close, or for a bounded time (WithReconnectLimit). WithOnConn tells about each loss, attempt
// and success; WithLogger logs them: a loss and a success with a line each, an absence with one a minute.
//
//   - Requests of the Client wait for the connection until their context ends. One whose connection was lost before its
//     reply came is a *ConnError, and may have been carried out; those that change nothing are asked again instead.
//   - A Producer goes on with what was not sent yet and with what is published next. What was on its way is of unknown
//     outcome and reported as a *ConnError, never sent again; with Idempotent it is kept, and sent again. A publish method that
//     finds the batch full waits for the connection, until its context ends; nothing more is buffered than with a connection.
//   - A Consumer goes on in each partition where it was left: no record comes twice, and none is missing without a
//     *GapError. It reconnects while it is iterated. The member of a group joins it again; what was on its way to it was
//     given out and is not given out again. A group that the broker has forgotten begins where it stood when the member
//     joined first.
//
// What the broker answers to the new connection may end a partition: a *PartitionError, while the others go on. A topic that is
// gone is codec.CodeUnknownTopic. A Consumer whose topic was deleted and made anew gets codec.CodeTopicDeleted, since its
// offsets mean nothing there (a Producer goes on); one that stands behind the end of the partition, because the broker has
// lost what it had given out, gets codec.CodeOffsetOutOfRange, with what there is in the error's Range. With the last partition,
// and with an answer to the hello that will not change (Retryable), the Producer or Consumer is at its end.
//
// WithoutReconnect makes the first loss the end. Then make a new Producer; or a new Consumer, with From(AtOffset) of its
// last Position.
//
// # Batches
//
// Records are encoded as they are published, straight into the bytes that will be written; keys, values and headers
// are copied before the call returns. When a batch is sent depends on how full the pipe is, so that one setting
// serves a single message as well as ten million:
//
//   - While few batches of the producer are unconfirmed (less than four and 64 KiB), a record leaves at once, by the caller's
//     own write.
//   - Otherwise records gather until the batch is full (BatchBytes), which the caller then writes; or until confirms have
//     brought the pipe near to idle; or for 1 ms at the most.
//   - When records come so fast that 256 KiB, or a batch if that is less, go out in half a millisecond, batches leave when
//     they are full or 1 ms old, whatever the pipe looks like, or with Flush.
//   - With Linger(d), a batch is sent when it is full or d old, or with Flush.
//
// Records without a key and without a partition go to the partitions in turn, batch by batch: one record each while records
// leave at once, a whole batch otherwise. So batches do not get smaller where there are more partitions.
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
// Client.Fetch and Client.Replay read a range of a partition without a consumer.
//
// # Outcomes
//
// The broker gives one result per batch: Receipt of Publish, the callback of PublishAsync, OnBatch, and the error
// of Flush tell it. A refused record is reported with the broker's code and not sent again. What stood behind it on
// the same partition is refused as well (codec.CodeStaleEpoch), so that records never overtake each other; the
// producer then reopens the partition by itself and goes on with what is published next. A *ConnError leaves open
// whether the record was stored; publishing it again may store it twice. At codec.LevelNone a record counts as done once it is written; a refusal then only
// shows in OnBatch and Flush.
//
// # Idempotence
//
// With Idempotent each batch carries the producer's id and epoch, which the broker gives out once, and a sequence number: that
// of its first record in the partition. The broker stores a batch that it has already only once, and confirms it with the
// offset that it got at first. So after a lost connection the Producer sends again, byte for byte and in order, what has no
// result: publishing is confirmed across reconnects and restarts, each record stored once, as far back as the broker
// remembers (for topics in memory, until it is restarted; it then takes what comes). No *ConnError is left but that of giving
// up.
//
//   - At most five batches of a partition have no result, since the broker remembers five. They are kept until they have one:
//     up to five times BatchBytes more memory in each partition with records at hand.
//   - A broker that is stopping (codec.CodeDraining) has not stored a batch: the next connection carries it again.
//   - Any other refusal is told as without Idempotent, and the records are not sent again; what stood behind is refused as
//     well. Where the code makes it certain that nothing is stored, the next batch takes the refused one's sequence, which the
//     broker has not used up. Otherwise the partition goes on under another id, from sequence 0, since the broker could take the
//     next batch for the refused one: after codec.CodeOutcomeUnknown, codec.CodeOutOfOrder, codec.CodeProducerFenced, a code
//     that this version does not know, and any refusal of a batch that had been sent on an earlier connection as well (its
//     first copy may still arrive).
//   - A record that the program publishes a second time is another record.
//
// # Goroutines
//
// All methods of Client and Producer may be called from any goroutine. Callbacks run on the producer's reader
// goroutine, or on its keeper's while it reconnects, one at a time; while one runs, no confirm is taken, so it must be short and
// must not call the producer. A producer has three goroutines: the reader, a keeper that writes what is due while no publisher
// comes by and that makes a lost connection anew, and one for heartbeats. The reader never waits for a write: a broker that waits for its confirms to be read, and therefore
// does not read, would never be waited out.
//
// A consumer has one for heartbeats only. Whoever iterates reads the socket, checks every batch's CRC and grants
// new credit, so that no hop between goroutines lies between the socket and the loop body. One iteration at a time;
// breaking out of the loop and iterating anew goes on where it was left. A consumer that does not iterate costs the
// broker its credit and, on a topic in files, up to 1.5 MiB and a batch that were read ahead.
//
// # Lifetimes
//
// What is published is copied before the publish method returns: the slices of key, value and headers may be used again at
// once.
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
