package journal

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// The benchmarks write to LIGHTQ_BENCH_DIR, the temporary directory if it is not set: it must be on the disk that is to be measured.
func benchDir(b *testing.B) string {
	dir := os.Getenv("LIGHTQ_BENCH_DIR")
	if dir == "" {
		return b.TempDir()
	}
	dir, err := os.MkdirTemp(dir, "journal-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover is seen
	return dir
}

// benchBatch returns a batch of about size bytes of records of 100 bytes each.
func benchBatch(size int) []byte {
	var w codec.BatchBuilder
	w.Reset(nil, size)
	value := make([]byte, 100)
	for w.AddValue(1_700_000_000_000, value) {
	}
	return w.Finish(codec.NoProducer)
}

// window lets a benchmark append while at most a number of bytes is not durable.
type window struct {
	mu   sync.Mutex
	cond sync.Cond
	done codec.Offset
	err  error
}

func (w *window) progress(p Progress) {
	w.mu.Lock()
	w.done = p.Durable
	if p.Err != nil {
		w.err = p.Err
	}
	if p.Refused != nil {
		w.err = p.Refused
	}
	w.mu.Unlock()
	w.cond.Broadcast()
}

func (w *window) wait(to codec.Offset) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.done < to && w.err == nil {
		w.cond.Wait()
	}
	return w.err
}

