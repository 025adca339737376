package sampling

import (
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/hoststat"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/observe/record"
)

// What an observer keeps below the state directory: which collectors are on, and the record.
const (
	collectorsFile  = "observe/collectors.json"
	recordDirectory = "observe/record"
)

// RecordIn is the directory of the record of a state directory.
func RecordIn(state string) string { return filepath.Join(state, recordDirectory) }

// waiting is how many samples may wait for the disk of the record. Those that come then are not recorded.
const waiting = 30

// Options of an Observer.
type Options struct {
	Host  *host.Host
	State string // the state directory
	// Self says what the agent did, and Tasks what it counted of its groups.
	Self  func() (observe.Agent, error)
	Tasks func() (map[string]metrics.TaskStates, metrics.Loads)
	// SLO says how it goes with what groups are promised; nil: nobody knows.
	SLO func() map[string]api.SLO
	// Every is the time between two readings of every collector; 0: what observe.Tier says.
	Every time.Duration
	Log   *slog.Logger
}

// Observer is what samples for an agent, and records that.
type Observer struct {
	*collect.Runner

	Record *record.Recorder

	kernel    *Kernel
	directory string // of the record
	taken     chan taken
	ended     chan struct{}
	running   bool // the caller of See's alone
}

// taken is a sample, and what is new in it.
type taken struct {
	sample *observe.Sample
	fresh  []observe.Part
}

// NewObserver makes an observer, with the collectors on that were.
func NewObserver(o Options) *Observer {
	file := filepath.Join(o.State, collectorsFile)
	choice, err := collect.Load(file)
	if err != nil {
		o.Log.Warn("which collectors were on is not known; those are that are on at first", "err", err)
	}
	k := New(o.Host)
	sources := k.Sources()
	sources[observe.Tasks] = both(sources[observe.Tasks], counted(o.Tasks))
	sources[observe.OfAgent] = func(context.Context, *collect.Meter) (collect.Put, error) {
		self, err := o.Self()
		return func(s *observe.Sample) { s.Agent = self }, err
	}
	sources[observe.Limits] = both(sources[observe.Limits], promised(o.SLO))
	recorder := record.New(record.Options{Dir: RecordIn(o.State), Log: o.Log, Space: hoststat.Space})
	wait := make(chan taken, waiting)
	options := collect.Options{Sources: sources, Begin: k.Begin, Choice: choice, Log: o.Log,
		Save:  func(c collect.Choice) error { return collect.Keep(file, c) },
		Taken: func(s *observe.Sample, fresh []observe.Part) { pass(wait, taken{s, fresh}, recorder.Lose) }}
	if o.Every > 0 {
		options.Every = map[observe.Tier]time.Duration{}
		for _, t := range observe.Tiers {
			options.Every[t] = o.Every
		}
	}
	return &Observer{Runner: collect.New(options), Record: recorder, kernel: k, directory: RecordIn(o.State),
		taken: wait, ended: make(chan struct{})}
}

// pass has a sample wait for the record, and loses it where too many do: nobody waits for a disk.
func pass(wait chan<- taken, t taken, lose func()) {
	select {
	case wait <- t:
	default:
		lose()
	}
}

// See takes in what is to be watched from now on; nil is what is not known yet. Limits that changed are sampled, and so
// recorded, at once. The first call begins to sample, until ctx ends. It is for one goroutine.
func (o *Observer) See(ctx context.Context, w *Watched) {
	changed := o.kernel.Watch(w)
	if w != nil && w.record != nil {
		o.Record.Bound(record.Bound{Off: w.record.Off, Size: int64(w.record.Size), Age: w.record.Age})
	}
	if changed {
		o.ReadNow(observe.Limits)
	}
	if o.running {
		return
	}
	o.running = true
	go func() {
		defer close(o.taken)
		o.Run(ctx)
	}()
	go func() {
		defer close(o.ended)
		for t := range o.taken {
			o.Record.Take(record.TickOf(t.sample, t.fresh))
		}
		o.Record.Close()
	}()
}

// Wait waits until what was sampled is recorded, after the context of See has ended; for a disk not longer than that.
// It is for the goroutine of See.
func (o *Observer) Wait(most time.Duration) {
	if !o.running {
		return
	}
	select {
	case <-o.ended:
	case <-time.After(most):
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
					for i := range load { // a thousandth is enough, and takes an eighth of the room in the record
						load[i] = math.Round(1000*load[i]) / 1000
					}
					g.Load = &load
				}
				if n, known := now[g.Group]; known {
					g.Tasks = &n
				}
			}
		}, nil
	}
}

// promised adds what groups are promised.
func promised(slos func() map[string]api.SLO) collect.Source {
	return func(context.Context, *collect.Meter) (collect.Put, error) {
		var all map[string]api.SLO
		if slos != nil {
			all = slos()
		}
		return func(s *observe.Sample) {
			for i := range s.Groups {
				if one, is := all[s.Groups[i].Group]; is {
					s.Groups[i].SLO = &one
				}
			}
		}, nil
	}
}
