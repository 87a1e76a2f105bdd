package conf

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// MemoryLimit is the memory that this process may use, in bytes, or 0 when nothing limits it: the lowest of GOMEMLIMIT and
// the limits of the control groups it is in.
func MemoryLimit() int64 {
	limit := int64(math.MaxInt64)
	if own := debug.SetMemoryLimit(-1); own > 0 {
		limit = min(limit, own)
	}
	groups, _ := os.ReadFile("/proc/self/cgroup")
	if group := cgroupLimit(string(groups), os.ReadFile); group > 0 {
		limit = min(limit, group)
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// cgroupLimit is the lowest memory limit of the groups in the text of /proc/self/cgroup and of those above them, 0 when
// there is none. In a container the mounted tree often begins at the group itself, so the top is looked at too.
func cgroupLimit(groups string, read func(string) ([]byte, error)) int64 {
	lowest := int64(0)
	look := func(file string) {
		text, err := read(file)
		if err != nil {
			return
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || n <= 0 || n >= 1<<60 { // version 1 writes a huge number for none, version 2 "max"
			return
		}
		if lowest == 0 || n < lowest {
			lowest = n
		}
	}
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		switch {
		case fields[0] == "0" && fields[1] == "":
		case fields[1] == "memory":
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			look(path.Join(root, dir, file))
			if dir == "/" {
				break
			}
		}
	}
	return lowest
}
