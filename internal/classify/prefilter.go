package classify

import (
	"path"
	"slices"

	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
)

// Prefilter tells cheaply of most processes that no rule can match them, without their ancestors, their environment or
// what instances there are. It never says so of one that a rule may match. Rules about the processes of an instance are
// left out: who belongs to one is not for a rule to say. Its methods do not change it.
type Prefilter struct {
	look  *look
	rules []*compiled
}

// NewPrefilter makes a prefilter of the rules of these groups. Of the input only the users and groups of the host
// count.
func NewPrefilter(groups []Group, in Input) *Prefilter {
	s := &Prefilter{look: newLook(Input{UserID: in.UserID, GroupID: in.GroupID, SelfExe: in.SelfExe})}
	for g := range groups {
		for i := range groups[g].Rules {
			c := groups[g].Rules[i].compiled
			if c.match.Helper == "" && (c.server != nil || c.instance || c.match.Part != "") {
				continue
			}
			// Names are looked up now: later the prefilter only reads.
			if c.match.User != "" {
				s.look.uid(c.match.User)
			}
			if c.match.UnixGroup != "" {
				s.look.gid(c.match.UnixGroup)
			}
			s.rules = append(s.rules, c)
		}
	}
	return s
}

// Verdict is what a prefilter says of a process by what is known of it so far.
type Verdict int

// The verdicts.
const (
	No    Verdict = iota // no rule can match it
	Maybe                // more has to be known
	// a rule matches as far as a prefilter can tell; knowing more of the process itself changes nothing
	Yes
)

// Executable says whether a rule may match a process of which what it runs is known, and nothing else.
func (s *Prefilter) Executable(exe string) Verdict {
	verdict := No
	for _, c := range s.rules {
		switch {
		case c.match.Exe != "" && exe != "" && !c.exe.Matches(exe):
		case (c.match.Exe != "" || c.program.Text != "" && c.program.Matches(exe)) && exe != "" && c.cmdline == nil &&
			c.match.Helper == "" && !c.asksOwner():
			return Yes
		default:
			verdict = Maybe
		}
	}
	return verdict
}

// Program says it of one of which the arguments are known too.
func (s *Prefilter) Program(p *procfs.Process) Verdict {
	verdict := No
	subj := subject{p: p}
	for _, c := range s.rules {
		switch {
		case !c.may(s.look, &subj, false):
		case !c.asksOwner():
			return Yes
		default:
			verdict = Maybe
		}
	}
	return verdict
}

// Owner says it of one of which user, groups and control groups are known too.
func (s *Prefilter) Owner(p *procfs.Process) Verdict {
	subj := subject{p: p}
	for _, c := range s.rules {
		if c.may(s.look, &subj, true) {
			return Yes
		}
	}
	return No
}

// Arguments says whether the arguments of a process may decide which rule it meets, or whether it is never moved, by
// what it runs.
func (s *Prefilter) Arguments(exe string) bool {
	return exe == s.look.in.SelfExe || slices.Contains(shells, path.Base(exe)) ||
		slices.ContainsFunc(s.rules, func(c *compiled) bool { return c.asksArguments(exe) })
}

// asksArguments says whether a match, or what it leaves out, looks at the arguments of a process that runs this.
func (c *compiled) asksArguments(exe string) bool {
	if c.match.Exe != "" && !c.exe.Matches(exe) {
		return false
	}
	return c.cmdline != nil || c.match.Helper != "" ||
		slices.ContainsFunc(c.except, func(x *compiled) bool { return x.asksArguments(exe) })
}

// asksOwner says whether a match looks at the user, the groups or the control groups of a process.
func (c *compiled) asksOwner() bool {
	m := &c.match
	return m.User != "" || m.UnixGroup != "" || m.Unit != "" || m.Cgroup != ""
}

// may holds the clauses against a process that can be told by now. What except takes out may be matched all the same.
func (c *compiled) may(l *look, s *subject, owner bool) bool {
	m := &c.match
	switch {
	case m.Helper != "" && !helps(s.p):
		return false
	case m.Exe != "" && s.p.Exe != "" && !c.exe.Matches(s.p.Exe), !c.program.May(s.p.Exe, s.p.Args):
		return false
	case c.cmdline != nil && !c.cmdlineMatches(s):
		return false
	case !owner:
		return true
	case m.User != "" && s.p.UID != l.uids[m.User]:
		return false
	case m.UnixGroup != "" && !inGroup(s.p, l.gids[m.UnixGroup]):
		return false
	case m.Unit != "" && !c.unit.Matches(s.unitName()):
		return false
	case m.Cgroup != "" && !c.inCgroup(s.p):
		return false
	}
	return true
}

// helps says whether a process is a helper by itself, whomever it serves.
func helps(p *procfs.Process) bool {
	_, _, _, is := recognise.HelperOf(p)
	return is
}
