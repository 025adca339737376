package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/transaction"
)

// Putting right what somebody else changes stops to be a fight: after conflictsAtOnce times a value is left for a
// while, twice as long each time. One that was left alone for conflictsForget begins anew.
const (
	conflictsAtOnce = 2
	conflictsRest   = time.Minute
	conflictsMost   = time.Hour
	conflictsForget = 3 * time.Hour
	// conflictsTold is for how long one that was put right is still told of.
	conflictsTold = 24 * time.Hour
)

// restAfter is how long a value is left after it was changed that often.
func restAfter(count int) time.Duration {
	if count <= conflictsAtOnce {
		return 0
	}
	return min(conflictsRest<<min(count-conflictsAtOnce-1, 10), conflictsMost)
}

// settleLook remembers what is in force once a full look is done; without a plan nothing is known.
func (m *memory) settleLook(v *transaction.View, leftOut []plan.Step) {
	s := &inForce{values: make(map[change.Target]string, len(v.Plan.Want)), dirs: map[cgroup.Dir]uint64{}}
	for _, w := range v.Plan.Want {
		if v.Left[w.Target] == "" {
			s.values[w.Target] = w.Value
		}
	}
	for _, step := range leftOut {
		delete(s.values, step.Target)
	}
	for _, d := range v.Layout.Dirs() {
		s.dirs[d] = inode(v.Tree, d)
	}
	m.settled = s
}

// inode tells directories of one name apart; 0 when it cannot be told.
func inode(t *cgroup.Tree, d cgroup.Dir) uint64 {
	var st unix.Stat_t
	if unix.Stat(t.Abs(d), &st) != nil {
		return 0
	}
	return st.Ino
}

// conflicts finds what a plan would put right and what was in force at the last full look, for the same wish: somebody
// else has changed it.
func (c *Reconciler) conflicts(ctx context.Context, v *transaction.View) (found []state.Conflict) {
	before := c.memory.settled
	if before == nil || len(v.Plan.Steps) == 0 {
		return nil
	}
	wants := v.Plan.Wants()
	last := map[change.Target]plan.Step{}
	var order []change.Target
	for _, step := range v.Plan.Steps {
		if step.Old == "" && step.Undo == "" {
			continue
		}
		if _, seen := last[step.Target]; !seen {
			order = append(order, step.Target)
		}
		last[step.Target] = step
	}
	for _, t := range order {
		step := last[t]
		held, known := before.values[t]
		now, read := v.Observed.Held(t)
		w, asked := wants[t]
		wanted := step.New
		if asked {
			wanted = w.Value
		}
		f, file := cgroup.FileOf(t)
		if file { // of a directory that is still the same
			ino, there := before.dirs[f.Dir]
			read = read && there && ino == inode(v.Tree, f.Dir)
		}
		same := func(a, b string) bool { return v.Actuators.Same(t, a, b) }
		if !read || asked != known || same(wanted, now) || asked && !same(held, wanted) {
			continue
		}
		found = append(found, state.Conflict{
			Group: step.Group, Key: step.Setting, Target: t, Dir: f.Dir, File: f.Name, Device: f.Key,
			Wanted: wanted, Found: now, Boot: v.Facts.BootID, By: whoChanged(ctx, c.Controller, v, step),
		})
	}
	return found
}

// writers are programs that write control groups beside bulkhead.
var writers = []struct{ comm, name string }{
	{"tuned", "TuneD"}, {"cgrulesengd", "libcgroup's cgrulesengd"}, {"libvirtd", "libvirt"}, {"kubelet", "the kubelet"},
	{"slurmd", "Slurm"}, {"ksmtuned", "ksmtuned"},
}

// whoChanged says who may have changed a value: systemd, where it holds another one than bulkhead gave it, else an
// owner of the file who is not root, else a program that runs and is known to write control groups. The audit log,
// which would know, is not read.
func whoChanged(ctx context.Context, c *transaction.Controller, v *transaction.View, step plan.Step) string {
	if by := bySystemd(ctx, c, v, step); by != "" {
		return by
	}
	if uid := fileOwner(v.Tree, step); uid > 0 {
		return fmt.Sprintf("user %s perhaps, who owns the file", c.Host.Users.UserName(uid))
	}
	for _, w := range writers {
		for i := range v.Observed.Processes {
			if p := &v.Observed.Processes[i]; p.Comm == w.comm || len(p.Args) > 1 &&
				strings.HasPrefix(p.Comm, "python") &&
				slices.ContainsFunc(p.Args[1:], func(a string) bool { return filepath.Base(a) == w.comm }) {
				return fmt.Sprintf("%s perhaps, which runs (process %d)", w.name, p.PID)
			}
		}
	}
	return ""
}

