package pagemap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Area is what one line of /proc/PID/numa_maps (numa(7)) says of a mapping. All amounts are bytes: the kernel counts
// pages of that line's size, 4 KiB, 2 MiB or 1 GiB.
type Area struct {
	Start    uint64
	Policy   string // where new pages go: "default", "bind:0", "interleave=static:0-3", …
	File     string // what lies behind, blanks as \040; "" for anonymous memory
	PageSize int64
	Nodes    map[int]int64 // by the node's number
	Anon     int64
	Dirty    int64
	Active   int64 // not shown for huge pages: there it is all of it
	Mapped   int64
}

// Bytes is what of the mapping is in memory.
func (a Area) Bytes() (sum int64) {
	for _, n := range a.Nodes {
		sum += n
	}
	return sum
}

// IsMemory says that the mapping is memory, and no program, library or other file.
func (a Area) IsMemory() bool { return a.File == "" || isMemory(a.File) }

// Areas reads /proc/PID/numa_maps. The kernel walks the page tables of the process for it: of a process of hundreds of
// GiB that takes seconds, in which it may wait. Errors: ErrExited, fs.ErrNotExist (a kernel without CONFIG_NUMA).
func Areas(h procfs.FS, pid int) ([]Area, error) {
	return read(h, pid, "numa_maps", func(_ procfs.Dir, text []byte) ([]Area, error) { return parseNumaMaps(text) })
}

// ByNode gives how much memory of its own a process has on each NUMA node, in bytes by the node's number: heap, stacks,
// anonymous and shared memory, huge pages; not the pages of programs, libraries and other files, which every process
// that reads them shares. Pages that the process itself has not touched are not counted. Errors and costs are those of
// Areas.
func ByNode(h procfs.FS, pid int) (map[int]int64, error) {
	areas, err := Areas(h, pid)
	if err != nil {
		return nil, err
	}
	nodes := byNode(areas)
	if len(areas) > 0 && len(nodes) == 0 {
		return nil, fmt.Errorf("read process %d: %w", pid, errors.New("numa_maps shows no page of its own on any node"))
	}
	return nodes, nil
}

func byNode(areas []Area) map[int]int64 {
	nodes := map[int]int64{}
	for _, a := range areas {
		if a.IsMemory() {
			for node, n := range a.Nodes {
				nodes[node] += n
			}
		}
	}
	return nodes
}

// parseNumaMaps parses lines such as
//
//	7f2a40000000 default anon=512 dirty=512 active=0 N0=500 N1=12 kernelpagesize_kB=4
//
// as show_numa_map in fs/proc/task_mmu.c writes them: active is left out when it is all, mapped when it is all, or all
// is anonymous or dirty.
func parseNumaMaps(text []byte) ([]Area, error) {
	var areas []Area
	err := sysroot.Lines("numa_maps", bytes.TrimSpace(text), func(line string) error {
		a, err := parseArea(strings.Fields(line))
		areas = append(areas, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return areas, nil
}

func parseArea(fields []string) (a Area, err error) {
	rest, err := a.parseHead(fields)
	if err != nil {
		return a, err
	}
	pages := map[int]int64{}
	counts := map[string]int64{}
	for _, field := range rest {
		name, value, _ := strings.Cut(field, "=")
		node, isNode := strings.CutPrefix(name, "N")
		switch {
		case name == "file":
			a.File = value
			continue
		case !isNode && !slices.Contains(counted, name):
			continue // huge, heap, stack, mapmax, and what newer kernels add
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return a, fmt.Errorf("%q is not a number of pages", field)
		}
		if !isNode {
			counts[name] = n
			continue
		}
		number, err := strconv.Atoi(node)
		if err != nil || number < 0 {
			return a, fmt.Errorf("%q names no node", field)
		}
		pages[number] += n
	}
	if size, shown := counts["kernelpagesize_kB"]; shown {
		a.PageSize = size << 10
	}
	a.Nodes = make(map[int]int64, len(pages))
	for node, n := range pages {
		a.Nodes[node] = n * a.PageSize
	}
	all := a.Bytes()
	amount := func(name string, without int64) int64 {
		if n, shown := counts[name]; shown {
			return n * a.PageSize
		}
		return without
	}
	a.Anon, a.Dirty = amount("anon", 0), amount("dirty", 0)
	a.Active, a.Mapped = amount("active", all), amount("mapped", all)
	return a, nil
}

// parseHead parses what is before the numbers, and gives those.
func (a *Area) parseHead(fields []string) (rest []string, err error) {
	if len(fields) < 2 {
		return nil, errors.New("no address and policy")
	}
	if a.Start, err = strconv.ParseUint(fields[0], 16, 64); err != nil {
		return nil, fmt.Errorf("%q is no address", fields[0])
	}
	rest = fields[1:]
	end := 1 // a policy with flags has an equals sign, too: "bind=static:0", "prefer (many)=static:0-1"
	for ; end < len(rest); end++ {
		f := rest[end]
		second := strings.HasPrefix(f, "(many)") || strings.HasPrefix(f, "interleave")
		if strings.Contains(f, "=") && !second || f == "heap" || f == "stack" || f == "huge" {
			break
		}
	}
	a.Policy, a.PageSize = strings.Join(rest[:end], " "), 4<<10
	return rest[end:], nil
}

// counted are the numbers of a line that are read, beside those of the nodes.
var counted = []string{"anon", "dirty", "active", "mapped", "kernelpagesize_kB"}

// isMemory says of a file that a mapping shows, blanks written as \040, that it is a name for memory.
func isMemory(name string) bool {
	for _, prefix := range []string{"/dev/zero", "/SYSV", "/memfd:", "/anon_hugepage", "/dev/shm/", "/dev/hugepages/"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
