package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/access"
	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/freeze"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/terminal"
	"bulkhead/internal/transaction"
)

// runWait is how long a command waits for its turn to enter a group: as long as a large apply may take, since a
// nightly backup is better late than not made.
const runWait = time.Minute

// Entry is a command that is about to run inside a group.
type Entry struct {
	Group   string
	By      string
	Command string // its program, for who looks at systemd's units; not its arguments, which may hold secrets
	// PID is the process that enters, when Caller does not say so; 0 is the calling process.
	PID int
	// Caller is whose process it is, when that is not root.
	Caller *api.Caller
	// Turn waits until it is the entry's turn to take the lock, and gives what ends the turn; nil does not wait.
	Turn func(context.Context) (done func(), err error)
}

// Enter puts the calling process, or that of a caller, into a group, in every hierarchy or in none, and pins it there:
// what it becomes by execve(2) runs inside from its first instruction. Where systemd owns the tree it gets a unit of
// its own, for whose start the lock is not held. The end of ctx ends all waiting.
//
// The look at the host is taken before the lock, since many commands may start at once, as cron's do; it is taken again
// when what is asked of groups changed meanwhile.
func Enter(ctx context.Context, c *transaction.Controller, e Entry) error {
	v, before, err := c.Membership(ctx)
	if err != nil {
		return err
	}
	n := &entering{Controller: c, Entry: e, v: v, seen: before}
	err = n.whileLocked(ctx, func() error {
		err := n.refresh(ctx)
		if err == nil {
			err = n.record()
		}
		if err != nil || n.v.Facts.Systemd {
			return err
		}
		if err := n.join(ctx, n.self, n.v.Layout.Member(e.Group)); err != nil {
			return errors.Join(api.Errorf(api.CodeFailed, "", "enter group %q: %w", e.Group, err), n.unpin())
		}
		return nil
	})
	if err != nil || !n.v.Facts.Systemd {
		return err
	}
	now, err := n.startUnit(ctx)
	if err == nil {
		err = n.whileLocked(ctx, func() error {
			err := n.refresh(ctx)
			if err == nil {
				err = n.join(ctx, now, n.besides(now))
			}
			return err
		})
	}
	if err == nil {
		return nil
	}
	return n.leave(context.WithoutCancel(ctx), err)
}

// entering is a process on its way into a group.
type entering struct {
	*transaction.Controller
	Entry

	v    *transaction.View
	seen *state.Documents // that v was made with
	self procfs.Process   // as it was before
}

