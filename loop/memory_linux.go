package loop

import (
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machineMemoryBytes is the memory of the machine, or less where a control group allows less.
func machineMemoryBytes() int64 {
	most := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		if n := uint64(info.Totalram) * uint64(info.Unit); n > 0 && n < math.MaxInt64 {
			most = int64(n)
		}
	}
	return min(most, groupMemoryBytes(os.DirFS("/")))
}

// groupMemoryBytes is the lowest memory limit of the process's control group and those above it, of either version;
// math.MaxInt64 where there is none.
func groupMemoryBytes(root fs.FS) int64 {
	most := int64(math.MaxInt64)
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return most
	}
	for line := range strings.Lines(string(groups)) {
		// number:controllers:path; version 2 has number 0 and no controllers
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		folder, file := "sys/fs/cgroup", "memory.max"
		switch {
		case fields[1] == "memory":
			folder, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case fields[0] != "0" || fields[1] != "":
			continue
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			if b, err := fs.ReadFile(root, path.Join(folder, dir, file)); err == nil {
				if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && n > 0 { // else it is "max"
					most = min(most, n)
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return most
}
