package freeze

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Who is stopped in the kernel. Where members sit in the directories of their group anyhow (cgroup v2, or a
// v1 freezer mounted together with a controller of ours) a freeze is a word written there. Else the v1
// freezer gets directories of its own, and a stopped process sits in that of the nearest group, its own or
// one above, that has a freeze: so each freeze can end by itself.

// stop freezes one group.
func stop(ctx context.Context, c *transaction.Controller, v *transaction.View, group string, r api.Request,
	reply *transaction.Outcome) error {
	dir, err := freezerDir(v, group)
	if err != nil {
		return err
	}
	into := intoFreezer
	if h, _ := v.Facts.Hierarchy(dir.Hierarchy); inPlace(v.Facts, h) {
		into = intoPlace
	}
	// Members fork while they are moved in: once those inside stand still, look for who came meanwhile.
	const looks = 10
	for i := range looks + 1 {
		p := into(v, group, dir)
		if i > 0 && len(p.Steps) == 0 {
			return nil
		}
		if i == looks {
			reply.Notes = append(reply.Notes, fmt.Sprintf("%s of group %q started meanwhile and run on",
				policy.Counted(len(p.Steps), "process"), group))
			return nil
		}
		if _, err := c.Runner(ctx, v).Run(ctx, p, asked(r)); err != nil {
			return err
		}
		if err := halt(v, group, dir); err != nil {
			return err
		}
		if v, _, err = c.Current(ctx, transaction.ViewOptions{Options: snapshot.Options{Facts: v.Facts}}); err != nil {
			return err
		}
	}
	return nil
}

// asked runs a plan on behalf of a verb that writes its own history entry.
func asked(r api.Request) apply.Options {
	return apply.Options{Verb: r.Verb, What: r.What(), By: r.By, Reason: r.Reason, Unrecorded: true}
}

func halt(v *transaction.View, group string, dir cgroup.Dir) error {
	if err := v.Tree.Freeze(dir, true); err != nil {
		return api.Errorf(api.CodeFailed, "", "freeze group %q: %w", group, err)
	}
	return nil
}

// freezerDir is the directory through which a group can be frozen.
func freezerDir(v *transaction.View, group string) (cgroup.Dir, error) {
	at := v.Names.Dir(group)
	if u, ok := v.Facts.Unified(); ok && inPlace(v.Facts, u) {
		d := cgroup.Dir{Hierarchy: u.ID, Path: at}
		if own, known := v.Layout.Own(group)[u.ID]; known {
			d = own
		}
		if err := refuseOutside(v, group); err != nil {
			return cgroup.Dir{}, err
		}
		if there, err := v.Tree.Exists(d); err == nil && there {
			return d, nil
		}
	}
	h, ok := v.Facts.HierarchyOf("freezer")
	if !ok || h.Version != 1 {
		return cgroup.Dir{}, api.Errorf(api.CodeFailed,
			"mount the freezer controller, or on cgroup v2 give the group a limit; `bulkhead discover` shows what "+
				"there is", "nothing on this host can freeze group %q", group)
	}
	d := cgroup.Dir{Hierarchy: h.ID, Path: at}
	if inPlace(v.Facts, h) {
		if there, err := v.Tree.Exists(d); err != nil || !there {
			return cgroup.Dir{}, api.Errorf(api.CodeFailed,
				"give the group a limit of a controller that is mounted with the freezer",
				"group %q has no directory in %q through which it could be frozen", group, h.ID)
		}
	}
	return d, nil
}

// inPlace says whether members sit in the directories of a hierarchy for the sake of their limits, so that
// freezing there moves nobody.
func inPlace(f *host.Facts, h host.Hierarchy) bool {
	if h.Version == 1 {
		_, ours := snapshot.FilesOf(f)[h.ID]
		return ours && h.Has("freezer")
	}
	cpu, _ := f.HierarchyOf("cpu")
	memory, _ := f.HierarchyOf("memory")
	return cpu.ID == h.ID || memory.ID == h.ID
}

// intoPlace plans the way into a group's own directories for members that are not there yet: forked before their
// parent was moved, say. What is moved into a frozen directory stands still from then on.
func intoPlace(v *transaction.View, group string, dir cgroup.Dir) plan.Plan {
	var p plan.Plan
	for _, s := range v.Plan.Steps {
		_, there := v.Observed.Dirs[s.Dir()]
		if s.Moves() && there && atOrBelow(s.Dir().Path, dir.Path) && policy.Covers([]string{group}, s.Group) {
			p.Steps = append(p.Steps, s)
		}
	}
	return p
}

// intoFreezer plans the directories of a group in the v1 freezer hierarchy and its members' way in. One that a
// freeze of a group below holds already stays there.
func intoFreezer(v *transaction.View, group string, dir cgroup.Dir) plan.Plan {
	var p plan.Plan
	var parents []string
	for at := dir.Path; at != "/"; at = path.Dir(at) {
		parents = append(parents, at)
	}
	slices.Reverse(parents)
	for _, at := range parents {
		d := cgroup.Dir{Hierarchy: dir.Hierarchy, Path: at}
		if there, err := v.Tree.Exists(d); err == nil && there {
			continue
		}
		p.Steps = append(p.Steps, plan.Step{Change: change.Of(d.Target(), "", cgroup.There), Group: group,
			Reason: "freeze"})
	}
	for _, m := range v.Members {
		if !policy.Covers([]string{group}, m.Group) || atOrBelow(m.Process.Cgroups[dir.Hierarchy], dir.Path) {
			continue
		}
		p.Steps = append(p.Steps, plan.Step{
			Change: change.Of(cgroup.Membership(m.Process.ID, dir.Hierarchy), m.Process.Cgroups[dir.Hierarchy],
				dir.Path), Group: group, Name: m.Process.Comm, Reason: "freeze",
		})
	}
	return p
}

// wake lets groups go, whichever way they were frozen, and takes the freezer's directories away. What one of
// the freezes that stay holds, of a group among them, below or above them, stays stopped. An error does not
// keep the others from going.
func wake(ctx context.Context, c *transaction.Controller, v *transaction.View, r api.Request, groups []string,
	stay []state.Freeze) error {
	w := waking{Controller: c, View: v, groups: groups, stay: stay}
	var errs []error
	for _, h := range v.Facts.Hierarchies {
		here := inPlace(v.Facts, h)
		if !here && (h.Version != 1 || !h.Has("freezer")) {
			continue
		}
		tops, err := snapshot.TopsOf(v.Tree, v.Names, h.ID)
		errs = append(errs, err)
		for _, top := range tops {
			if here {
				_, err = w.letGo(top)
			} else {
				err = w.emptyFreezer(ctx, top, asked(r))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// waking is one thaw of groups.
type waking struct {
	*transaction.Controller
	*transaction.View
	groups []string       // to let go
	stay   []state.Freeze // in force beside it
}

// name is the group of a directory; "" is the root group.
func (w *waking) name(d cgroup.Dir) string {
	name, _ := w.Layout.Group(d)
	return name
}

// holds says whether a directory has a freeze of its own that stays.
func (w *waking) holds(d cgroup.Dir) bool {
	return slices.ContainsFunc(w.stay, func(f state.Freeze) bool { return f.Group == w.name(d) })
}

// needed says whether a freeze that stays is that of a directory or of one below it.
func (w *waking) needed(d cgroup.Dir) bool {
	return slices.ContainsFunc(w.stay, func(f state.Freeze) bool { return policy.Covers([]string{w.name(d)}, f.Group) })
}

// letGo thaws the directories of the groups, parents first: below one that is frozen none would go. It gives all
// directories, parents first.
func (w *waking) letGo(top cgroup.Dir) ([]cgroup.Dir, error) {
	if there, err := w.Tree.Exists(top); err != nil || !there {
		return nil, err
	}
	dirs, err := w.Tree.Walk(top)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(dirs, func(a, b cgroup.Dir) int { return strings.Compare(a.Path, b.Path) })
	var errs []error
	for _, d := range dirs {
		if policy.Covers(w.groups, w.name(d)) && !w.holds(d) {
			errs = append(errs, w.thawDir(d))
		}
	}
	return dirs, errors.Join(errs...)
}

// thawDir takes a directory's own freezing back. Nothing is waited for below one that stays frozen.
func (w *waking) thawDir(d cgroup.Dir) error {
	h, _ := w.Facts.Hierarchy(d.Hierarchy)
	own, file, thawed := "cgroup.freeze", "cgroup.freeze", "0"
	if h.Version == 1 {
		own, file, thawed = "freezer.self_freezing", "freezer.state", "THAWED"
	}
	frozen, err := w.Tree.Read(d.File(own))
	if err == nil && frozen == "1" {
		if _, above := frozenAbove(w.stay, w.name(d)); above {
			err = w.Tree.Write(d.File(file), thawed)
		} else {
			err = w.Tree.Freeze(d, false)
		}
	}
	if err == nil || errors.Is(err, cgroup.ErrGone) || errors.Is(err, cgroup.ErrNoKnob) {
		return nil
	}
	return api.Errorf(api.CodeFailed, "", "thaw group %q: %w", w.name(d), err)
}

// emptyFreezer thaws the groups' directories in the v1 freezer hierarchy, sends their processes to the nearest
// group above that stays frozen or to where they were, which lets even those go that did not thaw, and
// removes the directories that no freeze needs any more.
func (w *waking) emptyFreezer(ctx context.Context, top cgroup.Dir, o apply.Options) error {
	dirs, errThaw := w.letGo(top)
	dirs = slices.DeleteFunc(dirs, func(d cgroup.Dir) bool { return w.holds(d) || !w.concerns(d) })
	if len(dirs) == 0 {
		return errThaw
	}
	// By /proc, not by cgroup.procs: on v1 that leaves out processes while others fork beside them.
	procs, err := w.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		return errors.Join(errThaw, api.Errorf(api.CodeFailed, "", "read the process table: %w", err))
	}
	var moves, removals []plan.Step
	for _, d := range dirs {
		if policy.Covers(w.groups, w.name(d)) || !w.needed(d) {
			moves = append(moves, w.leave(d, procs)...)
		}
		if !w.needed(d) {
			removals = append(removals, plan.Step{Change: change.Of(d.Target(), cgroup.There, ""), Group: w.name(d),
				Reason: "thaw", Optional: true})
		}
	}
	slices.Reverse(removals) // children first
	done, err := w.Runner(ctx, w.View).Run(ctx, plan.Plan{Steps: append(moves, removals...)}, o)
	if slices.ContainsFunc(done.LeftOut, plan.Step.Moves) {
		err = errors.Join(err, api.Errorf(api.CodeFailed, "", "send processes back from the freezer: %s",
			strings.Join(done.Notes, "; ")))
	}
	return errors.Join(errThaw, err)
}

// concerns says whether a directory is of one of the groups, or one of their parents, made for their sake.
func (w *waking) concerns(d cgroup.Dir) bool {
	return slices.ContainsFunc(w.groups, func(g string) bool {
		return policy.Covers([]string{g}, w.name(d)) || policy.Covers([]string{w.name(d)}, g)
	})
}

// leave sends the processes in a directory of the freezer away.
func (w *waking) leave(d cgroup.Dir, procs []procfs.Process) []plan.Step {
	var steps []plan.Step
	for _, p := range procs {
		if p.Cgroups[d.Hierarchy] != d.Path {
			continue
		}
		to := w.home(p.ID, d)
		if f, stopped := frozenAbove(w.stay, w.name(d)); stopped {
			to = w.Names.Dir(f.Group)
		}
		steps = append(steps, plan.Step{
			Change: change.Of(cgroup.Membership(p.ID, d.Hierarchy), d.Path, to), Group: w.name(d), Name: p.Comm,
			Reason: "thaw", Optional: true,
		})
	}
	return steps
}

// home is where a process, or else its group, came from, or the nearest directory above that is still there.
func (w *waking) home(id procfs.ID, d cgroup.Dir) string {
	process, group := w.Store.InBoot(w.Facts.BootID).Homes()
	at := cmp.Or(process[id][d.Hierarchy], group[w.name(d)][d.Hierarchy], "/")
	for ; at != "/"; at = path.Dir(at) {
		if there, err := w.Tree.Exists(cgroup.Dir{Hierarchy: d.Hierarchy, Path: at}); err == nil && there {
			break
		}
	}
	return at
}

// ThawAll wakes whatever is frozen in the groups about to be released.
func ThawAll(ctx context.Context, c *transaction.Controller, v *transaction.View, s *state.Documents, groups []string,
	r api.Request) error {
	if r.DryRun {
		return nil
	}
	stay := slices.DeleteFunc(slices.Clone(s.Freezes),
		func(f state.Freeze) bool { return policy.Covers(groups, f.Group) })
	return wake(ctx, c, v, r, groups, stay)
}

// outsideSlice names the units of a group that are not in its slice, "" for none.
func outsideSlice(v *transaction.View, group string) string {
	if v.Systemd == nil {
		return ""
	}
	var names []string
	for _, g := range v.Systemd.Governed {
		if !g.Inside && policy.Covers([]string{group}, g.Group) {
			names = append(names, g.Unit)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// refuseOutside says that a group cannot be frozen as a whole.
func refuseOutside(v *transaction.View, group string) error {
	if names := outsideSlice(v, group); names != "" {
		return api.Errorf(api.CodeFailed,
			fmt.Sprintf("`systemctl freeze %s` stops them by themselves; `adopt: next-start` brings them into the "+
				"group's slice", names),
			"freeze group %q: %s is not in its slice", group, names)
	}
	return nil
}

// atOrBelow says whether a cgroup path is another one or below it.
func atOrBelow(at, top string) bool { return at == top || strings.HasPrefix(at, top+"/") }

// frozenAbove gives the freeze of the nearest group above that is frozen.
func frozenAbove(freezes []state.Freeze, group string) (state.Freeze, bool) {
	for group != "." && group != "" {
		group = path.Dir(group)
		if i := slices.IndexFunc(freezes, func(f state.Freeze) bool { return f.Group == group }); i >= 0 {
			return freezes[i], true
		}
	}
	return state.Freeze{}, false
}
