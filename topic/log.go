package topic

import (
	"errors"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
)

// This file connects a partition with its log: what was appended goes to it, its progress comes back, and so does what
// memory does not hold any more.

// openLog opens the partition's log and takes over its state.
func (f *files) openLog(p *Partition, s codec.TopicSettings) error {
	c := &p.core
	producers := c.sequences()
	opts := journal.Options{
		Topic: journal.TopicID(p.topic.id), Partition: uint32(p.index),
		Sync: journal.SyncAlways, Interval: time.Duration(s.SyncMillis) * time.Millisecond,
		SegmentBytes: int64(s.SegmentBytes),
		// The ring holds what is not written, so it is the bound.
		MaxPendingBytes: int64(s.RingBytes) + int64(s.MaxBatchBytes),
		Syncers:         f.syncers, Readers: f.readers,
		OnProgress: p.progress,
		Snapshot:   producers.appendSnapshot,
		OnSnapshot: func(b []byte) error {
			if len(b) == 0 {
				return nil
			}
			if err := producers.load(b); err != nil {
				f.cfg.Log.Error("what idempotent producers had sent is lost", "topic", p.topic.name, "partition", p.index, "err", err)
			}
			return nil
		},
		OnReplay: func(b codec.Batch, appended int64) {
			if b.ProducerID() >= 0 {
				producers.replay(b, appended)
			}
		},
	}
	opts.RetentionBytes, opts.RetentionTime = retention(s)
	switch s.Sync {
	case codec.SyncInterval:
		opts.Sync = journal.SyncInterval
	case codec.SyncOS:
		opts.Sync = journal.SyncOS
	}
	// Progress waits for the lock until the partition knows its log.
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := journal.Open(f.cfg.FS, f.catalogue.PartitionDir(p.topic.id, uint32(p.index)), opts)
	if err != nil {
		return diskError("open the files of topic "+p.topic.name, err)
	}
	f.report(p, log.Report())
	p.log = log
	c.filed = true
	c.start, c.next = log.Start(), log.Next()
	c.sent, c.written, c.durable, c.high = c.next, c.next, c.next, c.next
	switch {
	case s.Storage == codec.StorageQueueFile:
		c.visible = whenAppended
		c.loss = max(int64(s.SyncMillis)*lossFactor, minLossMillis)
	case s.Sync == codec.SyncAlways:
		c.visible = whenDurable
	default:
		c.visible = whenWritten
	}
	return nil
}

const (
	// lossFactor is how many sync intervals the oldest record of a queue_file topic may wait for the disk before its overflow
	// applies.
	lossFactor = 10
	// minLossMillis is the least that it may wait: a disk that hiccups is no reason to refuse.
	minLossMillis = 1000
)

func retention(s codec.TopicSettings) (bytes int64, age time.Duration) {
	if s.RetentionBytes != codec.RetentionUnlimited {
		bytes = int64(min(s.RetentionBytes, 1<<62))
	}
	if s.RetentionMillis != codec.RetentionUnlimited {
		age = time.Duration(min(s.RetentionMillis, 1<<62/uint64(time.Millisecond))) * time.Millisecond
	}
	return bytes, age
}

// report logs what opening a log has found.
func (f *files) report(p *Partition, r journal.Report) {
	log := f.cfg.Log.With("topic", p.topic.name, "partition", p.index)
	for _, c := range r.Cuts {
		log.Warn("torn tail cut", "path", c.Path, "position", int64(c.Position), "offset", int64(c.Offset), "bytes", c.Bytes, "reason", c.Reason)
	}
	for i, d := range r.Damages {
		if i == maxDamageLines {
			log.Error("more damage", "places", r.DamageCount-i)
			break
		}
		log.Error("damage", "path", d.Path, "position", int64(d.Position), "offset", int64(d.Offset), "next", int64(d.Next), "reason", d.Reason)
	}
	if r.ForeignCount > 0 {
		log.Warn("names that are not part of the log were left alone", "count", r.ForeignCount, "first", r.Foreign[0])
	}
	if !r.Clean && r.Scanned > 0 {
		log.Info("recovered", "scanned_bytes", r.Scanned, "took", r.Took.Round(time.Millisecond).String())
	}
}

// maxDamageLines bounds the lines about one log.
const maxDamageLines = 8

// appendToLog hands what was appended to the log. Called with mu held.
func (p *Partition) appendToLog() {
	c := &p.core
	if c.refusing || c.state == codec.PartitionPoisoned {
		return
	}
	if err := p.declareGap(); err != nil {
		p.notAppended(err)
		return
	}
	first := c.ring.end
	for first > c.ring.first && c.ring.at(first-1).base >= c.sent {
		first--
	}
	list := p.batches[:0]
	for seq := first; seq < c.ring.end; seq++ {
		list = append(list, c.ring.at(seq).bytes)
	}
	err := p.log.Append(list)
	clear(list)
	p.batches = list[:0]
	if cap(list) > 4096 {
		p.batches = nil
	}
	if err != nil {
		p.notAppended(err)
		return
	}
	c.sent = c.next
	c.advance()
}

