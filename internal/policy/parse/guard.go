package parse

import (
	"cmp"
	"time"

	"bulkhead/internal/dbstat"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// The times of a guard that names none, and their bounds.
const (
	guardFor    = 5 * time.Minute
	guardWindow = 10 * time.Second
	guardBefore = 5 * time.Minute
	maxGuard    = 24 * time.Hour
)

// guardForm is `guard:`.
func guardForm() yamlform.Form[policy.Guard] {
	one := guardedForm()
	span := func(name, doc string, lowest time.Duration,
		of func(*policy.Guard) *time.Duration) yamlform.FormKey[policy.Guard] {
		return yamlform.FormKey[policy.Guard]{
			Name: name, Doc: doc, Schema: policy.JSONSchema{"type": "string", "examples": []any{"5m"}},
			Read: func(v yamlform.Item, g *policy.Guard) {
				text, ok := v.Text()
				if !ok {
					return
				}
				d, err := time.ParseDuration(text)
				if err != nil || d < lowest || d > maxGuard {
					v.Fail("write minutes and seconds: 5m, 90s", "%s: %q is not a time from %s to %s", v.Name(), text,
						lowest, maxGuard)
					return
				}
				*of(g) = d
			},
		}
	}
	return yamlform.Form[policy.Guard]{
		Name: "guard",
		Elsewhere: map[string]string{"oom_kills": "write it below a group: `guard: {groups: {mysql3306: " +
			"{oom_kills: 0}}}`", "duration": "did you mean for?"},
		Keys: []yamlform.FormKey[policy.Guard]{
			span("for", "How long groups are watched after each change; 5m unless named.", time.Second,
				func(g *policy.Guard) *time.Duration { return &g.For }),
			span("window", "Over how long rates are taken; 10s unless named.", time.Second,
				func(g *policy.Guard) *time.Duration { return &g.Window }),
			span("before", "How long before a change the work counts that it is held against; 5m unless named.",
				time.Second, func(g *policy.Guard) *time.Duration { return &g.Before }),
			{
				Name: "groups", Doc: "What must not happen, by group.",
				Schema: yamlform.MapOf(policy.GroupPathPattern, one.Schema()),
				Read:   func(v yamlform.Item, g *policy.Guard) { g.Groups = readGuarded(v, one) },
			},
		},
	}
}

// guardedForm is what is watched of one group.
func guardedForm() yamlform.Form[policy.Guarded] {
	share := func(name, doc string, of func(*policy.Guarded) **float64) yamlform.FormKey[policy.Guarded] {
		return yamlform.FormKey[policy.Guarded]{Name: name, Doc: doc, Schema: policy.PercentSchema,
			Read: func(v yamlform.Item, g *policy.Guarded) {
				if n, ok := v.Percent(); ok {
					*of(g) = &n
				}
			}}
	}
	pressure := share("memory_pressure",
		"Most of the time in which all tasks of the group may wait for memory (PSI, full).",
		func(g *policy.Guarded) **float64 { return &g.MemoryPressure })
	read := pressure.Read
	pressure.Read = func(v yamlform.Item, g *policy.Guarded) {
		g.PressurePos = v.Pos()
		read(v, g)
	}
	return yamlform.Form[policy.Guarded]{
		Name: "what is watched of a group",
		Keys: []yamlform.FormKey[policy.Guarded]{
			{
				Name: "oom_kills", Doc: "How many processes of the group the kernel may kill for want of memory.",
				Schema: policy.JSONSchema{"type": "integer", "minimum": 0},
				Read: func(v yamlform.Item, g *policy.Guarded) {
					if n, ok := v.Number("a number of kills", 0, 1<<31); ok {
						g.OOMKills = &n
					}
				},
			},
			pressure,
			share("throttled", "Most of the CPU periods in which the group's CPU limit may hold it back.",
				func(g *policy.Guarded) **float64 { return &g.Throttled }),
			share("throughput_falls",
				"By how much the group's work in a second may fall against the time before the change.",
				func(g *policy.Guarded) **float64 { return &g.Throughput }),
			{
				Name: "dsn",
				Doc: "The database that is asked for its work: mysql://, postgres://, redis:// or unix://. " +
					"Without one the kernel's counters of CPU, disks and network stand in.",
				Schema: policy.JSONSchema{"type": "string",
					"examples": []any{"mysql://bulkhead@localhost/?socket=/run/mysqld/mysqld.sock"}},
				Read: func(v yamlform.Item, g *policy.Guarded) {
					text, ok := v.Text()
					if !ok {
						return
					}
					if db, err := dbstat.Parse(text); err == nil {
						_ = db.Close() // nobody was asked
					} else {
						v.Fail("write mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock, postgres://…, "+
							"redis://… or unix://…", "guard.dsn: %v", err)
					}
					g.DSN = text
				},
			},
		},
	}
}

// guarded reads `guard.groups:`.
func readGuarded(v yamlform.Item, o yamlform.Form[policy.Guarded]) []policy.Guarded {
	var all []policy.Guarded
	for _, e := range v.Entries("") {
		g := policy.Guarded{Group: e.Name, Pos: e.Key.Pos()}
		if !policy.GroupPathRegexp.MatchString(g.Group) {
			e.Key.Fail("write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup",
				"%q is not the name of a group", g.Group)
			continue
		}
		if !o.Read(e.Item, "guard.", &g) {
			continue
		}
		switch {
		case g.DSN != "" && g.Throughput == nil:
			e.Key.Fail("say by how much it may fall: `throughput_falls: 30%`",
				"guard: nothing is asked of the database of group %s", g.Group)
		case g.OOMKills == nil && g.MemoryPressure == nil && g.Throttled == nil && g.Throughput == nil:
			e.Key.Fail("write what must not happen: `{oom_kills: 0, throughput_falls: 30%}`",
				"guard: nothing of group %s is watched", g.Group)
		}
		all = append(all, g)
	}
	return all
}

// settleGuard finishes the guard of a policy, and finds what is for no group.
func settleGuard(g *policy.Guard, groups []*policy.Group, r *yamlform.Report) *policy.Guard {
	if g == nil {
		return nil
	}
	out := *g
	out.For, out.Window, out.Before = cmp.Or(g.For, guardFor), cmp.Or(g.Window, guardWindow),
		cmp.Or(g.Before, guardBefore)
	if len(out.Groups) == 0 {
		r.Fail(g.Pos, "write `groups: {mysql3306: {oom_kills: 0}}`", "guard: no group is watched")
	}
	if out.Window > out.For {
		r.Fail(g.Pos, "shorten `window`, or watch for longer",
			"guard: a window of %s is longer than the %s for which groups are watched", out.Window, out.For)
	}
	known := newPaths(groups)
	for _, one := range out.Groups {
		known.check(one.Group, "guard", one.Pos, r)
	}
	return &out
}
