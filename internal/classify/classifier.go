package classify

import (
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
)

// Classifier holds a few processes at a time against the same rules, for what starts between two looks at all of them:
// what it takes to find a rule is made once. It is not safe for concurrent use.
type Classifier struct {
	index   *index
	groups  map[string]bool
	members map[procfs.ID]membership
	in      Input
	names   *look // users and groups by name
}

// membership is what a process is to instances.
type membership struct {
	instance *engine.Instance
	part     string
	helps    []help
}

// NewClassifier makes one; in is what Classify was given, and its processes do not count.
func NewClassifier(groups []Group, in Input) *Classifier {
	in.Processes = nil
	k := &Classifier{groups: paths(groups), members: map[procfs.ID]membership{}, in: in}
	for i := range in.Instances {
		inst := &in.Instances[i]
		for _, m := range inst.Members {
			k.members[m.ID] = membership{instance: inst, part: m.Part, helps: k.members[m.ID].helps}
		}
		for _, h := range inst.Helpers {
			m := k.members[h.ID]
			m.helps = append(m.helps, help{inst, h})
			k.members[h.ID] = m
		}
	}
	k.in.Instances = nil // members says it
	k.names = newLook(k.in)
	k.index = newIndex(k.names, groups)
	return k
}

// Placements places those of the processes that of names; the others are there as their ancestors, and the agent.
func (k *Classifier) Placements(processes []procfs.Process, of func(pid int) bool) []Placement {
	in := k.in
	in.Processes = processes
	l := newLook(in)
	l.uids, l.gids = k.names.uids, k.names.gids
	for _, s := range l.subjects {
		m := k.members[s.p.ID]
		s.instance, s.part, s.helps = m.instance, m.part, m.helps
	}
	c := classifier{look: l, index: k.index, groups: k.groups, conflicts: map[string]*conflict{}}
	for _, s := range l.subjects {
		if of(s.p.PID) {
			c.classify(s)
		}
	}
	return c.placements
}
