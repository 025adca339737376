package sampling

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
)

// collectorsFile is where it is kept which collectors are on, below the state directory.
const collectorsFile = "observe/collectors.json"

// Options of an Observer.
type Options struct {
	Host  *host.Host
	State string // the state directory
	// Self says what the agent did, and Tasks what it counted of its groups.
	Self  func() (observe.Agent, error)
	Tasks func() (map[string]metrics.TaskStates, metrics.Loads)
	// Every is the time between two readings of every collector; 0: what observe.Tier says.
	Every time.Duration
	Log   *slog.Logger
}

// Observer is what samples for an agent.
type Observer struct {
	*collect.Runner

	kernel  *Kernel
	running bool // the caller of See's alone
}

// NewObserver makes an observer, with the collectors on that were.
func NewObserver(o Options) *Observer {
	file := filepath.Join(o.State, collectorsFile)
	choice, err := collect.Load(file)
	if err != nil {
		o.Log.Warn("which collectors were on is not known; all are", "err", err)
	}
	k := New(o.Host)
	sources := k.Sources()
	sources[observe.Tasks] = both(sources[observe.Tasks], counted(o.Tasks))
	sources[observe.OfAgent] = func(context.Context, *collect.Meter) (collect.Put, error) {
		self, err := o.Self()
		return func(s *observe.Sample) { s.Agent = self }, err
	}
	options := collect.Options{Sources: sources, Begin: k.Begin, Choice: choice, Log: o.Log,
		Save: func(c collect.Choice) error { return collect.Keep(file, c) }}
	if o.Every > 0 {
		options.Every = map[observe.Tier]time.Duration{}
		for _, t := range observe.Tiers {
			options.Every[t] = o.Every
		}
	}
	return &Observer{Runner: collect.New(options), kernel: k}
}

// See takes in what is to be watched from now on; nil is nothing. The first call begins to sample, until ctx ends. It
// is for one goroutine.
func (o *Observer) See(ctx context.Context, w *Watched) {
	o.kernel.Watch(w)
	if !o.running {
		o.running = true
		go o.Run(ctx)
	}
}

// counted adds what the agent has counted of groups.
func counted(tasks func() (map[string]metrics.TaskStates, metrics.Loads)) collect.Source {
	return func(context.Context, *collect.Meter) (collect.Put, error) {
		now, loads := tasks()
		return func(s *observe.Sample) {
			for i := range s.Groups {
				g := &s.Groups[i]
				if load, known := loads[g.Group]; known {
					g.Load = &load
				}
				if n, known := now[g.Group]; known {
					g.Tasks = &n
				}
			}
		}, nil
	}
}
