package sampling

import (
	"context"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// The files that tell CPU time by CPU (v1 alone, nanoseconds in the order of the CPUs' numbers), and the CPUs on which
// a group may run: v2, and v1.
const usageByCPU = "cpuacct.usage_percpu"

var cpusetFiles = []string{"cpuset.cpus.effective", "cpuset.effective_cpus"}

// cpus reads on which CPUs groups ran, and for how long each CPU was busy.
func (k *Kernel) cpus(ctx context.Context, m *collect.Meter) (collect.Put, error) {
	w := k.watched.Load()
	k.eachCPU.Begin(time.Now())
	type ofGroup struct {
		each map[int]time.Duration
		may  idset.Set
	}
	all := make(map[string]ofGroup, len(w.groups))
	for _, g := range w.groups {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var one ofGroup
		for _, dirs := range g.from.Dirs {
			for _, d := range dirs {
				texts, err := k.eachCPU.Texts(w.tree, d)
				if err != nil {
					continue // gone meanwhile
				}
				for id, used := range parseByCPU(texts[usageByCPU]) {
					if one.each == nil {
						one.each = map[int]time.Duration{}
					}
					one.each[id] += used
				}
				for _, name := range cpusetFiles {
					if may, err := idset.Parse(texts[name]); err == nil {
						one.may = one.may.Union(may)
					}
				}
			}
		}
		all[g.Group.Group] = one
		m.Rest()
	}
	each := byRoot(w)
	if each == nil {
		var err error
		if each, err = k.host.BusyByCPU(); err != nil {
			return nil, err
		}
	}
	return func(s *observe.Sample) {
		s.Host.EachCPU = each
		for i := range s.Groups {
			g := &s.Groups[i]
			g.EachCPU, g.CPUs = all[g.Group].each, all[g.Group].may
		}
	}, nil
}

// byRoot is what all tasks of the host used of each CPU, by the clock that counts for groups; nil where cpuacct is not
// a v1 hierarchy that groups are in. /proc/stat counts in ticks.
func byRoot(w *Watched) map[int]time.Duration {
	for _, g := range w.groups {
		for _, dirs := range g.from.Dirs {
			for _, d := range dirs {
				if w.tree.Version(d) != 1 {
					continue
				}
				root := cgroup.Dir{Hierarchy: d.Hierarchy, Path: "/"}
				if text, err := w.tree.Read(root.File(usageByCPU)); err == nil {
					return parseByCPU(text)
				}
			}
		}
	}
	return nil
}

// parseByCPU parses a line of nanoseconds of CPU 0, 1, … (Documentation/admin-guide/cgroup-v1/cpuacct.rst). The kernel
// lists CPUs that are possible; one that never ran is left out.
func parseByCPU(text string) map[int]time.Duration {
	var all map[int]time.Duration
	for id, word := range strings.Fields(text) {
		if n, err := strconv.ParseInt(word, 10, 64); err == nil && n > 0 {
			if all == nil {
				all = map[int]time.Duration{}
			}
			all[id] = time.Duration(n)
		}
	}
	return all
}
