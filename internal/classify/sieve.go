package classify

import (
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
)

// Sieve tells cheaply of most processes that no rule can match them, without their ancestors, their environment or what
// instances there are. It never says so of one that a rule may match. Rules about the processes of an instance
// are left out: who belongs to one is not for a rule to say. Its methods do not change it.
type Sieve struct {
	look  *look
	rules []*compiled
}

// NewSieve makes a sieve of the rules of these groups. Of the input only the users and groups of the host count.
func NewSieve(groups []Group, in Input) *Sieve {
	s := &Sieve{look: newLook(Input{UserID: in.UserID, GroupID: in.GroupID})}
	for g := range groups {
		for i := range groups[g].Rules {
			c := groups[g].Rules[i].compiled
			if c.match.Helper == "" && (c.server != nil || c.instance || c.match.Part != "") {
				continue
			}
			// Names are looked up now: later the sieve only reads.
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

// Executable says whether a rule may match a process of which what it runs is known, and nothing else.
func (s *Sieve) Executable(exe string) bool {
	for _, c := range s.rules {
		if c.match.Exe == "" || exe == "" || c.exe.matches(exe) {
			return true
		}
	}
	return false
}

// Program says whether a rule may match a process of which the executable and the arguments are known.
func (s *Sieve) Program(p *host.Process) bool { return s.may(p, false) }

// Owner says the same when its user, its groups and its control groups are known too.
func (s *Sieve) Owner(p *host.Process) bool { return s.may(p, true) }

func (s *Sieve) may(p *host.Process, owner bool) bool {
	subj := subject{p: p}
	for _, c := range s.rules {
		if c.may(s.look, &subj, owner) {
			return true
		}
	}
	return false
}

// may holds the clauses against a process that can be told by now. What except takes out may be matched all the same.
func (c *compiled) may(l *look, s *subject, owner bool) bool {
	m := &c.match
	switch {
	case m.Helper != "" && !helps(s.p):
		return false
	case m.Exe != "" && s.p.Exe != "" && !c.exe.matches(s.p.Exe):
		return false
	case c.cmdline != nil && !c.cmdlineMatches(s):
		return false
	case !owner:
		return true
	case m.User != "" && s.p.UID != l.uids[m.User]:
		return false
	case m.UnixGroup != "" && !inGroup(s.p, l.gids[m.UnixGroup]):
		return false
	case m.Unit != "" && !c.unit.matches(s.unitName()):
		return false
	case m.Cgroup != "" && !c.inCgroup(s.p):
		return false
	}
	return true
}

// helps says whether a process is a helper by itself, whomever it serves.
func helps(p *host.Process) bool {
	_, _, _, is := engine.HelperOf(p)
	return is
}
