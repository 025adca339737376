package netshape

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// Host is all that several interfaces shall do, and what the kernel has.
type Host struct {
	Wanted []Wanted
	States []State // of each of Wanted
	// Count are the cgroup2 directories whose traffic is counted, limits or not.
	Count []string
	// Programs and Counters are those of ours on the directories that were looked at, whichever interface they are for.
	Programs, Counters []bpf.Program
}

// PlanHost plans several interfaces together. A program on a group's directory sorts for all of them, so it is there as
// long as one of them needs it; and what leads packets somewhere goes first, and comes last, on all of them.
func PlanHost(h Host) ([]Step, error) {
	var steps []Step
	var problems []error
	programs := make(map[string]sortedBy)
	for i, w := range h.Wanted {
		some, err := planDevice(w, h.States[i], programs)
		steps, problems = append(steps, some...), append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	steps = append(steps, planSorters(programs, h.Programs)...)
	steps = append(steps, planCounters(h.Count, h.Counters)...)
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.phase, b.phase) })
	return steps, nil
}

// planDevice plans one interface but for the programs that sort: it adds those that it needs to programs, by directory.
func planDevice(w Wanted, s State, programs map[string]sortedBy) ([]Step, error) {
	egress, err1 := Classes(w, Egress)
	ingress, err2 := Classes(w, Ingress)
	foreign, err3 := s.Foreign(w)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	if foreign == nil {
		foreign = &Foreign{}
	}
	p := &planner{w: w, s: s}
	filters, err := p.egressFilters(egress)
	if err != nil {
		return nil, err
	}
	p.tree(&s.Device, egress, filters, foreign.Egress)
	for _, g := range p.groupsOf(egress) {
		if g.sorting() == "program" {
			for _, dir := range g.dirs() {
				programs[dir] = sortedBy{g.Name, bpf.SorterName(g.Slot.Class())}
			}
		}
	}
	p.policers()
	p.ingress(ingress, foreign.Ingress)
	return p.steps, nil
}

// sortedBy is the program that a directory needs, and its group.
type sortedBy struct{ group, program string }

// planSorters attaches the programs that sort what leaves, and takes old ones off.
func planSorters(want map[string]sortedBy, have []bpf.Program) []Step {
	var steps []Step
	kept := make(map[string]bool)
	for _, old := range have {
		if want[old.Cgroup].program == old.Name && !kept[old.Cgroup] {
			kept[old.Cgroup] = true
			continue
		}
		at, why := unsort, "the group has no share of an interface"
		if want[old.Cgroup].program != "" {
			at, why = unsortOld, "another one took its place"
		}
		steps = append(steps, Step{Do: Change{Verb: tc.Delete, What: Sorter, Program: &old},
			Undo: []Change{{Verb: tc.Add, What: Sorter, Program: &bpf.Program{Cgroup: old.Cgroup, Name: old.Name}}},
			Why:  why, phase: at})
	}
	for _, dir := range slices.Sorted(maps.Keys(want)) {
		if kept[dir] {
			continue
		}
		program := bpf.Program{Cgroup: dir, Name: want[dir].program}
		steps = append(steps, Step{Do: Change{Verb: tc.Add, What: Sorter, Program: &program},
			Undo:  []Change{{Verb: tc.Delete, What: Sorter, Program: &program}},
			Why:   "sorts what sockets of group \"" + want[dir].group + "\" send; beside other programs",
			phase: sortPackets})
	}
	return steps
}
