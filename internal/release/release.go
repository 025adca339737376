// Package release gives groups back: their limits are lifted, their processes go home, their directories are removed.
// It is the way out, so it works without the policy, without the agent, and with a state directory that cannot be
// written.
package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/freeze"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/plan/planner"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Release lifts limits: the emergency exit. It works from the directories that are there and the
// journal, not from the policy, so it works with the policy broken and the agent dead. A released
// group stays lifted until the next apply.
func Release(ctx context.Context, c *transaction.Controller, r api.Request, reply *transaction.Outcome) error {
	facts, err := c.Host.Facts()
	if err != nil {
		return api.Errorf(api.CodeFailed, "", "look at the host: %w", err)
	}
	s := transaction.StateOrNone(c, facts.BootID)
	groups := r.Groups
	if r.All {
		groups = []string{""}
	}
	v, err := View(ctx, c, facts, s, groups, r)
	if err != nil {
		return err
	}
	if v == nil && r.All {
		reply.Text = fmt.Sprintf("nothing to do: no applied policy is known in %s, and this host has no directory %s",
			c.Store.Dir(), unrecorded(r.Sources))
		return nil
	}
	if err := known(groups, v, s); err != nil {
		return err
	}
	began := false
	run := func() error {
		if v == nil || began {
			return nil
		}
		err := Groups(ctx, c, v, s, groups, r, reply)
		began = err == nil || errors.Is(err, apply.ErrInForce)
		return err
	}
	if r.DryRun {
		return run()
	}
	err = c.Commit(r, reply, Without(s, groups), run)
	if transaction.CannotRecord(err) {
		if !began {
			*reply = transaction.Outcome{Reply: api.Reply{Recovered: reply.Recovered}}
		}
		return releaseUnrecorded(c, run, err, reply)
	}
	if err != nil {
		return err
	}
	return StillHeld(reply)
}

// known refuses the name of a group that is neither on the host nor in the applied policy.
func known(groups []string, v *transaction.View, s *state.Documents) error {
	there := map[string]bool{"": true}
	if v != nil {
		for _, g := range v.Classified.Groups {
			there[g.Path] = true
		}
	}
	for _, g := range groups {
		if !there[g] && !knows(s, g) {
			return api.Errorf(api.CodeUsage, "`bulkhead status` lists the groups", "no group %q", g)
		}
	}
	return nil
}

