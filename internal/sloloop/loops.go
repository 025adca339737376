package sloloop

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/observe"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
)

// New makes the loops. Nothing is watched yet.
func New(o Options) *Loops {
	if o.every <= 0 {
		o.every = tick
	}
	return &Loops{o: o, all: map[string]*loop{}, askers: map[string]*asker{}, changes: map[string][]int{}}
}

// Told says how it goes, by the paths of groups.
func (l *Loops) Told() map[string]api.SLO {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told // replaced, never changed
}

// List is what Told says, in the order of the groups.
func (l *Loops) List() (all []api.SLO) {
	told := l.Told()
	for _, group := range slices.Sorted(maps.Keys(told)) {
		all = append(all, told[group])
	}
	return all
}

// Tick steps when it is time, and puts in force what was decided. It waits for no database.
func (l *Loops) Tick(ctx context.Context, now time.Time) {
	if l.host == nil || len(l.all) == 0 && len(l.put) == 0 && l.begun {
		return
	}
	if l.unguarded() {
		l.o.Log.Error("the watchdog is gone: it gave back what was lowered as this process gave no sign of life, " +
			"or was ended itself")
		l.drop("the watchdog is gone")
	}
	switch {
	case !now.Before(l.next):
		l.next = now.Add(l.o.every)
		l.step(now)
	case l.breach && l.next.Sub(now) <= time.Second: // for the step that comes next
		for _, p := range []observe.Part{observe.Threads, observe.EachCPU, observe.DiskStats,
			observe.Databases} {
			l.o.Sampler.ReadNow(p)
		}
	}
	l.enforce(ctx, now)
}

// step is one step of every loop.
func (l *Loops) step(now time.Time) {
	seen := l.look(now)
	onTrial := len(l.all) > 0 && l.o.OnTrial()
	l.breach = false
	told := map[string]api.SLO{}
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		one := l.all[name]
		o, why := l.observe(one, seen, now)
		if onTrial {
			o, why = slo.Observation{}, "a change is on trial"
		}
		one.told.Value, one.told.Slack, one.told.Unknown = nil, nil, why
		if o.Known && one.Mode != slo.Off {
			value, slack := o.Value, one.Target.Slack(o.Value)
			one.told.Value, one.told.Slack = &value, &slack
			one.told.Windows++
			if slack < 0 {
				one.told.Missed++
				l.breach = true
			}
		}
		before := one.state
		before.Tick, before.Changes = l.count, l.changes
		next, actions := one.Step(before, o)
		one.state, l.changes = next, next.Changes
		for _, a := range actions {
			l.did(one, a, now)
		}
		one.path.window(o, one.Target)
		if one.gone && len(one.state.Held) == 0 {
			delete(l.all, name)
			continue
		}
		one.told.Held = one.held()
		told[name] = one.told
	}
	l.count++
	if l.breach {
		l.o.Sampler.Heat()
	}
	l.mu.Lock()
	l.told = told
	l.mu.Unlock()
}

// drop forgets what is held, and has what is still there of it given back.
func (l *Loops) drop(why string) {
	for _, one := range l.all {
		if one.path != nil {
			l.tell = append(l.tell, one.path.entry(&one.told, why, time.Now()))
		}
		one.path, one.state.Held = nil, nil
	}
	l.put, l.begun = nil, false // what is still there goes
	l.end()
}

// unguarded says that the guard is gone.
func (l *Loops) unguarded() bool {
	if l.guard == nil {
		return false
	}
	select {
	case <-l.guard.Gone():
		return true
	default:
		return false
	}
}

// end ends the guard.
func (l *Loops) end() {
	if l.guard != nil {
		l.guard.Done()
		l.guard = nil
	}
}

// enforce puts in force what the loops hold, or renews it, when that is due. The first time it also takes away what an
// agent before has left.
func (l *Loops) enforce(ctx context.Context, now time.Time) {
	want := l.wanted(now)
	same := slices.EqualFunc(want, l.put, func(a, b state.Override) bool { return a.SameLimit(b) && a.Text == b.Text })
	if same && l.begun && len(l.tell) == 0 && (len(want) == 0 || now.Sub(l.at) < renewed) {
		return
	}
	err := l.watched(ctx, len(want) > 0)
	if err == nil {
		err = l.o.Squeeze(ctx, want, l.tell...)
	}
	trouble := ""
	if err != nil && ctx.Err() == nil {
		var locked *statedir.LockedError // it is free again soon
		if trouble = err.Error(); trouble != l.trouble && !errors.As(err, &locked) {
			l.o.Log.Warn("what databases are promised could not be put in force; trying again", "err", err)
		}
	}
	l.trouble = trouble
	l.blame(trouble)
	if err != nil {
		return
	}
	l.put, l.at, l.begun, l.tell = want, now, true, nil
	if len(want) == 0 {
		l.end()
	}
}

// watched starts the guard when something is about to be held.
func (l *Loops) watched(ctx context.Context, holds bool) (err error) {
	if holds && l.guard == nil && l.o.Guard != nil {
		l.guard, err = l.o.Guard(ctx)
	}
	return err
}

// blame has what is told say what is wrong.
func (l *Loops) blame(trouble string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := map[string]api.SLO{}
	for name, one := range l.told {
		if one.Error = ""; len(one.Held) > 0 {
			one.Error = trouble
		}
		told[name] = one
	}
	l.told = told
}

// wanted are the overrides that the loops hold.
func (l *Loops) wanted(now time.Time) (all []state.Override) {
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		one := l.all[name]
		for k, held := range one.state.Held {
			all = append(all, state.Override{Group: k.Group, Key: k.Key, On: k.On, Text: assignment(k, held.Value),
				At: now, By: state.BySLO, Reason: "for " + what(&one.told), Ends: now.Add(lasts)})
		}
	}
	slices.SortFunc(all, func(a, b state.Override) int {
		return slices.Compare([]string{a.Text, a.On}, []string{b.Text, b.On})
	})
	return all
}

// End ends the askers. What is held the guard gives back: it hears that this process is gone.
func (l *Loops) End() {
	for _, a := range l.askers {
		a.stop()
	}
}
