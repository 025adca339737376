package policy

import (
	"cmp"
	"time"

	"bulkhead/internal/dbstat"
)

// Guard is `guard:`: after every change the groups that it names are watched for a time, and a change that does one of them harm is undone.
type Guard struct {
	For    time.Duration // after each change
	Window time.Duration // over which rates are taken
	Before time.Duration // the time before a change that work is held against
	Groups []Guarded
	Pos    Pos
}

// Guarded is what must not happen to one group.
type Guarded struct {
	Group string `json:"group"` // path
	// OOMKills is how many processes the kernel may kill for want of memory; nil: not watched.
	OOMKills *int64 `json:"oom_kills,omitempty"`
	// MemoryPressure and Throttled are shares of a window, 0 to 1: of the time, in which all its tasks waited for memory, and of the CPU
	// periods, in which its limit held it back. nil: not watched.
	MemoryPressure *float64 `json:"memory_pressure,omitempty"`
	Throttled      *float64 `json:"throttled,omitempty"`
	// Throughput is by how much the group's work may fall, 0 to 1; nil: not watched.
	Throughput *float64 `json:"throughput_falls,omitempty"`
	// DSN is the database that is asked for its work (internal/dbstat); "" goes by what the kernel counts.
	DSN string `json:"dsn,omitempty"`
	Pos Pos    `json:"-"`

	pressurePos Pos
}

// The times of a guard that names none, and their bounds.
const (
	guardFor    = 5 * time.Minute
	guardWindow = 10 * time.Second
	guardBefore = 5 * time.Minute
	maxGuard    = 24 * time.Hour
)

// Of gives what is watched of a group; the zero value when nothing is.
func (g *Guard) Of(group string) (Guarded, bool) {
	if g != nil {
		for _, one := range g.Groups {
			if one.Group == group {
				return one, true
			}
		}
	}
	return Guarded{}, false
}

// guardForm is `guard:`.
func guardForm() Form[Guard] {
	one := guardedForm()
	span := func(name, doc string, lowest time.Duration, of func(*Guard) *time.Duration) FormKey[Guard] {
		return FormKey[Guard]{
			Name: name, Doc: doc, Schema: JSONSchema{"type": "string", "examples": []any{"5m"}},
			Read: func(v Item, g *Guard) {
				text, ok := v.Text()
				if !ok {
					return
				}
				d, err := time.ParseDuration(text)
				if err != nil || d < lowest || d > maxGuard {
					v.Fail("write minutes and seconds: 5m, 90s", "%s: %q is not a time from %s to %s", v.Name(), text, lowest, maxGuard)
					return
				}
				*of(g) = d
			},
		}
	}
	return Form[Guard]{
		Name:      "guard",
		Elsewhere: map[string]string{"oom_kills": "write it below a group: `guard: {groups: {mysql3306: {oom_kills: 0}}}`", "duration": "did you mean for?"},
		Keys: []FormKey[Guard]{
			span("for", "How long groups are watched after each change; 5m unless named.", time.Second, func(g *Guard) *time.Duration { return &g.For }),
			span("window", "Over how long rates are taken; 10s unless named.", time.Second, func(g *Guard) *time.Duration { return &g.Window }),
			span("before", "How long before a change the work counts that it is held against; 5m unless named.", time.Second, func(g *Guard) *time.Duration { return &g.Before }),
			{
				Name: "groups", Doc: "What must not happen, by group.", Schema: mapOf(groupPathPattern, one.Schema()),
				Read: func(v Item, g *Guard) { g.Groups = readGuarded(v, one) },
			},
		},
	}
}

