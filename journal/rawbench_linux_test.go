package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BenchmarkRaw measures which way of making bytes durable the machine likes: write and fdatasync, pwritev2 with RWF_DSYNC, or O_DIRECT with
// O_DSYNC; on blocks that are merely reserved, or were written before; one at a time, or several in flight. docs/BENCHMARKS-journal.md has
// what came of it.
func BenchmarkRaw(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, blocks := range []string{"plain", "reserved", "written"} {
			for _, method := range []string{"fdatasync", "dsync", "direct"} {
				for _, inFlight := range []int{1, 4} {
					b.Run(fmt.Sprintf("size=%d/blocks=%s/method=%s/inflight=%d", size, blocks, method, inFlight), func(b *testing.B) {
						total := 192 << 20
						if size <= 64<<10 {
							total = 500 * size
						}
						for b.Loop() {
							raw(b, filepath.Join(benchDir(b), "raw"), size, total, blocks, method, inFlight)
						}
					})
				}
			}
		}
	}
}

func raw(b *testing.B, name string, size, total int, blocks, method string, inFlight int) {
	flags := os.O_RDWR | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.Remove(name) }() // it is only a benchmark
	defer func() { _ = f.Close() }()       // it is only a benchmark
	buf := make([]byte, size+4096)
	if r := int(uintptr(unsafe.Pointer(&buf[0])) % 4096); r > 0 {
		buf = buf[4096-r:]
	}
	buf = buf[:size]
	for i := range buf {
		buf[i] = byte(i * 7)
	}
	switch blocks {
	case "reserved":
		err = unix.Fallocate(int(f.Fd()), 0, 0, int64(total))
	case "written":
		for off := 0; off < total && err == nil; off += size {
			_, err = f.WriteAt(buf, int64(off))
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		b.Fatal(err)
	}
	var at atomic.Int64
	var wg sync.WaitGroup
	times := make([][]time.Duration, inFlight)
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before) // it never fails
	began := time.Now()
	for w := range inFlight {
		wg.Go(func() {
			how := unix.O_RDWR
			if method == "direct" {
				how |= unix.O_DIRECT | unix.O_DSYNC
			}
			fd, err := unix.Open(name, how, 0)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = unix.Close(fd) }() // it is only a benchmark
			for {
				off := at.Add(int64(size)) - int64(size)
				if off >= int64(total) {
					return
				}
				start := time.Now()
				switch method {
				case "fdatasync":
					if _, err = unix.Pwrite(fd, buf, off); err == nil {
						err = unix.Fdatasync(fd)
					}
				case "dsync":
					_, err = unix.Pwritev2(fd, [][]byte{buf}, off, unix.RWF_DSYNC)
				case "direct":
					_, err = unix.Pwrite(fd, buf, off)
				}
				if err != nil {
					b.Error(err)
					return
				}
				times[w] = append(times[w], time.Since(start))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after) // it never fails
	all := slices.Concat(times...)
	slices.Sort(all)
	cpu := time.Duration(after.Stime.Nano()+after.Utime.Nano()-before.Stime.Nano()-before.Utime.Nano()) * time.Nanosecond
	b.ReportMetric(float64(total)/1e6/took.Seconds(), "MB/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(cpu.Seconds()/took.Seconds()*100, "cpu-%")
}
