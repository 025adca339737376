package notes

import (
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Restart says what a limit of memory may cost a PostgreSQL: its postmaster ends every other backend when one was
// killed, as that one may have left shared memory half written, and recovers from the log (PostgreSQL's manual, "Linux
// Memory Overcommit").
func (p *Writer) Restart() {
	holds := map[string]bool{}
	mark := func(group string) {
		for ; group != layout.RootGroup; group = layout.ParentGroup(group) {
			holds[group] = true
		}
	}
	for _, g := range p.in.Classified.Groups {
		if strings.HasPrefix(g.Instance, "postgresql ") {
			mark(g.Path)
		}
	}
	for i := range p.in.Classified.Placements {
		if pl := &p.in.Classified.Placements[i]; pl.Process.Comm == "postgres" || pl.Process.Comm == "postmaster" {
			mark(pl.Group)
		}
	}
	for _, n := range p.d.Forest.Nodes {
		s, asked := n.Settings.Get(policy.KeyMemoryMax, "")
		if _, limited := s.Value.(policy.Bytes); asked && limited && holds[n.Path] {
			p.out.Note(n.Path, policy.KeyMemoryMax,
				"when the OOM killer ends one backend at this limit, PostgreSQL restarts all of them: every session "+
					"is lost and the log is replayed; memory.high slows down instead")
		}
	}
}

// keepsAffinity is the first kernel whose cpuset controller leaves alone, where it comes to, what a process set with
// sched_setaffinity(2) ("sched: Always preserve the user requested cpumask"; 6.1 forgets it, measured).
var keepsAffinity = [2]int{6, 2}

// Affinity says that cpuset comes to strangers with a group's, and what they lose by it. On cgroup v2 a controller
// is handed to all children of a directory.
func (p *Writer) Affinity() {
	h, ok := p.in.Facts.HierarchyOf("cpuset")
	top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	if !ok || h.Version != 2 || p.in.Facts.Kernel.AtLeast(keepsAffinity[0], keepsAffinity[1]) ||
		slices.Contains(host.V1Names(p.in.Observed.Subtree[top].Enabled), "cpuset") {
		return
	}
	for _, n := range p.d.Forest.Nodes {
		for _, key := range []policy.Key{policy.KeyCPUCPUs, policy.KeyMemoryNUMA} {
			if _, asked := n.Settings.Get(key, ""); asked {
				p.out.Note(n.Path, key,
					"brings the cpuset controller to every group beside bulkhead's, and this kernel "+
						"(before %d.%d) forgets there what taskset, numactl or CPUAffinity= has set: look at what "+
						"else "+
						"on this host pins itself, and pin it anew after the apply", keepsAffinity[0], keepsAffinity[1])
			}
		}
	}
}
