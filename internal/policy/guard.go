package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// guardObject is `guard:`.
func guardObject() object[Guard] {
	one := guardedObject()
	span := func(name, doc string, lowest time.Duration, of func(*Guard) *time.Duration) field[Guard] {
		return field[Guard]{
			name: name, doc: doc, schema: schema{"type": "string", "examples": []any{"5m"}},
			read: func(w *walker, v value, g *Guard) {
				text, ok := w.text(v)
				if !ok {
					return
				}
				d, err := time.ParseDuration(text)
				if err != nil || d < lowest || d > maxGuard {
					w.fail(v.Node, "write minutes and seconds: 5m, 90s", "%s: %q is not a time from %s to %s", v.name, text, lowest, maxGuard)
					return
				}
				*of(g) = d
			},
		}
	}
	return object[Guard]{
		name:      "guard",
		elsewhere: map[string]string{"oom_kills": "write it below a group: `guard: {groups: {mysql3306: {oom_kills: 0}}}`", "duration": "did you mean for?"},
		fields: []field[Guard]{
			span("for", "How long groups are watched after each change; 5m unless named.", time.Second, func(g *Guard) *time.Duration { return &g.For }),
			span("window", "Over how long rates are taken; 10s unless named.", time.Second, func(g *Guard) *time.Duration { return &g.Window }),
			span("before", "How long before a change the work counts that it is held against; 5m unless named.", time.Second, func(g *Guard) *time.Duration { return &g.Before }),
			{
				name: "groups", doc: "What must not happen, by group.", schema: mapOf(groupPathPattern, one.schema()),
				read: func(w *walker, v value, g *Guard) { g.Groups = w.guarded(v, one) },
			},
		},
	}
}

// guardedObject is what is watched of one group.
func guardedObject() object[Guarded] {
	share := func(name, doc string, of func(*Guarded) **float64) field[Guarded] {
		return field[Guarded]{name: name, doc: doc, schema: percentSchema, read: func(w *walker, v value, g *Guarded) {
			if n, ok := w.share(v); ok {
				*of(g) = &n
			}
		}}
	}
	pressure := share("memory_pressure", "Most of the time in which all tasks of the group may wait for memory (PSI, full).", func(g *Guarded) **float64 { return &g.MemoryPressure })
	read := pressure.read
	pressure.read = func(w *walker, v value, g *Guarded) {
		g.pressurePos = w.at(v.Node)
		read(w, v, g)
	}
	return object[Guarded]{
		name: "what is watched of a group",
		fields: []field[Guarded]{
			{
				name: "oom_kills", doc: "How many processes of the group the kernel may kill for want of memory.", schema: schema{"type": "integer", "minimum": 0},
				read: func(w *walker, v value, g *Guarded) {
					if n, ok := w.number(v, "a number of kills", 0, 1<<31); ok {
						g.OOMKills = &n
					}
				},
			},
			pressure,
			share("throttled", "Most of the CPU periods in which the group's CPU limit may hold it back.", func(g *Guarded) **float64 { return &g.Throttled }),
			share("throughput_falls", "By how much the group's work in a second may fall against the time before the change.", func(g *Guarded) **float64 { return &g.Throughput }),
			{
				name: "dsn", doc: "The database that is asked for its work: mysql://, postgres://, redis:// or unix://. Without one the kernel's counters of CPU, disks and network stand in.",
				schema: schema{"type": "string", "examples": []any{"mysql://bulkhead@localhost/?socket=/run/mysqld/mysqld.sock"}},
				read: func(w *walker, v value, g *Guarded) {
					text, ok := w.text(v)
					if !ok {
						return
					}
					if db, err := dbstat.Parse(text); err == nil {
						_ = db.Close() // nobody was asked
					} else {
						w.fail(v.Node, "write mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock, postgres://…, redis://… or unix://…", "guard.dsn: %v", err)
					}
					g.DSN = text
				},
			},
		},
	}
}

