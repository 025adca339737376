package agent

import (
	"log/slog"
	"net"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/confirm"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/sampling"
	"bulkhead/internal/sloloop"
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
	// Sample is the time between two readings of every collector. Default what observe.Tier says.
	Sample time.Duration
	// Ready is called once, when everything that the applied policy asks for is in force, or was tried for a while.
	Ready func()
	Log   *slog.Logger
	// events opens the source of process events, and traces the one that stands in for it; tests have others. Default
	// the kernel's connector, and BPF programs.
	events, traces func() (source, error)
	// peer says who is at the other end of a connection; tests have others. Default the kernel's word.
	peer func(net.Conn) (*api.Caller, error)
	// stop is another stopTime, in tests.
	stop time.Duration
}

// Agent is a running agent.
type Agent struct {
	control *reconcile.Reconciler
	trials  *confirm.Fallback
	scanner *procfs.Scanner
	o       Options

	sampler  metrics.TaskSampler
	sampled  time.Time
	notifier *notifier
	observer *sampling.Observer
	slo      *sloloop.Loops
	watched  *sampling.Watched // the loop's alone

	queue  *eventQueue // nil without events
	stream source
	// An ended event source is opened again at reopenAt, reopenWait after its end; opened is when that was done last.
	reopenAt, opened time.Time
	reopenWait       time.Duration
	late             []late
	arguments        func(exe string) bool // says whose arguments matter; nil: everybody's
	held             batch                 // what events told since the table was brought up to date
	again            bool                  // the last look left something undone
	// locked says that somebody else held the lock at the last attempt, and lockedSince since when.
	locked      bool
	lockedSince time.Time
	// placements keeps how long processes wait for their groups.
	placements placements
	fulls      int // full looks so far, while events arrive

	mu     sync.Mutex // guards what follows
	status api.AgentStatus
	// changed holds the processes that verbs over the socket have moved.
	changed []int
	loads   metrics.Loads
	tasks   map[string]metrics.TaskStates // of the last count
	said    string                        // the error that was logged last
	onTrial confirm.Trials                // as of the last tick
	wake    chan struct{}
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