// releaseUnrecorded is the way out when the state directory cannot be written: the originals are in it
// already, so what is still needed, the journal of the release itself, goes into memory. It ends in an
// error all the same, because nothing keeps an agent from putting the limits back.
func releaseUnrecorded(c *transaction.Controller, run func() error, cause error, reply *transaction.Outcome) error {
	dir, err := os.MkdirTemp("/dev/shm", "bulkhead-release-")
	if err != nil {
		return errors.Join(cause, err)
	}
	store, err := journal.Open(dir, journal.Options{Alive: c.Host.Proc.Alive})
	if err != nil {
		return errors.Join(cause, err)
	}
	lock, err := store.Lock("release", "the release of "+c.Store.Dir())
	if err != nil {
		return errors.Join(cause, err)
	}
	c.Scratch = store
	err = run()
	c.Scratch = nil
	lock.Release()
	err = errors.Join(err, store.Close(), os.RemoveAll(dir))
	if err == nil {
		err = StillHeld(reply)
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	return api.Errorf(api.CodeFailed,
		"stop the agent, which would put the limits back; make the state directory writable and release again, so "+
			"that it is recorded",
		"released, but that could not be recorded: %w", cause)
}

// StillHeld says that a limit could not be lifted, or a process not sent home. A directory that could not be
// removed, or a controller above ours that somebody else uses by now, holds nobody: a note is enough.
func StillHeld(reply *transaction.Outcome) error {
	if !slices.ContainsFunc(reply.LeftOut,
		func(s plan.Step) bool { return !s.Removes() && s.Kind != cgroup.KindControllers }) {
		return nil
	}
	return api.Errorf(api.CodeFailed, "the rest is released; `bulkhead release` again tries what is left",
		"release is not complete: %s", strings.Join(reply.Notes, "; "))
}

// Groups gives what is ours back.
func Groups(ctx context.Context, c *transaction.Controller, v *transaction.View, s *state.Documents, groups []string,
	r api.Request, reply *transaction.Outcome) error {
	if err := freeze.ThawAll(ctx, c, v, s, groups, r); err != nil {
		// Limits are lifted all the same; that somebody still stands still fails the release at its end.
		reply.Notes = append(reply.Notes, fmt.Sprintf("not done (thaw): %v", err))
		reply.LeftOut = append(reply.LeftOut, plan.Step{Reason: "thaw"})
	}
	part := transaction.Outcome{Docs: reply.Docs}
	err := c.Run(ctx, v, r, 0, &part)
	if v.Systemd != nil && v.Systemd.Mute && !r.DryRun {
		part.Notes = append(part.Notes,
			fmt.Sprintf("limits are lifted in the kernel's files only, because systemd could not be asked: %v",
				v.Unasked))
		part.LeftOut = append(part.LeftOut, plan.Step{Reason: "systemd could not be asked"})
	}
	for _, n := range v.Plan.Notes {
		if n.NotEnforced && !r.DryRun { // held back, so as not to harm
			part.Notes = append(part.Notes, n.Text)
			part.LeftOut = append(part.LeftOut, plan.Step{Group: n.Group, Reason: "held back"})
		}
	}
	reply.Root = part.Root
	reply.Plan.Steps = append(reply.Plan.Steps, part.Plan.Steps...)
	reply.Plan.Notes = append(reply.Plan.Notes, part.Plan.Notes...)
	reply.Changed = reply.Changed || part.Changed
	reply.Ran, reply.Docs = reply.Ran || part.Ran, part.Docs
	reply.Skipped = append(reply.Skipped, part.Skipped...)
	reply.Notes = append(reply.Notes, part.Notes...)
	reply.LeftOut = append(reply.LeftOut, part.LeftOut...)
	return err
}

// Without is the documents once groups are released: pins, freezes and overrides of theirs hold no more.
func Without(s *state.Documents, groups []string) map[string]any {
	released := maps.Clone(s.Released)
	for _, g := range groups {
		released[g] = true
	}
	docs := map[string]any{
		state.DocReleased: released,
		state.DocPins: slices.DeleteFunc(slices.Clone(s.Pins),
			func(p state.Pin) bool { return policy.Covers(groups, p.Group) }),
		state.DocFreezes: slices.DeleteFunc(slices.Clone(s.Freezes),
			func(f state.Freeze) bool { return policy.Covers(groups, f.Group) }),
	}
	if slices.Contains(groups, "") {
		docs[state.DocOverrides], docs[state.DocTuned] = []state.Override{}, []state.Tuned{}
		state.TrialOver(docs) // nothing is left to undo
	}
	return docs
}

// knows says whether a group is written in the applied policy, maybe as a template of another name.
func knows(s *state.Documents, group string) bool {
	if s.Applied == nil {
		return false
	}
	p, err := parse.Policy(s.Applied.Sources)
	if err != nil {
		return true // cannot be told; a release that was wanted is kept
	}
	var known func(groups []*policy.Group) bool
	known = func(groups []*policy.Group) bool {
		for _, g := range groups {
			if g.Path == group || strings.Contains(g.Path, "{") || known(g.Groups) {
				return true
			}
		}
		return false
	}
	return known(p.Groups)
}

// UsualRoots are where groups may lie when the state directory knows of none, which was lost, or another one was meant:
// at the top, below the root group of earlier versions, or below that of the policy file. A variable for tests, which
// must not touch a stranger's.
var UsualRoots = []string{"", state.FormerRoot}

func unrecorded(sources []policy.Source) layout.Names {
	return layout.Names{Root: parse.RootOf(sources), Former: UsualRoots}
}

// View makes a view whose groups are the directories that are there, with the processes in them, and the plan
// that lifts the named ones; nil when nothing is recorded and nothing is there. What is there and not recorded is
// refused, or with force taken as ours.
func View(ctx context.Context, c *transaction.Controller, f *host.Facts, s *state.Documents, groups []string,
	r api.Request) (*transaction.View, error) {
	recorded := s.Applied != nil
	there, err := c.Reader().Existing(ctx, snapshot.ExistingOptions{
		Facts: f, Pins: s.Pins, Ended: s.Ended,
		Names: func(made []string) layout.Names {
			if recorded = recorded || len(made) > 0; !recorded {
				return unrecorded(r.Sources)
			}
			return transaction.NamesOf(s, made)
		},
	})
	if err != nil {
		return nil, err
	}
	v := &transaction.View{Snapshot: there, Released: s.Released, Releasing: true}
	ours, theirs := tops(v)
	switch {
	case len(ours)+len(theirs) == 0 && !recorded && len(v.Observed.Originals.Tuned) == 0:
		return nil, nil //nolint:nilnil // nothing to release is no error
	case len(theirs) > 0 && r.Force:
		v.Snapshot = there.Owned()
	case len(theirs) > 0 && len(ours) == 0:
		return nil, api.Errorf(api.CodeRefused,
			fmt.Sprintf("--state names the directory that it was applied with; if the records were lost and it is "+
				"bulkhead's, `bulkhead release %s --force --reason TEXT` takes it as such", r.What()),
			"the records in %s know nothing of %s: nothing was released", c.Store.Dir(), strings.Join(theirs, " and "))
	}
	if err := c.ReadTuning(ctx, v); err != nil {
		c.Log.Warn("a setting of the kernel cannot be read, and is not given back", "err", err)
	}
	if err := planRelease(c, v, groups, r.Force); err != nil {
		return nil, err
	}
	return v, nil
}

// planRelease plans the release of groups from what is there.
func planRelease(c *transaction.Controller, v *transaction.View, groups []string, force bool) error {
	var shaped []plan.Note
	if there, err := c.Reader().Interfaces(v.Snapshot, slices.Contains(groups, "")); err == nil {
		v.Snapshot, shaped = there, unrecordedShares(there.Network, c.Store.Dir())
	} else {
		if !slices.Contains(groups, "") {
			return err
		}
		c.Log.Warn("releasing without the network", "err", err)
		shaped = leftShaped(c.Store, v.Facts.BootID, err)
	}
	v.Plan = planner.Make(plan.Input{
		Facts: v.Facts, Host: v.Policy.Host, Former: v.Names.Former, Classified: v.Classified, Observed: v.Observed,
		Memory: v.MemoryInUse(), Release: groups, Systemd: v.Systemd, Network: v.Network, Insist: force,
	})
	v.Plan.Notes = append(v.Plan.Notes, shaped...)
	return nil
}

// tops lists the directories at the top of hierarchies with a name of ours, those that we made and those that we did
// not, each directory once for all hierarchies.
func tops(v *transaction.View) (ours, theirs []string) {
	for _, d := range slices.SortedFunc(maps.Keys(v.Observed.Dirs), func(a, b cgroup.Dir) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Hierarchy, b.Hierarchy))
	}) {
		if _, named := v.Layout.Group(d); !named || d.Parent().Path != "/" {
			continue
		}
		to := &ours
		if v.Observed.Foreign[d] {
			to = &theirs
		}
		if len(*to) == 0 || path.Base((*to)[len(*to)-1]) != path.Base(d.Path) {
			*to = append(*to, v.Tree.Abs(d))
		}
	}
	return ours, theirs
}

