// Package closelook finds out what only a look from close by tells, and no collector of an agent: who runs outside of
// all groups, and how long connections of groups waited for the network. It reads /proc of every process twice, and
// asks the kernel for every TCP connection, which takes root.
//
//	look := closelook.Begin(host, tree, tasks)
//	… // the figures of a window are counted
//	look.End(window)
//
// Begin has a goroutine look at queues of interfaces until End. Both are for one goroutine. What cannot be read is left
// out.
package closelook

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/accounting"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
)

// Look is a look at a host.
type Look struct {
	host  *host.Host
	tree  *cgroup.Tree
	tasks map[string][]cgroup.Dir
	began time.Time
	since uint64 // began, as processes' starts are told

	first   map[int]process
	sent    map[uint32]connection
	queues  *queues
	network bool // connections are known
}

// process is one that runs outside of all groups.
type process struct {
	accounting.Process

	name string
}

// Begin begins to look. tasks are the directories in which the threads of groups are.
func Begin(h *host.Host, tree *cgroup.Tree, tasks map[string][]cgroup.Dir) *Look {
	l := &Look{host: h, tree: tree, tasks: tasks, began: time.Now(), since: accounting.Now()}
	members := l.members()
	l.first = l.outside(members)
	l.sent, l.network = connections(l.host, members)
	if l.network {
		l.queues = watchQueues()
	}
	return l
}

// End ends it, and adds what was seen to a window of the same time.
func (l *Look) End(w *attribution.Window) {
	seconds := time.Since(l.began).Seconds()
	if l.queues != nil {
		l.queues.end()
	}
	members := l.members()
	w.Outsiders = outsiders(l.first, l.outside(members), members, l.since, seconds,
		func(pid int) idset.Set { return accounting.MayRunOn(l.host.Root, pid) })
	if !l.network || l.queues == nil {
		return
	}
	if now, known := connections(l.host, members); known {
		addSent(w, l.sent, now, l.queues, seconds)
		elsewhere(l.host, w, members)
	}
}

// members are the groups of processes, by their numbers.
func (l *Look) members() map[int]string {
	all := map[int]string{}
	for group, dirs := range l.tasks {
		for _, d := range dirs {
			pids, _ := l.tree.Procs(d) // one that is gone has none
			for _, pid := range pids {
				all[pid] = group
			}
		}
	}
	return all
}

// outside reads the processes that are in no group.
func (l *Look) outside(members map[int]string) map[int]process {
	list, _ := l.host.Proc.Processes(procfs.Options{}) // hidden ones are not told apart
	all := make(map[int]process, len(list))
	for i := range list {
		p := &list[i]
		if _, inside := members[p.PID]; inside {
			continue
		}
		if a, err := accounting.Read(l.host.Root, p.PID); err == nil {
			all[p.PID] = process{a, nameOf(p, l.host.Users.UserName)}
		}
	}
	return all
}

// nameOf is what a process outside of all groups is known by: its unit of systemd, or else its program and user. The
// threads of the kernel are one.
func nameOf(p *procfs.Process, user func(id int) string) string {
	if p.Kernel {
		return "the kernel's own threads"
	}
	if unit := unitOf(p); unit != "" {
		return "unit " + unit
	}
	return p.Comm + " (user " + user(p.UID) + ")"
}

// unitOf is the service or scope of a process, "" of one in a login session or without either.
func unitOf(p *procfs.Process) string {
	for _, hierarchy := range []string{"name=systemd", "unified"} {
		for at := p.Cgroups[hierarchy]; at != "" && at != "/" && at != "."; at = path.Dir(at) {
			name := path.Base(at)
			if strings.HasPrefix(name, "session-") || name == "init.scope" || strings.HasPrefix(name, "user@") {
				return ""
			}
			name = strings.TrimPrefix(name, "_") // systemd puts it before what could be a file, as in _cpu.service
			if strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope") {
				return name
			}
		}
	}
	return ""
}

// outsiders is what processes did between two readings, by their names, the one that used most CPU time first. A
// process has what its children did as soon as it has waited for them, so what was counted of one before that is gone
// is taken off its nearest ancestor that lives. One that came into a group, a member, is not gone: nobody has waited
// for it. One that began after since counts as a whole.
// mayRunOn says on which CPUs a process may run, and is asked of those that used a hundredth of a CPU.
func outsiders(first, last map[int]process, members map[int]string, since uint64, seconds float64,
	mayRunOn func(pid int) idset.Set) []attribution.Outsider {
	if seconds <= 0 {
		return nil
	}
	did := map[int]amounts{}
	for pid, now := range last {
		before, known := first[pid]
		switch {
		case known && before.Started == now.Started:
			did[pid] = amountsOf(&now.Process).less(amountsOf(&before.Process))
		case now.Started >= since:
			did[pid] = amountsOf(&now.Process)
		}
	}
	for pid, gone := range first {
		if now, lives := last[pid]; lives && now.Started == gone.Started || members[pid] != "" {
			continue
		}
		heir := gone.Parent
		for range first { // its ancestors may be gone, too
			if _, lives := last[heir]; lives {
				break
			}
			heir = first[heir].Parent
		}
		if one, lives := did[heir]; lives {
			did[heir] = one.less(amountsOf(&gone.Process))
		}
	}
	sums, on := map[string]amounts{}, map[string]idset.Set{}
	for pid, one := range did {
		name := last[pid].name
		sums[name] = sums[name].plus(one)
		if one.cpu >= 0.01*seconds {
			on[name] = on[name].Union(mayRunOn(pid))
		}
	}
	var all []attribution.Outsider
	for name, sum := range sums {
		if sum != (amounts{}) {
			io := attribution.IO{ReadBytes: sum.read / seconds, WrittenBytes: sum.written / seconds,
				Reads: sum.reads / seconds, Writes: sum.writes / seconds}
			all = append(all, attribution.Outsider{Name: name, CPU: sum.cpu / seconds, CPUs: on[name],
				Faults: sum.faults / seconds, IO: io})
		}
	}
	slices.SortFunc(all, func(a, b attribution.Outsider) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), strings.Compare(a.Name, b.Name))
	})
	return all
}

// amounts are what processes did: CPU time in seconds, page faults, bytes, and calls.
type amounts struct{ cpu, faults, read, written, reads, writes float64 }

// page is what a call for a disk moves at least, in bytes.
const page = 4096

// amountsOf are those of a process. Of calls at most one for each page that was moved counts: others were for no disk.
func amountsOf(p *accounting.Process) amounts {
	return amounts{p.CPU.Seconds(), float64(p.Faults), float64(p.ReadBytes), float64(p.WrittenBytes),
		float64(min(p.ReadCalls, (p.ReadBytes+page-1)/page)), float64(min(p.WriteCalls, (p.WrittenBytes+page-1)/page))}
}

func (a amounts) plus(b amounts) amounts {
	return amounts{a.cpu + b.cpu, a.faults + b.faults, a.read + b.read, a.written + b.written, a.reads + b.reads,
		a.writes + b.writes}
}

// less takes off; an amount is at least zero.
func (a amounts) less(b amounts) amounts {
	return amounts{max(0, a.cpu-b.cpu), max(0, a.faults-b.faults), max(0, a.read-b.read), max(0, a.written-b.written),
		max(0, a.reads-b.reads), max(0, a.writes-b.writes)}
}
