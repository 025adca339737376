// Package memory tells what memory the databases of a host have: by page size, shared and private, on which NUMA nodes,
// in huge pages or not, with the page tables that it takes and what is swapped out.
//
// All reads of each process only its status, which costs nothing. Of reads the maps of one instance, for which the
// kernel walks the page tables of each of its processes: see package pagemap for what that costs. All amounts are
// bytes. The functions keep nothing and may be called concurrently.
package memory

import (
	"errors"
	"path"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// Summary is what the status of its processes tells of an instance.
type Summary struct {
	Name      string `json:"instance"`
	Engine    string `json:"engine"`
	PID       int    `json:"pid"` // of its main process
	Processes int    `json:"processes"`
	Private   int64  `json:"private_bytes"`    // all processes
	Shared    int64  `json:"shared_bytes"`     // what that process has touched which has touched most
	Pool      int64  `json:"huge_pages_bytes"` // likewise, in pages of a pool
	// Swap is of all processes, without the memory that they share: VmSwap has nothing of that (proc_pid_status(5)).
	Swap       int64 `json:"swap_bytes"`
	PageTables int64 `json:"page_tables_bytes"` // all processes
	// THP is "off" where the process switched transparent huge pages off for itself (kernel 5.0 shows it), else what
	// the host has.
	THP string `json:"transparent"`
	// Group is the memory of its control group by node; nil where it has none of its own or the kernel does not tell.
	Group map[int]int64 `json:"group_nodes,omitempty"`
	// Counted names the instances that have shared memory of this one in their figures, and GroupOf the one that has
	// the figures of its control group: see CountOnce.
	Counted []string `json:"shared_counted_by,omitempty"`
	GroupOf string   `json:"group_of,omitempty"`

	group string // path of the control group
}

// Summarize reads the status of the processes of an instance. Those that end meanwhile are left out; the error matches
// procfs.ErrExited when all of them did.
func Summarize(h *host.Host, facts *host.Facts, thp string, inst engine.Instance) (Summary, error) {
	s := Summary{Name: inst.Name(), Engine: inst.Engine, PID: inst.Main.PID, THP: thp}
	for _, member := range inst.Members {
		p, err := statusOf(h, member.ID.PID)
		if errors.Is(err, procfs.ErrExited) {
			continue
		}
		if err != nil {
			return Summary{}, err
		}
		s.Processes++
		s.Private += p.anon
		s.Shared, s.Pool = max(s.Shared, p.shmem), max(s.Pool, p.pool)
		s.Swap += p.swap
		s.PageTables += p.tables
		if member.ID == inst.Main && p.thpOff {
			s.THP = "off"
		}
	}
	if s.Processes == 0 {
		return Summary{}, procfs.ErrExited
	}
	s.group, s.Group = groupNodes(h, facts, inst)
	return s, nil
}

// status is what /proc/PID/status says of memory (proc_pid_status(5)).
type status struct {
	anon, shmem, pool, swap, tables int64
	thpOff                          bool
}

func statusOf(h *host.Host, pid int) (s status, err error) {
	dir, err := h.Proc.OpenProc(pid)
	if err != nil {
		return s, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "status", 64<<10)
	if err != nil {
		return s, dir.Failed(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "RssAnon":
			into = &s.anon
		case "RssShmem":
			into = &s.shmem
		case "HugetlbPages":
			into = &s.pool
		case "VmSwap":
			into = &s.swap
		case "VmPTE":
			into = &s.tables
		case "THP_enabled":
			s.thpOff = strings.TrimSpace(value) == "0"
			continue
		default:
			continue
		}
		if *into, err = procfs.ParseAmount(strings.TrimSpace(value)); err != nil {
			return s, dir.Failed(err)
		}
	}
	return s, nil
}

// groupNodes reads memory.numa_stat of the control group of an instance's main process.
func groupNodes(h *host.Host, facts *host.Facts, inst engine.Instance) (group string, nodes map[int]int64) {
	at, counts := facts.HierarchyOf("memory")
	if !counts || at.Root != "/" && at.Root != "" {
		return "", nil
	}
	_, groups, err := h.Proc.Birthplace(inst.Main.PID)
	where, in := groups[at.ID]
	if err != nil || !in || path.Clean(where) == "/" {
		return "", nil
	}
	text, err := h.Root.ReadText(path.Join(at.Mount, where, "memory.numa_stat"))
	if err != nil {
		return "", nil
	}
	return path.Clean(where), cgroup.NodeBytes(text, at.Version, facts.PageSize)
}
