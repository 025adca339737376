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
	"sync"
	"time"

	"bulkhead/internal/control"
	"bulkhead/internal/host"
)

// DefaultSocket is where the local API listens unless said otherwise.
const DefaultSocket = "/run/bulkhead/agent.sock"

// Options says how often the agent looks. Zero values are the defaults.
type Options struct {
	Socket string
	// Every is the time between two quick looks, which list the process table and read only what is
	// new. Default 1 s.
	Every time.Duration
	// Full is the time between two full looks, which read every process and every limit again.
	// Default 30 s.
	Full time.Duration
	Log  *slog.Logger
}

// Agent is a running agent.
type Agent struct {
	control *control.Controller
	scanner *host.Scanner
	o       Options

	sampler *control.TaskSampler
	sampled time.Time

	mu     sync.Mutex // guards what follows
	status control.AgentStatus
	// changed holds the processes that verbs over the socket have moved.
	changed []int
	loads   loads
	said    string // the error that was logged last
	wake    chan struct{}
}

// New makes an agent for a host and its state directory.
func New(c *control.Controller, o Options) *Agent {
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
	a := &Agent{control: c, scanner: c.Host.NewScanner(), o: o, wake: make(chan struct{}, 1)}
	c.BecomeAgent()
	a.sampler = c.NewTaskSampler()
	a.status = control.AgentStatus{Running: true, PID: c.Agent.PID, Since: time.Now(), Source: "a look every " + o.Every.String()}
	return a
}

// Run serves and looks until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	server, err := a.listen()
	if err != nil {
		return err
	}
	defer server.close()
	go server.serve()
	ticker := time.NewTicker(a.o.Every)
	defer ticker.Stop()
	full := time.Time{}
	for {
		now := time.Now()
		whole := now.Sub(full) >= a.o.Full
		if whole {
			full = now
		}
		a.look(ctx, whole)
		a.sampleLoads(now)
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
			full = time.Time{}
		case <-ticker.C:
		}
	}
}

// Changed asks for a full look now, after a verb that moved these processes.
func (a *Agent) Changed(pids []int) {
	a.mu.Lock()
	a.changed = append(a.changed, pids...)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// look looks once and puts right what differs. An error is kept for status and tried again on the
// next look; the limits that are there stay in force.
func (a *Agent) look(ctx context.Context, full bool) {
	a.mu.Lock()
	a.scanner.Recheck(a.changed...)
	a.changed = nil
	a.mu.Unlock()
	procs, changed, err := a.scanner.Look(full)
	var done control.LookResult
	if err == nil || errors.Is(err, host.ErrHidden) { // what can be seen is still governed
		var lookErr error
		done, lookErr = a.control.Look(ctx, control.LookOptions{Processes: procs, Changed: changed, Full: full})
		err = errors.Join(err, lookErr)
	}
	// Whatever went wrong: a freeze ends on time.
	err = errors.Join(err, a.control.ThawDue(time.Now()))
	a.scanner.Recheck(done.Moved...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastLook = time.Now()
	a.status.Looks++
	a.status.Moved += int64(len(done.Moved))
	a.status.Repaired += int64(done.Repaired)
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

// sampleLoads brings the load averages up to now, when it is time.
func (a *Agent) sampleLoads(now time.Time) {
	elapsed := now.Sub(a.sampled)
	if elapsed < loadEvery {
		return
	}
	sample := a.sampler.Sample()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sampled.IsZero() {
		elapsed = 0 // the averages begin at nothing, like the kernel's
	}
	a.sampled, a.loads = now, a.loads.next(sample, elapsed)
}

// Fill adds to a status what only the agent knows.
func (a *Agent) Fill(st *control.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st.Agent = a.status
	for i, g := range st.Groups {
		if load, known := a.loads[g.Group]; known {
			st.Groups[i].Load = &load
		}
	}
}
