// Package agent keeps the host true to the applied policy: it looks at the process table and at the
// limits again and again, puts right what differs, ends overrides and freezes on time, and serves
// the local API on a unix socket.
//
// The agent dead leaves every limit in force; starting again changes nothing that is already true.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/control"
	"bulkhead/internal/freeze"
	"bulkhead/internal/linux/footprint"
	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/sloloop"
	"bulkhead/internal/transaction"
)

// New makes an agent for a host and its state directory.
func New(c *transaction.Controller, o Options) *Agent {
	if o.Socket == "" {
		o.Socket = DefaultSocket
	}
	if o.Every <= 0 {
		o.Every = time.Second
	}
	if o.Full <= 0 {
		o.Full = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.stop <= 0 {
		o.stop = stopTime
	}
	if o.events == nil {
		o.events = func() (source, error) { return procevents.Open(procevents.Options{Lazy: lazily}) }
	}
	if o.peer == nil {
		o.peer = peer
	}
	if o.traces == nil {
		o.traces = func() (source, error) { return procevents.OpenTrace(procevents.Options{Lazy: lazily}) }
	}
	a := &Agent{held: newBatch(), control: reconcile.New(c), trials: confirm.NewFallback(c, control.ApplyRest(c)),
		scanner: c.Host.Proc.NewScanner(), o: o, wake: make(chan struct{}, 1)}
	a.notifier = newNotifier(o.Ready, o.Log, time.Now())
	a.placements.resident = func(pid int) int64 {
		m, err := c.Host.Proc.Memory(pid)
		if err != nil {
			return 0 // it is gone
		}
		return m.Anon + m.File + m.Shmem
	}
	a.status = api.AgentStatus{Running: true, PID: c.Agent.PID, Since: time.Now(),
		Source: "a look every " + o.Every.String()}
	a.observer = a.newObserver()
	a.slo = sloloop.Of(c, a.observer, func() { a.Changed(nil) }, o.Log)
	return a
}

// Run serves and looks until ctx ends. After ErrUnfinished the controller must stay open until the process ends.
func (a *Agent) Run(ctx context.Context) (err error) {
	server, err := a.listen(ctx)
	if err != nil {
		return err
	}
	defer a.control.Close()
	defer func() { err = errors.Join(err, server.close(ctx)) }()
	defer a.slo.End()
	for _, r := range control.Confined(a.control.Controller) {
		a.o.Log.Warn("not everything can be done for the policy in force", "because", r.Reason, "hint", r.Hint)
	}
	server.serve()
	a.listenEvents() // before the first look, so that nothing comes between
	a.watchSystemd(ctx)
	defer func() {
		if a.stream != nil {
			_ = a.stream.Close()
		}
	}()
	started := time.AfterFunc(startTime, func() {
		if err := footprint.Shrink(); err != nil {
			a.o.Log.Debug("the memory of the start is kept", "err", err)
		}
	})
	defer started.Stop()
	// The caller's goroutine may be bound to a thread, as main's is, and the loop would change threads with each event.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.loop(ctx, server.letIn)
	}()
	<-ended
	a.observer.Wait(recordTime)
	return nil
}

// recordTime is how long the end waits for the disk of the record.
const recordTime = 2 * time.Second

