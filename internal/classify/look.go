package classify

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
)

// look is one Input made ready: processes by pid, membership of instances, names looked up once.
type look struct {
	in       Input
	all      []subject
	subjects []*subject // of all, by pid
	byPID    map[int]*subject
	uids     map[string]int // by name as written; -1 is unknown
	gids     map[string]int
	// own is the container path of Self, when it runs in one: its neighbours there are not foreign.
	own string
}

// subject is one process with what rules ask about it, computed once and only when asked.
type subject struct {
	p        *procfs.Process
	instance *engine.Instance // nil for a process of none
	part     string
	helps    []help      // the instances that it serves as a helper, or may serve
	helper   *helperKind // nil until asked for
	cmdline  string
	read     bool // cmdline is set
	parents  []string
	walked   bool // parents is set
	unit     string
	placed   bool // unit is set

	before  *kept // what was decided when all of it was the same; nil where it was not
	lineage lineage
	settled bool // what was decided before still holds
	verdict verdict
}

// verdict is what rules and pins say of a process.
type verdict struct {
	decision decision
	lasting  bool  // it holds for as long as what it was made from is the same
	rule     *Rule // the winner
	group    string
	text     string  // why it is not moved; of a pin where that comes from
	top      []*Rule // equally specific ones
}

// decision is what becomes of a process.
type decision uint8

const (
	unclaimed decision = iota // text, if any, is why it would not be moved
	ruled
	pinned
	skipped
	ambiguous // top claim it
	listening // it is a listener of several instances, which top claim
)

// kept is what was decided about a process.
type kept struct {
	verdict

	p        *procfs.Process // as it was
	parted   bool            // its parent was not in the table
	instance procfs.ID       // it belonged to; zero for none
	part     string
}

// lineage says whether a process and all its ancestors are as they were.
type lineage uint8

const (
	lineageUnknown lineage = iota
	lineageAsked           // while its ancestors are asked
	lineageSame
	lineageOther
)

func newLook(in Input) *look {
	l := &look{}
	l.reset(in)
	return l
}

// reset makes a look that of another Input, in the memory that it has.
func (l *look) reset(in Input) {
	n := len(in.Processes)
	if l.byPID == nil {
		l.byPID = make(map[int]*subject, n)
	}
	clear(l.byPID)
	clear(l.all)
	l.in, l.own = in, ""
	l.uids, l.gids = make(map[string]int), make(map[string]int)
	l.all = slices.Grow(l.all[:0], n)[:n]
	l.subjects = slices.Grow(l.subjects[:0], n)
	for i := range in.Processes {
		s := &l.all[i]
		s.p = &in.Processes[i]
		l.subjects = append(l.subjects, s)
		l.byPID[s.p.PID] = s
	}
	slices.SortFunc(l.subjects, func(a, b *subject) int {
		return cmp.Or(cmp.Compare(a.p.PID, b.p.PID), cmp.Compare(a.p.Start, b.p.Start))
	})
	for i := range in.Instances {
		for _, m := range in.Instances[i].Members {
			if s := l.byPID[m.ID.PID]; s != nil && s.p.ID == m.ID {
				s.instance, s.part = &in.Instances[i], m.Part
			}
		}
	}
	for i := range in.Instances {
		for _, h := range in.Instances[i].Helpers {
			if s := l.byPID[h.ID.PID]; s != nil && s.p.ID == h.ID {
				s.helps = append(s.helps, help{&in.Instances[i], h})
			}
		}
	}
	if self := l.byPID[in.Self.PID]; self != nil && self.p.ID == in.Self {
		l.own = self.p.ContainerPath()
	}
}

// commandLine returns the arguments joined by single spaces, as `ps -o cmd` prints them: without the
// padding of a rewritten title, control characters as "?". It is "" for a kernel thread.
func (s *subject) commandLine() string {
	if !s.read {
		s.read = true
		if !s.p.Kernel {
			s.cmdline = joinArgs(s.p.Args)
		}
	}
	return s.cmdline
}

func joinArgs(args []string) string {
	line := strings.TrimRight(strings.Join(args, " "), " \x00")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, line)
}

// ancestors returns the executables of parent, grandparent and so on. Pids are read one after the other
// while processes come and go, so the chain may close into a ring.
func (l *look) ancestors(s *subject) []string {
	if s.walked {
		return s.parents
	}
	s.walked = true
	for p := range l.chain(s) {
		if p.p.Exe != "" {
			s.parents = append(s.parents, p.p.Exe)
		}
	}
	return s.parents
}

// chain yields the ancestors of a process, nearest first.
func (l *look) chain(s *subject) func(yield func(*subject) bool) {
	return func(yield func(*subject) bool) {
		seen := map[*subject]bool{s: true}
		for p := l.byPID[s.p.PPID]; p != nil && !seen[p]; p = l.byPID[p.p.PPID] {
			seen[p] = true
			if !yield(p) {
				return
			}
		}
	}
}

// uid looks a user up by name, then as a number, as chown(1) does; -1 is unknown.
func (l *look) uid(name string) int { return lookUp(name, l.uids, l.in.UserID) }

// gid looks a Unix group up.
func (l *look) gid(name string) int { return lookUp(name, l.gids, l.in.GroupID) }

func lookUp(name string, known map[string]int, ask func(string) (int, bool)) int {
	if id, ok := known[name]; ok {
		return id
	}
	id := -1
	if n, err := strconv.Atoi(name); err == nil && n >= 0 {
		id = n
	}
	if ask != nil {
		if n, ok := ask(name); ok {
			id = n
		}
	}
	known[name] = id
	return id
}

// unitName returns the systemd unit of the process.
func (s *subject) unitName() string {
	if !s.placed {
		s.placed, s.unit = true, unit(s.p)
	}
	return s.unit
}

// unit finds the systemd unit of a process: the last service, scope or slice in its path in systemd's
// own hierarchy, name=systemd or else cgroup2.
func unit(p *procfs.Process) string {
	for _, hierarchy := range []string{"name=systemd", "unified"} {
		path := p.Cgroups[hierarchy]
		for path != "" {
			i := strings.LastIndexByte(path, '/')
			if name := path[i+1:]; isUnit(name) {
				return name
			}
			path = path[:max(i, 0)]
		}
	}
	return ""
}