// declareGap declares the offsets that may have been given out before a restart and are lost, where the log does not have that yet. Called
// with mu held.
func (p *Partition) declareGap() error {
	c := &p.core
	if c.sent >= c.begun {
		return nil
	}
	err := p.log.AppendGap(c.sent, c.begun)
	if err == nil {
		c.sent = c.begun
	}
	return err
}

// notAppended does what follows from an append that the log has not taken. Called with mu held.
func (p *Partition) notAppended(err error) {
	c := &p.core
	var refused *journal.RefusedError
	switch {
	case errors.As(err, &refused):
		c.refused(c.sent, false)
	case errors.Is(err, journal.ErrPoisoned):
		c.state = codec.PartitionPoisoned
		c.takeBack(max(c.sent, c.high), codec.CodeOutcomeUnknown) // what is visible stays, though the log may have refused it
	case errors.Is(err, journal.ErrClosed):
		code := codec.CodeDraining
		if c.deleted {
			code = codec.CodeTopicDeleted
		}
		c.takeBack(max(c.sent, c.high), code)
	default: // busy: progress tries again
	}
}

// progress is the log's event.
func (p *Partition) progress(pr journal.Progress) {
	p.enter(time.Now().UnixMilli())
	c := &p.core
	was := c.state
	more := pr.Written > c.written
	if c.settings.RetentionBytes != codec.RetentionUnlimited {
		c.start = max(c.start, p.startOfLog()) // retention by bytes is applied when a segment is sealed
	}
	c.completed(pr.Written, pr.Durable)
	if more && len(c.troubled) > 0 {
		c.retryReads() // what was not there yet may be
	}
	if pr.Refused != nil {
		// The log takes appends again before it has told so, and what it took stays: its next offset is From, or above it.
		c.refused(p.log.Next(), true)
		if c.healsAt = pr.Refused.From; c.written > c.healsAt {
			c.state = codec.PartitionOK
		}
		if was == codec.PartitionOK {
			p.files.cfg.Log.Error("no space: publishes are refused until a write finds room", "topic", p.topic.name, "partition", p.index,
				"offset", int64(pr.Refused.From), "err", pr.Refused.Err)
		}
	}
	if pr.Err != nil {
		if !p.told {
			p.told = true
			p.files.cfg.Log.Error("partition poisoned: nothing is taken until the broker is started again", "topic", p.topic.name,
				"partition", p.index, "offset", int64(pr.Err.From), "err", pr.Err.Err)
		}
		c.poisoned()
	}
	if was == codec.PartitionNoSpace && c.state == codec.PartitionOK {
		p.files.cfg.Log.Info("there is space again", "topic", p.topic.name, "partition", p.index)
	}
	if pr.Refused == nil {
		p.store() // what the log had no room for
	}
	p.goOn()
	p.leave()
}

// startOfLog is the log's start. The progress without which it would lie above high may not have come yet. Called with mu held.
func (p *Partition) startOfLog() codec.Offset {
	start := p.log.Start()
	p.core.completed(p.log.Written(), p.log.Durable())
	return start
}

// tickLog does what time brings about. Called with mu held.
func (p *Partition) tickLog() {
	c := &p.core
	if c.retains() {
		p.log.Retain()
	}
	c.start = max(c.start, p.startOfLog())
	p.store()
}

// carryOut begins what the core has asked for. Called with mu held.
func (p *Partition) carryOut(out *effects) {
	for _, r := range out.reads {
		if d := r.place().cold; d != nil && d.reading {
			p.startRead(r, d)
		}
	}
	clear(out.reads)
	out.reads = shrink(out.reads)
	if out.reserve != 0 {
		p.files.reserve(p, out.reserve)
		out.reserve = 0
	}
}

// A coldRead is a read of the files for one position.
type coldRead struct {
	journal.Read
	part *Partition
	who  reader
	cold *cold
	slab *codec.Slab
}

// startRead queues the next read of a position. Called with mu held.
func (p *Partition) startRead(r reader, d *cold) {
	c := &p.core
	if d.read == nil {
		d.read = &coldRead{part: p, who: r, cold: d}
		d.read.Done = d.read.done
	}
	rd := d.read
	size := max(coldBytes, d.need)
	d.need = 0
	rd.slab = p.files.cfg.Slabs.TryGet(size)
	if rd.slab == nil { // the broker's memory is short
		c.coldRead(r, d, nil, codec.Gap{}, true)
		return
	}
	rd.Offset, rd.Limit, rd.Buf = d.next, min(c.high, c.floor()), rd.slab.Bytes()[:size]
	if err := p.log.Read(&rd.Read); err != nil {
		rd.slab.Release()
		c.coldRead(r, d, nil, codec.Gap{}, true)
	}
}

