// Package codec holds LightQ's bytes: wire frames, Kafka record batches (v2), control messages, the table of error
// codes, and the reference-counted slabs that batches live in. docs/PROTOCOL.md is the specification.
//
//	frame:  | length 4 | type 1 | flags 1 | header size 2 | correlation 4 | handle 4 | header … | payload … |
//	                                                                                    fields,    whole batches,
//	                                                                                    then tags  or a table
//	batch:  | base offset 8 | length 4 | epoch 4 | magic 1 | CRC 4 | … 61 bytes in all | record | record | …
//
// Everything here is a pure function of byte slices, or a builder or reader over a slice that the caller owns. Encoders
// are named Append… and append to their first argument. Readers never allocate for lengths that a peer announced: they
// return sub-slices of their input, valid as long as that is. Nothing here starts a goroutine, reads a clock or
// touches a file or socket.
package codec

// An Offset is the number of a record in its partition. Inside the broker it is never negative; ranges are half-open.
type Offset int64
