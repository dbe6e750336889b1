package topic

import (
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// A topic in memory whose offsets were reserved can grow, and its broker stops in order: what was reserved and not given out is given
// back. After a restart it has the partitions, and goes on where it stood.
func TestReservedOffsetsOfAGrowingTopic(t *testing.T) {
	mem := vfs.NewMem()
	open := func() *Registry {
		t.Helper()
		r := NewRegistry(100)
		if err := r.OpenFiles(FilesConfig{FS: mem, Dir: "/data", DiskReserve: -1}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	tp, _, err := r.Create("a", codec.TopicSettings{Storage: codec.StorageQueue, Partitions: 2}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.files.raise(tp.Partitions()[0], 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Alter("a", codec.TopicSettings{Partitions: 4}, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.files.raise(tp.Partitions()[3], 2000); err != nil {
		t.Fatal(err)
	}
	crashed := mem.CrashClone(vfs.Nothing, 0)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for name, disk := range map[string]*vfs.Mem{"stopped": mem, "crashed": crashed} {
		mem = disk
		r = open()
		tp, err = r.Get("a")
		if err != nil || tp.Settings().Partitions != 4 {
			t.Fatalf("%s: %v", name, err)
		}
		want := [4]codec.Offset{}
		if name == "crashed" {
			want = [4]codec.Offset{1000, 0, 0, 2000}
		}
		for i, p := range tp.Partitions() {
			if got := p.core.next; got != want[i] {
				t.Errorf("%s: partition %d goes on at %d, want %d", name, i, got, want[i])
			}
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
