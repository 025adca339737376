package planner

import (
	"cmp"
	"fmt"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/policy"
)

// migrateSpeed is what is counted with for memory that moves between nodes, bytes a second: an assumption, for how long
// it takes hangs on the host. The processes wait for it.
const migrateSpeed = 1 << 30

// checkNodes says what a change of NUMA nodes does to memory that is there already, and refuses one that somebody has
// not asked for by name. On cgroup v2 pages on nodes that are taken away move at once, on v1 they stay unless
// cpuset.memory_migrate is 1.
func (w *writer) checkNodes() {
	asked := map[string]bool{}
	for _, s := range w.out.Steps {
		dir := s.File().Dir
		if s.File().Name != plan.FileMems || w.IsNew[dir] || asked[s.Group] || !w.Desired.Layout.Holds(dir) {
			continue
		}
		leaving, inside := w.leaving(dir, s.New), w.membersBelow(s.Group)
		if len(leaving) == 0 || inside == 0 {
			continue
		}
		asked[s.Group] = true
		bytes, known := int64(0), false
		for node, n := range w.In.Memory.OnNodes(s.Group) {
			known = true
			if leaving.Contains(node) {
				bytes += n
			}
		}
		if known && bytes == 0 {
			continue
		}
		what := "how much memory it has on node " + leaving.String() +
			" is not known, as it has no directory of the memory controller"
		if known {
			what = fmt.Sprintf("%s of it are on node %s", policy.Bytes(bytes).Human(), leaving)
		}
		h, _ := w.In.Facts.Hierarchy(dir.Hierarchy)
		if moves := h.Version == 2 || w.In.Memory.Migrates(dir); moves {
			took := ""
			if known {
				took = fmt.Sprintf(", in about %s at 1 GiB a second,",
					max(time.Duration(float64(bytes)/migrateSpeed*float64(time.Second)),
						time.Second).Round(time.Second))
			}
			what += "; they move to the other nodes at once" + took + " while its processes wait"
		} else {
			what += "; they stay there, as cpuset.memory_migrate is 0, and what is new comes from the other nodes"
		}
		if w.In.AskNodes {
			w.out.Refuse(s.Group, "--migrate does it", "memory.numa changes under %s: %s",
				policy.Counted(inside, "process"), what)
			continue
		}
		w.out.Note(s.Group, policy.KeyMemoryNUMA, "%s", what)
	}
}

// leaving are the nodes that a directory has now and will not have in the end; a write gives it others.
func (w *writer) leaving(dir cgroup.Dir, written string) idset.Set {
	for _, row := range w.Desired.Rows[dir.Hierarchy] {
		if row.File != plan.FileMems {
			continue
		}
		now := cmp.Or(row.Parse(w.Observed.Dirs[dir][plan.FileMems]), w.OuterSet(dir, row))
		end := cmp.Or(w.ValueOf(dir, row), written, w.OuterSet(dir, row))
		return desired.IDSet(now).Minus(desired.IDSet(end))
	}
	return nil
}
