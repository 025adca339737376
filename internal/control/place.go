package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
)

// move places running processes by hand and holds them there against the rules.
func (c *Controller) move(ctx context.Context, r Request, reply *Reply) error {
	v, s, err := c.current(ctx, look{})
	if err != nil {
		return err
	}
	if !hasGroup(v, r.Group) {
		return errNoGroup(v, r.Group)
	}
	procs, err := chosen(v.Observed.Processes, r.PIDs, r.Tree)
	if err != nil {
		return err
	}
	if err := errors.Join(refuseReleased(s, r.Group), r.Caller.may(v, r.Group, policy.MayMove), r.Caller.mayTake(v, c.Host, procs...), c.mayLeave(v.Facts, s, procs...)); err != nil {
		return err
	}
	if err := c.fits(v, r.Group, procs, r.Force); err != nil {
		return err
	}
	pins := slices.Clone(s.Pins)
	for _, p := range procs {
		if reason := classify.Protected(p.PID, v.rules); reason != "" {
			return fail(CodeRefused, "", "move process %d (%s): %s", p.PID, p.Comm, reason)
		}
		pins = slices.DeleteFunc(pins, func(pin state.Pin) bool { return pin.Process == p.ProcID })
		pin := state.Pin{Process: p.ProcID, Boot: v.Facts.BootID, Group: r.Group, By: "move by " + r.By, Alone: !r.Tree || r.Caller != nil}
		if r.For > 0 {
			pin.Ends = time.Now().Add(r.For)
		}
		pins = append(pins, pin)
	}
	return c.repin(ctx, r, reply, s, pins, procs...)
}

// fits refuses to put processes into a group whose memory limit, or that of a group above it, is below what
// they hold and cannot give back: what they hold stays charged where it is, but the next they ask for ends
// in an OOM kill.
func (c *Controller) fits(v *View, group string, procs []host.Process, force bool) error {
	if force {
		return nil
	}
	var held policy.Bytes
	for _, p := range procs {
		if m, err := c.Host.Proc.Memory(p.PID); err == nil {
			held += policy.Bytes(m.Anon + m.Shmem)
		}
	}
	for _, g := range v.Classified.Groups {
		s, ok := g.Settings.Get(policy.KeyMemoryMax, "")
		limit, isBytes := s.Value.(policy.Bytes)
		if !covers([]string{g.Path}, group) || !ok || !isBytes || held <= limit {
			continue
		}
		return fail(CodeRefused, "raise memory.max first, or --force --reason TEXT",
			"what is to be moved holds %s that cannot be reclaimed, more than memory.max of group %q allows (%s)", held.Human(), g.Path, limit.Human())
	}
	return nil
}

// moveBack lets processes go that move or run had pinned; the rules, or their home, take them.
func (c *Controller) moveBack(ctx context.Context, r Request, reply *Reply) error {
	facts, s, err := c.recorded()
	if err != nil {
		return err
	}
	procs, err := c.Host.Proc.Processes(host.ProcessOptions{PIDs: r.PIDs})
	if err != nil {
		return fail(CodeFailed, "", "read the process table: %w", err)
	}
	if err := errors.Join(c.mayTakeBack(ctx, r, procs), c.mayLeave(facts, s, procs...)); err != nil {
		return err
	}
	pins := slices.Clone(s.Pins)
	for _, pid := range r.PIDs {
		i := slices.IndexFunc(procs, func(p host.Process) bool { return p.PID == pid })
		before := len(pins)
		pins = slices.DeleteFunc(pins, func(p state.Pin) bool { return i >= 0 && p.Process == procs[i].ProcID })
		if len(pins) < before {
			continue
		}
		// One that no rule claims, and that only stays where it was born, can be sent back too.
		p, ok := c.resident(ctx, pid, s)
		if !ok || i < 0 || p != procs[i].ProcID {
			return fail(CodeUsage, "only processes placed by `move` or `run`, and those that no rule claims, can go back", "process %d was not placed by hand", pid)
		}
		s.Ended = append(s.Ended, state.Pin{Process: p})
	}
	return c.repin(ctx, r, reply, s, pins)
}

