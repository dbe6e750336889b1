package journal

import (
	"math/bits"
	"time"

	"github.com/lightio/lightq/codec"
)

// metrics is under Log.mu.
type metrics struct {
	groups, batches, bytes        uint64
	syncs                         uint64
	syncTime                      time.Duration
	syncHistogram                 [syncBuckets]uint64
	refusals                      uint64
	allocateErrors, prepareErrors uint64
	sealErrors, indexErrors       uint64
	trimErrors, recycled, trimmed uint64
	indexesRebuilt                uint64
	corruptReads                  uint64
}

// syncBuckets: bucket i counts syncs of less than 2^i times 16 µs, the last one all others.
const syncBuckets = 20

func (m *metrics) groupFormed(g *Group, size int64) {
	m.groups++
	m.batches += uint64(g.Batches)
	m.bytes += uint64(size)
}

func (m *metrics) groupWritten(took time.Duration, synced bool) {
	if synced {
		m.synced(took)
	}
}

func (m *metrics) synced(took time.Duration) {
	m.syncs++
	m.syncTime += took
	m.syncHistogram[min(bits.Len64(uint64(took/(16*time.Microsecond))), syncBuckets-1)]++
}

// Metrics is a picture of a log. Counters count since Open.
type Metrics struct {
	Start, Next, Written, Durable codec.Offset

	Segments     int
	Bytes        int64 // of the kept segments
	SpareBytes   int64 // of trimmed and prepared files
	PendingBytes int64 // appended and not yet written
	InFlight     int   // groups

	Groups, Batches, AppendedBytes uint64
	Syncs                          uint64
	SyncTime                       time.Duration
	// SyncHistogram[i] counts syncs of less than 16 µs × 2^i, the last one all others.
	SyncHistogram  [syncBuckets]uint64
	Refusals       uint64
	Poisoned       bool
	Damages        int    // places that recovery found damaged or missing
	CorruptReads   uint64 // reads that met damage
	IndexesRebuilt uint64
	Trimmed        uint64 // segments
	Recycled       uint64 // of them
	// Failures of work that is not needed for what was promised: reserving blocks, making files ahead, sealing, writing an
	// index, removing files.
	AllocateErrors, PrepareErrors, SealErrors, IndexErrors, TrimErrors uint64
}

// Metrics returns the log's counters.
func (l *Log) Metrics() Metrics {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := Metrics{
		Start: l.start, Next: l.next, Written: l.written, Durable: l.durable, Segments: len(l.segments),
		PendingBytes: l.pendingBytes, InFlight: int(l.flightTail - l.flightHead),
		Groups: l.m.groups, Batches: l.m.batches, AppendedBytes: l.m.bytes, Syncs: l.m.syncs, SyncTime: l.m.syncTime,
		SyncHistogram: l.m.syncHistogram, Refusals: l.m.refusals, Poisoned: l.state == statePoisoned,
		Damages: len(l.report.Damages), CorruptReads: l.m.corruptReads, IndexesRebuilt: l.m.indexesRebuilt,
		Trimmed: l.m.trimmed, Recycled: l.m.recycled, AllocateErrors: l.m.allocateErrors, PrepareErrors: l.m.prepareErrors,
		SealErrors: l.m.sealErrors, IndexErrors: l.m.indexErrors, TrimErrors: l.m.trimErrors,
	}
	for _, seg := range l.segments {
		m.Bytes += seg.size
	}
	for _, sp := range l.spares {
		m.SpareBytes += int64(sp.allocated)
	}
	if l.spare != nil {
		m.SpareBytes += int64(l.spare.allocated)
	}
	return m
}
