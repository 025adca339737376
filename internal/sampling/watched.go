// Package sampling is what the collectors of an agent read: of groups by their directories, of the host by its files.
// An Observer runs them.
//
// A Watched does not change after it was made. A Kernel's sources are called by one goroutine each, and Watch by any.
package sampling

import (
	"reflect"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/engine"
	"bulkhead/internal/inspect"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// Watched says what is to be sampled: the groups of one view, where their figures are, and their limits as of that
// view. It shares nothing with the view, which others change.
type Watched struct {
	tree    *cgroup.Tree
	groups  []watchedGroup
	tasks   map[string][]cgroup.Dir                    // directories with the groups' own threads
	counted map[string][]cgroup.Dir                    // directories of groups that BPF programs count by
	owners  map[string][]cgroup.Dir                    // those of the controller of disks, on cgroup v2 the same
	traffic func() (map[string]metrics.Traffic, error) // nil when no interface is governed
	// databases are the data source names of groups whose database is asked.
	databases map[string]string
	// dirs are the data directories of groups that are those of a database.
	dirs    map[string]string
	devices map[string]string
	cpus    int
	windows []string // schedules that are open
	// revision is that of the policy in force; 0: none is, or everything is released.
	revision int
	record   *policy.Record // nil where it is not known
}

// Nothing is what is to be sampled where no group is governed.
func Nothing(record *policy.Record) *Watched { return &Watched{record: record} }

// watchedGroup is one group with what does not have to be read again.
type watchedGroup struct {
	observe.Group

	from metrics.Group
}

// Of finds what is to be sampled of a view that has limits and a plan; tasks are the directories in which the threads
// of each group are. It reads nothing.
func Of(v *transaction.View, tasks map[string][]cgroup.Dir, revision int) *Watched {
	w := &Watched{tree: v.Tree, tasks: tasks, traffic: inspect.ReadsTraffic(v), devices: map[string]string{},
		databases: databasesIn(v), dirs: dataDirs(v), counted: countedIn("cpu", v, tasks),
		owners:   countedIn("blkio", v, tasks),
		cpus:     len(v.Facts.CPUs),
		revision: revision}
	if v.Policy != nil {
		w.record = new(v.Policy.Agent.Record)
	}
	processes := map[string]int{}
	for _, p := range v.Members {
		processes[p.Group]++
	}
	verifiable := inspect.Verifiable(v)
	w.windows = policy.ScheduleNames(v.Open)
	overrides := overridesIn(v)
	for _, g := range v.Classified.Groups {
		one := watchedGroup{from: v.Counted(g.Path), Group: observe.Group{
			Group: g.Path, Role: string(g.Role), Released: policy.Released(v.Released, g.Path),
			Processes: processes[g.Path], Limits: []observe.Limit{}, Overrides: overrides[g.Path],
		}}
		if g.Instance != "" {
			one.Engine, _, _ = strings.Cut(g.Instance, " ")
		}
		if !one.Released {
			one.Limits = append(one.Limits, limitsOf(verifiable.Amounts(g.Path))...)
		}
		w.groups = append(w.groups, one)
	}
	for _, d := range v.Facts.Devices {
		w.devices[d.Number] = d.Name
	}
	return w
}

// dataDirs are the data directories of databases, by their groups.
func dataDirs(v *transaction.View) map[string]string {
	dirs := map[string]string{}
	for _, g := range v.Classified.Groups {
		i := slices.IndexFunc(v.Instances, func(one engine.Instance) bool { return one.String() == g.Instance })
		if i >= 0 && g.Role == policy.RoleDatabase {
			dirs[g.Path] = v.Instances[i].DataDir
		}
	}
	return dirs
}

// databasesIn are the data source names of groups whose database is asked.
func databasesIn(v *transaction.View) map[string]string {
	all := map[string]string{}
	if v.Policy != nil && v.Policy.Guard != nil {
		for _, one := range v.Policy.Guard.Groups {
			if one.DSN != "" && !policy.Released(v.Released, one.Group) {
				all[one.Group] = one.DSN
			}
		}
	}
	for _, g := range v.Classified.Groups {
		// How long its statements take is what the database is promised.
		if g.SLO != nil && g.SLO.Signal == "p95" && all[g.Path] == "" && !policy.Released(v.Released, g.Path) {
			all[g.Path] = g.SLO.DSN
		}
	}
	return all
}

// overridesIn counts by group the overrides in force that people have set.
func overridesIn(v *transaction.View) map[string]int {
	all := map[string]int{}
	for _, o := range v.Overrides {
		if _, without := v.Unlaid[o.ID]; !without && !o.IsSLO() {
			all[o.Group]++
		}
	}
	return all
}

func limitsOf(all []verify.Amount) (limits []observe.Limit) {
	for _, a := range all {
		limits = append(limits, observe.Limit{Key: string(a.Key), Device: a.Device, Asked: a.Asked, Held: a.Held,
			InForce: a.OK, Void: a.Void || a.Default})
	}
	return limits
}

// sameLimits says whether the same groups are to be sampled with the same limits, by the same overrides and windows.
func (w *Watched) sameLimits(other *Watched) bool {
	return slices.Equal(w.windows, other.windows) && slices.EqualFunc(w.groups, other.groups,
		func(a, b watchedGroup) bool {
			return a.Group.Group == b.Group.Group && a.Overrides == b.Overrides && reflect.DeepEqual(a.Limits, b.Limits)
		})
}
