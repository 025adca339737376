package sloloop

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
)

// window takes in the worst value of a window; e may be nil.
func (e *episode) window(value float64, t slo.Target) {
	if e == nil {
		return
	}
	e.windows++
	slack := t.Slack(value)
	if slack < 0 {
		e.missed++
	}
	if e.windows == 1 || 1-slack > e.worst {
		e.worst, e.worstValue = 1-slack, value
	}
	e.last = value
}

// entry is the line of the history.
func (e *episode) entry(s *api.SLO, why string, now time.Time) journal.Entry {
	var paths []string
	for _, limit := range slices.Sorted(maps.Keys(e.paths)) {
		paths = append(paths, limit+" "+strings.Join(e.paths[limit], " > "))
	}
	text := fmt.Sprintf("%s in %s: %s", policy.Counted(e.changes, "change"), now.Sub(e.begun).Round(time.Second),
		strings.Join(paths, "; "))
	if e.windows > 0 {
		text += fmt.Sprintf("; %s %s at worst, %s at the end, %s of %d missed", s.Signal, s.Amount(e.worstValue),
			s.Amount(e.last), policy.Counted(e.missed, "window"), e.windows)
	}
	return journal.Entry{Time: now, Verb: "slo", What: what(s), By: state.BySLO, Reason: why,
		Outcome: journal.Committed, Text: text}
}

// what is the target, for people.
func what(s *api.SLO) string { return s.Group + " " + s.Signal + " " + s.Amount(s.Target) }

// did takes in one action.
func (l *Loops) did(one *loop, a slo.Action, now time.Time) {
	limit := a.Knob.Group + ":" + string(a.Knob.Key)
	if a.Knob.On != "" {
		limit += " on " + a.Knob.On
	}
	value, given := l.amount(a.Knob, a.Value), "the policy's"
	if c, known := one.cold[a.Knob]; known {
		given = c.text()
	}
	switch a.Verb {
	case slo.Squeeze, slo.Give:
		l.copies[a.Knob.Group].anew()
		if one.path == nil {
			one.path = &episode{begun: now, paths: map[string][]string{}}
		}
		if one.path.paths[limit] == nil {
			one.path.paths[limit] = []string{given}
		}
		one.path.paths[limit], one.path.changes = append(one.path.paths[limit], value), one.path.changes+1
		verb := map[slo.Verb]string{slo.Squeeze: "lowered ", slo.Give: "raised "}[a.Verb]
		one.told.Did = verb + limit + " to " + value + ": " + a.Reason
	case slo.Release:
		one.told.Did = "gave " + limit + " back to " + given + ": " + a.Reason
		if one.path != nil {
			one.path.paths[limit], one.path.changes = append(one.path.paths[limit], "policy"), one.path.changes+1
			if len(one.state.Held) == 0 {
				l.tell, one.path = append(l.tell, one.path.entry(&one.told, a.Reason, now)), nil
			}
		}
	case slo.Suggest:
		one.told.Did = "would lower " + limit + " from " + given + " to " + value + ": " + a.Reason
		if now.Sub(one.said) >= quiet {
			one.said = now
			l.tell = append(l.tell, journal.Entry{Time: now, Verb: "slo", What: what(&one.told), By: state.BySLO,
				Reason: "mode advise", Outcome: journal.Committed,
				Text: one.told.Did + " (" + one.told.Amount(*one.told.Value) + ")"})
		}
	case slo.Nobody:
		one.told.Did = "nothing: " + a.Reason
	case slo.Spent:
		one.told.Did = "nothing to " + a.Knob.Group + ": " + a.Reason
	}
	one.told.At = now
	l.o.Log.Info("slo", "group", one.told.Group, "did", one.told.Did)
}

// held lists what is lowered.
func (l *Loops) held(ctx context.Context, one *loop, now time.Time) (all []api.SLOHeld) {
	for k, h := range one.state.Held {
		given := ""
		if c, known := one.cold[k]; known {
			given = c.text()
		}
		limit, value, _ := strings.Cut(l.host.override(k, h.Value).Text, "=")
		if l.host.idles(k, h.Value) {
			given = string(k.Key) + " " + given
		}
		lowered := api.SLOHeld{Limit: limit, On: k.On, Value: value, Policy: given}
		l.ends(ctx, &lowered, k.Group, now)
		all = append(all, lowered)
	}
	slices.SortFunc(all, func(a, b api.SLOHeld) int {
		return cmp.Or(strings.Compare(a.Limit, b.Limit), strings.Compare(a.On, b.On))
	})
	return all
}

// idle is what the lowest weight is called for people.
const idle = "idle"

// amount is a value of a limit for people.
func (l *Loops) amount(k slo.Knob, v float64) string {
	if l.host.idles(k, v) {
		return idle
	}
	return amount(k.Key, v)
}

// idles says whether a value of a weight that may be lowered is the lowest there is, and the policy names no floor:
// then the group is made idle. The scheduler has what wakes up take the CPU from an idle group at once, and not from
// one of weight 1, which stands in for it where the kernel has no cpu.idle.
func (h *host) idles(k slo.Knob, v float64) bool {
	return k.Key == policy.KeyCPUWeight && v <= 1 && slices.ContainsFunc(h.knobs, func(c candidate) bool {
		return c.Knob == k && c.Floor <= 0
	})
}

// amount is a value of a limit as `set` takes it. A hundredth of a core is fine enough.
func amount(key policy.Key, v float64) string {
	switch key {
	case policy.KeyCPULimit:
		return policy.Cores(max(1, int64(v*100+0.5)) * policy.One / 100).String()
	case policy.KeyIOReadIOPS, policy.KeyIOWriteIOPS, policy.KeyCPUWeight:
		return strconv.FormatInt(max(1, int64(v+0.5)), 10)
	}
	return policy.Rate(max(1000, int64(v/1000+0.5)*1000)).String()
}

// override is a value of a limit as `set` has it.
func (h *host) override(k slo.Knob, v float64) state.Override {
	o := state.Override{Group: k.Group, Key: k.Key, On: k.On}
	text := amount(k.Key, v)
	if h.idles(k, v) {
		o.Key, text = policy.KeyCPUIdle, "true"
	}
	o.Text = k.Group + ":" + string(o.Key) + "=" + text
	return o
}
