package journal

import (
	"testing"

	"github.com/lightio/lightq/journal/vfs"
)

func TestAppendReadReopen(t *testing.T) {
	for name, fsys := range map[string]vfs.FS{"mem": vfs.NewMem(), "os": vfs.OS{}} {
		t.Run("fs="+name, func(t *testing.T) {
			dir := "/data/t/0"
			if name == "os" {
				dir = t.TempDir() + "/t/0"
			}
			p := newPools(t)
			opts := testOptions(p)
			opts.SegmentBytes = 64 << 10
			l := mustOpen(t, fsys, dir, opts)
			if !l.Report().Clean {
				t.Errorf("a new log is not clean: %+v", l.Report())
			}
			for i := range 500 {
				l.mustAppend(1+i%7, 40+i%300)
			}
			l.mustDurable()
			checkContents(t, l.Log, l.batches, 0, l.Next())
			l.mustClose()

			again := mustOpen(t, fsys, dir, opts)
			if !again.Report().Clean {
				t.Errorf("a closed log is not clean: %+v", again.Report())
			}
			if again.Next() != l.prog.Durable || again.Start() != 0 {
				t.Errorf("start %d, next %d, want 0 and %d", again.Start(), again.Next(), l.prog.Durable)
			}
			again.batches = l.batches
			checkContents(t, again.Log, l.batches, 0, again.Next())
			for range 10 {
				again.mustAppend(3, 100)
			}
			again.mustDurable()
			checkContents(t, again.Log, again.batches, 0, again.Next())
			again.mustClose()
		})
	}
}