// guardedForm is what is watched of one group.
func guardedForm() Form[Guarded] {
	share := func(name, doc string, of func(*Guarded) **float64) FormKey[Guarded] {
		return FormKey[Guarded]{Name: name, Doc: doc, Schema: percentSchema, Read: func(v Item, g *Guarded) {
			if n, ok := v.Percent(); ok {
				*of(g) = &n
			}
		}}
	}
	pressure := share("memory_pressure", "Most of the time in which all tasks of the group may wait for memory (PSI, full).", func(g *Guarded) **float64 { return &g.MemoryPressure })
	read := pressure.Read
	pressure.Read = func(v Item, g *Guarded) {
		g.pressurePos = v.Pos()
		read(v, g)
	}
	return Form[Guarded]{
		Name: "what is watched of a group",
		Keys: []FormKey[Guarded]{
			{
				Name: "oom_kills", Doc: "How many processes of the group the kernel may kill for want of memory.", Schema: JSONSchema{"type": "integer", "minimum": 0},
				Read: func(v Item, g *Guarded) {
					if n, ok := v.Number("a number of kills", 0, 1<<31); ok {
						g.OOMKills = &n
					}
				},
			},
			pressure,
			share("throttled", "Most of the CPU periods in which the group's CPU limit may hold it back.", func(g *Guarded) **float64 { return &g.Throttled }),
			share("throughput_falls", "By how much the group's work in a second may fall against the time before the change.", func(g *Guarded) **float64 { return &g.Throughput }),
			{
				Name: "dsn", Doc: "The database that is asked for its work: mysql://, postgres://, redis:// or unix://. Without one the kernel's counters of CPU, disks and network stand in.",
				Schema: JSONSchema{"type": "string", "examples": []any{"mysql://bulkhead@localhost/?socket=/run/mysqld/mysqld.sock"}},
				Read: func(v Item, g *Guarded) {
					text, ok := v.Text()
					if !ok {
						return
					}
					if db, err := dbstat.Parse(text); err == nil {
						_ = db.Close() // nobody was asked
					} else {
						v.Fail("write mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock, postgres://…, redis://… or unix://…", "guard.dsn: %v", err)
					}
					g.DSN = text
				},
			},
		},
	}
}

// guarded reads `guard.groups:`.
func readGuarded(v Item, o Form[Guarded]) []Guarded {
	var all []Guarded
	for _, e := range v.Entries("") {
		g := Guarded{Group: e.Name, Pos: e.Key.Pos()}
		if !groupPathRegexp.MatchString(g.Group) {
			e.Key.Fail("write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup", "%q is not the name of a group", g.Group)
			continue
		}
		if !o.Read(e.Item, "guard.", &g) {
			continue
		}
		switch {
		case g.DSN != "" && g.Throughput == nil:
			e.Key.Fail("say by how much it may fall: `throughput_falls: 30%`", "guard: nothing is asked of the database of group %s", g.Group)
		case g.OOMKills == nil && g.MemoryPressure == nil && g.Throttled == nil && g.Throughput == nil:
			e.Key.Fail("write what must not happen: `{oom_kills: 0, throughput_falls: 30%}`", "guard: nothing of group %s is watched", g.Group)
		}
		all = append(all, g)
	}
	return all
}

// settleGuard finishes the guard of a policy, and finds what is for no group.
func settleGuard(g *Guard, groups []*Group, r *Report) *Guard {
	if g == nil {
		return nil
	}
	out := *g
	out.For, out.Window, out.Before = cmp.Or(g.For, guardFor), cmp.Or(g.Window, guardWindow), cmp.Or(g.Before, guardBefore)
	if len(out.Groups) == 0 {
		r.Fail(g.Pos, "write `groups: {mysql3306: {oom_kills: 0}}`", "guard: no group is watched")
	}
	if out.Window > out.For {
		r.Fail(g.Pos, "shorten `window`, or watch for longer", "guard: a window of %s is longer than the %s for which groups are watched", out.Window, out.For)
	}
	known := newPaths(groups)
	for _, one := range out.Groups {
		known.check(one.Group, "guard", one.Pos, r)
	}
	return &out
}

// guard holds the guard against what this host counts.
func (r *resolution) guard(g *Guard) *Guard {
	if g == nil {
		return nil
	}
	unified, _ := r.facts.Unified()
	for _, one := range g.Groups {
		if one.MemoryPressure != nil && !unified.Has("memory") {
			r.Fail(one.pressurePos, "watch oom_kills or throughput_falls instead", "guard: this host does not count the memory pressure of group %s: that takes the memory controller on cgroup v2", one.Group)
		}
	}
	return g
}