// resident finds a process that is in a group without being claimed.
func (c *Controller) resident(ctx context.Context, pid int, s *state.Documents) (host.ProcID, bool) {
	if s.Applied == nil {
		return host.ProcID{}, false
	}
	l := lookOver(s, s.Applied.Sources)
	l.lenient = true
	v, err := c.classify(ctx, l)
	if err != nil {
		return host.ProcID{}, false
	}
	for _, m := range v.Members {
		if m.Process.PID == pid && m.By == byResidence {
			return m.Process.ProcID, true
		}
	}
	return host.ProcID{}, false
}

// repin records a new list of pins and makes the host follow. Nothing is done when one of the processes named
// could not be moved.
func (c *Controller) repin(ctx context.Context, r Request, reply *Reply, s *state.Documents, pins []state.Pin, named ...host.Process) error {
	if s.Applied == nil {
		return errNotApplied()
	}
	l := lookOver(s, s.Applied.Sources)
	l.pins, l.lenient = pins, true
	for _, p := range s.Pins { // one that is no longer pinned goes back
		if !slices.ContainsFunc(pins, func(kept state.Pin) bool { return kept.Process == p.Process }) {
			l.ended = append(l.ended, p)
		}
	}
	v, err := c.view(ctx, l)
	if err != nil {
		return err
	}
	for _, p := range named {
		if err := movable(v, p, r.Group); err != nil {
			return err
		}
	}
	if r.DryRun {
		return c.run(ctx, v, r, 0, reply)
	}
	return c.commit(r, reply, map[string]any{state.DocPins: pins}, func() error {
		if r.Group == "" { // back
			return c.run(ctx, v, r, 0, reply)
		}
		return c.runOthers(ctx, v, r, 0, reply, r.Group)
	})
}

// movable says why a plan leaves a process where it is although it is to be in a group.
func movable(v *View, p host.Process, group string) error {
	if unit := v.Layout.Stuck(&p, group); unit != "" {
		return fail(CodeRefused, "nothing was moved", "move process %d (%s): it is the main process of %s, which would take its end for the unit's", p.PID, p.Comm, unit)
	}
	if placed(p, v.Layout.Place(&p, group)) || slices.ContainsFunc(v.Plan.Steps, func(s plan.Step) bool { return s.Op == plan.OpMove && s.PID == p.ProcID }) {
		return nil
	}
	why := "the group is not in force on this host"
	for _, n := range v.Plan.Notes {
		if strings.HasPrefix(n.Text, fmt.Sprintf("process %d (", p.PID)) {
			why = n.Text
		}
	}
	return fail(CodeRefused, "nothing was moved", "move process %d (%s): %s", p.PID, p.Comm, why)
}

// chosen finds the processes a person named, with all their descendants if asked.
func chosen(all []host.Process, pids []int, tree bool) ([]host.Process, error) {
	children := map[int][]host.Process{}
	byPID := map[int]host.Process{}
	for _, p := range all {
		byPID[p.PID] = p
		children[p.PPID] = append(children[p.PPID], p)
	}
	var found []host.Process
	seen := map[int]bool{}
	var add func(p host.Process)
	add = func(p host.Process) {
		if seen[p.PID] {
			return
		}
		seen[p.PID] = true
		found = append(found, p)
		if tree {
			for _, child := range children[p.PID] {
				add(child)
			}
		}
	}
	for _, pid := range pids {
		p, ok := byPID[pid]
		if !ok {
			return nil, fail(CodeUsage, "", "no process %d", pid)
		}
		add(p)
	}
	return found, nil
}

// runWait is how long a command waits for its turn to enter a group: as long as a large apply may take, since a
// nightly backup is better late than not made.
const runWait = time.Minute

// Entry is a command that is about to run inside a group.
type Entry struct {
	Group   string
	By      string
	Command string // its program, for who looks at systemd's units; not its arguments, which may hold secrets
	// Caller is whose process it is that enters, when that is not root; nil is the calling process.
	Caller *Caller
}

