package slosim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
	"bulkhead/internal/slomodel"
)

const (
	window = slomodel.Window * time.Second
	// carried is for how long figures count when there is no newer sample.
	carried = 30 * time.Second
	// longest is the longest time that is simulated.
	longest = 7 * 24 * time.Hour
	// least is a value below which none is one of a database: a nanosecond.
	least = 1e-9
	// mostCPUs is how many CPUs a host has at most: more is no figure of a host.
	mostCPUs = 8192
)

// recorded is what a record says of a group that is promised something.
type recorded struct {
	group  string
	from   time.Time
	day    *slomodel.Day
	values []float64 // of each window; 0 is not known
	groups map[string]*slomodel.Group
	capped map[string]bool // groups that had a limit in each window so far
	filled int             // windows
}

// read makes a day of what was recorded. What is damaged in the record is left out.
func read(ctx context.Context, segments io.Reader, group string, from, to time.Time) (*recorded, error) {
	n := int(to.Sub(from) / window)
	r := &recorded{group: group, from: from, values: make([]float64, n), groups: map[string]*slomodel.Group{},
		capped: map[string]bool{}, day: &slomodel.Day{Load: make([]float64, n), Others: make([]float64, n),
			Known: make([]bool, n)}}
	var s *top.State
	err := record.Walk(segments, from.Add(-record.Before), to, func(t record.Tick) error {
		if s != nil && t.At.Sub(s.At) > carried {
			r.filled = max(r.filled, int(t.At.Sub(from)/window))
		}
		s = s.Next(t)
		r.take(s)
		return ctx.Err()
	})
	if err != nil && !errors.Is(err, record.ErrDamaged) {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.groups)) {
		if g := r.groups[name]; slices.Max(append(g.Wanted, 0)) > 0 {
			r.day.Groups = append(r.day.Groups, *g)
		}
	}
	for i := range r.day.Groups {
		if g := &r.day.Groups[i]; !r.capped[g.Name] || g.Ceiling > r.day.CPUs {
			g.Ceiling = r.day.CPUs
		}
	}
	return r, nil
}

// take has the windows since the last sample be as the state says.
func (r *recorded) take(s *top.State) {
	to := min(len(r.values), int(s.At.Sub(r.from)/window)+1)
	first := r.filled
	if r.filled = max(r.filled, to); first >= to {
		return
	}
	signal, target, value := slo.Signal(""), 0.0, 0.0
	for _, f := range s.Figures("bulkhead_group_slo_target", r.group) {
		signal, target = slo.Signal(f.Labels[0]), f.Value
	}
	for _, f := range s.Figures("bulkhead_group_slo_value", r.group) {
		value = f.Value
	}
	load, loadKnown := rate(s, "bulkhead_group_cpu_seconds_total", r.group)
	busy, busyKnown := rate(s, "bulkhead_host_cpu_seconds_total", "")
	for _, f := range s.Figures("bulkhead_host_cpus", "") {
		if finite(f.Value) {
			r.day.CPUs = math.Max(r.day.CPUs, f.Value)
		}
	}
	if signal == "" || !finite(target) || target < least || !loadKnown || !busyKnown {
		return
	}
	if signal != r.day.Target.Signal { // the figures before are of something else
		clear(r.day.Known)
	}
	r.day.Target = slo.Target{Signal: signal, Value: target}
	rest := math.Max(0, busy-load)
	for _, g := range r.squeezable(s) {
		used, wanted := r.wants(s, g.Name)
		for w := first; w < to; w++ {
			g.Used[w], g.Wanted[w] = used, wanted
		}
		if strings.HasPrefix(g.Name, r.group+"/") {
			load = math.Max(0, load-used)
		} else {
			rest = math.Max(0, rest-used)
		}
	}
	for w := first; w < to; w++ {
		r.day.Load[w], r.day.Others[w], r.day.Known[w] = load, rest, true
		if finite(value) && value >= least {
			r.values[w] = value
		}
	}
}

// squeezable are the groups of role batch and helper that are below no other of them and hold no database of theirs.
func (r *recorded) squeezable(s *top.State) (all []*slomodel.Group) {
	above := ""
	for _, of := range s.Groups() {
		role := policy.Role(of.Role)
		if role != policy.RoleBatch && role != policy.RoleHelper || of.Name == r.group ||
			strings.HasPrefix(r.group, of.Name+"/") || above != "" && strings.HasPrefix(of.Name, above+"/") {
			continue
		}
		above = of.Name
		g := r.groups[of.Name]
		if g == nil {
			n := len(r.values)
			g = &slomodel.Group{Name: of.Name, Role: role, Wanted: make([]float64, n), Used: make([]float64, n)}
			r.groups[of.Name], r.capped[of.Name] = g, true
		}
		limited := s.Read(observe.Limits).IsZero()
		for _, f := range s.Figures("bulkhead_group_limit", of.Name) {
			if f.Labels[0] == string(policy.KeyCPULimit) && finite(f.Value) {
				g.Ceiling, limited = math.Max(g.Ceiling, f.Value), true
			}
		}
		r.capped[of.Name] = r.capped[of.Name] && limited && g.Ceiling > 0
		all = append(all, g)
	}
	return all
}

// wants is what a group used, and what it would have used: with the time for which its threads waited for a CPU.
func (r *recorded) wants(s *top.State, group string) (used, wanted float64) {
	used, _ = rate(s, "bulkhead_group_cpu_seconds_total", group)
	waited, known := rate(s, "bulkhead_group_cpu_waiting_seconds_total", group)
	if !known {
		waited, _ = rate(s, "bulkhead_group_cpu_throttled_seconds_total", group)
	}
	return used, used + waited
}

// rate is the first figure of a counter, of a second.
func rate(s *top.State, metric, group string) (v float64, known bool) {
	for _, f := range s.Figures(metric, group) {
		if f.Rated && finite(f.Rate) {
			return f.Rate, true
		}
	}
	return 0, false
}

// finite says whether a figure can be one.
func finite(v float64) bool { return v >= 0 && v <= 1e12 }

// check says why the day cannot be simulated.
func (r *recorded) check() error {
	failed := func(hint, format string, args ...any) error {
		return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf(format, args...), Hint: hint}
	}
	known := 0
	for w := range r.values {
		if r.day.Known[w] && r.values[w] > 0 {
			known++
		}
	}
	signal := r.day.Target.Signal
	switch {
	case signal == "":
		return failed("give it a `slo:` in the policy, which by default only says what it would do, and come back "+
			"in a day; `bulkhead slo simulate` without a group needs no record",
			"the record says of no promise to %q between %s and %s", r.group, moment(r.from), moment(r.end()))
	case !slomodel.Modelled(signal):
		return failed("p95, heartbeat and waits are modelled", "%s is promised %s, of which there is no model", r.group,
			signal)
	case r.day.CPUs < 1 || r.day.CPUs > mostCPUs:
		return failed("switch the collector `stat` on: `bulkhead collectors`",
			"the record does not say how many CPUs the host has")
	case known == 0:
		return failed("`bulkhead status` says why it is not known", "the record has no value of the %s of %s", signal,
			r.group)
	case len(r.day.Groups) == 0:
		return failed("only groups of role batch or helper are lowered: give one that role in the policy",
			"no group beside %s that may be lowered used a CPU between %s and %s", r.group, moment(r.from),
			moment(r.end()))
	}
	return nil
}

func (r *recorded) end() time.Time { return r.from.Add(time.Duration(len(r.values)) * window) }

// moment is a time as the host's clock shows it.
func moment(t time.Time) string { return t.Local().Format(time.DateTime) }
