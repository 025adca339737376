package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// trial is one arm of one round.
type trial struct {
	arm      scenario.Arm
	outcomes map[string]load.Outcome // by load
	figures  map[string]float64
	marks    []proof.Mark
	groups   map[string][]proof.GroupSecond
	host     []proof.HostSecond
	evidence string // of the page size of a cell
}

// measureAll runs every arm of every round, and the control arm again at the end of each. A round in which the control
// arm differs from itself by more than a tenth is measured again, and what it gave is dropped, until there were twice
// as many rounds as asked for; those of the rest stay as they are. What the other arms did has no say in that.
func (r *run) measureAll(ctx context.Context) error {
	arms := slices.Clone(r.scenario.Arms)
	if control, found := r.scenario.ArmNamed(r.scenario.Control); found {
		control.Name, control.Text = scenario.Again, control.Text+" again"
		arms = append(arms, control)
	}
	for round := 0; round < r.options.Rounds; round = len(r.rounds.all) {
		trials := map[string]*trial{}
		var rates []string
		switch {
		case r.matrix != nil:
			rand.Shuffle(len(arms)-1, func(i, j int) { arms[i], arms[j] = arms[j], arms[i] })
		case round > 0 && arms[0].Name == r.scenario.Control: // each follows the other one in every second round
			slices.Reverse(arms[1 : len(arms)-1])
		}
		for _, arm := range arms {
			if r.omitted[arm.Name] != "" {
				continue
			}
			r.progress.Arm(round*len(arms)+slices.IndexFunc(arms,
				func(a scenario.Arm) bool { return a.Name == arm.Name }), r.options.Rounds*len(arms))
			r.progress.Phase(fmt.Sprintf("round %d of %d: %s", round+1, r.options.Rounds, arm.Text))
			t, err := r.measure(ctx, arm)
			if err != nil {
				return fmt.Errorf("arm %q: %w", arm.Text, err)
			}
			trials[arm.Name] = t
			if loads := r.scenario.LoadsOf(arm); len(loads) > 0 {
				rates = append(rates, fmt.Sprintf("%s %s", arm.Name, proof.Number(t.outcomes[loads[0].Name].Rate())))
			}
		}
		r.progress.Note(fmt.Sprintf("round %d of %d, transactions/s: %s", round+1, r.options.Rounds,
			strings.Join(rates, ", ")))
		if again := r.rounds.keep(trials, r.options.Rounds); again != "" {
			r.progress.Note(again)
		}
	}
	return r.governor.govern(ctx, scenario.Arm{})
}

// measure runs one arm.
func (r *run) measure(ctx context.Context, arm scenario.Arm) (t *trial, err error) {
	// One that starts inside its group is not there while the group is made: what it holds could not be charged anew.
	for _, in := range r.databases {
		if in.Restarted || slices.Contains(arm.Restart, in.Name) {
			if err := in.Stop(); err != nil {
				return nil, err
			}
		}
	}
	if err := r.governor.govern(ctx, arm); err != nil {
		return nil, err
	}
	if err := r.matrix.Begin(ctx, arm); err != nil {
		return nil, err
	}
	if err := r.startAgain(ctx, arm); err != nil {
		return nil, err
	}
	back, err := set(ctx, r.database, arm.Settings)
	defer func() { err = errors.Join(err, back(context.WithoutCancel(ctx))) }()
	if err != nil {
		return nil, err
	}
	length := r.options.length()
	fleet := r.unleash(ctx, arm, length)
	defer func() {
		if hogErr := fleet.Stop(); hogErr != nil && err == nil {
			err = hogErr
		}
	}()
	// Neighbours come to full speed, and what the arm before has left comes to an end.
	process.Sleep(ctx, r.options.settle())
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var crowd crowd
	s := r.sampler(arm, r.governor.governed() || len(arm.Phases) > 0,
		func(group string) []int { return r.membersOf(group, fleet, &crowd) })
	s.Changing, s.Traffic, s.Killed = len(arm.Phases) > 0, r.meter(arm), r.governor.killed
	start := &beginning{at: time.Now(), seen: make(chan struct{})}
	s.Start(ctx)
	t = &trial{arm: arm, outcomes: map[string]load.Outcome{}, figures: map[string]float64{}}
	phased := make(chan error, 1)
	phaseCtx, stopPhases := context.WithCancel(ctx)
	go func() { phased <- r.phases(phaseCtx, arm, start, length, t, s.Read) }()
	loadErr := r.loadAll(ctx, arm, length, t, &crowd, start)
	stopPhases()
	phaseErr := <-phased
	err = errors.Join(loadErr, phaseErr, s.Stop())
	if err != nil {
		return nil, err
	}
	t.read(s, start.at, length)
	r.governor.killed = s.Kills()
	if r.matrix != nil {
		t.evidence, err = r.matrix.End(ctx, arm.Cell.Page, t.figures)
	}
	return t, err
}

// beginning is when the first load of an arm began: starved by neighbours, it takes its time to start and to connect.
type beginning struct {
	once sync.Once
	at   time.Time
	seen chan struct{}
}

// second is called with each second that the load reports; the first one tells when it began.
func (b *beginning) second() {
	b.once.Do(func() {
		b.at = time.Now().Add(-time.Second)
		close(b.seen)
	})
}

// crowd are the processes of the loads.
type crowd struct {
	mu   sync.Mutex
	pids map[string][]int // by group
}

func (c *crowd) add(group string, pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pids == nil {
		c.pids = map[string][]int{}
	}
	c.pids[group] = append(c.pids[group], pid)
}

