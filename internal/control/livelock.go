package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// A group above its memory.high is made to wait and to reclaim, and nobody is killed: where nothing can be reclaimed it gets nowhere, for
// hours, with a CPU in use for it. So it is watched for events of memory.high (one is counted each time that somebody has to reclaim for having gone above it; a thread
// that gets nowhere makes about eight a second on kernel 6.1 and later, where it waits up to 2 s between two tries, and earlier kernels many more) together with
// the time in which all of its tasks waited for memory at once.
const (
	highWindow = 10 * time.Second // over which it is counted
	highRate   = 1.0              // events a second
	highFull   = 0.7              // part of the time
	highEvery  = 2 * time.Second  // between two readings
)

// highCount is what a group's directory has counted so far.
type highCount struct {
	at     time.Time
	events int64
	full   int64 // µs in which all of the group waited
}

// highWatch is the readings of one directory, the oldest first, no more of them than the window needs.
type highWatch struct {
	group  string
	counts []highCount
}

// add takes a reading in and says why the limit has to be lifted; "" when it need not be.
func (w *highWatch) add(now highCount) string {
	if n := len(w.counts); n > 0 && (now.events < w.counts[n-1].events || now.full < w.counts[n-1].full || now.at.Before(w.counts[n-1].at)) {
		w.counts = nil // another directory of the same name
	}
	w.counts = append(w.counts, now)
	for len(w.counts) > 2 && now.at.Sub(w.counts[1].at) >= highWindow {
		w.counts = w.counts[1:]
	}
	first := w.counts[0]
	span := now.at.Sub(first.at)
	if span < highWindow {
		return ""
	}
	rate := float64(now.events-first.events) / span.Seconds()
	full := float64(now.full-first.full) / float64(span.Microseconds())
	if rate < highRate || full < highFull {
		return ""
	}
	return fmt.Sprintf("for %s all of its tasks waited for memory %.0f %% of the time, with %.0f events of memory.high a second", span.Round(time.Second), min(full, 1)*100, rate)
}

// WatchHigh looks after groups that have a memory.high, for the agent: one whose group is stuck at it is lifted. It reads two small files of
// each, at most every two seconds.
func (c *Controller) WatchHigh(ctx context.Context, now time.Time) error {
	m := &c.memory
	if m.view == nil || now.Sub(m.highAt) < highEvery {
		return nil
	}
	m.highAt = now
	watched := map[cgroup.Dir]*highWatch{}
	var stuck error
	for d, group := range m.highs {
		w := m.watches[d]
		if w == nil {
			w = &highWatch{group: group}
		}
		watched[d] = w
		events, full, ok := readHigh(m.view.Tree, d)
		if !ok {
			continue // gone, or a kernel that does not count pressure: nothing can be told
		}
		if why := w.add(highCount{now, events, full}); why != "" {
			err := c.liftHigh(ctx, group, why)
			if err == nil {
				w.counts = nil
			}
			stuck = errors.Join(stuck, err)
		}
	}
	m.watches = watched
	return stuck
}

// readHigh reads how often a directory was above its memory.high, and for how long all in it waited for memory.
func readHigh(t *cgroup.Tree, d cgroup.Dir) (events, full int64, ok bool) {
	values, err := t.ReadMany(d, []string{"memory.events", "memory.pressure"})
	if err != nil {
		return 0, 0, false
	}
	found := 0
	for line := range strings.Lines(values["memory.events"]) {
		if text, is := strings.CutPrefix(strings.TrimSpace(line), "high "); is {
			events, err = strconv.ParseInt(text, 10, 64)
			found++
		}
	}
	if stall := cgroup.ParsePressure(values["memory.pressure"]).Full; stall != nil {
		full = stall.Total
		found++
	}
	return events, full, err == nil && found == 2
}

// highsOf lists the directories that are to have a memory.high, by group.
func highsOf(p plan.Plan) map[cgroup.Dir]string {
	highs := map[cgroup.Dir]string{}
	for _, w := range p.Want {
		if w.File == "memory.high" && w.Value != "max" {
			highs[w.Dir] = w.Group
		}
	}
	return highs
}

// liftHigh lifts memory.high of a group, as a change with an entry in the history.
func (c *Controller) liftHigh(ctx context.Context, group, why string) error {
	lock, err := c.lockWithin(ctx, 0, "lift", "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	reply := &Reply{}
	if err := c.recover(ctx, reply); err != nil {
		return err
	}
	facts, s, err := c.recorded()
	if err != nil || s.Rests() {
		return err
	}
	l := lookOver(s, s.Applied.Sources)
	l.facts, l.lenient = facts, true
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	high, asked := highOf(v.Classified.Groups, group)
	if !asked {
		return nil // somebody was faster
	}
	lifted := append(slices.Clone(s.Lifted), state.Lifted{Group: group, High: high, At: c.now(), Why: why, Revision: s.Applied.Revision})
	l.lifted = lifted
	if v, err = c.view(ctx, l); err != nil {
		return err
	}
	if c.refusals(v.Plan, false) != nil {
		if err := c.leaveOut(v); err != nil {
			return err
		}
	}
	c.Log.Warn("memory.high is lifted", "group", group, "was", high, "why", why)
	c.memory.observed = nil
	r := Request{Verb: "lift", By: "agent", Groups: []string{group}, Reason: "memory.high " + high + ": " + why}
	return c.commit(r, reply, map[string]any{state.DocLifted: lifted}, func() error { return c.runOthers(ctx, v, r, s.Applied.Revision, reply, group) })
}

// highOf is the memory.high that a group asks for.
func highOf(groups []classify.Group, group string) (text string, asked bool) {
	for _, g := range groups {
		if set, ok := g.Settings.Get(policy.KeyMemoryHigh, ""); ok && g.Path == group {
			_, limited := set.Value.(policy.Bytes)
			return set.Value.String(), limited
		}
	}
	return "", false
}

// layLifted takes the memory.high of groups away that were lifted. One that `set` asked for since then holds.
func layLifted(groups []classify.Group, lifted []state.Lifted, overrides []state.Override) []classify.Group {
	for _, l := range lifted {
		if slices.ContainsFunc(overrides, func(o state.Override) bool {
			return o.Group == l.Group && o.Key == policy.KeyMemoryHigh && o.At.After(l.At)
		}) {
			continue
		}
		for i := range groups {
			if set, asked := groups[i].Settings.Get(policy.KeyMemoryHigh, ""); asked && groups[i].Path == l.Group {
				set.Value, set.Raw, set.From = policy.Unlimited{}, "", "lifted at "+l.At.Local().Format(time.DateTime)
				groups[i].Settings = groups[i].Settings.With(set)
			}
		}
	}
	return groups
}