// unrecordedShares says from which interfaces a release takes limits of bulkhead that the records in dir know nothing
// of: the records were lost, or the limits are those of another state directory.
func unrecordedShares(n *plan.Network, dir string) (notes []plan.Note) {
	if n == nil {
		return nil
	}
	for _, d := range n.Devices {
		name := d.State.Device.Name
		if _, recorded := n.Was[name]; d.Governed && !recorded {
			notes = append(notes, plan.Note{Group: layout.RootGroup, Text: fmt.Sprintf(
				"limits of bulkhead on %s are taken away, too, though the records in %s know nothing of them; if they "+
					"belong to another state directory, `bulkhead --state DIR apply` there puts them back", name, dir)})
		}
	}
	return notes
}

// leftShaped says which interfaces a release leaves as they are, since they could not be looked at.
func leftShaped(store *journal.Store, boot string, cause error) []plan.Note {
	record, err := state.NetworkRecord(store, boot)
	if err != nil || len(record.Devices) == 0 {
		return nil // a host without limits on interfaces is released where nobody may look at them
	}
	names := strings.Join(slices.Sorted(maps.Keys(record.Devices)), ", ")
	return []plan.Note{{Group: layout.RootGroup, Text: fmt.Sprintf("limits on %s stay as they are: %v", names, cause),
		NotEnforced: true}}
}
