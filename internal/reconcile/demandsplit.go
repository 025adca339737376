package reconcile

import (
	"context"
	"maps"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/metrics"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/transaction"
)

// splitInterval is the shortest time between two samples of what is read and written, by which limits are split anew.
const splitInterval = 10 * time.Second

// SplitByDemand splits limits anew that several devices, or on cgroup v1 several directories, share by use: a part
// becomes larger where more was read and written since the last time. It does so at most every ten seconds, for the
// agent, after a look, and returns how many values it wrote.
//
// Nothing of that is in the journal. Values are lowered before others are raised, so that the limit as a whole holds
// even when this is interrupted. A full look accepts any split that is valid, and mends one that is not.
func (c *Reconciler) SplitByDemand(ctx context.Context, now time.Time) (int, error) {
	v := c.memory.view
	if v == nil || c.memory.observed == nil || now.Sub(c.used.at) < splitInterval {
		return 0, nil
	}
	in := v.Input()
	in.Observed = *c.memory.observed
	if !desired.SharesByUse(&in) {
		c.used = ioSamples{at: now}
		return 0, nil
	}
	before := c.used
	c.used = sampleIO(v, in.Observed.Dirs, now)
	if before.of == nil {
		return 0, nil
	}
	in.Use = c.used.since(before)
	in.NoMoves = true
	if len(plan.Shifts(planner.Make(in))) == 0 {
		return 0, nil
	}
	return c.shift(ctx, v, in.Use)
}

// shift looks again at what the limits are, under the lock, and writes the new parts.
func (c *Reconciler) shift(ctx context.Context, last *transaction.View, use map[cgroup.Dir]map[string]plan.IOUse) (int,
	error) {
	ctx, heard := c.memory.patient(ctx)
	defer heard()
	lock, err := c.LockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return 0, err
	}
	defer lock.Release()
	if _, pending := c.Store.Pending(); pending {
		return 0, nil // the next look undoes it
	}
	s, err := c.LoadState(last.Facts.BootID, time.Now())
	if err != nil || s.Rests() || transaction.GoingDown(ctx, c.Controller, last.Facts) {
		return 0, err
	}
	l := transaction.OptionsOver(s, s.Applied.Sources)
	l.Processes, l.Facts, l.Lenient = last.Observed.Processes, last.Facts, true
	l.Use = use
	l.LeftAlone, _ = c.memory.stillBarred(s.Applied.Revision) // the look has said why
	v, err := c.whole(ctx, l)
	if err != nil {
		return 0, err
	}
	p := v.Plan
	if p.Steps = plan.Shifts(p); len(p.Refusals) > 0 || len(p.Steps) == 0 {
		return 0, nil
	}
	done, err := c.Runner(ctx, v).Correct(ctx, p)
	c.memory.rereadWritten(v, p.Steps[:done])
	for _, step := range p.Steps[:done] {
		c.Log.Debug("shared a limit anew by use", "group", step.Group, "file", step.Addr, "from", step.Old, "to",
			step.New)
	}
	if err != nil {
		c.memory.observed = nil
		return done, api.Errorf(api.CodeFailed, "", "share limits by use: %w", err)
	}
	return done, nil
}

// rereadWritten brings what is remembered of the groups up to date.
func (m *memory) rereadWritten(v *transaction.View, steps []plan.Step) {
	o := m.observed
	if o == nil {
		return
	}
	for _, step := range steps {
		f := step.File()
		text, err := v.Tree.Read(f.Dir.File(f.Name))
		if err != nil {
			m.observed = nil
			return
		}
		files := maps.Clone(o.Dirs[f.Dir])
		files[f.Name] = text
		o.Dirs[f.Dir] = files
	}
}

// sampleIO samples what was read and written in the directories that have io limits.
func sampleIO(v *transaction.View, dirs map[cgroup.Dir]map[string]string, now time.Time) ioSamples {
	samples := ioSamples{now, map[cgroup.Dir]metrics.Sample{}}
	h, ok := v.Facts.HierarchyOf("blkio")
	if !ok {
		return samples
	}
	for d := range dirs {
		if d.Hierarchy != h.ID || d.Path == "/" {
			continue
		}
		if io, err := metrics.ReadIO(v.Tree, d); err == nil { // else gone since the look, or without the controller
			samples.of[d] = metrics.Sample{At: now, Usage: metrics.Usage{IO: io}, Found: true}
		}
	}
	return samples
}

// since is the use in a second between two times, by directory and device.
func (s ioSamples) since(earlier ioSamples) map[cgroup.Dir]map[string]plan.IOUse {
	use := map[cgroup.Dir]map[string]plan.IOUse{}
	for dir, now := range s.of {
		was, known := earlier.of[dir]
		if !known {
			was.At = earlier.at // it was made meanwhile
		}
		d := now.Since(was)
		use[dir] = map[string]plan.IOUse{}
		for _, io := range d.IO {
			use[dir][io.Device] = plan.IOUse{
				ReadBytes: int64(d.Rate(&io.ReadBytes)), ReadOps: int64(d.Rate(&io.Reads)),
				WriteBytes: int64(d.Rate(&io.WrittenBytes)), WriteOps: int64(d.Rate(&io.Writes)),
			}
		}
	}
	return use
}
