package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/dbstat"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// guardOf is what the policy of a view has watched; nil when nothing.
func guardOf(v *View) *state.Watch {
	all := guardsIn(v)
	if len(all) == 0 || len(v.Plan.Steps) == 0 {
		return nil
	}
	g := v.Policy.Guard
	return &state.Watch{For: g.For, Window: g.Window, Before: g.Before, Clauses: all}
}

// pulse is a group at one moment.
type pulse struct {
	at    time.Time
	usage cgroup.Usage
	db    int64
	dbErr error
}

// since is the work between two moments.
func (p pulse) since(o pulse, counter string) state.Work {
	d := p.at.Sub(o.at).Seconds()
	w := state.Work{Counter: counter, CPU: float64(rise(o.usage.CPU.Total, p.usage.CPU.Total)) / 1e6 / d, IO: float64(operations(p.usage)-operations(o.usage)) / d}
	switch {
	case counter == "", p.dbErr != nil: // one that does not answer does nothing for anybody
	case p.db < o.db: // it was started again
		w.DB = float64(p.db) / d
	default:
		w.DB = float64(p.db-o.db) / d
	}
	return w
}

func operations(u cgroup.Usage) (n int64) {
	for _, io := range u.IO {
		n += io.Reads + io.Writes
	}
	return n
}

// dbPatience is how long a database may take to tell of its work.
const dbPatience = 2 * time.Second

// gauge takes pulses of the groups that a guard watches. It is for one goroutine.
type gauge struct {
	dbs map[string]*dbstat.Source // by dsn
}

// take takes the pulse of one group.
func (g *gauge) take(ctx context.Context, v *View, one policy.Guarded) pulse {
	p := pulse{usage: usageOf(v, one.Group), at: time.Now()}
	if one.DSN == "" {
		return p
	}
	asked := g.ask(ctx, one)
	asked.usage = p.usage
	return asked
}

// ask asks a group's database.
func (g *gauge) ask(ctx context.Context, one policy.Guarded) (p pulse) {
	ctx, cancel := context.WithTimeout(ctx, dbPatience)
	defer cancel()
	db, err := g.db(one.DSN)
	if err == nil {
		p.db, err = db.Work(ctx)
	}
	p.at, p.dbErr = time.Now(), err
	return p
}

func (g *gauge) db(dsn string) (*dbstat.Source, error) {
	if db := g.dbs[dsn]; db != nil {
		return db, nil
	}
	db, err := dbstat.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if g.dbs == nil {
		g.dbs = map[string]*dbstat.Source{}
	}
	g.dbs[dsn] = db
	return db, nil
}

// counter names what the database of a group counts.
func (g *gauge) counter(one policy.Guarded) string {
	if db := g.dbs[one.DSN]; db != nil {
		return db.Counter
	}
	return ""
}

func (g *gauge) close() {
	for _, db := range g.dbs {
		_ = db.Close() // nothing was written
	}
}

// guardsIn are the groups of a view that its policy's guard watches.
func guardsIn(v *View) (all []policy.Guarded) {
	if v.Policy == nil || v.Policy.Guard == nil {
		return nil
	}
	for _, one := range v.Policy.Guard.Groups {
		if hasGroup(v, one.Group) && !isReleased(v.Released, one.Group) {
			all = append(all, one)
		}
	}
	return all
}

// longestPause is for how long a change waits to see what groups do before it, where no agent has seen that: meanwhile it holds the lock, and
// a release waits 5 s for it.
const longestPause = 3 * time.Second

