package reconcile

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// MostFastPath is how many processes are held against the last look one by one; more are worth a whole look.
const MostFastPath = 200

// FastPathResult is what was done about processes that have just come.
type FastPathResult struct {
	Moved []int // pids; they are in their groups
	Gone  int   // processes that exited before they could be moved
	// Look says that something is left that only a look at the whole can decide or do.
	Look bool
}

// stamp notes the state of the documents, before they are read.
func stamp(c *transaction.Controller) recorded {
	var r recorded
	for i, name := range documents {
		var st unix.Stat_t
		if unix.Lstat(c.Store.Dir()+"/"+name+".json", &st) == nil {
			r.files[i] = version{st.Dev, st.Ino, st.Size, st.Mtim}
		}
	}
	return r
}

// remember keeps a stamp beside the state that was read after it.
func (m *memory) remember(r recorded, s *state.Documents) {
	r.calm = s.Applied != nil && !s.Released[""] && len(s.Freezes) == 0
	if r.same(m.recorded) {
		r.homes = m.recorded.homes
	}
	m.recorded = r
}

// same says that no document was written between two stamps.
func (r recorded) same(o recorded) bool { return r.files == o.files }

// errNoFastPath says that only a look at the whole can tell where a process belongs.
var errNoFastPath = errors.New("only a look at the whole can tell")

// FastPath holds processes that have just come or changed against what the last look knew of groups and instances, and
// moves those that clearly belong into a group at once: without a plan, a transaction or a look at any other process.
// It takes the short way only for a process that comes from where the group's first member came from, so that the
// journal knows already where it goes back to; and only while the state directory is as it was at that look. Forks are
// as in LookOptions; find gives other processes as they are now, and held watches the fresh ones.
func (c *Reconciler) FastPath(
	fresh []procfs.Process, held procfs.Held, forks []Fork, find func(pid int) (procfs.Process, bool),
) FastPathResult {
	v := c.memory.view
	if v == nil || len(fresh) > MostFastPath || c.memory.bornOutside(v, fresh, forks) {
		return FastPathResult{Look: true}
	}
	isFresh := make(map[int]bool, len(fresh))
	server := false
	for i := range fresh {
		isFresh[fresh[i].PID] = true
		if recognise.Joins(&fresh[i], v.Instances) {
			return FastPathResult{Look: true}
		}
		server = server || recognise.MayServe(&fresh[i])
	}
	procs, served := withAncestors(fresh, c.Agent.PID, v.Instances, find)
	if served {
		return FastPathResult{Look: true}
	}
	if server {
		for _, inst := range recognise.Instances(procs, recognise.SourceOf(c.Host)) {
			if isFresh[inst.Main.PID] {
				return FastPathResult{Look: true}
			}
		}
	}
	c.Reader().ReadMore(v.Classified.Groups, procs)
	if m := &c.memory; m.classified != v {
		m.classifier, m.classified = classify.NewClassifier(v.Classified.Groups, v.Rules), v
	}
	misplaced, whole := outOfPlace(v, c.memory.classifier, procs, isFresh)
	if whole || len(misplaced) == 0 {
		return FastPathResult{Look: whole}
	}
	done := c.enter(v, misplaced, procs, held)
	done.Look = done.Look || c.memory.bornOutside(v, fresh, forks) // what they forked on the way
	return done
}

// outOfPlace gives those fresh processes that are not where their group wants them. Whole says that a unit came to a
// group with one, which only a look at the whole can put in force.
func outOfPlace(
	v *transaction.View, by *classify.Classifier, procs []procfs.Process, isFresh map[int]bool,
) (misplaced []classify.Placement, whole bool) {
	for _, p := range by.Placements(procs, func(pid int) bool { return isFresh[pid] }) {
		if policy.Released(v.Released, p.Group) {
			continue
		}
		if ungoverned(v, p) || p.By == classify.ByOthers && len(v.Layout.Own(p.Group)) == 0 { // of a new session
			return nil, true
		}
		if !v.Layout.Placed(&p.Process, p.Group) {
			misplaced = append(misplaced, p)
		}
	}
	return misplaced, false
}

