// Package transaction changes a host and its state directory together, or not at all: it takes the lock, looks at the
// host through the applied policy (View), runs the plan that follows, and commits the documents that belong to it. What
// a crash leaves of a change is undone before the next one (Recover).
//
// A Controller is for one host and one state directory. The verbs of the command line (internal/control), the pass of
// the agent (internal/reconcile) and what only reads (internal/inspect) are functions over it. Processes that change
// the host exclude each other by the lock of the state directory.
package transaction

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/sandbox/confined"
)

// DefaultPolicy and DefaultState are where the policy and the state live unless said otherwise.
const (
	DefaultPolicy = "/etc/bulkhead/policy.yaml"
	DefaultState  = "/var/lib/bulkhead"
)

// Controller does verbs on one host with one state directory. It is safe for one verb at a time;
// changing verbs of several processes exclude each other through the lock of the state directory.
type Controller struct {
	Host  *host.Host
	Store *journal.Store // nil with NoState
	Log   *slog.Logger
	// Agent is the agent's identity when the caller is the agent, else the zero value.
	Agent procfs.ID
	// LockWait is how long a changing verb waits for another one to finish. Zero: 5 s.
	LockWait time.Duration

	// Self is the caller's process: it is never moved.
	Self procfs.ID
	exe  string // of this program, "" when it cannot be told
	// Scratch is the journal of a release that the state directory cannot take.
	Scratch *journal.Store
	// AfterStep is called after each step of a plan: for tests, which crash there.
	AfterStep func(i int, s plan.Step)
	// SetLimit gives a process a limit; nil is prlimit(2). For tests, whose processes are none.
	SetLimit func(pid, resource int, soft, hard uint64) error
	// Remount and UpdateLoader are those of tunable.Host. For tests, whose mounts and boot loaders are none.
	Remount      func(point string, flags uintptr, data string) error
	UpdateLoader func(ctx context.Context, program string, args ...string) error
	// Reread is that of tunable.Host, for tests, whose servers are none.
	Reread func(pid int) error
	// ChangePolicy and Labels are those of tunable.Host, for tests, too.
	ChangePolicy func(ctx context.Context, program string, args ...string) error
	Labels       sepolicy.Labeller
	mu           sync.Mutex // guards opened and mounted
	opened       *cgroup.Tree
	model        bool // of a test: what lies below Root may be written
	mounted      []host.Hierarchy
	Root         string // of the host, as Options.Root
	// Clock is another one than the host's, in tests.
	Clock func() time.Time
	// Bus says how systemd is reached; tests have another root, and wait less.
	Bus   systemd.Options
	reads struct { // how snapshots are taken
		once   sync.Once
		reader *snapshot.Reader
	}
	bus      sync.Mutex
	systemd  *systemd.Manager // the connection; guarded by bus
	Watchdog []string         // see Options
	Probe    []string         // see Options
	// Unit is the service that the agent runs in; nil where this process is not the agent, or runs in none.
	Unit *confined.Unit
	// Recent are samples of the groups that the policy's guard watches, where this process is the agent.
	Recent metrics.Recent
}

// Options says where things are.
type Options struct {
	State string // default DefaultState
	// NoState leaves the state directory alone, which others than root may not read: for Discover and
	// Check, which need none.
	NoState bool
	Root    string // root of /proc and /sys, default "/"
	// Tree holds the cgroup hierarchies that Root names, for tests: a model of the kernel. Default those of the kernel.
	Tree *cgroup.Tree
	Log  *slog.Logger
	// Watchdog are the arguments with which this program becomes a watchdog (internal/watchdog); nil does without, for
	// tests.
	Watchdog []string
	// Probe are the arguments with which this program becomes a load (internal/probe); nil measures nothing.
	Probe []string
	// AfterStep is called after each step of a plan: for tests, which crash there.
	AfterStep func(i int, s plan.Step)
}

