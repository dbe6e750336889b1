package idempotence

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lightio/lightq/codec"
)

// A snapshot, big-endian:
//
//	| version, 1 (2) | 0 (2) | producers (4) | producer | producer | …
//	producer: | id (8) | time of the last append (8) | records in a row (8) | batches, 1 to 5 (1) | batch | …
//	batch:    | base offset (8) | first sequence (4) | records (4) | epoch (2) |
//
// Producers stand in the order of their last appends, the longest ago first, and so do the batches of each. The
// records in a row are those of the last epoch, up to the last, that are known to have been appended one behind the other. What may still be taken back counts as appended.
const (
	snapshotVersion     = 1
	snapshotHeaderBytes = 8
	producerBytes       = 25
	batchBytes          = 18
)

// AppendSnapshot appends the state to dst. Equal states have equal bytes.
func (s *State) AppendSnapshot(dst []byte) []byte {
	be := binary.BigEndian
	dst = be.AppendUint16(dst, snapshotVersion)
	dst = be.AppendUint16(dst, 0)
	dst = be.AppendUint32(dst, uint32(len(s.producers)))
	for p := s.all.newer; p != &s.all; p = p.newer {
		dst = be.AppendUint64(dst, uint64(p.id))
		dst = be.AppendUint64(dst, uint64(p.millis))
		dst = be.AppendUint64(dst, uint64(p.followed))
		dst = append(dst, 0)
		count := len(dst) - 1
		for i := range p.slots {
			b := &p.slots[(int(p.newest)+1+i)%Remembered]
			if b.records == 0 {
				continue
			}
			dst[count]++
			dst = be.AppendUint64(dst, uint64(b.base))
			dst = be.AppendUint32(dst, uint32(b.first))
			dst = be.AppendUint32(dst, uint32(b.records))
			dst = be.AppendUint16(dst, uint16(b.epoch))
		}
	}
	return dst
}

// errSnapshot is wrapped by every error of LoadSnapshot.
var errSnapshot = errors.New("idempotence: bad snapshot")

// LoadSnapshot replaces the state with that of a snapshot; nil or empty: an empty one. After an error the state is empty. A snapshot
// of more producers than the limit loses those whose last append is the longest ago.
func (s *State) LoadSnapshot(b []byte) error {
	fresh := New(Options{})
	fresh.limit, fresh.expiryMillis = s.limit, s.expiryMillis
	var err error
	if len(b) > 0 {
		if err = fresh.load(b); err != nil {
			err = fmt.Errorf("%w: %w", errSnapshot, err)
			clear(fresh.producers)
			fresh.all.older, fresh.all.newer, fresh.recent = &fresh.all, &fresh.all, nil
		}
	}
	*s = *fresh
	// The ring's ends point to its root, which has moved.
	if len(s.producers) == 0 {
		s.all.older, s.all.newer = &s.all, &s.all
	} else {
		s.all.older.newer, s.all.newer.older = &s.all, &s.all
	}
	return err
}

func (s *State) load(b []byte) error {
	be := binary.BigEndian
	if len(b) < snapshotHeaderBytes {
		return fmt.Errorf("%d bytes", len(b))
	}
	if v := be.Uint16(b); v != snapshotVersion || be.Uint16(b[2:]) != 0 {
		return fmt.Errorf("version %d is unknown", v)
	}
	count := int64(be.Uint32(b[4:]))
	b = b[snapshotHeaderBytes:]
	if count > int64(len(b)/(producerBytes+batchBytes)) {
		return fmt.Errorf("%d producers in %d bytes", count, len(b))
	}
	newest := codec.Offset(-1)
	for i := range count {
		if len(b) < producerBytes {
			return fmt.Errorf("it ends in producer %d", i)
		}
		p := &producer{id: int64(be.Uint64(b)), millis: int64(be.Uint64(b[8:])), followed: int64(be.Uint64(b[16:]))}
		batches := int(b[24])
		b = b[producerBytes:]
		switch {
		case p.id < 0 || s.producers[p.id] != nil:
			return fmt.Errorf("producer %d has the id %d", i, p.id)
		case p.followed < 1:
			return fmt.Errorf("producer %d has %d records in a row", i, p.followed)
		case batches < 1 || batches > Remembered || len(b) < batches*batchBytes:
			return fmt.Errorf("producer %d has %d batches in %d bytes", i, batches, len(b))
		}
		before := codec.Offset(-1)
		for n := range batches {
			x := batch{
				base: codec.Offset(be.Uint64(b)), first: int32(be.Uint32(b[8:])), records: int32(be.Uint32(b[12:])), epoch: int16(be.Uint16(b[16:])),
			}
			b = b[batchBytes:]
			if x.base <= before || x.first < 0 || x.records < 1 || x.epoch < 0 {
				return fmt.Errorf("batch %d of producer %d is %+v", n, i, x)
			}
			p.slots[n], before = x, x.base
		}
		p.newest = uint8(batches - 1)
		if before <= newest {
			return fmt.Errorf("producer %d is out of order", i)
		}
		newest = before
		if len(s.producers) >= s.limit {
			s.remove(s.all.newer)
		}
		s.add(p)
	}
	if len(b) != 0 {
		return fmt.Errorf("%d bytes behind it", len(b))
	}
	return nil
}