func (c *crowd) of(group string) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.pids[group])
}

// membersOf are processes that should be in a group.
func (r *run) membersOf(group string, h *neighbour.Fleet, c *crowd) []int {
	var pids []int
	for _, in := range r.databases {
		if pid := in.PID(); in.Group == group && pid > 0 {
			pids = append(pids, pid)
		}
	}
	for _, d := range r.drivers {
		if d.Group == group && d.Flow == load.FlowIn {
			pids = append(pids, d.Server.PID())
		}
	}
	return append(append(pids, h.Newest(group)...), c.of(group)...)
}

// startAgain starts databases that died or that the arm wants to start inside their group. What starts outside of the
// groups that are in force is put into them.
func (r *run) startAgain(ctx context.Context, arm scenario.Arm) error {
	outside := false
	for _, in := range r.databases {
		inside := slices.Contains(arm.Restart, in.Name)
		var wrap func(string, []string) []string
		if inside && r.governor.applied != "" && in.Group != "" {
			wrap = func(user string, args []string) []string { return r.governor.system.runAs(in.Group, user, args) }
		}
		in.Restarted = inside
		outside = outside || in.Ours() && in.PID() == 0 && wrap == nil
		if err := in.Start(ctx, wrap); err != nil {
			return err
		}
	}
	if !outside {
		return nil
	}
	return r.governor.gather(ctx)
}

// set sets what an arm wants in its servers; back takes it back in the opposite order, however much of it was set.
func set(ctx context.Context, in func(name string) *database.Instance, all []scenario.Setting) (
	back func(context.Context) error, err error) {
	var done []scenario.Setting
	back = func(ctx context.Context) (err error) {
		for _, s := range slices.Backward(done) {
			err = errors.Join(err, in(s.On).Execute(ctx, s.Back))
		}
		return err
	}
	for _, s := range all {
		if err := in(s.On).Execute(ctx, s.Set); err != nil {
			return back, err
		}
		done = append(done, s)
	}
	return back, nil
}

// unleash starts the neighbours of an arm.
func (r *run) unleash(ctx context.Context, arm scenario.Arm, length time.Duration) *neighbour.Fleet {
	h := neighbour.NewFleet(r.supervisor)
	lasts := r.options.settle() + length + neighbour.HogGrace
	// The loudest last: it slows down what is started after it.
	for _, loud := range []bool{false, true} {
		for _, name := range arm.With {
			n := r.neighbour[name]
			if (n.Kind == "cpu") != loud {
				continue
			}
			wrap := r.governor.inside(n.Group)
			number := 0
			h.Keep(ctx, n, func() ([]string, error) {
				number++
				work, err := neighbour.FreshDir(r.dir, "backup-"+n.Name, number)
				if err != nil {
					return nil, err
				}
				args := n.Command(r.hog, work, lasts)
				if wrap != nil {
					args = wrap(args)
				}
				return args, nil
			})
		}
	}
	return h
}

// loadAll runs the loads of an arm side by side.
func (r *run) loadAll(ctx context.Context, arm scenario.Arm, length time.Duration, t *trial, c *crowd,
	start *beginning) error {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i, l := range r.scenario.LoadsOf(arm) {
		d := r.matrix.Of(r.driver(l.Name), arm)
		live := func(float64) {}
		if i == 0 {
			live = func(tps float64) {
				start.second()
				r.progress.Rate(tps)
				r.matrix.Look(ctx)
			}
		}
		wait.Go(func() {
			o, err := d.Run(ctx, length, r.governor.inside(l.Group), live, func(started *process.Child) {
				if l.Flow != load.FlowIn {
					c.add(l.Group, started.PID())
				}
			})
			mu.Lock()
			defer mu.Unlock()
			t.outcomes[l.Name] = o
			// A load whose database is to be killed fails with it.
			if err != nil && (arm.Dies == "" || l.On != arm.Dies || ctx.Err() != nil) {
				errs = append(errs, fmt.Errorf("load %q: %w", l.Name, err))
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (r *run) driver(name string) *load.Driver {
	for _, d := range r.drivers {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// phases switches from one phase to the next while the load runs. read has counters read, where a phase ends and where
// the next one begins.
func (r *run) phases(ctx context.Context, arm scenario.Arm, start *beginning, length time.Duration, t *trial,
	read func()) error {
	if len(arm.Phases) == 0 {
		return nil
	}
	select {
	case <-start.seen:
	case <-ctx.Done(): // the load ended before its time, and says why
		return nil
	}
	began := start.at
	whole := 0.0
	for _, p := range arm.Phases {
		whole += float64(max(r.number(p.Share, 1), 1))
	}
	at := 0.0
	for _, p := range arm.Phases {
		process.Sleep(ctx, time.Until(began.Add(time.Duration(at/whole*float64(length)))))
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		read()
		r.progress.Phase(fmt.Sprintf("%s, phase %s", arm.Text, p.Name))
		mark := proof.Mark{At: time.Since(began).Seconds(), Name: p.Name}
		if p.Policy != "" {
			if err := r.governor.apply(context.WithoutCancel(ctx), p.Policy); err != nil {
				return fmt.Errorf("phase %q: %w", p.Name, err)
			}
		}
		mark.Ready = time.Since(began).Seconds()
		t.marks = append(t.marks, mark)
		process.Sleep(ctx, between)
		read()
		at += float64(max(r.number(p.Share, 1), 1))
	}
	return nil
}
