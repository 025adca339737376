package reconcile

import (
	"context"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/confirm"
	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// SampleTasks counts the runnable and blocked tasks of each group of the last look, those of its children with them;
// nil before the first look. It is for the goroutine that calls Look.
func (c *Reconciler) SampleTasks(s *metrics.TaskSampler) map[string]metrics.TaskStates {
	v := c.memory.view
	if v == nil {
		return nil
	}
	return s.Take(v.Tree, TasksOf(v), c.Host.Proc.TaskState)
}

// TasksOf are the directories in which the threads of each group's own processes are.
func TasksOf(v *transaction.View) map[string][]cgroup.Dir {
	dirs := map[string][]cgroup.Dir{}
	for _, g := range v.Classified.Groups {
		if d := accounting(v, g.Path); d.Path != "" {
			dirs[g.Path] = append(runsOf(v, g.Path, d.Hierarchy), d)
		}
	}
	return dirs
}

// Seen is what a full look saw.
type Seen struct {
	// View has limits and a plan, which may have been carried out since.
	View     *transaction.View
	Tasks    map[string][]cgroup.Dir // where the threads of each group of the view are
	Revision int                     // that was in force; 0 while nothing is governed
	Rests    bool                    // nothing is governed; false, too, before the first look
	// Record bounds the record while nothing is governed: as the applied policy says, also a released one. It is nil
	// where that cannot be read.
	Record *policy.Record
}

// recordOf is how much of the record the applied policy keeps.
func recordOf(s *state.Documents) *policy.Record {
	if s.Applied == nil {
		return &policy.Record{}
	}
	p, err := parse.Policy(s.Applied.Sources)
	if err != nil {
		return nil
	}
	return &p.Agent.Record
}

// Seen is what the last full look saw. It gives the view once, and none until the next full look: a view is large. It
// is for the goroutine that calls Look.
func (c *Reconciler) Seen() Seen {
	s := c.memory.seen
	if s.View != nil {
		s.Tasks = TasksOf(s.View)
	}
	c.memory.seen.View = nil
	return s
}

// runsOf lists the directories of a group's commands of `run`, which systemd keeps beside that of its other processes.
func runsOf(v *transaction.View, group, hierarchy string) []cgroup.Dir {
	own, there := v.Layout.Own(group)[hierarchy]
	if v.Systemd == nil || !there {
		return nil
	}
	names, err := v.Tree.Children(own)
	if err != nil {
		return nil
	}
	var dirs []cgroup.Dir
	for _, name := range names {
		if d := own.Child(name); v.Names.RunDir(d.Path) == d.Path {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// accounting is the directory of a group's own processes that counts their CPU time.
func accounting(v *transaction.View, group string) cgroup.Dir {
	for hierarchy, d := range v.Layout.Member(group) {
		h, _ := v.Facts.Hierarchy(hierarchy)
		if h.Version == 1 && h.Has("cpuacct") || h.Version == 2 && h.Has("cpu") {
			return d
		}
	}
	return cgroup.Dir{}
}

// SampleGuarded samples the groups that the guard of the applied policy watches, when it is time: the agent does, so
// that a change can be compared with the minutes before it. It returns at once; databases may take long to answer.
func (c *Reconciler) SampleGuarded(ctx context.Context, now time.Time) {
	v, r := c.memory.view, &c.Recent
	if v == nil || v.Policy == nil || v.Policy.Guard == nil {
		return
	}
	groups := map[string]metrics.Group{}
	for _, one := range confirm.GuardsIn(v) {
		if one.Throughput != nil {
			groups[one.Group] = confirm.GuardedGroup(v, one)
		}
	}
	guard := v.Policy.Guard
	r.Sample(ctx, v.Tree, groups, now, max(guard.Window, confirm.SampleEvery), guard.Before)
}
