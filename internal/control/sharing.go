package control

import (
	"context"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// shareEvery is the shortest time between two looks at what is read and written, by which limits are shared anew.
const shareEvery = 10 * time.Second

// counters are what was read and written so far, directory by directory and device by device.
type counters struct {
	at   time.Time
	seen map[cgroup.Dir]map[string]cgroup.IOUsage
}

// Share shares limits anew that several devices, or on cgroup v1 directories, share by use: those get more where more was read
// and written since the last time, at most every ten seconds. It is for the agent, after a look, and says how many values it wrote.
//
// Nothing of that is in the journal. A value that is lowered comes before one that is raised, so that whenever it is cut off the
// limit as a whole holds, and the next full look puts right what is not sound. Whoever looks takes sound parts for what is wanted.
func (c *Controller) Share(ctx context.Context, now time.Time) (int, error) {
	v := c.memory.view
	if v == nil || c.memory.observed == nil || now.Sub(c.used.at) < shareEvery {
		return 0, nil
	}
	in := v.input()
	in.Observed = *c.memory.observed
	if !plan.SharesByUse(&in) {
		c.used = counters{at: now}
		return 0, nil
	}
	before := c.used
	c.used = counters{now, readCounters(v, in.Observed.Dirs)}
	if before.seen == nil {
		return 0, nil
	}
	in.Use = before.until(c.used)
	in.NoMoves = true
	if len(plan.Shifts(plan.Make(in))) == 0 {
		return 0, nil
	}
	return c.shift(ctx, v, in.Use)
}

// shift looks again at what the limits are, under the lock, and writes the new parts.
func (c *Controller) shift(ctx context.Context, last *View, use map[cgroup.Dir]map[string]plan.IOUse) (int, error) {
	lock, err := c.lockWithin(ctx, 0, "look", "agent")
	if err != nil {
		return 0, err
	}
	defer lock.Release()
	if _, pending := c.Store.Pending(); pending {
		return 0, nil // the next look undoes it
	}
	s, err := c.loadState(last.Facts.BootID, time.Now())
	if err != nil || s.Rests() || c.goingDown(ctx, last.Facts) {
		return 0, err
	}
	l := lookOver(s, s.Applied.Sources)
	l.processes, l.facts, l.memory, l.lenient = last.Observed.Processes, last.Facts, &c.memory, true
	v, err := c.view(ctx, l)
	if err != nil {
		return 0, err
	}
	if _, err := c.leaveBarred(v, s); err != nil {
		return 0, err
	}
	in := v.input()
	in.Use, in.NoMoves = use, true
	p := plan.Make(in)
	if p.Steps = plan.Shifts(p); len(p.Refusals) > 0 || len(p.Steps) == 0 {
		return 0, nil
	}
	done, err := c.runner(ctx, v).Correct(ctx, p)
	c.rereadWritten(v, p.Steps[:done])
	for _, step := range p.Steps[:done] {
		c.Log.Debug("shared a limit anew by use", "group", step.Group, "file", step.Dir.File(step.File), "device", step.Key, "from", step.Old, "to", step.New)
	}
	if err != nil {
		c.memory.observed = nil
		return done, fail(CodeFailed, "", "share limits by use: %w", err)
	}
	return done, nil
}

// rereadWritten brings what is remembered of the groups up to date.
func (c *Controller) rereadWritten(v *View, steps []plan.Step) {
	o := c.memory.observed
	if o == nil {
		return
	}
	for _, step := range steps {
		text, err := v.Tree.Read(cgroup.File{Dir: step.Dir, Name: step.File})
		if err != nil {
			c.memory.observed = nil
			return
		}
		files := maps.Clone(o.Dirs[step.Dir])
		files[step.File] = text
		o.Dirs[step.Dir] = files
	}
}

// readCounters reads what was read and written in the directories that have io limits.
func readCounters(v *View, dirs map[cgroup.Dir]map[string]string) map[cgroup.Dir]map[string]cgroup.IOUsage {
	seen := map[cgroup.Dir]map[string]cgroup.IOUsage{}
	h, ok := v.Facts.HierarchyOf("blkio")
	if !ok {
		return seen
	}
	for d := range dirs {
		if d.Hierarchy != h.ID || d.Path == "/" {
			continue
		}
		all, err := v.Tree.IO(d)
		if err != nil {
			continue // gone since the look, or without the controller
		}
		seen[d] = map[string]cgroup.IOUsage{}
		for _, u := range all {
			seen[d][u.Device] = u
		}
	}
	return seen
}

// until is the use in a second between two readings. A directory that is new, or was made anew, has no figures before.
func (c counters) until(later counters) map[cgroup.Dir]map[string]plan.IOUse {
	use := map[cgroup.Dir]map[string]plan.IOUse{}
	seconds := later.at.Sub(c.at).Seconds()
	for d, devices := range later.seen {
		use[d] = map[string]plan.IOUse{}
		for dev, now := range devices {
			was := c.seen[d][dev]
			rate := func(a, b int64) int64 { return int64(float64(max(b-a, 0)) / seconds) }
			use[d][dev] = plan.IOUse{
				ReadBytes: rate(was.ReadBytes, now.ReadBytes), ReadOps: rate(was.Reads, now.Reads),
				WriteBytes: rate(was.WrittenBytes, now.WrittenBytes), WriteOps: rate(was.Writes, now.Writes),
			}
		}
	}
	return use
}

// limitsDisks says whether a group has a limit on a device.
func limitsDisks(g classify.Group) bool {
	return slices.ContainsFunc(g.Settings, func(s policy.Setting) bool { return s.Dev != "" || s.Lost != "" })
}

// diskEvery is the shortest time between two looks at which disks there are: limits are to be shared anew within two seconds, of which
// the look at everything that follows takes a part.
const diskEvery = 500 * time.Millisecond

// disksChanged says whether disks came, went, or lie on others than at the last look, where the policy has limits for disks. It is asked
// at every look and answers at most twice a second.
func (c *Controller) disksChanged(now time.Time) bool {
	v := c.memory.view
	if v == nil || !c.shape.due(now, diskEvery) {
		return false
	}
	if !slices.ContainsFunc(v.Classified.Groups, limitsDisks) {
		c.shape.text = ""
		return false
	}
	text, err := c.Host.Block.DiskShape()
	if err != nil {
		c.Log.Debug("which disks there are could not be told", "err", err)
		return false
	}
	return c.shape.differs(text)
}

// shape is what there was of disks or of interfaces when an agent looked last: a text that is another one when they are others.
type shape struct {
	at   time.Time
	text string // "" before the first look
}

// due says whether it is time to look again.
func (s *shape) due(now time.Time, every time.Duration) bool {
	if now.Sub(s.at) < every {
		return false
	}
	s.at = now
	return true
}

// differs takes in what there is now and says whether it was otherwise before.
func (s *shape) differs(text string) bool {
	changed := s.text != "" && s.text != text
	s.text = text
	return changed
}
