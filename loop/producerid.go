package loop

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/lightio/lightq/codec"
)

// producerID returns the identity of an idempotent producer that no other one is given. Without a data directory, where nothing
// outlives the process, it is a random number, so that a client which comes back to a broker that was started anew is not taken
// for another one.
func (b *Broker) producerID() (int64, error) {
	id, ok, err := b.topics.ReserveProducerIDs(1)
	if err != nil {
		return 0, codec.Errorf(codec.CodeStorage, "the identity of a producer cannot be reserved: %s", err)
	}
	if ok {
		return id, nil
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(random[:]) >> 1), nil
}
