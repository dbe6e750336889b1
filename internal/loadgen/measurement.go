package loadgen

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/lightio/lightq/codec"
)

// A Measurement is one run of lightq-consumer: a receiver for each partition, and the rule for the end. It is over when one
// run of a producer has finished in every partition: complete, or with its last message there and others lost. For a member
// of a group it is over when what was wanted of a run has come, from whichever partitions.
type Measurement struct {
	topic     string
	group     string // empty: everything comes to this one
	want      int64  // messages of each partition
	started   time.Time
	receivers []*Receiver
	end       func()
	skipped   func(partition int, id RunID, n int64)

	over atomic.Bool

	mu       sync.Mutex
	finished map[RunID][]bool // by position in receivers
	winner   RunID            // valid when over
	shared   map[RunID]int64  // of a member of a group: messages received, and dropped before anybody read them
}

// NewMeasurement returns a measurement of want messages from each partition of a topic. end is called once, when it is over.
// skipped is called when the first messages of a run were sent before the start of the subscription and read by others, so
// that this run can never be complete. Both may be called from any goroutine, and must not call the measurement.
func NewMeasurement(topic string, want int64, end func(), skipped func(partition int, id RunID, n int64)) *Measurement {
	return &Measurement{topic: topic, want: want, started: time.Now(), end: end, skipped: skipped, finished: map[RunID][]bool{}}
}

// Share makes it the measurement of a member of a group. It is called before the first Receiver.
func (m *Measurement) Share(group string) {
	m.group, m.shared = group, map[RunID]int64{}
}

// Receiver adds a receiver for one partition. start is the first offset that is kept, begin the one at which the subscription
// starts, droppedUnread the number of records before that which nobody had read when they were dropped. All receivers are
// added before the first of them runs.
func (m *Measurement) Receiver(partition int, start, begin codec.Offset, droppedUnread int64) *Receiver {
	r := &Receiver{partition: partition, want: m.want, m: m, runs: map[RunID]*run{}}
	r.begin, r.kept = begin, int64(begin-start)
	r.gap = min(droppedUnread, int64(begin))
	r.unseen = int64(begin) - r.gap
	r.dropped.Store(r.gap)
	m.receivers = append(m.receivers, r)
	return r
}

// Over reports whether everything that is wanted was received or counted as a gap. It may be called from any goroutine.
func (m *Measurement) Over() bool { return m.over.Load() }

// Received is how many messages have come, of the runs last seen. It may be called from any goroutine.
func (m *Measurement) Received() int64 {
	var n int64
	for _, r := range m.receivers {
		n += r.received.Load()
	}
	return n
}

// Gap is how many records were told to be dropped, before and during the measurement. It may be called from any goroutine.
func (m *Measurement) Gap() int64 {
	var n int64
	for _, r := range m.receivers {
		n += r.dropped.Load()
	}
	return n
}

// finish notes that a run has finished in a partition.
func (m *Measurement) finish(partition int, id RunID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over.Load() {
		return
	}
	done := m.finished[id]
	if done == nil {
		done = make([]bool, len(m.receivers))
		m.finished[id] = done
	}
	all := true
	for i, r := range m.receivers {
		if r.partition == partition {
			done[i] = true
		}
		all = all && done[i]
	}
	if all {
		m.winner = id
		m.over.Store(true)
		m.end()
	}
}

// count adds up what has come of a run to a member of a group, in all partitions.
func (m *Measurement) count(t *run) {
	all := t.received + t.gap
	if all == t.counted {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shared[t.id] += all - t.counted
	t.counted = all
	if n := int64(len(m.receivers)); !m.over.Load() && m.shared[t.id]/n >= m.want { // want * n might not fit
		m.winner = t.id
		m.over.Store(true)
		m.end()
	}
	for len(m.shared) > maxRuns*len(m.receivers) {
		least := t.id
		for id, n := range m.shared {
			if id != t.id && (least == t.id || n < m.shared[least]) {
				least = id
			}
		}
		delete(m.shared, least)
	}
}

func (m *Measurement) skip(partition int, id RunID, n int64) {
	if m.skipped != nil {
		m.skipped(partition, id, n)
	}
}

// measured is the run to report: the one that ended the measurement, else the one of which most was received.
func (m *Measurement) measured() RunID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over.Load() {
		return m.winner
	}
	received := map[RunID]int64{}
	var most RunID
	for _, r := range m.receivers {
		for id, t := range r.runs {
			received[id] += t.received
		}
	}
	for id, n := range received {
		if n > received[most] {
			most = id
		}
	}
	return most
}

// Report returns what was measured, after all receivers have returned.
func (m *Measurement) Report() *ConsumerReport {
	id := m.measured()
	rep := &ConsumerReport{
		Program: "lightq-consumer", Topic: m.topic, Group: m.group, StartedNS: m.started.UnixNano(), Verification: "on",
		wanted: m.want,
	}
	if id == 0 {
		rep.Verification = "off"
	} else {
		rep.RunID = id.String()
		if m.group != "" {
			rep.Verification = "order"
		}
	}
	latency := hdrhistogram.New(1, maxLatencyNS, 3)
	total := &rep.Total
	var first, last int64
	for _, r := range m.receivers {
		rep.Ignored += r.others
		for other, t := range r.runs {
			if other != id {
				rep.Ignored += t.received + t.duplicate
			}
		}
		t := r.runs[id]
		if t == nil {
			t = &run{id: id}
		}
		p := t.report(m.topic, r.partition, m.group != "")
		if t.latency != nil {
			latency.Merge(t.latency)
		}
		rep.Partitions = append(rep.Partitions, p)
		total.add(p.Counts)
		if t.received > 0 {
			if first == 0 || t.firstReceivedNS < first {
				first = t.firstReceivedNS
			}
			last = max(last, t.lastReceivedNS)
		}
	}
	total.figure(last - first)
	rep.Latency = latencyOf(latency)
	return rep
}

func (t *run) report(topic string, partition int, shared bool) ConsumerPartition {
	p := ConsumerPartition{
		Label: Label(topic, partition), Partition: partition,
		FirstSentNS: t.firstSentNS, FirstReceivedNS: t.firstReceivedNS, LastReceivedNS: t.lastReceivedNS,
		FromStart: t.fromStart, Skipped: t.skipped, Again: t.again,
		Counts: Counts{Received: t.received, Bytes: t.bytes, Gap: t.gap},
	}
	p.figure(t.lastReceivedNS - t.firstReceivedNS)
	if t.id == 0 {
		return p
	}
	p.OutOfOrder = &t.outOfOrder
	if !shared {
		lost := t.missing.count()
		p.Lost, p.Duplicate = &lost, &t.duplicate
	}
	if t.received > 0 {
		first := float64(t.firstReceivedNS-t.firstSentNS) / 1e3
		each := float64(t.lastReceivedNS-t.firstSentNS) / float64(t.received)
		p.FirstLatencyUS, p.NSPerMessage = &first, &each
	}
	return p
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	return Latency{
		Count: h.TotalCount(),
		P50:   us(h.ValueAtPercentile(50)), P90: us(h.ValueAtPercentile(90)), P99: us(h.ValueAtPercentile(99)),
		P999: us(h.ValueAtPercentile(99.9)), Max: us(h.Max()),
	}
}