// bySystemd says what systemd holds of the property by which a limit was set.
func bySystemd(ctx context.Context, c *transaction.Controller, v *transaction.View, step plan.Step) string {
	set, err := systemd.Assignments(step.Do)
	if step.Unit == "" || err != nil || len(set) == 0 {
		return ""
	}
	m, err := c.Manager(ctx, v.Facts)
	if err != nil || m == nil {
		return ""
	}
	u, err := m.Unit(ctx, step.Unit)
	if err != nil {
		return ""
	}
	for _, a := range set {
		row, known := systemd.RowOf(a.Name)
		value, there := u.Properties[a.Name]
		if !known || !there {
			continue
		}
		if text, err := row.Decode(value); err == nil && text != a.Text {
			return fmt.Sprintf("systemd, which holds %s=%s for %s (set-property, or a drop-in and a daemon-reload)",
				a.Name, text, step.Unit)
		}
	}
	return "who wrote the kernel's file of " + step.Unit + " past systemd"
}

// fileOwner is the user who owns the file of a step; 0 is root, or nobody knows.
func fileOwner(t *cgroup.Tree, step plan.Step) int {
	f, is := cgroup.FileOf(step.Target)
	if _, owned := cgroup.Owned(f.Name); owned {
		f.Name = ""
	}
	var st unix.Stat_t
	if !is || unix.Stat(filepath.Join(t.Abs(f.Dir), f.Name), &st) != nil {
		return 0
	}
	return int(st.Uid)
}

// handleConflicts finds what others changed, and decides which of it stays. Trouble is what on_conflict: alert calls an
// error. Where something stays that did not before, it plans once more: what others changed is known by what a plan
// would put right, and to leave a value out changes the steps of its neighbours, which go by the values beside them.
func (c *Reconciler) handleConflicts(ctx context.Context, v *transaction.View, s *state.Documents) (trouble error) {
	now := c.Now()
	records, changed := review(v, s.Conflicts, now)
	for _, f := range c.conflicts(ctx, v) {
		i := slices.IndexFunc(records, func(r state.Conflict) bool { return r.Where() == f.Where() })
		if i < 0 {
			f.First = now
			records = append(records, f)
			i = len(records) - 1
		} else if now.Sub(records[i].Last) > conflictsForget {
			records[i].First, records[i].Count = now, 0
		}
		r := &records[i]
		r.Last, r.Found, r.By, r.Count = now, f.Found, cmp.Or(f.By, r.By), r.Count+1
		r.Left, r.Until = v.Policy.Agent.OnConflict.Leaves(), time.Time{}
		if rest := restAfter(r.Count); rest > 0 && !r.Left {
			r.Until = now.Add(rest)
		}
		changed = true
		c.Log.Warn("somebody else changed a limit", "group", r.Group, "limit", r.Key, "file", r.Where(), "wanted",
			r.Wanted, "found", r.Found, "by", cmp.Or(r.By, "unknown"), "times", r.Count, "then", then(*r))
	}
	if changed {
		if err := c.Store.Save(state.DocConflicts, records); err != nil {
			c.Log.Warn("what others changed could not be recorded", "err", err)
		}
	}
	v.Conflicts = records
	if v.Policy.Agent.OnConflict == policy.ConflictAlert {
		for _, r := range records {
			if r.Left {
				trouble = errors.Join(trouble, api.Errorf(api.CodeFailed, "`bulkhead apply` puts it right",
					"somebody else changed a limit: %s", r))
			}
		}
	}
	if v.Leave(now) {
		v.MakePlan()
	}
	return trouble
}

func then(c state.Conflict) string {
	switch {
	case c.Left:
		return "it stays"
	case !c.Until.IsZero():
		return "it stays until " + c.Until.Local().Format(time.TimeOnly)
	}
	return "it is put right"
}

// review brings the records up to date: those go whose wish is another one, or whose value is right again and was so
// for long.
func review(v *transaction.View, records []state.Conflict, now time.Time) (kept []state.Conflict, changed bool) {
	if len(records) == 0 {
		return nil, false
	}
	wants := v.Plan.Wants()
	for _, r := range records {
		t := r.Where()
		found, there := v.Observed.Held(t)
		same := func(a, b string) bool { return v.Actuators.Same(t, a, b) }
		if wanted, asked := wants[t]; !there || asked && !same(wanted.Value, r.Wanted) {
			changed = true
			continue
		}
		if same(r.Wanted, found) && (r.Left || now.Sub(r.Last) > conflictsTold) {
			changed = true
			continue
		}
		if !r.Until.IsZero() && (!now.Before(r.Until) || same(r.Wanted, found)) { // or somebody put it right
			r.Until, changed = time.Time{}, true
		}
		if r.Left && !same(found, r.Found) {
			r.Found, r.Last, r.Count, changed = found, now, r.Count+1, true
		}
		kept = append(kept, r)
	}
	return kept, changed
}
