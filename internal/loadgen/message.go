package loadgen

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/lightio/lightq/codec"
)

// Positions of the fields of a message.
const (
	messageRun      = 0
	messageSequence = 8
	messageSent     = 16

	// HeaderBytes is the size below which a message cannot be verified.
	HeaderBytes = 24
)

// A RunID tells the messages of one run of the producer from those of others and from other data: 40 random bits and 24 bits
// of checksum over them. 0 stands for messages that cannot be verified.
type RunID uint64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func runSum(random uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], random)
	return uint64(crc32.Checksum(b[:], castagnoli) & 0xFFFFFF)
}

func runOf(random uint64) RunID { return RunID(random<<24 | runSum(random)) }

// NewRunID returns a run id that nobody had before.
func NewRunID() RunID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return runOf(binary.BigEndian.Uint64(b[:])&(1<<40-1) | 1)
}

// valid reports whether a producer could have made the id.
func (r RunID) valid() bool { return r != 0 && uint64(r)&0xFFFFFF == runSum(uint64(r)>>24) }

func (r RunID) String() string { return fmt.Sprintf("%016x", uint64(r)) }

// newMessage returns a message of size bytes with everything but sequence and send time.
func newMessage(run RunID, size int) []byte {
	m := make([]byte, size)
	for i := range m {
		m[i] = patternAt(i)
	}
	if size >= HeaderBytes {
		binary.BigEndian.PutUint64(m[messageRun:], uint64(run))
	}
	return m
}

// patternAt is the i-th byte of every message behind the header: readable, and the same in all.
func patternAt(i int) byte { return 'a' + byte(i%26) }

// runIn returns the id of the run that made the message, 0 for other data.
func runIn(m []byte) RunID {
	if len(m) < HeaderBytes {
		return 0
	}
	if run := RunID(binary.BigEndian.Uint64(m[messageRun:])); run.valid() {
		return run
	}
	return 0
}

// intact reports whether the bytes behind the header are what the producer wrote.
func intact(m []byte) bool {
	for i := HeaderBytes; i < len(m); i++ {
		if m[i] != patternAt(i) {
			return false
		}
	}
	return true
}

// LargestRecord is the size of the largest value that fits, alone and without a key, into a batch of maxBatch bytes.
func LargestRecord(maxBatch int) int {
	n := maxBatch - codec.BatchHeaderBytes
	for n > 0 && batchBytes(-1, n, noHeaders) > maxBatch {
		n--
	}
	return n
}

// BatchBytes is the size of a batch that holds one value of n bytes.
func BatchBytes(n int) int { return batchBytes(-1, n, noHeaders) }

// noHeaders is the size of no headers: of their count.
const noHeaders = 1

// headerBytes is the size of headers in a record.
func headerBytes(headers []codec.RecordHeader) int {
	size := varintBytes(len(headers))
	for _, h := range headers {
		size += varintBytes(len(h.Key)) + len(h.Key) + varintBytes(len(h.Value)) + len(h.Value)
	}
	return size
}

// batchBytes is the size of a batch that holds one record with a key of k bytes and a value of n bytes, -1: none, and headers
// of h bytes.
func batchBytes(k, n, h int) int {
	// attributes, timestamp delta, offset delta, key, value, headers
	record := 1 + 1 + 1 + varintBytes(k) + max(k, 0) + varintBytes(n) + max(n, 0) + h
	return codec.BatchHeaderBytes + varintBytes(record) + record
}

// varintBytes is the size of a zigzag varint of a value from -1 on.
func varintBytes(v int) int {
	n := 1
	for v = max(v, 0) << 1; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}
