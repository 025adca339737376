package sampling

import (
	"maps"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/accounting"
)

// processes adds up what processes of groups do, from reading to reading: page faults, and what they read and write. A
// process has what its children did as soon as it has waited for them. So what a child did that ended between two
// readings is known, and what was counted for one before is taken off again.
type processes struct {
	list  func(*cgroup.Tree, cgroup.Dir) ([]int, error)
	of    func(pid int) (accounting.Process, error)
	clock func() uint64 // ticks since the boot
	at    uint64        // of the last reading
	look  int           // its number
	known map[int]member
	owed  map[string]amounts // by group: what is to be taken off
	did   map[string]amounts // by group, in the last reading
}

// member is a process of a group, and the last reading in which it was there.
type member struct {
	accounting.Process

	group string
	look  int
}

// amounts are what processes did.
type amounts struct{ faults, readBytes, writtenBytes, reads, writes uint64 }

// page is what a call for a disk moves at least.
const page = 4096

// read gives what was done since the last reading, by the groups that processes sit in. One that was not seen then
// counts as a whole if it has started since, and else from now on. Of a group of which no thread ran since then nothing
// is read. alive says whether the first thread of a process is there. What it gives holds until the next reading.
func (p *processes) read(w *Watched, ran func(group string) bool, alive func(pid int) bool) map[string]amounts {
	if p.of == nil {
		return nil
	}
	at, first := p.clock(), p.known == nil
	if first {
		p.known, p.owed, p.did = map[int]member{}, map[string]amounts{}, map[string]amounts{}
	}
	p.look++
	clear(p.did)
	idle := func(group string) bool { return !first && !ran(group) }
	for pid, m := range p.known {
		if _, watched := w.tasks[m.group]; watched && idle(m.group) && alive(pid) {
			m.look = p.look
			p.known[pid] = m
		}
	}
	for group, dirs := range w.tasks {
		if idle(group) {
			continue
		}
		for _, d := range dirs {
			pids, _ := p.list(w.tree, d) // one that is gone has none
			for _, pid := range pids {
				a, err := p.of(pid)
				if err != nil {
					continue
				}
				before, there := p.known[pid]
				p.known[pid] = member{a, group, p.look}
				if there || !first && a.Started >= p.at {
					p.did[group] = p.did[group].plus(amountsOf(before.Process, a))
				}
			}
		}
	}
	p.inherit()
	maps.DeleteFunc(p.known, func(_ int, m member) bool { return m.look != p.look })
	maps.DeleteFunc(p.owed, func(group string, _ amounts) bool { _, watched := w.tasks[group]; return !watched })
	for group, f := range p.did { // what an idle one owes stays
		p.did[group], p.owed[group] = f.less(p.owed[group])
	}
	p.at = at
	return p.did
}

// inherit has what was counted of processes that are gone be owed by the group of the nearest ancestor that lives,
// which has it as its own now.
func (p *processes) inherit() {
	lives := func(m member) bool { return m.look == p.look }
	for _, gone := range p.known {
		if lives(gone) {
			continue
		}
		heir := p.known[gone.Parent]
		for range p.known { // its ancestors may be gone, too
			if lives(heir) {
				p.owed[heir.group] = p.owed[heir.group].plus(amountsOf(accounting.Process{}, gone.Process))
				break
			}
			heir = p.known[heir.Parent]
		}
	}
}

// amountsOf is what was done between two readings. Of calls at most one for each page that was moved counts: others
// were for no disk.
func amountsOf(before, after accounting.Process) amounts {
	f := amounts{faults: grown(before.Faults, after.Faults), readBytes: grown(before.ReadBytes, after.ReadBytes),
		writtenBytes: grown(before.WrittenBytes, after.WrittenBytes)}
	f.reads = min(grown(before.ReadCalls, after.ReadCalls), (f.readBytes+page-1)/page)
	f.writes = min(grown(before.WriteCalls, after.WriteCalls), (f.writtenBytes+page-1)/page)
	return f
}

func grown(before, after uint64) uint64 {
	if after < before {
		return 0
	}
	return after - before
}

func (f amounts) plus(o amounts) amounts {
	return amounts{f.faults + o.faults, f.readBytes + o.readBytes, f.writtenBytes + o.writtenBytes, f.reads + o.reads,
		f.writes + o.writes}
}

// less takes off what it can, and gives what is left to be taken off.
func (f amounts) less(off amounts) (rest, left amounts) {
	return amounts{grown(off.faults, f.faults), grown(off.readBytes, f.readBytes),
			grown(off.writtenBytes, f.writtenBytes), grown(off.reads, f.reads), grown(off.writes, f.writes)},
		amounts{grown(f.faults, off.faults), grown(f.readBytes, off.readBytes), grown(f.writtenBytes, off.writtenBytes),
			grown(f.reads, off.reads), grown(f.writes, off.writes)}
}