// shareText is a percentage.
var shareText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?%$`)

// share reads a percentage, from 0 to 100.
func (w *walker) share(v value) (float64, bool) {
	text, ok := w.text(v)
	if !ok {
		return 0, false
	}
	m := shareText.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		w.fail(v.Node, "write a percentage: 20%", "%s: %q is not a percentage", v.name, text)
		return 0, false
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n > 100 {
		w.fail(v.Node, "write a percentage from 0 to 100: 20%", "%s: %s is more than all", v.name, text)
		return 0, false
	}
	return n / 100, true
}

// guarded reads `guard.groups:`.
func (w *walker) guarded(v value, o object[Guarded]) []Guarded {
	var all []Guarded
	for _, e := range w.entries(v, "") {
		g := Guarded{Group: e.key.Value, Pos: w.at(e.key)}
		if !groupPathRegexp.MatchString(g.Group) {
			w.fail(e.key, "write it as `bulkhead status` prints it: mysql3306 or mysql3306/backup", "%q is not the name of a group", g.Group)
			continue
		}
		if !o.read(w, e.value, "guard.", &g) {
			continue
		}
		switch {
		case g.DSN != "" && g.Throughput == nil:
			w.fail(e.key, "say by how much it may fall: `throughput_falls: 30%`", "guard: nothing is asked of the database of group %s", g.Group)
		case g.OOMKills == nil && g.MemoryPressure == nil && g.Throttled == nil && g.Throughput == nil:
			w.fail(e.key, "write what must not happen: `{oom_kills: 0, throughput_falls: 30%}`", "guard: nothing of group %s is watched", g.Group)
		}
		all = append(all, g)
	}
	return all
}

// settleGuard finishes the guard of a policy, and finds what is for no group.
func settleGuard(g *Guard, groups []*Group) (*Guard, Problems) {
	if g == nil {
		return nil, nil
	}
	out := *g
	out.For, out.Window, out.Before = orSpan(g.For, guardFor), orSpan(g.Window, guardWindow), orSpan(g.Before, guardBefore)
	var problems Problems
	if len(out.Groups) == 0 {
		problems = append(problems, Problem{Pos: g.Pos, Hint: "write `groups: {mysql3306: {oom_kills: 0}}`", Msg: "guard: no group is watched"})
	}
	if out.Window > out.For {
		problems = append(problems, Problem{Pos: g.Pos, Hint: "shorten `window`, or watch for longer", Msg: fmt.Sprintf("guard: a window of %s is longer than the %s for which groups are watched", out.Window, out.For)})
	}
	known, patterns := groupPaths(groups)
	for _, one := range out.Groups {
		if p := unknownGroup(one.Group, "guard", one.Pos, known, patterns); p != nil {
			problems = append(problems, *p)
		}
	}
	return &out, problems
}

func orSpan(d, or time.Duration) time.Duration {
	if d == 0 {
		return or
	}
	return d
}

// unknownGroup is the problem of a name that no group of the policy can have.
func unknownGroup(group, where string, at Pos, known []string, patterns []*regexp.Regexp) *Problem {
	if slices.Contains(known, group) || slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(group) }) {
		return nil
	}
	hint := "the groups are " + joinSome(known)
	if near := nearest(group, known); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	return &Problem{Pos: at, Hint: hint, Msg: fmt.Sprintf("%s: there is no group %q", where, group)}
}

// guard holds the guard against what this host counts.
func (r *resolution) guard(g *Guard) *Guard {
	if g == nil {
		return nil
	}
	unified, _ := r.facts.Unified()
	for _, one := range g.Groups {
		if one.MemoryPressure != nil && !unified.Has("memory") {
			r.fail(one.pressurePos, "watch oom_kills or throughput_falls instead", "guard: this host does not count the memory pressure of group %s: that takes the memory controller on cgroup v2", one.Group)
		}
	}
	return g
}
