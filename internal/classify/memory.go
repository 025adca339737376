package classify

import (
	"maps"
	"reflect"
	"slices"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// Memory is what one classification leaves to the next one of the same host, so that only what is new is held against
// the rules. A process keeps its verdict while it is as it was, while its ancestors are as they were, while it is the
// same to the instances, and while rules, pins, instances and the numbers of names are the same. What comes out is what
// the functions Expand and Classify give for the same input. The zero value is ready; a Memory is for one goroutine.
//
// The processes given to Classify are kept until the next call, and must not be changed until then, except for Env and
// Groups where these were nil.
type Memory struct {
	expanded expanded

	// What the verdicts depend on beside processes, as it was.
	known     bool
	groups    []Group
	instances []engine.Instance
	pins      map[procfs.ID]string
	alone     map[procfs.ID]bool
	self      procfs.ID
	selfExe   string
	own       string
	uids      map[string]int
	gids      map[string]int
	index     *index

	kept, spare []kept // by pid
	look        *look  // whose memory is used again
	path        []*subject
	calls       int
	anew        int // processes that the last Classify held against the rules
}

// expanded is what a policy and instances were expanded to.
type expanded struct {
	of        []*policy.Group // nil before the first
	instances []engine.Instance
	groups    []Group
	problems  policy.Problems
}

// allAnew is how many calls of Classify there are for one that decides everything anew: should anything ever count that
// is not known here, it counts soon.
const allAnew = 32

// Expand does what the function Expand does. The groups are the caller's, their rules are not to be changed.
func (m *Memory) Expand(p *policy.Policy, instances []engine.Instance) ([]Group, policy.Problems) {
	e := &m.expanded
	if e.of == nil || !slices.Equal(e.of, p.Groups) || !slices.EqualFunc(e.instances, instances, sameInstance) {
		groups, problems := Expand(p, instances)
		*e = expanded{of: p.Groups, instances: slices.Clone(instances), groups: groups, problems: problems}
	}
	return slices.Clone(e.groups), slices.Clone(e.problems)
}

// Classify does what the function Classify does.
func (m *Memory) Classify(groups []Group, in Input) Result {
	if m.look == nil {
		m.look = &look{}
	}
	l := m.look
	l.reset(in)
	m.recall(l, groups)
	result := classifyIn(l, m.index, groups)
	m.keep(l)
	return result
}

// recall finds the verdicts that still hold.
func (m *Memory) recall(l *look, groups []Group) {
	m.calls++
	same := m.known && m.calls%allAnew != 0 && m.sameRules(groups) && m.sameInput(l) && l.distinct()
	if !same {
		m.kept = m.kept[:0]
	}
	m.known = true
	m.groups, m.instances = groups, l.in.Instances
	m.pins, m.alone = maps.Clone(l.in.Pins), maps.Clone(l.in.Alone)
	m.self, m.selfExe, m.own = l.in.Self, l.in.SelfExe, l.own
	if m.index == nil || !same {
		m.index = newIndex(l, groups)
	}
	old := 0
	for _, s := range l.subjects {
		for old < len(m.kept) && m.kept[old].p.PID < s.p.PID {
			old++
		}
		if old < len(m.kept) && sameProcess(m.kept[old].p, s.p) {
			s.before = &m.kept[old]
		}
	}
	m.settle(l)
}

// settle says which verdicts still hold, and counts the others.
func (m *Memory) settle(l *look) {
	m.anew = 0
	for _, s := range l.subjects {
		s.settled = m.lineage(l, s) == lineageSame && len(s.helps) == 0 && s.before.lasting &&
			s.before.instance == s.server() && s.before.part == s.part
		if !s.settled {
			m.anew++
		}
	}
}

// keep keeps what was decided for the next call.
func (m *Memory) keep(l *look) {
	m.uids, m.gids = maps.Clone(l.uids), maps.Clone(l.gids)
	next := m.spare[:0]
	if l.distinct() {
		next = slices.Grow(next, len(l.subjects))
		for _, s := range l.subjects {
			next = append(next, kept{verdict: s.verdict, p: s.p, parted: l.byPID[s.p.PPID] == nil,
				instance: s.server(), part: s.part})
		}
	}
	clear(m.kept) // of an old table no more than needed
	m.spare, m.kept = m.kept[:0], next
}

// sameRules says whether the groups have the names and the very rules of those before.
func (m *Memory) sameRules(groups []Group) bool {
	return slices.EqualFunc(m.groups, groups, func(a, b Group) bool {
		return a.Path == b.Path && len(a.Rules) == len(b.Rules) && (len(a.Rules) == 0 || &a.Rules[0] == &b.Rules[0])
	})
}

// sameInput says whether what counts beside processes and rules is as before. It asks for the numbers of all names that
// were asked for.
func (m *Memory) sameInput(l *look) bool {
	same := true
	for name, id := range m.uids {
		same = l.uid(name) == id && same
	}
	for name, id := range m.gids {
		same = l.gid(name) == id && same
	}
	return same && m.self == l.in.Self && m.selfExe == l.in.SelfExe && m.own == l.own &&
		maps.Equal(m.pins, l.in.Pins) && maps.Equal(m.alone, l.in.Alone) &&
		slices.EqualFunc(m.instances, l.in.Instances, sameInstance)
}

// lineage tells it of a process, and keeps it of all its ancestors. A chain of parents that closes into a ring is never
// the same.
func (m *Memory) lineage(l *look, s *subject) lineage {
	path, at := m.path[:0], s
	for at != nil && at.lineage == lineageUnknown {
		at.lineage = lineageAsked
		path = append(path, at)
		at = l.byPID[at.p.PPID]
	}
	same := at != nil && at.lineage == lineageSame
	if at == nil {
		top := path[len(path)-1]
		same = top.before != nil && top.before.parted
	}
	for _, p := range slices.Backward(path) {
		same = same && p.before != nil
		if p.lineage = lineageOther; same {
			p.lineage = lineageSame
		}
	}
	m.path = path
	return s.lineage
}

// server is the main process of the instance that a process belongs to; zero for none.
func (s *subject) server() procfs.ID {
	if s.instance == nil {
		return procfs.ID{}
	}
	return s.instance.Main
}

// distinct says that no two processes have the same number.
func (l *look) distinct() bool { return len(l.byPID) == len(l.subjects) }

// sameProcess compares all of two processes that a rule, or what protects a process, can ask about.
func sameProcess(a, b *procfs.Process) bool {
	return procfs.Same(a, b) && a.Exited() == b.Exited() && (a.State == 'Z') == (b.State == 'Z') &&
		slices.Equal(a.Groups, b.Groups)
}

// sameInstance compares all but who belongs to an instance, and what showed that it is one.
func sameInstance(a, b engine.Instance) bool {
	if a.Sentinel() != b.Sentinel() { // which a member tells
		return false
	}
	a.Members, a.Helpers, a.Evidence = nil, nil, nil
	b.Members, b.Helpers, b.Evidence = nil, nil, nil
	return reflect.DeepEqual(a, b)
}
