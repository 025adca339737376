package sloloop

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
	"bulkhead/internal/slo"
	"bulkhead/internal/state"
)

// New makes the loops. Nothing is watched yet.
func New(o Options) *Loops {
	return &Loops{o: o, read: &top.State{}, all: map[string]*loop{}, askers: map[string]*asker{},
		changes: map[string][]int{}}
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
	l.step(ctx, now)
	l.enforce(ctx, now)
	l.readAhead(now)
}

// closely are the collectors that read every second while a loop is hot.
var closely = []observe.Part{observe.CPU, observe.Pressure, observe.IO, observe.Stat, observe.Threads, observe.EachCPU,
	observe.DiskStats, observe.Blamed}

// readAhead has collectors that are slower than the loop read for the steps that come next. A p95 of statements is
// asked for with each look where the loop acts.
func (l *Loops) readAhead(now time.Time) {
	hot, parts := false, map[observe.Part]bool{}
	for _, one := range l.all {
		if one.Mode == slo.Off || one.next.Sub(now) > time.Second+early {
			continue
		}
		if one.target.slo.Signal == string(slo.P95) && (one.Mode == slo.Act || one.hot()) {
			parts[observe.Databases] = true
		}
		hot = hot || one.hot()
	}
	if hot {
		for _, p := range closely {
			parts[p] = true
		}
	}
	for p := range parts {
		l.o.Sampler.ReadNow(p)
	}
}

// step is one step of every loop for which it is time.
func (l *Loops) step(ctx context.Context, now time.Time) {
	var due []string
	for _, name := range slices.Sorted(maps.Keys(l.all)) {
		if !now.Add(early).Before(l.all[name].next) {
			due = append(due, name)
		}
	}
	if due == nil {
		return
	}
	if l.start.IsZero() {
		l.start = now.Add(-time.Second)
	}
	seen, onTrial := l.look(now), l.o.OnTrial()
	for _, name := range due {
		one := l.all[name]
		o, read, why := l.observe(one, seen, now)
		if onTrial {
			o, read, why = slo.Observation{}, time.Time{}, "a change is on trial"
		}
		switch { // what is not in force shows nothing
		case l.trouble != "" && now.Sub(l.since) > giveUp:
			o, read, why = slo.Observation{}, time.Time{}, l.trouble
		case l.trouble != "":
			o.Span = math.MaxInt32
		}
		// The same reading once more is no second look.
		if one.hot() && !read.IsZero() && read.Equal(one.read) && now.Sub(one.last) < look-early {
			continue
		}
		l.stepOne(ctx, one, o, why, now)
		one.read = read
		if one.gone && len(one.state.Held) == 0 {
			delete(l.all, name)
		}
	}
	told := map[string]api.SLO{}
	for name, one := range l.all {
		told[name] = one.told
	}
	l.mu.Lock()
	l.told = told
	l.mu.Unlock()
}

// stepOne is one step of a loop.
func (l *Loops) stepOne(ctx context.Context, one *loop, o slo.Observation, why string, now time.Time) {
	one.told.Value, one.told.Slack, one.told.Unknown = nil, nil, why
	if o.Known && one.Mode != slo.Off {
		value, slack := o.Value, one.Target.Slack(o.Value)
		one.told.Value, one.told.Slack = &value, &slack
	}
	before := one.state
	before.Changes = l.changes
	next, actions := one.Step(before, int(now.Sub(l.start).Round(time.Second)/time.Second), o)
	one.state, l.changes = next, next.Changes
	one.last, one.next = now, now.Add(time.Duration(next.Next)*time.Second)
	l.askers[one.target.slo.DSN].hurry(one.hot())
	for _, a := range actions {
		l.did(one, a, now)
	}
	one.count(now)
	one.told.Held = l.held(ctx, one, now)
}

// count counts windows, however often it was looked in one.
func (one *loop) count(now time.Time) {
	w := &one.window
	if v := one.told.Value; v != nil && (!w.seen || one.Target.Slack(*v) < one.Target.Slack(w.worst)) {
		w.seen, w.worst = true, *v
	}
	if now.Sub(w.since) < look-early {
		return
	}
	if w.seen {
		one.told.Windows++
		if one.Target.Slack(w.worst) < 0 {
			one.told.Missed++
		}
		one.path.window(w.worst, one.Target)
	}
	*w = window{since: now}
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
		if len(want) == 0 {
			l.trouble = "" // nothing is left to be put in force
		}
		return
	}
	err := l.watched(ctx, len(want) > 0)
	if err == nil {
		err = l.o.Squeeze(ctx, want, l.tell...)
	}
	trouble := ""
	if err != nil && ctx.Err() == nil {
		var locked *statedir.LockedError // it is free again soon
		var onTrial *control.OnTrialError
		if trouble = err.Error(); trouble != l.trouble && !errors.As(err, &locked) && !errors.As(err, &onTrial) {
			l.o.Log.Warn("what databases are promised could not be put in force; trying again", "err", err)
		}
	}
	if l.trouble == "" {
		l.since = now
	}
	l.trouble = trouble
	l.blame(trouble)
	if err != nil {
		return
	}
	if !same {
		l.o.Changed()
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
			o := l.host.override(k, held.Value)
			o.At, o.By, o.Reason, o.Ends = now, state.BySLO, "for "+what(&one.told), now.Add(lasts)
			all = append(all, o)
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