// look looks once and puts right what differs. An error is kept for status and tried again on the
// next look; the limits that are there stay in force.
func (a *Agent) look(ctx context.Context, full bool, why reason) {
	forks, idle := a.takeEvents(full, why)
	if idle {
		return
	}
	if full {
		a.scanner.Recheck(a.control.Strays()...)
	}
	a.mu.Lock()
	a.scanner.Recheck(a.changed...)
	a.changed = nil
	a.mu.Unlock()
	procs, changed, err := a.processes(full)
	var done reconcile.LookResult
	if err == nil || errors.Is(err, procfs.ErrHidden) { // what can be seen is still governed
		var lookErr error
		done, lookErr = a.control.Look(ctx, reconcile.LookOptions{Processes: procs, Changed: changed || a.again,
			Full: full, Forks: forks})
		err = errors.Join(err, a.unlessLocked(lookErr))
	}
	a.again = done.Retry
	a.placements.moved(done.Moved, howLook)
	if !a.again { // what is not moved now stays where it is
		a.placements.forget()
	}
	if !changed && !full {
		procs = nil
	}
	// Whatever went wrong: a freeze ends on time.
	err = errors.Join(err, a.unlessLocked(freeze.Tend(ctx, a.control.Controller, procs, time.Now())))
	if !a.locked {
		a.lockedSince = time.Time{}
	}
	a.scanner.Recheck(done.Moved...)
	a.mind(done)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastLook = time.Now()
	a.status.Looks++
	a.status.Moved += int64(len(done.Moved))
	a.status.Repaired += int64(done.Repaired)
	a.status.Inherited += int64(done.Inherited)
	if a.again {
		a.status.Retries++
	}
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil:
		a.status.Error = err.Error()
		if a.status.Error != a.said { // once, not on every look
			a.said = a.status.Error
			a.o.Log.Error("not everything is as the policy says; the limits in force stay", "err", err)
		}
	case full: // a quick look that had nothing to do says nothing about what is wrong
		a.status.Error, a.said = "", ""
	}
}

// shareLimits gives devices that share a limit by use their new parts, when it is time.
func (a *Agent) shareLimits(ctx context.Context) {
	_, err := a.control.SplitByDemand(ctx, time.Now())
	if err = a.unlessLocked(err); err != nil && !errors.Is(err, context.Canceled) {
		a.o.Log.Warn("limits could not be shared anew; the parts in force stay", "err", err)
	}
}

// mindTrial sees to it that a change which nobody confirms is undone.
func (a *Agent) mindTrial(ctx context.Context) {
	err := a.unlessLocked(a.trials.Once(ctx))
	a.mu.Lock()
	a.onTrial = a.trials.Known()
	a.mu.Unlock()
	if err != nil && !errors.Is(err, context.Canceled) {
		a.o.Log.Error("a change on trial is not taken care of as it should be; trying again", "err", err)
	}
}

// watchHigh sees to it that no group is stuck at its memory.high.
func (a *Agent) watchHigh(ctx context.Context) {
	if err := a.unlessLocked(a.control.BreakStalls(ctx, time.Now())); err != nil && !errors.Is(err, context.Canceled) {
		a.o.Log.Error("a memory.high at which its group is stuck could not be lifted; trying again", "err", err)
	}
}

// trouble is what the last look could not put right.
func (a *Agent) trouble() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status.Error
}

// takeEvents takes in what events told. Idle says that an event asked for the look and that nothing it told of may have
// to be moved: then nothing more is done before the next look at a fixed time.
func (a *Agent) takeEvents(full bool, why reason) (forks []reconcile.Fork, idle bool) {
	if a.queue == nil {
		a.reopenEvents(time.Now())
		return nil, false
	}
	b, lost, ended := a.queue.take()
	now := time.Now()
	again, left := retitled(a.late, now)
	a.late = left
	for _, pid := range b.late {
		a.late = append(a.late, late{pid, now.Add(titleTime)})
	}
	if why == becauseTick { // those that may still change their titles are read again, too
		again = append(again, a.scanner.Settling()...)
	}
	a.mu.Lock()
	a.status.Events += b.events
	a.status.Lost = lost
	a.mu.Unlock()
	forks = b.forksBeforeExec()
	for _, pid := range again {
		if _, gone := b.gone[pid]; !gone {
			b.seen[pid], b.want[pid] = struct{}{}, struct{}{}
		}
	}
	a.held.merge(b)
	a.placements.came(b)
	if ended != nil {
		a.eventsEnded(ended)
		return forks, false
	}
	if full || why != becauseEvent || a.held.whole {
		return forks, false
	}
	if len(b.want) > reconcile.MostFastPath {
		return forks, false
	}
	fresh, held, err := a.scanner.ReadHeld(b.wantPIDs(), a.arguments)
	defer held.Close()
	if err != nil {
		return forks, false
	}
	done := a.control.FastPath(fresh, held, forks, a.find)
	if done.Gone > 0 {
		a.mu.Lock()
		a.status.Gone += int64(done.Gone)
		a.mu.Unlock()
	}
	if len(done.Moved) > 0 {
		a.scanner.Recheck(done.Moved...)
		a.queue.mind(done.Moved, nil, nil, nil, now)
		a.stream.Within(eagerly)
		a.placements.moved(done.Moved, howFastPath)
		a.mu.Lock()
		a.status.Moved += int64(len(done.Moved))
		a.mu.Unlock()
	}
	if !done.Look {
		a.placements.forget()
	}
	return forks, !done.Look
}