// bornOutside says whether the child of a process that is on its way into a group, or was a moment ago, was born
// outside.
func (m *memory) bornOutside(v *transaction.View, fresh []procfs.Process, forks []Fork) bool {
	for _, f := range forks {
		parent, moving := m.movers[f.Parent]
		if !moving {
			continue
		}
		inside := false
		for i := range fresh {
			inside = inside || fresh[i].PID == f.Child && v.Layout.Placed(&fresh[i], parent.group)
		}
		if !inside {
			return true
		}
	}
	return false
}

// enter moves processes into their groups, parents first, while nobody changes anything.
func (c *Reconciler) enter(
	v *transaction.View, misplaced []classify.Placement, procs []procfs.Process, held procfs.Held,
) (done FastPathResult) {
	r := &c.memory.recorded
	if c.memory.lock == nil {
		c.memory.lock = journal.NewSharedLock(c.Store)
	}
	by, err := c.memory.lock.Quiet(func(same bool) error {
		if !r.calm || c.memory.Facts != v.Facts {
			return errNoFastPath
		}
		if !same || !r.checked {
			_, pending := c.Store.Pending()
			if r.checked = !pending && !c.Store.Unsettled() && r.same(stamp(c.Controller)); !r.checked {
				return errNoFastPath
			}
		}
		of := func(p *classify.Placement) *procfs.Process { return &p.Process }
		for _, p := range procfs.ParentsFirst(misplaced, of) {
			dirs := v.Layout.Place(&p.Process, p.Group)
			if !c.isPlain(v, *p, dirs, procs) {
				done.Look = true
				continue
			}
			same := func() bool { return held.Same(p.Process.PID) }
			switch err := v.Tree.MoveAll(p.Process.ID, same, p.Process.Cgroups, v.NotIn(p.Process, dirs)...); {
			case errors.Is(err, cgroup.ErrExited):
				done.Gone++
			case err != nil:
				done.Look = true
			default:
				done.Moved = append(done.Moved, p.Process.PID)
			}
			if c.memory.movers == nil {
				c.memory.movers = map[int]mover{}
			}
			c.memory.movers[p.Process.PID] = mover{p.Group, p.Process.Cgroups, time.Now()}
		}
		return nil
	})
	done.Look = done.Look || err != nil || by != nil
	return done
}

// isPlain says that all there is to do about a process is to move it: a rule places it, it is in no directory of ours,
// and it comes from the group's home, as do its ancestors.
func (c *Reconciler) isPlain(v *transaction.View, p classify.Placement, dirs map[string]cgroup.Dir,
	procs []procfs.Process) bool {
	if p.By != classify.ByRule && p.By != classify.ByOthers ||
		p.Process.RT || p.Process.Kernel || len(dirs) == 0 || policy.Released(c.memory.refused, p.Group) {
		return false
	}
	for _, g := range v.Classified.Groups {
		if _, scored := g.Settings.Get(policy.KeyOOMScoreAdj, ""); g.Path == p.Group && scored {
			return false
		}
	}
	home := c.homeOf(v, p.Group)
	for hierarchy := range dirs {
		if home[hierarchy] == "" || home[hierarchy] != p.Process.Cgroups[hierarchy] {
			return false
		}
	}
	for up, left := &p.Process, len(procs); up != nil && left >= 0; up, left = parentOf(procs, up), left-1 {
		for hierarchy, path := range up.Cgroups {
			if path == "/" {
				continue // nobody's; of the hierarchies of a process most are so
			}
			if _, ours := v.Layout.Group(cgroup.Dir{Hierarchy: hierarchy, Path: path}); ours {
				return false
			}
		}
	}
	return true
}

// parentOf finds the parent of a process among others, which are in the order of their numbers; nil when it is not
// there.
func parentOf(procs []procfs.Process, p *procfs.Process) *procfs.Process {
	i, found := slices.BinarySearchFunc(procs, p.PPID, func(p procfs.Process, pid int) int { return p.PID - pid })
	if !found {
		return nil
	}
	return &procs[i]
}

// homeOf is where the first member of a group came from; nil when it has none yet.
func (c *Reconciler) homeOf(v *transaction.View, group string) map[string]string {
	r := &c.memory.recorded
	if r.homes[group] == nil {
		_, r.homes = c.Store.InBoot(v.Facts.BootID).Homes()
	}
	return r.homes[group]
}