// takeBefore takes down how the groups are that are watched, before a change is made, and notes what it cannot tell. What has no source is an error: nobody would be warned.
func (c *Controller) takeBefore(ctx context.Context, v *View, w *state.Watch) (notes []string, err error) {
	for _, one := range w.Clauses {
		if err := sourced(v, one); err != nil {
			return nil, err
		}
	}
	w.Groups = map[string]state.Baseline{}
	var g gauge
	defer g.close()
	first := map[string]pulse{}
	for _, one := range w.Clauses {
		p := g.take(ctx, v, one)
		if p.dbErr != nil {
			return nil, fail(CodeFailed, "nothing was changed; `guard:` of the policy names the database", "ask the database of group %s how much it does: %w", one.Group, p.dbErr)
		}
		first[one.Group] = p
		b := state.Baseline{Kills: orZero(p.usage.Memory.OOMKills)}
		if one.Throughput != nil {
			b.Work = c.pulses.work(one, g.counter(one), w.Before)
		}
		w.Groups[one.Group] = b
	}
	if !slices.ContainsFunc(w.Clauses, func(one policy.Guarded) bool { return one.Throughput != nil && w.Groups[one.Group].Work == nil }) {
		return nil, nil
	}
	// No agent has watched: a window now has to do.
	took := min(w.Window, longestPause)
	if err := sleep(ctx, took); err != nil {
		return nil, err
	}
	for _, one := range w.Clauses {
		b := w.Groups[one.Group]
		if one.Throughput == nil || b.Work != nil {
			continue
		}
		work := g.take(ctx, v, one).since(first[one.Group], g.counter(one))
		if _, _, enough := work.Fell(work); enough {
			b.Work = &work
			w.Groups[one.Group] = b
		} else {
			notes = append(notes, fmt.Sprintf("guard: group %s did too little in the %s before this change for a fall of its throughput to be seen", one.Group, took))
		}
	}
	return notes, nil
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// sleep waits for d, or until ctx ends, and then gives its cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sourced refuses what nothing on this host counts.
func sourced(v *View, one policy.Guarded) error {
	asks := func(controller string) bool {
		return slices.ContainsFunc(v.Plan.Want, func(w plan.Wanted) bool { return w.Group == one.Group && w.Row.Controller == controller })
	}
	member := v.Layout.Member(one.Group)
	var missing, hint string
	switch {
	case one.OOMKills != nil && !asks("memory"):
		missing, hint = "oom_kills", "give the group a memory limit: without one the kernel counts no kills for it"
	case one.Throttled != nil && !asks("cpu"):
		missing, hint = "throttled", "give the group a cpu.limit: without one nothing holds it back"
	case one.MemoryPressure != nil && member[host.UnifiedID].Path == "":
		missing, hint = "memory_pressure", "the group has no directory in cgroup v2, where pressure is counted: watch oom_kills or throughput_falls instead"
	case one.Throughput != nil && one.DSN == "" && !asks("cpu") && !asks("blkio") && !asks("cpuacct"):
		missing, hint = "throughput_falls", "name the database with `dsn:`, or give the group a cpu limit or an io limit: without either the kernel counts no work for it"
	default:
		return nil
	}
	return fail(CodeUsage, hint, "guard: %s of group %s has no source on this host: nothing was changed", missing, one.Group)
}

// verdict says what of a guard was broken between two pulses; "" when nothing was. whole says that they are a window apart.
func verdict(one policy.Guarded, before state.Baseline, first, last pulse, counter string, whole bool) string {
	if one.OOMKills != nil {
		n := orZero(last.usage.Memory.OOMKills)
		if n >= before.Kills { // else its directory is another one by now, after a reboot
			n -= before.Kills
		}
		if n > *one.OOMKills {
			return fmt.Sprintf("group %s: the kernel killed %d of its processes for want of memory", one.Group, n)
		}
	}
	if !whole {
		return ""
	}
	d := last.at.Sub(first.at)
	if one.MemoryPressure != nil {
		if share := float64(stalled(last.usage)-stalled(first.usage)) / float64(d.Microseconds()); share > *one.MemoryPressure {
			return fmt.Sprintf("group %s: all its tasks waited for memory in %.0f %% of %s, more than %.0f %%", one.Group, 100*share, d.Round(time.Second), 100**one.MemoryPressure)
		}
	}
	if one.Throttled != nil {
		held, periods := rise(first.usage.CPU.ThrottledPeriods, last.usage.CPU.ThrottledPeriods), rise(first.usage.CPU.Periods, last.usage.CPU.Periods)
		if share := float64(held) / float64(max(1, periods)); share > *one.Throttled {
			return fmt.Sprintf("group %s: its CPU limit held it back in %d of %d periods, more than %.0f %%", one.Group, held, periods, 100**one.Throttled)
		}
	}
	if one.Throughput != nil && before.Work != nil {
		fell, how, ok := last.since(first, counter).Fell(*before.Work)
		if ok && last.dbErr != nil {
			how += fmt.Sprintf(" (which does not answer: %v)", last.dbErr)
		}
		if ok && fell > *one.Throughput {
			return fmt.Sprintf("group %s: its throughput fell by %.0f %%, more than %.0f %%: from %s", one.Group, 100*fell, 100**one.Throughput, how)
		}
	}
	return ""
}

// stalled is for how long all tasks of a group have waited for memory so far, microseconds.
func stalled(u cgroup.Usage) int64 {
	if p := u.Pressure["memory"]; p.Full != nil {
		return p.Full.Total
	}
	return 0
}

// guardian watches the groups of one change.
type guardian struct {
	c      *Controller
	gauge  gauge
	view   *View
	pulses map[string][]pulse
}

// pulseEvery is the time between two pulses.
const pulseEvery = time.Second

// look says what harm a change does; "" for none so far.
func (g *guardian) look(ctx context.Context, w *state.Watch) (string, error) {
	if g.view == nil {
		v, _, err := g.c.current(ctx, look{})
		if err != nil {
			return "", err
		}
		g.view, g.pulses = v, map[string][]pulse{}
	}
	for _, one := range w.Clauses {
		before := w.Groups[one.Group]
		all := g.pulses[one.Group]
		if len(all) > 0 && time.Since(all[len(all)-1].at) < pulseEvery {
			continue
		}
		last := g.gauge.take(ctx, g.view, one)
		all = append(all, last)
		window := w.Window
		for len(all) > 1 && last.at.Sub(all[1].at) >= window { // the oldest is a window ago, or a little more
			all = all[1:]
		}
		g.pulses[one.Group] = all
		if why := verdict(one, before, all[0], last, g.gauge.counter(one), last.at.Sub(all[0].at) >= window); why != "" {
			return why, nil
		}
	}
	return "", nil
}

// pulses are what an agent has seen of the groups that a guard watches, for the next change.
type pulses struct {
	mu     sync.Mutex
	of     map[string][]pulse // by group
	last   time.Time
	asking bool
	gauge  gauge // of whoever is asking
}

// Pulse takes the pulses of the groups that the guard of the applied policy watches, when it is time: the agent does, so that a change can be
// held against the minutes before it. A database is asked in the background.
func (c *Controller) Pulse(ctx context.Context, now time.Time) {
	v, p := c.memory.view, &c.pulses
	if v == nil || v.Policy == nil || v.Policy.Guard == nil {
		return
	}
	guard := v.Policy.Guard
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asking || now.Sub(p.last) < max(guard.Window, pulseEvery) {
		return
	}
	p.last = now
	var ask []policy.Guarded
	for _, one := range guardsIn(v) {
		switch {
		case one.Throughput == nil:
		case one.DSN == "":
			p.add(one.Group, p.gauge.take(ctx, v, one), guard.Before)
		default:
			ask = append(ask, one)
		}
	}
	if len(ask) == 0 {
		return
	}
	p.asking = true
	used := make([]cgroup.Usage, len(ask))
	for i, one := range ask {
		used[i] = usageOf(v, one.Group) // the view is the caller's
	}
	go func() {
		for i, one := range ask {
			taken := p.gauge.ask(ctx, one)
			taken.usage = used[i]
			p.mu.Lock()
			p.add(one.Group, taken, guard.Before)
			p.mu.Unlock()
		}
		p.mu.Lock()
		p.asking = false
		p.mu.Unlock()
	}()
}

// add keeps a pulse, and forgets those that are older than a change is held against.
func (p *pulses) add(group string, one pulse, before time.Duration) {
	if p.of == nil {
		p.of = map[string][]pulse{}
	}
	all := p.of[group]
	if one.dbErr != nil { // what it did meanwhile is not known
		all = nil
	} else {
		all = append(all, one)
	}
	p.of[group] = slices.DeleteFunc(all, func(o pulse) bool { return one.at.Sub(o.at) > before })
}

// work is what a group did in a second of the time before now; nil when too little is known.
func (p *pulses) work(one policy.Guarded, counter string, before time.Duration) *state.Work {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.of[one.Group]
	if len(all) < 2 || time.Since(all[len(all)-1].at) > before {
		return nil
	}
	work := all[len(all)-1].since(all[0], counter)
	if _, _, enough := work.Fell(work); !enough {
		return nil
	}
	return &work
}