// find gives a process as it is now: the table has not heard of what events told since the last look.
func (a *Agent) find(pid int) (procfs.Process, bool) {
	if pid <= 0 {
		return procfs.Process{}, false
	}
	_, changed := a.held.seen[pid]
	if p, known := a.scanner.Find(pid); known && !changed {
		return p, true
	}
	procs, err := a.scanner.ReadSome([]int{pid})
	if err != nil || len(procs) == 0 {
		return procfs.Process{}, false
	}
	return procs[0], true
}

// mind tells the queue what a look has found.
func (a *Agent) mind(done reconcile.LookResult) {
	if a.queue == nil {
		return
	}
	var s prefilter
	if made := a.control.Prefilter(); made != nil {
		s, a.arguments = made, made.Arguments
	}
	var kin []int
	if done.Servers != nil {
		kin = a.scanner.Below(done.Servers)
	}
	a.queue.mind(done.Moved, done.Servers, kin, s, time.Now())
	if len(done.Moved) > 0 {
		a.stream.Within(eagerly)
	}
}

// statEvery is how many full looks, while every event arrives, there are for one that reads each process's stat: the
// events tell as much, and reading them all is most of what an idle agent costs.
const statEvery = 10

// processes brings the process table up to date: by what events told where there are any, else by a look at
// what is new.
func (a *Agent) processes(full bool) (procs []procfs.Process, changed bool, err error) {
	held := a.held
	a.held = newBatch()
	if full && a.queue != nil && !held.whole {
		a.fulls++
		if a.fulls%statEvery != 1 {
			full = false
			a.scanner.Recheck(a.scanner.Turn()...)
		}
	}
	if full || held.whole || a.queue == nil {
		a.scanner.Recheck(held.seenPIDs()...)
		return a.scanner.Look(full || held.whole)
	}
	return a.scanner.Follow(held.seenPIDs(), held.gonePIDs())
}

// sampleLoads brings the load averages up to now, when it is time.
func (a *Agent) sampleLoads(now time.Time) {
	elapsed := now.Sub(a.sampled)
	if elapsed < metrics.LoadEvery {
		return
	}
	sample := a.control.SampleTasks(&a.sampler)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sampled.IsZero() {
		elapsed = 0 // the averages begin at nothing, like the kernel's
	}
	a.sampled, a.loads, a.tasks = now, a.loads.Next(sample, elapsed), sample
}

// Fill adds to a status what only the agent knows.
func (a *Agent) Fill(st *api.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st.Agent = a.status
	st.Agent.Mistaken, st.Agent.Placement = transaction.Mistaken(a.control.Controller), a.placements.figures()
	st.SLO = a.slo.List()
	st.ZFS = a.observer.Last().ZFS()
	for i, g := range st.Groups {
		if load, known := a.loads[g.Group]; known {
			st.Groups[i].Load = &load
		}
	}
}
