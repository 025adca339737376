// Package live looks at what processes do while a plan is made: how busy they keep the CPUs, and which of them are
// connected to a database of this host.
//
//	look := live.New(h, instances)
//	cores := look.Cores(ids, time.Second)
//
// A Look is for one plan and for one goroutine; what it has watched once it does not watch again.
package live

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Look is plan.Live for a host.
type Look struct {
	host      *host.Host
	instances []engine.Instance
	watched   map[time.Duration]map[procfs.ID]float64
}

// New makes one for a host with these instances.
func New(h *host.Host, instances []engine.Instance) *Look {
	return &Look{h, instances, map[time.Duration]map[procfs.ID]float64{}}
}

// Cores watches processes for as long as during says, and gives how many CPUs each kept busy meanwhile, by
// /proc/PID/stat. Those that are not there the whole time, or cannot be read, are left out; on a captured host all are.
func (l *Look) Cores(ids []procfs.ID, during time.Duration) map[procfs.ID]float64 {
	known := l.watched[during]
	left := slices.DeleteFunc(slices.Clone(ids), func(id procfs.ID) bool { _, is := known[id]; return is })
	if !l.host.Root.Live() || len(left) == 0 {
		return known
	}
	from, before := time.Now(), l.used(left)
	if len(before) == 0 {
		return known
	}
	time.Sleep(during)
	after, passed := l.used(left), time.Since(from)
	if known == nil {
		known = map[procfs.ID]float64{}
		l.watched[during] = known
	}
	for id, used := range after {
		if was, there := before[id]; there {
			known[id] = float64(used-was) / float64(passed)
		}
	}
	return known
}

// used is the CPU time that each process has had so far.
func (l *Look) used(ids []procfs.ID) map[procfs.ID]time.Duration {
	all := make(map[procfs.ID]time.Duration, len(ids))
	var buf []byte
	for _, id := range ids {
		dir, err := l.host.Proc.OpenProc(id.PID)
		if err != nil {
			continue
		}
		if buf, err = dir.Read(buf, "stat", sysroot.MaxPseudoFile); err == nil {
			if start, used, ok := parse(buf); ok && start == id.Start {
				all[id] = used
			}
		}
		dir.Close()
	}
	return all
}

// parse reads start time and CPU time of a process (proc(5): fields 22, 14 and 15, counted behind its name from 3).
func parse(stat []byte) (start uint64, used time.Duration, ok bool) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, false
	}
	user, err1 := strconv.ParseInt(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseInt(string(fields[12]), 10, 64)
	start, err3 := strconv.ParseUint(string(fields[19]), 10, 64)
	return start, time.Duration(user+system) * procfs.Tick, err1 == nil && err2 == nil && err3 == nil
}

// Clients names, of processes, those that are connected to an instance on this host, with the instance. What belongs to
// an instance, as a part of it or as a helper, is no client. What cannot be told is left out.
func (l *Look) Clients(ids []procfs.ID) map[procfs.ID]string {
	asked := map[int]procfs.ID{}
	for _, id := range ids {
		if !slices.ContainsFunc(l.instances, func(i engine.Instance) bool { return belongs(&i, id) }) {
			asked[id.PID] = id
		}
	}
	found := map[procfs.ID]string{}
	if len(l.instances) == 0 || len(asked) == 0 {
		return found
	}
	connections, _ := recognise.SourceOf(l.host).Connections(slices.Sorted(maps.Keys(asked)))
	for pid, list := range connections {
		for _, c := range list {
			for i := range l.instances {
				if l.instances[i].ListensOn(c.Port, c.Address) {
					found[asked[pid]] = l.instances[i].String()
				}
			}
		}
	}
	return found
}

func belongs(i *engine.Instance, id procfs.ID) bool {
	_, part := i.Part(id)
	return part || slices.ContainsFunc(i.Helpers, func(h engine.Helper) bool { return h.ID == id })
}