// BenchmarkFull appends batches of 100 byte records with sync=always and 4 MiB in flight. Between its slices, in the same run, the machine's limit:
// serial append and fdatasync of 1 MiB blocks on fallocated blocks. Disks change their mind from second to second, so the ratio is the
// median of those of neighbouring slices; the figures beside it are medians too.
func BenchmarkFull(b *testing.B) {
	const count, slice = 9, 96 << 20
	for _, recycled := range []bool{false, true} {
		for _, size := range []int{64 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("recycled=%v/batch=%d", recycled, size), func(b *testing.B) {
				dir := benchDir(b)
				b.SetBytes(count * slice)
				b.ReportAllocs()
				var ours, limits, ratios []float64
				var perGroup, perBatch float64
				for b.Loop() {
					b.StopTimer()
					f := openFull(b, filepath.Join(dir, "log"), size, recycled)
					before := f.l.Metrics()
					for range count {
						serial := slice / serialLimit(b, filepath.Join(dir, "limit"), slice).Seconds()
						b.StartTimer()
						began := time.Now()
						f.run(b, slice)
						journal := slice / time.Since(began).Seconds()
						b.StopTimer()
						ours, limits, ratios = append(ours, journal), append(limits, serial), append(ratios, journal/serial)
					}
					m := f.l.Metrics()
					perGroup = float64(m.AppendedBytes-before.AppendedBytes) / float64(m.Groups-before.Groups)
					perBatch = float64(m.Batches-before.Batches) / float64(m.Groups-before.Groups)
					f.close(b)
					b.StartTimer()
				}
				b.ReportMetric(median(ours)/1e6, "journal-MB/s")
				b.ReportMetric(median(limits)/1e6, "serial-MB/s")
				b.ReportMetric(median(ratios), "ratio")
				b.ReportMetric(perGroup/1024, "KiB/group")
				b.ReportMetric(perBatch, "batches/group")
			})
		}
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func serialLimit(b *testing.B, name string, total int64) time.Duration {
	f, err := (vfs.OS{}).Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.Remove(name) }() // it is only a benchmark
	defer func() { _ = f.Close() }()       // it is only a benchmark
	if err := f.Allocate(0, total); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7)
	}
	began := time.Now()
	for off := int64(0); off < total; off += int64(len(block)) {
		if err := f.WriteAt([][]byte{block}, off); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// fullLog is a log that is appended to with 4 MiB in flight.
type fullLog struct {
	l    *Log
	w    *window
	sy   *Syncers
	dir  string
	ring [][]byte
	ends []codec.Offset
	next codec.Offset
	i    int
}

func openFull(b *testing.B, dir string, size int, recycled bool) *fullLog {
	const inFlight = 4 << 20
	f := &fullLog{w: &window{}, sy: NewSyncers(0), dir: dir, ring: make([][]byte, inFlight/size), ends: make([]codec.Offset, inFlight/size)}
	f.w.cond.L = &f.w.mu
	opts := Options{Syncers: f.sy, OnProgress: f.w.progress, SegmentBytes: 64 << 20}
	if recycled {
		opts.RetentionBytes = 128 << 20
	}
	var err error
	if f.l, err = Open(vfs.OS{}, dir, opts); err != nil {
		b.Fatal(err)
	}
	for i := range f.ring {
		f.ring[i] = benchBatch(size)
	}
	if recycled {
		f.run(b, 6*64<<20) // until every segment to come is one that was trimmed
	}
	return f
}

func (f *fullLog) close(b *testing.B) {
	if err := f.l.Close(); err != nil {
		b.Fatal(err)
	}
	f.sy.Close()
	if err := Delete(vfs.OS{}, f.dir); err != nil {
		b.Fatal(err)
	}
}

// run appends total bytes and waits until they are durable.
func (f *fullLog) run(b *testing.B, total int64) {
	one := make([][]byte, 1)
	for sent := int64(0); sent < total; f.i++ {
		s := f.i % len(f.ring)
		if err := f.w.wait(f.ends[s]); err != nil {
			b.Fatal(err)
		}
		batch := codec.Batch(f.ring[s])
		batch.SetBase(f.next, 0)
		f.next = batch.NextOffset()
		f.ends[s] = f.next
		one[0] = batch
		if err := f.l.Append(one); err != nil {
			b.Fatal(err)
		}
		sent += int64(len(batch))
	}
	if err := f.w.wait(f.next); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkOne appends one small batch at a time and waits for it, beside a bare 4 KiB write with its sync on fallocated blocks.
func BenchmarkOne(b *testing.B) {
	b.Run("what=journal", func(b *testing.B) {
		sy := NewSyncers(0)
		defer sy.Close()
		w := &window{}
		w.cond.L = &w.mu
		l, err := Open(vfs.OS{}, filepath.Join(benchDir(b), "log"), Options{Syncers: sy, OnProgress: w.progress})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = l.Close() }() // it is only a benchmark
		batch := codec.Batch(makeBatch(0, 1, 100, 1, codec.NoProducer))
		next := l.Next()
		one := [][]byte{batch}
		b.ReportAllocs()
		for b.Loop() {
			batch.SetBase(next, 0)
			next++
			if err := l.Append(one); err != nil {
				b.Fatal(err)
			}
			if err := w.wait(next); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, dsync := range []bool{false, true} {
		b.Run(fmt.Sprintf("what=bare/dsync=%v", dsync), func(b *testing.B) {
			f, err := (vfs.OS{}).Create(filepath.Join(benchDir(b), "bare"))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = f.Close() }() // it is only a benchmark
			if err := f.Allocate(0, 1<<30); err != nil {
				b.Fatal(err)
			}
			block := make([]byte, 4096)
			bufs := [][]byte{block}
			off := int64(0)
			for b.Loop() {
				if dsync {
					err = f.WriteSync(bufs, off)
				} else if err = f.WriteAt(bufs, off); err == nil {
					err = f.Sync()
				}
				if err != nil {
					b.Fatal(err)
				}
				off += 4096
			}
		})
	}
}

// BenchmarkPaced appends one batch of one record every 100 µs, whether or not the ones before are durable, and reports how long each takes
// to be: what of the latency of a topic in files is the log's.
func BenchmarkPaced(b *testing.B) {
	const every = 100 * time.Microsecond
	sy := NewSyncers(0)
	defer sy.Close()
	var mu sync.Mutex
	told := sync.Cond{L: &mu}
	var appended []time.Time
	var took []float64
	l, err := Open(vfs.OS{}, filepath.Join(benchDir(b), "log"), Options{Syncers: sy, OnProgress: func(p Progress) {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		for n := codec.Offset(len(took)); n < p.Durable; n++ {
			took = append(took, float64(now.Sub(appended[n]).Nanoseconds())/1e3)
		}
		if p.Err != nil || p.Refused != nil {
			b.Errorf("%+v", p)
		}
		told.Signal()
	}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it is only a benchmark
	batches := make([][]byte, b.N)
	for i := range batches {
		batches[i] = makeBatch(codec.Offset(i), 1, 100, 1, codec.NoProducer)
	}
	pace := time.NewTicker(every)
	defer pace.Stop()
	b.ResetTimer()
	for i := range batches {
		<-pace.C
		mu.Lock()
		appended = append(appended, time.Now())
		mu.Unlock()
		if err := l.Append(batches[i : i+1]); err != nil {
			b.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for len(took) < b.N && !b.Failed() {
		told.Wait()
	}
	b.StopTimer()
	m := l.Metrics()
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "p50-µs")
	b.ReportMetric(took[len(took)*99/100], "p99-µs")
	b.ReportMetric(float64(m.SyncTime.Microseconds())/float64(m.Syncs), "sync-µs")
	b.ReportMetric(float64(m.Batches)/float64(m.Syncs), "batches/sync")
}

// BenchmarkShare has many appenders with one batch in flight each: they share syncs.
func BenchmarkShare(b *testing.B) {
	for _, appenders := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprintf("appenders=%d", appenders), func(b *testing.B) {
			sy := NewSyncers(0)
			defer sy.Close()
			w := &window{}
			w.cond.L = &w.mu
			l, err := Open(vfs.OS{}, filepath.Join(benchDir(b), "log"), Options{Syncers: sy, OnProgress: w.progress})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }() // it is only a benchmark
			share(b, l, w, appenders, b.N)
			m := l.Metrics()
			b.ReportMetric(float64(m.Batches)/float64(m.Syncs), "batches/sync")
			b.ReportMetric(float64(m.Batches)/b.Elapsed().Seconds(), "batches/s")
		})
	}
}

// share appends n batches such that each appender's next one follows when its last is durable: a batch may be appended once the one
// that came appenders before it is durable.
func share(tb testing.TB, l *Log, w *window, appenders, n int) {
	batches := make([][]byte, appenders)
	for i := range batches {
		batches[i] = makeBatch(0, 1, 100, 1, codec.NoProducer)
	}
	first := l.Next()
	one := make([][]byte, 1)
	for i := range n {
		if i >= appenders {
			if err := w.wait(first + codec.Offset(i-appenders+1)); err != nil {
				tb.Fatal(err)
			}
		}
		one[0] = batches[i%appenders]
		codec.Batch(one[0]).SetBase(first+codec.Offset(i), 0)
		if err := l.Append(one); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.wait(first + codec.Offset(n)); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkIdle is a broker's start and end with many partitions of which nobody uses most: logs of ten small batches each are made, closed,
// opened, and opened after a crash. It reports what each step takes for one log, the memory of a log that is open and idle, and its space
// on the disk.
func BenchmarkIdle(b *testing.B) {
	const logs = 1000 // 10,000 take ten times as long and show the same
	for b.Loop() {
		dir := filepath.Join(benchDir(b), "data")
		p := newPools(b)
		open := func(report string) (list []*Log) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			goroutines := runtime.NumGoroutine()
			began := time.Now()
			for i := range logs {
				opts := testOptions(p)
				opts.OnSnapshot = func([]byte) error { return nil }
				opts.OnReplay = func(codec.Batch, int64) {}
				l, err := Open(vfs.OS{}, fmt.Sprintf("%s/t/%d", dir, i), opts)
				if err != nil {
					b.Fatal(err)
				}
				list = append(list, l)
			}
			b.ReportMetric(float64(time.Since(began).Microseconds())/logs, "µs/"+report)
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/logs, "B/"+report)
			if n := runtime.NumGoroutine(); n > goroutines {
				b.Errorf("%d logs have %d goroutines", logs, n-goroutines)
			}
			return list
		}
		all := func(list []*Log, f func(*Log) error) time.Duration {
			began := time.Now()
			var wg sync.WaitGroup
			for part := range 16 {
				wg.Go(func() {
					for i := part; i < len(list); i += 16 {
						if err := f(list[i]); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			return time.Since(began)
		}
		write := func(l *Log) error {
			for range 10 {
				if err := l.Append([][]byte{makeBatch(l.Next(), 1, 100, 1, codec.NoProducer)}); err != nil {
					return err
				}
			}
			return nil
		}
		closeAll := func(list []*Log, report string) {
			b.ReportMetric(float64(all(list, (*Log).Close).Microseconds())/logs, "µs/"+report)
		}
		list := open("new")
		all(list, write)
		closeAll(list, "close")
		var blocks int64
		if err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				var st unix.Stat_t
				err = unix.Stat(name, &st)
				blocks += st.Blocks
			}
			return err
		}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(blocks*512)/logs, "disk-B/log")
		list = open("clean")
		closeAll(list, "close-unused")
		list = open("again")
		all(list, write)
		for _, l := range list {
			l.mu.Lock()
			for l.busy > 0 || l.tasks > 0 {
				l.idle.Wait()
			}
			l.state = stateClosed // as the death of the process leaves it: no mark
			l.sy.stopAlarm(&l.alarm)
			for _, seg := range l.segments {
				closeFiles(seg.takeHandles())
			}
			l.mu.Unlock()
		}
		closeAll(open("crashed"), "close-crashed")
	}
}
