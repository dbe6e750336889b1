package loop

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestGroupMemory(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for _, c := range []struct {
		name string
		root fstest.MapFS
		want int64
	}{
		{"no groups", fstest.MapFS{}, math.MaxInt64},
		{"version 2, no limit", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("max\n")}, math.MaxInt64},
		{"version 2", fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("1048576\n")}, 1 << 20},
		{"version 2, the one above is tighter", fstest.MapFS{
			"proc/self/cgroup": file("0::/a/b\n"), "sys/fs/cgroup/a/b/memory.max": file("9000000\n"),
			"sys/fs/cgroup/a/memory.max": file("8000000\n"),
		}, 8_000_000},
		{"version 1", fstest.MapFS{
			"proc/self/cgroup": file("4:cpu:/x\n3:memory:/docker/1\n0::/\n"),
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": file("5000000\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          file("9223372036854771712\n"),
		}, 5_000_000},
		{"not understood", fstest.MapFS{"proc/self/cgroup": file("what\n0::/\n"), "sys/fs/cgroup/memory.max": file("-1\n")}, math.MaxInt64},
	} {
		if got := groupMemoryBytes(c.root); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
