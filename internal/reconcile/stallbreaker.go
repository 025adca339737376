package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// The breaker's bounds. A group above its memory.high is made to wait and to reclaim, and nobody is killed: where
// nothing can be reclaimed it makes no progress, for hours, with a CPU in use for it. So a limit is lifted when for a
// whole window both the events of memory.high are frequent and nearly all of the time all tasks of the group wait for
// memory. One event is counted each time that a task has to reclaim for having gone above the limit: a task that makes
// no progress causes about eight a second on kernel 6.1 and later, where it waits up to 2 s between two tries, and many
// more on earlier kernels.
const (
	stallWindow   = 10 * time.Second
	stallEvents   = 1.0             // a second, at least
	stallShare    = 0.7             // of the time in which all tasks waited, at least
	stallInterval = 2 * time.Second // between two samples
)

// add takes a sample in and says why the limit has to be lifted; "" when it need not be.
func (w *stallWatch) add(now metrics.Sample) string {
	if n := len(w.samples); n > 0 && now.Since(w.samples[n-1]).Anew {
		w.samples = nil
	}
	w.samples = append(w.samples, now)
	for len(w.samples) > 2 && now.At.Sub(w.samples[1].At) >= stallWindow {
		w.samples = w.samples[1:]
	}
	d := now.Since(w.samples[0])
	if d.Span < stallWindow {
		return ""
	}
	rate, full := d.Rate(d.Memory.HighHits), d.Rate(&d.Pressure["memory"].Full.Total)/1e6
	if rate < stallEvents || full < stallShare {
		return ""
	}
	return fmt.Sprintf("for %s all of its tasks waited for memory %.0f %% of the time, with %.0f events of "+
		"memory.high a second", d.Span.Round(time.Second), min(full, 1)*100, rate)
}

// BreakStalls lifts the memory.high of groups that are stuck at it, for the agent. It samples each of them at most
// every two seconds.
func (c *Reconciler) BreakStalls(ctx context.Context, now time.Time) error {
	m := &c.memory
	if m.view == nil || now.Sub(m.highAt) < stallInterval {
		return nil
	}
	m.highAt = now
	watched := map[cgroup.Dir]*stallWatch{}
	var stuck error
	for d, group := range m.highs {
		w := m.watches[d]
		if w == nil {
			w = &stallWatch{group: group}
		}
		watched[d] = w
		u, err := metrics.Read(m.view.Tree, d, "memory.high_hits", "pressure.memory.full.total_us")
		if err != nil || u.Memory.HighHits == nil || u.Pressure["memory"].Full == nil {
			continue // gone, or a kernel that does not count pressure: nothing can be told
		}
		if why := w.add(metrics.Sample{At: now, Usage: u, Found: true}); why != "" {
			err := c.LiftHigh(ctx, group, why)
			if err == nil {
				w.samples = nil
			}
			stuck = errors.Join(stuck, err)
		}
	}
	m.watches = watched
	return stuck
}

// highsOf lists the directories that are to have a memory.high, by group.
func highsOf(p plan.Plan) map[cgroup.Dir]string {
	highs := map[cgroup.Dir]string{}
	for _, w := range p.Want {
		if f := w.File(); f.Name == "memory.high" && w.Value != "max" {
			highs[f.Dir] = w.Group
		}
	}
	return highs
}

// LiftHigh lifts memory.high of a group, as a change with an entry in the history.
func (c *Reconciler) LiftHigh(ctx context.Context, group, why string) error {
	lock, err := c.LockWithin(ctx, 0, "lift", "agent")
	if err != nil {
		return err
	}
	defer lock.Release()
	reply := &transaction.Outcome{}
	if err := c.Recover(ctx, reply); err != nil {
		return err
	}
	facts, s, err := c.Recorded()
	if err != nil || s.Rests() {
		return err
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Facts, l.Lenient = facts, true
	v, err := c.Classify(ctx, l)
	if err != nil {
		return err
	}
	high, asked := highOf(v.Classified.Groups, group)
	if !asked {
		return nil // somebody was faster
	}
	lifted := append(slices.Clone(s.Lifted),
		state.Lifted{Group: group, High: high, At: c.Now(), Why: why, Revision: s.Applied.Revision})
	l.Lifted = lifted
	l.GoBy(v)
	if v, err = c.View(ctx, l); err != nil {
		return err
	}
	if transaction.Refused(v.Plan, false) != nil {
		if err := v.LeaveOut(); err != nil {
			return err
		}
	}
	c.Log.Warn("memory.high is lifted", "group", group, "was", high, "why", why)
	c.memory.observed = nil
	r := api.Request{Verb: "lift", By: "agent", Groups: []string{group}, Reason: "memory.high " + high + ": " + why}
	return c.Commit(r, reply, map[string]any{state.DocLifted: lifted},
		func() error { return c.RunOthers(ctx, v, r, s.Applied.Revision, reply, nil, group) })
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