// Open opens the state directory and the host. Nothing on the host is changed.
func Open(o Options) (*Controller, error) {
	if o.State == "" {
		o.State = DefaultState
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Controller{Host: host.New(o.Root), Log: o.Log, Root: o.Root, Watchdog: o.Watchdog, Probe: o.Probe,
		AfterStep: o.AfterStep, Bus: systemd.Options{Root: o.Root}}
	if !o.NoState {
		store, err := journal.Open(o.State, journal.Options{Alive: c.Host.Proc.Alive})
		if err != nil {
			return nil, &api.Error{Code: api.CodeFailed, Err: err,
				Hint: "give another state directory with --state, or mend this one"}
		}
		c.Store = store
	}
	if o.Tree != nil {
		f, err := c.Host.Facts()
		if err != nil {
			return nil, err
		}
		c.opened, c.mounted, c.model = o.Tree, f.Hierarchies, true
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{PIDs: []int{os.Getpid()}})
	if err == nil && len(procs) == 1 {
		c.Self, c.exe = procs[0].ID, procs[0].Exe
	}
	return c, nil
}

// Close lets go of the state directory.
func (c *Controller) Close() error {
	c.Disconnect()
	if c.Store == nil {
		return nil
	}
	return c.Store.Close()
}

// Disconnect ends the connection to systemd; who needs one later makes another.
func (c *Controller) Disconnect() {
	c.bus.Lock()
	defer c.bus.Unlock()
	if c.systemd != nil {
		c.systemd.Close()
		c.systemd = nil
	}
}

// Warnings are what was found wrong with the state directory when it was opened.
func (c *Controller) Warnings() []string {
	if c.Store == nil {
		return nil
	}
	return c.Store.Warnings()
}

// Lock takes the lock for a changing verb, waiting a little for another one to finish.
func (c *Controller) Lock(ctx context.Context, verb, who string) (*journal.Lock, error) {
	return c.LockWithin(ctx, cmp.Or(c.LockWait, DefaultLockWait), verb, who)
}

// DefaultLockWait is how long a changing verb waits for another one.
const DefaultLockWait = 5 * time.Second

// LockWithin is Lock with a limit of its own. With 0 it does not wait, as the agent's loop never does. The wait ends
// with ctx, too. Waiters ask again after a random time, so that each of them gets its turn.
func (c *Controller) LockWithin(ctx context.Context, wait time.Duration, verb, who string) (*journal.Lock, error) {
	end := time.Now().Add(wait)
	for {
		l, err := c.Store.Lock(verb, who)
		var locked *statedir.LockedError
		if err == nil || !errors.As(err, &locked) || !time.Now().Before(end) {
			return l, err
		}
		if stopped := Sleep(ctx, 5*time.Millisecond+rand.N(20*time.Millisecond)); stopped != nil {
			return nil, fmt.Errorf("%w: %w", stopped, err)
		}
	}
}

// TreeOf gives the open cgroup hierarchies that the facts name, the same ones as long as they are mounted the
// same way.
func (c *Controller) TreeOf(f *host.Facts) *cgroup.Tree {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened == nil || !reflect.DeepEqual(c.mounted, f.Hierarchies) {
		c.mounted = f.Hierarchies
		c.opened = cgroup.New(f.Hierarchies) // one in use elsewhere is closed when nobody holds it any more
	}
	return c.opened
}

// Sleep waits for d, or until ctx ends, and then gives its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Mistaken counts the moves of a process that had just got another one's number.
func Mistaken(c *Controller) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opened == nil {
		return 0
	}
	return c.opened.Mistaken()
}

// Now is the time that schedules and ends of overrides go by.
func (c *Controller) Now() time.Time {
	if c.Clock != nil {
		return c.Clock()
	}
	return time.Now()
}

// or is a time that somebody asked for; zero is now.
func (c *Controller) or(at time.Time) time.Time {
	if at.IsZero() {
		return c.Now()
	}
	return at
}
