package netshape

import (
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// planCounters puts both counters on each of the directories, and takes them off where they are not wanted.
func planCounters(want []string, have []bpf.Program) []Step {
	at := make(map[bpf.Program]bool)
	for _, h := range have {
		at[bpf.Program{Cgroup: h.Cgroup, Name: h.Name}] = true
	}
	wanted := make(map[bpf.Program]bool)
	var steps []Step
	for _, dir := range want {
		for _, name := range bpf.Counters {
			p := bpf.Program{Cgroup: dir, Name: name}
			if wanted[p] {
				continue
			}
			if wanted[p] = true; !at[p] {
				steps = append(steps, Step{Do: Change{Verb: tc.Add, What: Counter, Program: &p},
					Undo: []Change{{Verb: tc.Delete, What: Counter, Program: &p}},
					Why:  "counts the group's traffic; beside other programs", phase: sortPackets})
			}
		}
	}
	for _, h := range have {
		if key := (bpf.Program{Cgroup: h.Cgroup, Name: h.Name}); wanted[key] {
			wanted[key] = false // once is enough
			continue
		}
		steps = append(steps, Step{Do: Change{Verb: tc.Delete, What: Counter, Program: &h},
			Undo: []Change{{Verb: tc.Add, What: Counter, Program: &bpf.Program{Cgroup: h.Cgroup, Name: h.Name}}},
			Why:  "nobody asks for the group's traffic", phase: unsort})
	}
	return steps
}