// Enter puts the calling process, or that of a caller, into a group, in every hierarchy or in none, and pins it there:
// what it becomes by execve(2) runs inside from its first instruction. Where systemd owns the tree it gets a unit of its own.
//
// The look at the host is taken before the lock, since many commands may start at once, as cron's do; it is
// taken again when what is applied changed meanwhile.
func (c *Controller) Enter(ctx context.Context, e Entry) error {
	v, before, err := c.current(ctx, look{})
	if err != nil {
		return err
	}
	lock, err := c.lockWithin(ctx, cmp.Or(c.LockWait, runWait), "run", e.By)
	if err != nil {
		return err
	}
	defer lock.Release()
	// What a crash left is settled first: its documents may hold pins that would replace ours.
	var mended Reply
	if err := c.recover(ctx, &mended); err != nil {
		return err
	}
	if err := c.wakeDue(ctx, time.Now()); err != nil {
		c.Log.Warn("a freeze that is over could not be ended", "err", err)
	}
	s, err := c.loadState(v.Facts.BootID, time.Now())
	if err != nil {
		return err
	}
	if s.Applied == nil || mended.Recovered != "" || s.Applied.Revision != before.Applied.Revision {
		if v, s, err = c.current(ctx, look{}); err != nil {
			return err
		}
	}
	if err := open(v, s, e.Group); err != nil {
		return err
	}
	self, err := c.entering(e)
	if err != nil {
		return err
	}
	if err := errors.Join(e.Caller.may(v, e.Group, policy.MayRun), e.Caller.mayTake(v, c.Host, self)); err != nil {
		return err
	}
	if err := c.Store.Home(v.Facts.BootID, e.Group, self.Cgroups); err != nil {
		return fail(CodeFailed, "", "record where the command came from: %w", err)
	}
	// What a caller has started already is not the caller's to take along.
	pins := append(s.Pins, state.Pin{Process: self.ProcID, Boot: v.Facts.BootID, Group: e.Group, By: "run by " + e.By, Home: self.Cgroups, Alone: e.Caller != nil})
	if err := c.Store.Save(state.DocPins, pins); err != nil {
		return fail(CodeFailed, "", "record the placement: %w", err)
	}
	if err := c.enterAs(ctx, v, e, self); err != nil {
		return errors.Join(err, c.Store.Save(state.DocPins, s.Pins))
	}
	c.takeScore(ctx, v, e.Group, self, e.By)
	return nil
}

// enterAs brings the process into the group: into a scope of its own, where there is systemd, and into the directories that
// are not systemd's.
func (c *Controller) enterAs(ctx context.Context, v *View, e Entry, self host.Process) error {
	if !v.Facts.Systemd {
		if err := join(v.Tree, v.Layout.Member(e.Group), self); err != nil {
			return fail(CodeFailed, "", "enter group %q: %w", e.Group, err)
		}
		return nil
	}
	now := self
	err := c.startRun(ctx, v, e, self)
	if err == nil {
		now, err = c.entering(e)
	}
	if err == nil && now.ProcID != self.ProcID {
		err = errors.New("the process has ended")
	}
	if err == nil && !v.Layout.InRun(&now, e.Group) {
		err = errors.New("systemd started the scope, and the process is not in it")
	}
	if err == nil {
		err = join(v.Tree, besidesRun(v, e.Group, self, now), now)
	}
	if err == nil {
		return nil
	}
	// systemd may have put it there all the same, and told nobody in time.
	if last, again := c.entering(e); again == nil {
		now = last
	}
	for hierarchy, home := range self.Cgroups {
		if now.Cgroups[hierarchy] != home {
			err = errors.Join(err, v.Tree.Move(cgroup.Dir{Hierarchy: hierarchy, Path: home}, self.ProcID))
		}
	}
	return fail(CodeFailed, cmp.Or(systemd.Hint(err), "nothing was started; `systemctl status` tells whether systemd answers"), "enter group %q: %w", e.Group, err)
}

// besidesRun is where a command goes that its scope does not bring it to: the group's directories that are not systemd's, and
// back where it was in those hierarchies of v1 that systemd moved it in and in which the group holds nothing (devices).
func besidesRun(v *View, group string, before, now host.Process) map[string]cgroup.Dir {
	dirs := v.Layout.Place(&now, group)
	member := v.Layout.Member(group)
	for _, h := range v.Facts.Hierarchies {
		if _, held := member[h.ID]; !held && h.Version == 1 && now.Cgroups[h.ID] != before.Cgroups[h.ID] {
			dirs[h.ID] = cgroup.Dir{Hierarchy: h.ID, Path: before.Cgroups[h.ID]}
		}
	}
	return dirs
}

