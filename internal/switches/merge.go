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
	early, late   []ended      // those that were heard of before the second look began, and since
	over          map[int]bool // threads of early, by number: one that is there later is another one
	homeless      int
}

// ended is a thread that ended.
type ended struct {
	ctxswitch.Exit
	since ctxswitch.Count // what it had done at the first look
}

// endsEarly takes a thread that ended before the second look.
func (m *merger) endsEarly(x ctxswitch.Exit) {
	m.early = append(m.early, m.of(x))
	m.over[x.TID] = true
}

// endsLate takes one that ended since the second look began.
func (m *merger) endsLate(x ctxswitch.Exit) { m.late = append(m.late, m.of(x)) }

func (m *merger) of(x ctxswitch.Exit) ended {
	e := ended{Exit: x}
	owner, seen := m.first.owner[x.TID]
	if seen && e.PID == 0 {
		e.PID = owner
	}
	if seen && e.PID == owner && !m.over[x.TID] {
		e.since = m.first.threads[owner][x.TID]
	}
	if e.PID == 0 {
		m.homeless++
	}
	return e
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
	all := m.early
	for _, e := range m.late { // one that the second look has seen ended behind it
		if owner, counted := m.second.owner[e.TID]; !counted || e.PID != 0 && e.PID != owner {
			all = append(all, e)
		}
	}
	for _, e := range all {
		k := key{e.PID, m.placeOf(e.PID, hierarchy)}
		if !k.place.known { // it began and ended meanwhile: where its parent is
			parent := m.placeOf(e.Parent, hierarchy)
			k = key{0, place{e.Name, parent.group, parent.instance, true}}
		}
		procs[k] = procs[k].Add(e.Count.Since(e.since))
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
