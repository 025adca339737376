package planner

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

// What classification has to say is among the notes of the plan: that a helper limits itself as well, say.
func TestNotesOfClassification(t *testing.T) {
	in := input(legacyHost(), group("a", nil))
	in.Classified.Notes = []policy.Note{{Group: "a", Text: "pg_basebackup limits itself"}}
	if notes := Make(in).Notes; !slices.ContainsFunc(notes,
		func(n plan.Note) bool {
			return n.Group == "a" && n.Text == "pg_basebackup limits itself" && !n.NotEnforced
		}) {
		t.Errorf("notes %+v", notes)
	}
}

// cpuset comes to strangers with a group's: said where they lose something by it, and before it has come.
func TestAffinityOfStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		facts  *host.Facts
		change func(*plan.Input)
		said   bool
	}{
		"6.1": {unifiedHost(), func(*plan.Input) {}, true},
		"6.2": {unifiedHost(), func(in *plan.Input) { in.Facts.Kernel.Minor = 2 }, false},
		"there already": {unifiedHost(), func(in *plan.Input) {
			in.Observed.Subtree[cgroup.Dir{Hierarchy: "unified", Path: "/"}] = plan.Subtree{Enabled: []string{"cpuset"}}
		}, false},
		"cgroup v1":      {legacyHost(), func(*plan.Input) {}, false},
		"no group's CPU": {unifiedHost(), func(in *plan.Input) { in.Classified.Groups[0].Settings = nil }, false},
	} {
		in := input(c.facts, group("a", settings("group", "cpu.cpus", policy.IDs{Set: idset.New(0, 1)})))
		in.Facts.Kernel = host.Version{Major: 6, Minor: 1}
		in.Observed.Subtree = map[cgroup.Dir]plan.Subtree{}
		c.change(&in)
		said := slices.ContainsFunc(Make(in).Notes,
			func(n plan.Note) bool { return n.Group == "a" && strings.Contains(n.Text, "taskset") })
		if said != c.said {
			t.Errorf("%s: said %v", name, said)
		}
	}
}

// What a group's units hold each for itself concerns what counts over all of the group; what a group above does not
// cover of them, its sets too. Neither concerns a default of a role, nor what is of each process.
func TestNotesOfUnitsConcernWhatCountsOverAll(t *testing.T) {
	f := systemdHosts["unified"]()
	sets := policy.IDs{Set: idset.New(1)}
	above := settings("group", "memory.max", policy.Bytes(2<<30), "cpu.cpus", sets)
	own := settings("group", "memory.max", policy.Bytes(1<<30), "cpu.cpus", sets, "oom_score_adj", policy.Count(5))
	own = append(own, settings("role database", "cpu.weight", policy.Weight(1000))...)
	in := input(f, group("a", above), group("a/b", own), group("c", above))
	member(&in, inUnit(10, "mysqld", "/system.slice/mariadb.service", f), "a/b")
	member(&in, inUnit(11, "backup", "/user.slice/user-0.slice/session-1.scope", f), "a/b")
	answers(&in, 252)
	p := Make(in)
	for group, want := range map[string][]policy.Key{"a": {policy.KeyMemoryMax, policy.KeyCPUCPUs},
		"a/b": {policy.KeyMemoryMax}, "c": nil} {
		for _, s := range slices.Concat(above, own) {
			broken := slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
				return n.NotEnforced && n.Concerns(group, s)
			})
			if broken != slices.Contains(want, s.Key) {
				t.Errorf("%s of %s is not enforced: %v", s.Key, group, broken)
			}
		}
	}
}
