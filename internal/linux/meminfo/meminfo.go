// Package meminfo reads how much memory the host, or a NUMA node, has (proc_meminfo(5)). Its functions keep nothing and
// may be called concurrently.
package meminfo

import (
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// File is that of the host.
const File = "/proc/meminfo"

// Read reads that file, or "meminfo" of a node below /sys: amounts of memory in bytes, the HugePages_ counters as
// counts, by the names that the kernel has for them.
func Read(root *sysroot.FS, file string) (map[string]int64, error) {
	text, err := root.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parse(file, text)
}

func parse(file string, text []byte) (map[string]int64, error) {
	info := make(map[string]int64, 64)
	err := sysroot.Lines(file, text, func(line string) error {
		name, rest, found := strings.Cut(line, ":")
		if !found {
			return nil
		}
		if fields := strings.Fields(name); len(fields) > 0 {
			name = fields[len(fields)-1] // of a node they begin with "Node 0 "
		}
		n, err := procfs.ParseAmount(rest)
		if err != nil {
			return err
		}
		info[name] = n
		return nil
	})
	return info, err
}
