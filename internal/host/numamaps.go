package host

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MemoryByNode gives how much memory of its own a process has on each NUMA node, in bytes by the node's number, as
// /proc/PID/numa_maps tells (numa(7)): heap, stacks, anonymous and shared memory, huge pages; not the pages of programs,
// libraries and other files, which every process that reads them shares. Pages that the process itself has not touched are
// not counted. Reading walks its page tables: of a process of hundreds of GiB that takes seconds, in which it may wait.
// Errors: ErrExited, fs.ErrNotExist (a kernel without CONFIG_NUMA).
func (h *Host) MemoryByNode(pid int) (map[int]int64, error) {
	dir, err := h.openProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	text, err := dir.read(nil, "numa_maps", maxPseudoFile)
	if err != nil {
		return nil, dir.failed(err)
	}
	nodes, err := parseNumaMaps(text)
	if err != nil {
		return nil, dir.failed(err)
	}
	return nodes, nil
}

// parseNumaMaps sums lines such as
//
//	7f2a40000000 default anon=512 dirty=512 active=0 N0=500 N1=12 kernelpagesize_kB=4
//
// in which pages are those of that line's size.
func parseNumaMaps(text []byte) (map[int]int64, error) {
	nodes := map[int]int64{}
	err := lines("numa_maps", text, func(line string) error {
		var pages = map[int]int64{}
		size := int64(4)
		for _, field := range strings.Fields(line) {
			name, value, _ := strings.Cut(field, "=")
			node, isNode := strings.CutPrefix(name, "N")
			switch {
			case name == "file" && !isMemory(value):
				return nil
			case name != "kernelpagesize_kB" && !isNode:
				continue
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is not a number of pages", field)
			}
			if !isNode {
				size = n
				continue
			}
			number, err := strconv.Atoi(node)
			if err != nil || number < 0 {
				return fmt.Errorf("%q names no node", field)
			}
			pages[number] += n
		}
		for node, n := range pages {
			nodes[node] += n * size << 10
		}
		return nil
	})
	if err == nil && len(bytes.TrimSpace(text)) > 0 && len(nodes) == 0 {
		err = errors.New("parse numa_maps: no page of its own on any node")
	}
	return nodes, err
}

// isMemory says of a file that a mapping shows, blanks written as \040, that it is a name for memory.
func isMemory(name string) bool {
	for _, prefix := range []string{"/dev/zero", "/SYSV", "/memfd:", "/anon_hugepage", "/dev/shm/", "/dev/hugepages/"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