// whileLocked does a part of an entry when it is its turn, with the lock held.
func (n *entering) whileLocked(ctx context.Context, do func() error) error {
	if n.Turn != nil {
		done, err := n.Turn(ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	lock, err := n.LockWithin(ctx, cmp.Or(n.LockWait, runWait), "run", n.By)
	if err != nil {
		return err
	}
	defer lock.Release()
	return do()
}

// refresh settles what a crash left, whose documents may hold pins that would replace ours, and looks again when what
// is asked of groups is not what was. The caller holds the lock.
func (n *entering) refresh(ctx context.Context) error {
	var mended transaction.Outcome
	if err := n.Recover(ctx, &mended); err != nil {
		return err
	}
	if err := freeze.ThawDueLocked(ctx, n.Controller, time.Now()); err != nil {
		n.Log.Warn("a freeze that is over could not be ended", "err", err)
	}
	s, err := n.LoadState(n.v.Facts.BootID, time.Now())
	if err != nil {
		return err
	}
	if mended.Recovered == "" && asksTheSame(*s, *n.seen) {
		return nil
	}
	v, s, err := n.Membership(ctx)
	if err == nil {
		n.v, n.seen = v, s
	}
	return err
}

// asksTheSame says whether two readings of the documents ask the same of groups, whoever is pinned to one: each command
// that enters is.
func asksTheSame(a, b state.Documents) bool {
	a.Pins, a.Ended, b.Pins, b.Ended = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

// record checks that the process may enter, and records where it comes from and its pin. The caller holds the lock.
func (n *entering) record() error {
	s, err := n.LoadState(n.v.Facts.BootID, time.Now())
	if err == nil {
		err = open(n.v, s, n.Group)
	}
	if err == nil {
		n.self, err = n.process()
	}
	if err != nil {
		return err
	}
	err = errors.Join(access.May(n.Caller, n.v.Snapshot, n.Group, policy.MayRun),
		access.MayTake(n.Caller, n.v.Snapshot, n.Host, n.self))
	if err != nil {
		return err
	}
	// What a caller has started already is not the caller's to take along.
	pins := append(s.Pins, state.Pin{
		Process: n.self.ID, Boot: n.v.Facts.BootID, Group: n.Group, By: "run by " + n.By, Home: n.self.Cgroups,
		Alone: n.Caller != nil,
	})
	if err = n.Store.Home(n.v.Facts.BootID, n.Group, n.self.Cgroups); err == nil {
		err = n.Store.Save(state.DocPins, pins)
	}
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "record where the command came from and goes: %w", err)
	}
	return nil
}

// unpin takes the pin back. The caller holds the lock.
func (n *entering) unpin() error {
	d, err := state.Load(n.Store, state.DocPins)
	if err == nil {
		pins := slices.DeleteFunc(d.Pins, func(p state.Pin) bool { return p.Process == n.self.ID })
		err = n.Store.Save(state.DocPins, pins)
	}
	return err
}

// join moves the process into directories of the group, unless the group takes no new member any more, and gives it the
// group's oom_score_adj. The caller holds the lock.
func (n *entering) join(ctx context.Context, now procfs.Process, dirs map[string]cgroup.Dir) error {
	s, err := n.LoadState(n.v.Facts.BootID, time.Now())
	if err == nil {
		err = open(n.v, s, n.Group)
	}
	if err == nil {
		err = n.v.Tree.MoveAll(now.ID, nil, now.Cgroups, n.v.NotIn(now, dirs)...)
	}
	if err == nil {
		n.takeScore(ctx)
	}
	return err
}

// leave sends a process that could not enter home, and takes its pin back. systemd may have put it into a scope all
// the same, and told nobody in time.
func (n *entering) leave(ctx context.Context, cause error) error {
	err := cause
	if now, failed := n.process(); failed == nil && now.ID == n.self.ID {
		for _, h := range n.v.Facts.Hierarchies {
			if home, known := n.self.Cgroups[h.ID]; known && now.Cgroups[h.ID] != home {
				err = errors.Join(err, n.v.Tree.Move(cgroup.Dir{Hierarchy: h.ID, Path: home}, n.self.ID))
			}
		}
	}
	// Without the lock the pin stays, and goes with the process.
	if lock, busy := n.LockWithin(ctx, time.Second, "run", n.By); busy == nil {
		err = errors.Join(err, n.unpin())
		lock.Release()
	}
	var known *api.Error
	if errors.As(cause, &known) {
		return err
	}
	hint := cmp.Or(systemd.Hint(cause), "nothing was started; `systemctl status` tells whether systemd answers")
	return api.Errorf(api.CodeFailed, hint, "enter group %q: %w", n.Group, err)
}

// besides is where a command goes that its scope does not bring it to: the group's directories that are not systemd's,
// and back where it was in those hierarchies of v1 in which systemd moved it and the group holds nothing (devices).
func (n *entering) besides(now procfs.Process) map[string]cgroup.Dir {
	dirs := n.v.Layout.Place(&now, n.Group)
	member := n.v.Layout.Member(n.Group)
	for _, h := range n.v.Facts.Hierarchies {
		before := n.self.Cgroups[h.ID]
		if _, held := member[h.ID]; !held && h.Version == 1 && now.Cgroups[h.ID] != before {
			dirs[h.ID] = cgroup.Dir{Hierarchy: h.ID, Path: before}
		}
	}
	return dirs
}

// startUnit makes the unit of a command around the process that is about to become it, and gives the process as it is
// in there.
func (n *entering) startUnit(ctx context.Context) (now procfs.Process, err error) {
	m, err := n.Manager(ctx, n.v.Facts)
	if err != nil {
		return now, err
	}
	slice, there := n.v.Layout.SliceName(n.Group)
	name, err := unitname.RunName(n.v.Policy.Host.Root, n.Group, n.self.PID, n.self.Start)
	if err != nil || !there {
		return now, errors.Join(err, fmt.Errorf("group %q has no slice", n.Group))
	}
	accounting, err := systemd.Encode(systemd.Accounting(m.Version(), "scope"))
	if err != nil {
		return now, err
	}
	command := cmp.Or(terminal.Printable(n.Command), n.self.Comm)
	if err := m.StartRun(ctx, systemd.Transient{
		Name: name, Slice: slice, PIDs: []int{n.self.PID}, Properties: accounting,
		Description: fmt.Sprintf("bulkhead run %s -- %s", n.Group, command),
	}); err != nil {
		return now, err
	}
	now, err = n.process()
	switch {
	case err != nil:
		return now, err
	case now.ID != n.self.ID:
		return now, errors.New("the process has ended")
	case !n.v.Layout.InRun(&now, n.Group):
		return now, errors.New("systemd started the scope, and the process is not in it")
	}
	return now, nil
}

// open says why a group takes no new member now.
func open(v *transaction.View, s *state.Documents, group string) error {
	if !v.HasGroup(group) {
		return transaction.NoGroup(v, group)
	}
	if err := errors.Join(transaction.RefuseReleased(s, group), freeze.RefuseFrozen(s, group)); err != nil {
		return err
	}
	if v.Facts.Systemd && v.Systemd == nil {
		return transaction.Unasked(v.Unasked)
	}
	for _, d := range v.Layout.Member(group) {
		if there, err := v.Tree.Exists(d); err != nil || !there {
			return api.Errorf(api.CodeFailed,
				"`bulkhead apply` makes its directories; `bulkhead status` shows what is there",
				"group %q is not in force on this host", group)
		}
	}
	return nil
}

// process is the process that enters, as /proc shows it.
func (n *entering) process() (procfs.Process, error) {
	pid := cmp.Or(n.PID, n.Controller.Self.PID)
	if n.Caller != nil {
		pid = n.Caller.PID
	}
	procs, err := n.Host.Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		return procfs.Process{}, api.Errorf(api.CodeFailed, "is /proc mounted?", "look at the process that enters: %w",
			err)
	}
	return procs[0], nil
}

// takeScore gives the command the oom_score_adj that its group asks for, through the journal: a release takes it back.
func (n *entering) takeScore(ctx context.Context) {
	for _, g := range n.v.Classified.Groups {
		s, ok := g.Settings.Get(policy.KeyOOMScoreAdj, "")
		if g.Path != n.Group || !ok {
			continue
		}
		score, _ := s.Value.(policy.Count)
		now, err := n.Host.Proc.ReadOOMScoreAdj(n.self.ID)
		if old := strconv.Itoa(now); err == nil && now != int(score) {
			_, err = n.Runner(ctx, n.v).Run(ctx, plan.Plan{Steps: []plan.Step{{
				Change: change.Of(n.self.ID.ScoreTarget(), old, strconv.Itoa(int(score))), Group: n.Group,
				Name: n.self.Comm, Reason: "run", Setting: policy.KeyOOMScoreAdj,
			}}}, apply.Options{Verb: "run", By: n.By, Unrecorded: true})
		}
		if err != nil {
			n.Log.Warn("could not set oom_score_adj", "group", n.Group, "err", err)
		}
	}
}
