// Package top makes of what was sampled or recorded what a person looks at: for each group what it uses and waits for,
// as a tree; why it waits; which of its limits bite.
//
// A State is what was known at one tick. It comes from the State before by Next, and so is the same whether its ticks
// are those of a running agent or of its record. States are not changed, and may be shared; nothing here has a clock.
package top

import (
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// State is what was known at one moment.
type State struct {
	At    time.Time
	parts map[observe.Part]pair
}

// pair are the last two readings of a collector.
type pair struct{ now, before *reading }

// reading is what a collector told.
type reading struct {
	at     time.Time
	names  *names
	values []float64
}

// names are the figures that a collector tells, which seldom are others than before.
type names struct {
	keys   []record.Key // sorted
	told   []record.Key // in the order in which they are told
	at     []int        // where each of those is in keys
	of     map[place][]int
	labels [][]string // behind those of every group
	groups []Group
}

// place is where a metric's figures are found. Those of the host are of the group "", which no group is called.
type place struct{ metric, group string }

// Group is one group that has figures.
type Group struct{ Name, Role, Engine string }

// ofGroup begins the metrics of groups.
const ofGroup = "bulkhead_group_"

// maxAge is how many times the time between two readings a reading may be old, and least that in any case: what is
// older is of a collector that was switched off or hangs.
const (
	maxAge = 3
	least  = 30 * time.Second
)

// Next is what is known after a tick; s may be nil.
func (s *State) Next(t record.Tick) *State {
	next := &State{At: t.At, parts: map[observe.Part]pair{}}
	if s != nil {
		for name, p := range s.parts {
			if !p.old(t.At) {
				next.parts[name] = p
			}
		}
	}
	for i := range t.Parts {
		p := &t.Parts[i]
		was := next.parts[p.Name].now
		next.parts[p.Name] = pair{now: readingOf(p, was), before: was}
	}
	return next
}

// Only is what is known of those collectors alone.
func (s *State) Only(of func(observe.Part) bool) *State {
	only := &State{At: s.At, parts: maps.Clone(s.parts)}
	maps.DeleteFunc(only.parts, func(name observe.Part, _ pair) bool { return !of(name) })
	return only
}

// old says whether the last reading is too old to be shown.
func (p pair) old(now time.Time) bool {
	limit := least
	if p.before != nil {
		limit = max(limit, maxAge*p.now.at.Sub(p.before.at))
	} else {
		limit = maxAge * observe.Low.Every(false)
	}
	return now.Sub(p.now.at) > limit
}

// Read is when a collector's last reading was; zero without one.
func (s *State) Read(p observe.Part) time.Time {
	if now := s.parts[p].now; now != nil {
		return now.at
	}
	return time.Time{}
}

// Before is when the one before it was; zero without one.
func (s *State) Before(p observe.Part) time.Time {
	if before := s.parts[p].before; before != nil {
		return before.at
	}
	return time.Time{}
}

// Rated says whether rates of a collector's figures are known: it has read twice.
func (s *State) Rated(p observe.Part) bool { return s.parts[p].before != nil }

func readingOf(p *record.Part, was *reading) *reading {
	r := &reading{at: p.Read, values: make([]float64, len(p.Figures))}
	if was != nil && slices.EqualFunc(was.names.told, p.Figures,
		func(k record.Key, f record.Figure) bool { return k == f.Key }) {
		r.names = was.names
	} else {
		r.names = namesOf(p.Figures)
	}
	for i, f := range p.Figures {
		r.values[r.names.at[i]] = f.Value
	}
	return r
}

func namesOf(figures []record.Figure) *names {
	n := &names{told: make([]record.Key, len(figures)), at: make([]int, len(figures)), of: map[place][]int{}}
	sorted := make([]int, len(figures))
	for i := range figures {
		n.told[i], sorted[i] = figures[i].Key, i
	}
	slices.SortFunc(sorted, func(a, b int) int { return strings.Compare(string(n.told[a]), string(n.told[b])) })
	seen := map[string]bool{}
	for to, from := range sorted {
		key := n.told[from]
		metric, labels := key.Split()
		at := place{metric: metric}
		if strings.HasPrefix(metric, ofGroup) && len(labels) >= 3 {
			at.group = labels[0]
			if !seen[labels[0]] {
				seen[labels[0]] = true
				n.groups = append(n.groups, Group{labels[0], labels[1], labels[2]})
			}
			labels = labels[3:]
		}
		n.at[from] = to
		n.keys = append(n.keys, key)
		n.labels = append(n.labels, labels)
		n.of[at] = append(n.of[at], to)
	}
	return n
}

// Groups are those that have figures, in the order of their names.
func (s *State) Groups() []Group {
	all := map[string]Group{}
	for _, p := range s.parts {
		for _, g := range p.now.names.groups {
			all[g.Name] = g
		}
	}
	groups := make([]Group, 0, len(all))
	for _, g := range all {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return groups
}

// Figure is a figure with what it grew by in a second, where it is a counter and was read twice.
type Figure struct {
	Labels []string // behind those of every group
	Value  float64
	Rate   float64
	Rated  bool
}

// Figures are those of a metric of a group, or of the host where group is "".
func (s *State) Figures(metric, group string) (all []Figure) {
	row := observe.RowOf(metric)
	if row == nil {
		return nil
	}
	p, known := s.parts[row.Part]
	if !known {
		return nil
	}
	for _, i := range p.now.names.of[place{metric, group}] {
		f := Figure{Labels: p.now.names.labels[i], Value: p.now.values[i]}
		if row.Kind == metrics.Counter {
			f.Rate, f.Rated = p.rate(i, row.FromZero)
		}
		all = append(all, f)
	}
	return all
}

// rate is by how much a counter grew in a second between the two readings. Of one that is lower than before nobody
// knows: its group was made again, or one of several units that it is the sum of has stopped.
func (p pair) rate(i int, fromZero bool) (rate float64, known bool) {
	if p.before == nil {
		return 0, false
	}
	span := p.now.at.Sub(p.before.at).Seconds()
	grown := p.now.values[i]
	if p.before.names == p.now.names {
		grown -= p.before.values[i]
	} else if at, found := slices.BinarySearch(p.before.names.keys, p.now.names.keys[i]); found {
		grown -= p.before.values[at]
	} else if !fromZero {
		return 0, false
	}
	if span <= 0 || grown < 0 {
		return 0, false
	}
	return grown / span, true
}

// sum adds up the values of figures whose labels begin with these, or their rates; false when there is none.
func (s *State) sum(metric, group string, rate bool, labels ...string) (sum float64, known bool) {
	for _, f := range s.Figures(metric, group) {
		if len(f.Labels) < len(labels) || !slices.Equal(f.Labels[:len(labels)], labels) || rate && !f.Rated {
			continue
		}
		known = true
		if rate {
			sum += f.Rate
		} else {
			sum += f.Value
		}
	}
	return sum, known
}
