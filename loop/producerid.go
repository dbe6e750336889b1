package loop

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/lightio/lightq/codec"
)

// producerIDBlock is how many identities are reserved at a time.
const producerIDBlock = 1000

// producerIDs hands out the identities of idempotent producers, each one once. Blocks of them come from reserve; without it,
// where nothing outlives the process, they begin at a random number, so that a client which comes back to a broker that was
// started anew is not taken for another one.
type producerIDs struct {
	reserve func(n int64) (first int64, err error)

	mu   sync.Mutex
	left int64
	id   int64
}

func (p *producerIDs) next() (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		first, err := p.block()
		if err != nil {
			return 0, err
		}
		p.id, p.left = first, producerIDBlock
	}
	id := p.id
	p.id++
	p.left--
	return id, nil
}

func (p *producerIDs) block() (int64, error) {
	if p.reserve != nil {
		first, err := p.reserve(producerIDBlock)
		if err != nil {
			return 0, codec.Errorf(codec.CodeStorage, "a producer's identity cannot be reserved: %s", err)
		}
		return first, nil
	}
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, err
	}
	// Below 2^62, and a multiple of the block: two random blocks are one or do not meet.
	return int64(binary.BigEndian.Uint64(b[:])>>2) / producerIDBlock * producerIDBlock, nil
}
