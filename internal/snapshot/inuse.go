package snapshot

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
)

// memoryInUse reads what a plan asks of memory in use, each figure once. It is for one goroutine.
type memoryInUse struct {
	v       *Snapshot
	procs   procfs.FS
	charged map[cgroup.Dir]charged
}

// MemoryInUse reads what groups and processes use at the time that a plan asks; it is for one plan.
func (s *Snapshot) MemoryInUse() plan.Memory {
	return &memoryInUse{v: s, procs: s.procs, charged: map[cgroup.Dir]charged{}}
}

type charged struct{ current, pinned int64 }

// Charged implements plan.Memory. Only what was there when the groups were looked at is asked for.
func (m *memoryInUse) Charged(d cgroup.Dir) (current, pinned int64) {
	if known, done := m.charged[d]; done {
		return known.current, known.pinned
	}
	if h, ok := m.v.Facts.HierarchyOf("memory"); !ok || h.ID != d.Hierarchy || m.v.Observed.Dirs[d] == nil {
		return 0, 0
	}
	// One that is gone meanwhile counts nothing: the plan's own steps will say so.
	u, err := metrics.Read(m.v.Tree, d)
	if err == nil && u.Memory.Current != nil {
		current = *u.Memory.Current
	}
	if all := u.Memory.Pinned(); err == nil && all != nil {
		pinned = *all
	}
	m.charged[d] = charged{current, pinned}
	return current, pinned
}

// Held implements plan.Memory.
func (m *memoryInUse) Held(id procfs.ID) (all, shared int64) {
	held, err := m.procs.Memory(id.PID)
	if err != nil {
		return 0, 0
	}
	return held.Anon + held.Shmem, held.Shmem
}

// OnNodes implements plan.Memory.
func (m *memoryInUse) OnNodes(group string) map[int]int64 {
	h, counts := m.v.Facts.HierarchyOf("memory")
	own, there := m.v.Layout.Own(group)[h.ID]
	if !counts || !there {
		return nil
	}
	text, err := m.v.Tree.Read(own.File("memory.numa_stat"))
	if err != nil {
		return nil
	}
	return cgroup.NodeBytes(text, h.Version, m.v.Facts.PageSize)
}

// Migrates implements plan.Memory.
func (m *memoryInUse) Migrates(d cgroup.Dir) bool {
	text, err := m.v.Tree.Read(d.File("cpuset.memory_migrate"))
	return err == nil && text == "1"
}