// startRun makes the unit of a command around the process that is about to become it.
func (c *Controller) startRun(ctx context.Context, v *View, e Entry, self host.Process) error {
	m, err := c.manager(ctx, v.Facts)
	if err != nil {
		return err
	}
	root := v.Policy.Host.Root
	slice, there := v.Layout.SliceName(e.Group)
	name, err := systemd.RunName(root, e.Group, self.PID, self.Start)
	if err != nil || !there {
		return errors.Join(err, fmt.Errorf("group %q has no slice", e.Group))
	}
	accounting, err := systemd.Encode(systemd.Accounting(m.Version(), "scope"))
	if err != nil {
		return err
	}
	return m.StartRun(ctx, systemd.Transient{
		Name: name, Slice: slice, PIDs: []int{self.PID}, Properties: accounting,
		Description: fmt.Sprintf("bulkhead run %s -- %s", e.Group, cmp.Or(host.Printable(e.Command), self.Comm)),
	})
}

// open says why a group takes no new member now.
func open(v *View, s *state.Documents, group string) error {
	if !hasGroup(v, group) {
		return errNoGroup(v, group)
	}
	if err := refuseReleased(s, group); err != nil {
		return err
	}
	if err := refuseFrozen(s, group); err != nil {
		return err
	}
	if v.Facts.Systemd && v.Systemd == nil {
		return errUnasked(v.unasked)
	}
	for _, d := range v.Layout.Member(group) {
		if there, err := v.Tree.Exists(d); err != nil || !there {
			return fail(CodeFailed, "`bulkhead apply` makes its directories; `bulkhead status` shows what is there", "group %q is not in force on this host", group)
		}
	}
	return nil
}

// entering is the process that enters, as /proc shows it.
func (c *Controller) entering(e Entry) (host.Process, error) {
	pid := c.self.PID
	if e.Caller != nil {
		pid = e.Caller.PID
	}
	procs, err := c.Host.Proc.Processes(host.ProcessOptions{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		return host.Process{}, fail(CodeFailed, "is /proc mounted?", "look at the process that enters: %w", err)
	}
	return procs[0], nil
}

// join moves a process into all the directories, or back out of those it already entered.
func join(t *cgroup.Tree, dirs map[string]cgroup.Dir, p host.Process) error {
	var done []string
	for hierarchy, d := range dirs {
		if err := t.Move(d, p.ProcID); err != nil {
			for _, back := range done {
				err = errors.Join(err, t.Move(cgroup.Dir{Hierarchy: back, Path: p.Cgroups[back]}, p.ProcID))
			}
			return err
		}
		done = append(done, hierarchy)
	}
	return nil
}

// takeScore gives the command the oom_score_adj its group asks for, through the journal, so that a release takes
// it back.
func (c *Controller) takeScore(ctx context.Context, v *View, group string, self host.Process, by string) {
	for _, g := range v.Classified.Groups {
		s, ok := g.Settings.Get(policy.KeyOOMScoreAdj, "")
		if g.Path != group || !ok {
			continue
		}
		score, _ := s.Value.(policy.Count)
		now, err := c.Host.Proc.ReadOOMScoreAdj(self.ProcID)
		if err == nil && now != int(score) {
			_, err = c.runner(ctx, v).Run(ctx, plan.Plan{Steps: []plan.Step{{
				Op: plan.OpOOMScore, Group: group, PID: self.ProcID, Comm: self.Comm, Setting: policy.KeyOOMScoreAdj,
				Old: strconv.Itoa(now), New: strconv.Itoa(int(score)), Undo: strconv.Itoa(now), Reason: "run",
			}}}, apply.Options{Verb: "run", By: by, Unrecorded: true})
		}
		if err != nil {
			c.Log.Warn("could not set oom_score_adj", "group", group, "err", err)
		}
	}
}

// isReleased says whether a group or one above it was released.
func isReleased(released map[string]bool, group string) bool {
	for g, on := range released {
		if on && covers([]string{g}, group) {
			return true
		}
	}
	return false
}
