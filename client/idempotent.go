package client

import (
	"context"
	"math"

	"github.com/lightio/lightq/codec"
)

// maxKept is how many batches of a partition may be unconfirmed with Idempotent: the broker remembers as many of each producer, so
// that whichever of them it gets again, it knows it.
const maxKept = 5

// Idempotent makes the producer number its batches, so that the broker stores each once however often it arrives: see the
// package comment. At most five batches of a partition are unconfirmed at a time, and are kept until they are confirmed.
func Idempotent() ProducerOption {
	return producerOption(func(c *producerConfig) { c.idempotent = true })
}

// An identity is what a broker knows an idempotent producer by.
type identity struct {
	id    int64
	epoch int16
}

func (i identity) of(seq int32) codec.BatchMeta {
	return codec.BatchMeta{ProducerID: i.id, ProducerEpoch: i.epoch, BaseSequence: seq}
}

// nextSequence is the number behind a batch of records: it goes to 0 behind the largest.
func nextSequence(seq int32, records int) int32 {
	return int32((int64(seq) + int64(records)) & math.MaxInt32)
}

// askIdentity asks the broker for an identity that nobody has had.
func (p *Producer) askIdentity(ctx context.Context, l *link) (identity, error) {
	ctx, cancel := p.client.bound(ctx)
	defer cancel()
	header, _, err := l.call(ctx, codec.AppendProducer)
	if err != nil {
		return identity{}, err
	}
	m, err := codec.ParseProducerReply(header)
	return identity{m.ID, m.Epoch}, err
}

// takeIdentity gives the partition another identity, and begins to number anew. Nothing is on its way. On the keeper
// goroutine.
func (w *partition) takeIdentity(ctx context.Context, l *link) error {
	i, err := w.p.askIdentity(ctx, l)
	if err != nil {
		return err
	}
	w.lock()
	w.identity, w.seq, w.renew = i, 0, false
	w.unlock()
	return nil
}

// keep reports whether the oldest batch on its way stays in sent in spite of its result: a broker that is stopping has not
// stored it, and the next one gets it. acct is held.
func (w *partition) keep(code codec.Code) bool {
	if w.refused || w.kept == 0 && code != codec.CodeDraining || w.p.client.again.never {
		return false
	}
	w.unconfirmed -= w.sent[(w.head+w.kept)&(len(w.sent)-1)].bytes
	w.kept++
	w.shut = true
	if w.p.leaving == nil {
		w.p.leaving = codec.Errorf(codec.CodeDraining, "the broker is stopping")
	}
	return true
}

// giveBack decides, after the first refusal, how the batches behind s are numbered. Where it is certain that s is not stored,
// the next one gets its number. Otherwise they get another identity: under the old one the broker could take the next
// batch for s. acct is held.
func (w *partition) giveBack(s *sentBatch) {
	switch s.code {
	case codec.CodeBadBatch, codec.CodeBatchTooLarge, codec.CodeOverflow, codec.CodeNoSpace, codec.CodeQuota, codec.CodePaused,
		codec.CodeStorage, codec.CodeNotAllowed, codec.CodeTopicDeleted, codec.CodeDraining, codec.CodeStaleEpoch:
		if !s.resent {
			w.seq = s.seq
			return
		}
	}
	w.renew = true
}

// again sends the oldest batch that this connection has not carried yet, byte for byte. Both locks are held on entry and on
// return, but not in between; writable must hold, and resend be above 0.
func (w *partition) again() {
	s := &w.sent[(w.head+w.count-w.resend)&(len(w.sent)-1)]
	buf, l := s.buf, w.link
	m := codec.Publish{Epoch: w.epoch, First: w.nextSend, Count: 1}
	s.resent = true
	w.resend--
	w.nextSend++
	w.unconfirmed += s.bytes
	w.account()
	w.busy, w.writing = true, &buf[0]
	w.unlock()
	codec.AppendPublish(buf[:0], w.handle, m, len(buf)-publishOverhead)
	_ = l.write(buf) // its error reaches everybody through the reader
	w.lock()
	w.wrote(buf)
}
