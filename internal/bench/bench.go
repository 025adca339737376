// Package bench is the proofs: it carries out scenarios that load a real database, set neighbours on it, and measure
// what a policy does about them. Each brings its own throw-away servers and takes everything away again.
//
// It is the one place outside tests that starts programs: the servers, the load generators, the
// neighbours, and bulkhead itself, which it drives through its command line as a person would.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/matrix"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/progress"
	"bulkhead/internal/bench/sampler"
	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// Options says how long a run takes and where. The zero value does what the scenario says.
type Options struct {
	Rounds  int // interleaved rounds of all arms
	Seconds int // length of one arm
	// Smoke is one short round, to see that everything works; its figures say little, and its bar is lower.
	Smoke bool
	// Dir is where the work directory is made, on a disk that the kernel can throttle; default /var/tmp.
	Dir string
	// DSN is databases that exist, to be loaded in place of those that the scenario would start, by name: a URL, or @
	// and the path of a file that holds it.
	DSN map[string]string
	// Release stands in place of the host's servers of its engine: "mysql@9.7".
	Release string
	// Binary is the bulkhead to show; default the running program.
	Binary string
	// Progress gets what happens while it runs; nil drops it.
	Progress io.Writer
	// Terminal: Progress is a terminal, so one line is rewritten instead of a new line every 5 s.
	Terminal bool
}

// setUpTime is about how long it takes until everything runs and is filled.
const setUpTime = 8 * time.Second

// settle is for neighbours to get going before the load starts; short arms wait no longer than they last.
const settle = 2 * time.Second

// length is that of one arm.
func (o Options) length() time.Duration { return time.Duration(o.Seconds) * time.Second }

// settle is how long the neighbours of an arm get before its load starts.
func (o Options) settle() time.Duration { return min(settle, o.length()) }

func (o Options) withDefaults(s *scenario.Scenario) Options {
	if o.Smoke {
		o.Rounds, o.Seconds = cmp.Or(o.Rounds, 1), cmp.Or(o.Seconds, 5)
	}
	o.Rounds, o.Seconds = cmp.Or(max(o.Rounds, 0), s.Rounds), cmp.Or(max(o.Seconds, 0), s.Seconds)
	o.Dir = cmp.Or(o.Dir, "/var/tmp")
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// Estimate is about how long a run takes.
func Estimate(s *scenario.Scenario, o Options) time.Duration {
	o = o.withDefaults(s)
	arms := len(s.Arms) + 1 // the control again
	return setUpTime + time.Duration(o.Rounds*arms)*(time.Duration(o.Seconds)*time.Second+settle+time.Second)
}

// run is one run of a scenario.
type run struct {
	fitted
	options    Options
	paths      process.Programs
	supervisor *process.Supervisor
	far        *process.Supervisor // at the far end of the wire; nil without one
	undo       process.Cleanup
	progress   *progress.Progress
	dir        string
	hog        string // the program of neighbours
	databases  []*database.Instance
	existing   []*database.Instance // those of the databases that the run did not make, known before it starts
	drivers    []*load.Driver
	neighbour  map[string]*neighbour.Neighbour
	governor   governor       // puts policies in force
	matrix     *matrix.Matrix // nil without one
	sampler    func(arm scenario.Arm, governed bool, members func(string) []int) *sampler.Sampler
	rounds     rounds
	started    time.Time
	loadAvg    string
}

func newRun(f fitted, o Options) *run {
	r := &run{fitted: f, options: o, started: time.Now()}
	r.rounds = rounds{fitted: &r.fitted, smoke: o.Smoke}
	r.governor = governor{
		fitted: &r.fitted, policies: map[string]string{}, texts: r.texts,
		databases: func() []*database.Instance { return r.databases },
	}
	return r
}

// Run carries out a scenario.
//
// It needs root and says what else is missing (RequirementError) before it starts anything. Whatever
// it starts, makes or applies is gone when it returns, after a failure, a signal or a panic too. A
// result with Held false is not an error: the proof worked and its shape did not hold.
func Run(ctx context.Context, s *scenario.Scenario, o Options) (result *proof.Result, err error) {
	err = carry(ctx, s, o, func(ctx context.Context, r *run) error {
		if err := r.measureAll(ctx); err != nil {
			return err
		}
		result = r.result()
		return nil
	})
	return result, err
}

// carry sets a scenario up, has something done with it, and takes everything away again.
func carry(ctx context.Context, s *scenario.Scenario, o Options, do func(context.Context, *run) error) (err error) {
	r := newRun(fitted{scenario: s, host: host.New("/"), omitted: map[string]string{}}, o.withDefaults(s))
	if err := r.require(ctx); err != nil {
		return r.hide(err)
	}
	lock, err := lockMachine(benchName)
	if err != nil {
		return err
	}
	r.undo.Add("let other proofs run", func(context.Context) error { return lock.Close() })
	r.progress = progress.New(r.options.Progress, r.options.Terminal)
	ctx, stop := process.UntilSignal(ctx, func() { r.progress.Note("cleaning up, please wait") })
	defer stop()
	defer func() {
		r.progress.Phase("cleaning up")
		err = r.hide(errors.Join(err, r.undo.Run(ctx)))
		r.progress.Close()
	}()
	if err := r.setUp(ctx); err != nil {
		return interruption(ctx, r.full(err))
	}
	if err := do(ctx, r); err != nil {
		return interruption(ctx, r.full(err))
	}
	return nil
}

// interruption names what ended the context instead of the failure that it caused.
func interruption(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, process.ErrInterrupted) {
		return cmp.Or(cause, err)
	}
	return fmt.Errorf("%w: %w", process.ErrInterrupted, cause)
}

// full says what to do when the work directory's disk is full, which programs say in their own words.
func (r *run) full(err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !strings.Contains(err.Error(), "No space left on device") {
		return err
	}
	return &process.RequirementError{Reason: fmt.Sprintf("the disk of %q is full: %v", r.machine.dir, err),
		Hint: "make room, or choose another place with --dir; needs: {disk: …} in the scenario says how much there " +
			"must be"}
}

// require checks everything that can be checked without changing anything.
func (r *run) require(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return &process.RequirementError{
			Reason: "it needs root: it makes control groups and starts servers as other users",
			Hint:   "run it with sudo", Reach: process.EveryScenario,
		}
	}
	if name := r.options.Release; name != "" {
		if r.scenario, err = r.scenario.WithRelease(name); err != nil {
			return &process.RequirementError{Reason: err.Error(), Reach: process.ThisScenario,
				Hint: "leave --engine out, or choose another scenario"}
		}
	}
	for i, d := range r.scenario.Databases {
		if r.scenario.Databases[i].DSN, err = database.SecretDSN(cmp.Or(r.options.DSN[d.Name], d.DSN)); err != nil {
			return err
		}
	}
	if err := r.spare(); err != nil {
		return err
	}
	if r.paths, err = process.Find(wanted(r.scenario)); err != nil {
		return err
	}
	if r.options.Binary == "" {
		if r.options.Binary, err = os.Executable(); err != nil {
			return fmt.Errorf("find bulkhead's own program: %w", err)
		}
	}
	var noDisk *process.RequirementError // is said when there is room at all
	if r.machine, err = lookAtMachine(r.options.Dir); err != nil && !errors.As(err, &noDisk) {
		return err
	}
	if r.loadAvg, err = r.host.LoadAverage(); err != nil {
		return err
	}
	r.fit()
	r.leaveOut()
	if err := r.large(); err != nil {
		return err
	}
	if noDisk != nil {
		return noDisk
	}
	return r.lookAtExisting(ctx)
}