// done takes what was read. It runs on a goroutine of the readers.
func (rd *coldRead) done(*journal.Read) {
	p, d := rd.part, rd.cold
	var (
		ranged *journal.RangeError
		gap    *journal.GapError
		bad    *journal.CorruptionError
		short  *journal.ShortBufferError
		list   []entry
		told   codec.Gap
		failed bool
	)
	switch {
	case rd.Err == nil:
		list = rd.entries()
	case errors.As(rd.Err, &gap):
		told = codec.Gap{From: rd.Offset, Next: gap.Next, Reason: codec.GapDamaged}
		if gap.Declared {
			told.Reason = codec.GapDeclared
		}
	case errors.As(rd.Err, &bad):
		told = codec.Gap{From: max(bad.Offset, rd.Offset), Next: bad.Next, Reason: codec.GapDamaged}
		p.files.cfg.Log.Error("damage", "topic", p.topic.name, "partition", p.index, "path", bad.Path, "position", int64(bad.Position),
			"offset", int64(bad.Offset), "next", int64(bad.Next), "reason", bad.Reason)
	case errors.As(rd.Err, &ranged), errors.Is(rd.Err, journal.ErrClosed):
	case errors.As(rd.Err, &short) && short.Need <= codec.MaxSlabBytes: // more was never taken: a forged file
	default:
		failed = true
		if p.files.readErrors.allow() {
			p.files.cfg.Log.Error("read failed, it is tried again", "topic", p.topic.name, "partition", p.index, "err", rd.Err)
		}
	}
	p.enter(time.Now().UnixMilli())
	c := &p.core
	switch {
	case short != nil && !failed && rd.who.place().cold == d:
		d.need = short.Need
		rd.slab.Release()
		p.startRead(rd.who, d)
		p.leave()
		return
	case ranged != nil && ranged.Offset < ranged.Start: // above the end is what the log has not got yet: the next tick tries again
		c.start = max(c.start, p.startOfLog())
		c.coldMoved(rd.who, d)
	default:
		c.coldRead(rd.who, d, list, told, failed)
	}
	rd.slab.Release()
	p.goOn()
	p.leave()
}

// entries cuts what was read into batches, each with a reference to the slab.
func (rd *coldRead) entries() []entry {
	var list []entry
	for b := rd.Data; len(b) > 0; {
		batch, rest, err := codec.NextBatch(b)
		if err != nil {
			break // it was verified
		}
		rd.slab.Retain()
		list = append(list, entry{base: batch.BaseOffset(), next: batch.NextOffset(), appendMillis: rd.Time, bytes: batch, slab: rd.slab, taken: true})
		b = rest
	}
	return list
}

// A TimeLookup is told the offset at which to begin for a time.
type TimeLookup func(begin codec.Offset, err error)

// Since finds the first batch that holds a record as young as a time, in milliseconds since the Unix epoch. done is called once,
// from any goroutine, maybe before Since returns.
func (p *Partition) Since(millis int64, done TimeLookup) {
	if p.log == nil {
		p.mu.Lock()
		begin := p.core.since(millis)
		p.mu.Unlock()
		done(begin, nil)
		return
	}
	q := &journal.Lookup{Time: millis, Record: true}
	q.Done = func(q *journal.Lookup) {
		if q.Err != nil {
			done(0, diskError("look up a time", q.Err))
			return
		}
		p.mu.Lock()
		begin := min(q.Offset, p.core.high)
		p.mu.Unlock()
		done(begin, nil)
	}
	if err := p.log.Lookup(q); err != nil {
		done(0, diskError("look up a time", err))
	}
}

// purgeLog drops what the files hold.
func (p *Partition) purgeLog(nowMillis int64) (uint64, error) {
	if err := p.log.Purge(); err != nil {
		return 0, diskError("purge topic "+p.topic.name, err)
	}
	p.enter(nowMillis)
	n := p.core.purgedTo(p.startOfLog())
	p.goOn()
	p.leave()
	return n, nil
}

// closeLog closes the log, which writes and syncs what was appended, and then refuses with a code what it has not completed.
func (p *Partition) closeLog(code codec.Code) error {
	err := p.log.Close()
	p.enter(time.Now().UnixMilli())
	p.core.clear(code)
	p.leave()
	return err
}

// logInfo adds what is known of the files. Called with mu held.
func (p *Partition) logInfo(info *codec.PartitionInfo) {
	m := p.log.Metrics()
	info.Start = max(info.Start, min(p.log.Start(), info.High)) // retention is no progress, so it has not been told yet
	info.Durable, info.JournalBytes, info.Segments = p.core.durable, uint64(max(m.Bytes, 0)), uint32(m.Segments)
	info.State, info.Damaged = p.core.state, uint32(m.Damages)
	if info.State == codec.PartitionOK && p.files.full.Load() {
		info.State = codec.PartitionNoSpace // it would refuse all the same
	}
}
