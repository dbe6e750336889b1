// Package loadgen is the load generator of lightq-producer and the measuring receiver of lightq-consumer: what a generated
// message holds, sending at full speed or on a schedule, the check of every sequence number, and the report.
//
//	message:  | run id 8 | sequence 8 | send time 8 | pattern … |      big-endian; send time in Unix nanoseconds
//
// One run of the producer has one run id; the sequence counts from 0 in each partition. A message shorter than 24 bytes is
// pattern alone and cannot be verified. The send time is read from the clock once for 256 messages, or, when a rate is set, is
// the time at which the schedule wanted the message sent, so that a stalled sender does not hide the stall.
//
// A Sender and a Receiver belong to one goroutine each; a Progress may be read from anywhere. Per message they do neither
// allocate, nor lock, nor look at the clock.
package loadgen
