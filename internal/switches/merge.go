package switches

import (
	"cmp"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
)

// merger makes one count of two looks and of what ended between them.
type merger struct {
	first, second *look
	early         map[ended]ctxswitch.Count // what was heard of before the second look began
	late          []late                    // and since
	over          map[int]bool              // threads of the first look that ended: one of the number is another one
	homeless      int
}

// ended are threads that ended and count together: those of a process, or of the name of processes that ended, too.
// There are no more of them than processes, however many threads end.
type ended struct {
	pid, parent int // 0 where the kernel does not tell, or the process ended
	name        string
}

// late is a thread that ended when the second look may have seen it.
type late struct {
	ended

	tid   int
	count ctxswitch.Count
}

func newMerger() *merger { return &merger{early: map[ended]ctxswitch.Count{}, over: map[int]bool{}} }

// endsEarly takes a thread that ended before the second look.
func (m *merger) endsEarly(x ctxswitch.Exit) {
	e, count := m.of(x)
	if _, seen := m.first.procs[e.pid]; !seen && x.TID == e.pid { // and so did its process
		e.pid = 0
	}
	m.early[e] = m.early[e].Add(count)
	if _, seen := m.first.owner[x.TID]; seen {
		m.over[x.TID] = true
	}
}

// endsLate takes one that ended since the second look began.
func (m *merger) endsLate(x ctxswitch.Exit) {
	e, count := m.of(x)
	m.late = append(m.late, late{e, x.TID, count})
}

// of is whose thread it was, and what it did since the first look.
func (m *merger) of(x ctxswitch.Exit) (ended, ctxswitch.Count) {
	e, count := ended{x.PID, x.Parent, x.Name}, x.Count
	owner, seen := m.first.owner[x.TID]
	if seen && e.pid == 0 {
		e.pid = owner
	}
	if seen && e.pid == owner && !m.over[x.TID] {
		count = count.Since(m.first.threads[owner][x.TID])
	}
	if e.pid == 0 {
		m.homeless++
	}
	return e, count
}

// place is where a process is.
type place struct {
	name, group, instance string
	known                 bool
}

// key is what counts together: a process, or those of a name that began and ended at one place.
type key struct {
	pid   int // 0 for these
	place place
}

func (m *merger) placeOf(pid int, hierarchy string) place {
	for _, l := range []*look{m.second, m.first} {
		if p, seen := l.procs[pid]; seen {
			return place{p.Comm, p.Cgroups[hierarchy], l.inst[pid], true}
		}
	}
	return place{}
}

// fill sums up by process, group and instance.
func (m *merger) fill(r *Report, facts *host.Facts) {
	hierarchy := ""
	if at, counts := facts.HierarchyOf("cpu"); counts {
		hierarchy = at.ID
	}
	procs := map[key]ctxswitch.Count{}
	for pid, threads := range m.second.threads {
		k := key{pid, m.placeOf(pid, hierarchy)}
		same := m.first.procs[pid].ID == m.second.procs[pid].ID
		for tid, now := range threads {
			if old, before := m.first.threads[pid][tid]; before && same && !m.over[tid] {
				now = now.Since(old)
			}
			procs[k] = procs[k].Add(now)
		}
	}
	ends := func(e ended, c ctxswitch.Count) {
		k := key{e.pid, m.placeOf(e.pid, hierarchy)}
		if !k.place.known { // it began and ended meanwhile: where its parent is
			parent := m.placeOf(e.parent, hierarchy)
			k = key{0, place{e.name, parent.group, parent.instance, true}}
		}
		procs[k] = procs[k].Add(c)
	}
	for e, c := range m.early {
		ends(e, c)
	}
	for _, l := range m.late { // one that the second look has seen ended behind it
		if owner, counted := m.second.owner[l.tid]; !counted || l.pid != 0 && l.pid != owner {
			ends(l.ended, l.count)
		}
	}
	r.sum(procs, m.second.servers)
}

// sum fills in processes, groups and instances.
func (r *Report) sum(procs map[key]ctxswitch.Count, instances []engine.Instance) {
	groups, servers := map[string]ctxswitch.Count{}, map[string]ctxswitch.Count{}
	for k, c := range procs {
		r.Seen += c.All()
		if c.All() > 0 {
			r.Procs = append(r.Procs, Use{Name: k.place.name, PID: k.pid, Count: c, Rate: r.rate(c.All()),
				Group: k.place.group, Instance: k.place.instance})
		}
		groups[k.place.group] = groups[k.place.group].Add(c)
		if k.place.instance != "" {
			servers[k.place.instance] = servers[k.place.instance].Add(c)
		}
	}
	for name, c := range groups {
		if c.All() > 0 {
			r.Groups = append(r.Groups, Use{Name: cmp.Or(name, "-"), Count: c, Rate: r.rate(c.All())})
		}
	}
	for _, i := range instances {
		c := servers[i.Name()]
		r.Servers = append(r.Servers, Use{Name: i.Name(), PID: i.Main.PID, Count: c, Rate: r.rate(c.All())})
	}
	for _, list := range [][]Use{r.Groups, r.Procs, r.Servers} {
		slices.SortFunc(list, func(a, b Use) int {
			return cmp.Or(cmp.Compare(b.Count.All(), a.Count.All()), cmp.Compare(a.Name, b.Name), a.PID-b.PID)
		})
	}
}
