package classify

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/classify/pattern"
	"bulkhead/internal/linux/procfs"
)

// clause is one thing that a rule asks of a process.
type clause int

// The clauses in the order in which they are tried: cheap ones first.
const (
	holds clause = iota // none failed
	clauseServer
	clauseInstance
	clauseHelper
	clausePart
	clauseExe
	clauseProgram
	clauseUser
	clauseGroup
	clauseUnit
	clauseCgroup
	clauseCmdline
	clauseEnv
	clauseAncestor
	clauseExcept
)

// try returns the first clause that a process does not meet, holds when it meets all. It is called for
// every rule and process: it builds no text.
func (c *compiled) try(l *look, s *subject) clause {
	if failed := c.tryInstance(s); failed != holds {
		return failed
	}
	if failed := c.tryCredentials(l, s.p); failed != holds {
		return failed
	}
	m := &c.match
	switch {
	case m.Unit != "" && !c.unit.Matches(s.unitName()):
		return clauseUnit
	case m.Cgroup != "" && !c.inCgroup(s.p):
		return clauseCgroup
	case c.cmdline != nil && !c.cmdlineMatches(s):
		return clauseCmdline
	case m.Env != "" && !hasEnv(s.p, m.Env):
		return clauseEnv
	case m.Ancestor != "" && !slices.ContainsFunc(l.ancestors(s), c.ancestor.Matches):
		return clauseAncestor
	case c.excepted(l, s) != nil:
		return clauseExcept
	}
	return holds
}

func (c *compiled) tryInstance(s *subject) clause {
	if c.match.Helper != "" {
		if failed := c.tryHelper(s); failed != holds {
			return failed
		}
	} else {
		switch {
		case c.server != nil && (s.instance == nil || s.instance.Main != *c.server):
			return clauseServer
		case c.instance && (s.instance == nil || !s.instance.Matches(c.match)):
			return clauseInstance
		}
	}
	if c.match.Part != "" && s.part != c.match.Part {
		return clausePart
	}
	return holds
}

func (c *compiled) tryCredentials(l *look, p *procfs.Process) clause {
	m := &c.match
	switch {
	case m.Exe != "" && !c.exe.Matches(p.Exe):
		return clauseExe
	case m.Program != "" && !c.program.Matches(cmp.Or(p.Script, p.Exe)):
		return clauseProgram
	case m.User != "" && p.UID != l.uid(m.User):
		return clauseUser
	case m.UnixGroup != "" && !inGroup(p, l.gid(m.UnixGroup)):
		return clauseGroup
	}
	return holds
}

func (c *compiled) excepted(l *look, s *subject) *compiled {
	for _, x := range c.except {
		if x.try(l, s) == holds {
			return x
		}
	}
	return nil
}

func (c *compiled) cmdlineMatches(s *subject) bool {
	line := s.commandLine()
	return line != "" && (c.literal == "" || strings.Contains(line, c.literal)) && c.cmdline.MatchString(line)
}

func (c *compiled) inCgroup(p *procfs.Process) bool {
	for _, where := range p.Cgroups {
		if c.cgroup.Matches(where) {
			return true
		}
	}
	return false
}

func inGroup(p *procfs.Process, gid int) bool {
	return gid >= 0 && (p.GID == gid || slices.Contains(p.Groups, gid))
}

// hasEnv looks for NAME=VALUE, or for NAME with any value.
func hasEnv(p *procfs.Process, want string) bool {
	if strings.Contains(want, "=") {
		return slices.Contains(p.Env, want)
	}
	return slices.ContainsFunc(p.Env, func(e string) bool {
		name, _, ok := strings.Cut(e, "=")
		return ok && name == want
	})
}

// why says in words which clause decided.
func (c *compiled) why(l *look, s *subject, failed clause) string {
	m := &c.match
	switch failed {
	case clauseServer, clauseInstance, clauseHelper, clausePart:
		if m.Helper != "" && failed != clausePart {
			return c.whyHelper(l, s, failed)
		}
		return c.whyInstance(l, s, failed)
	case clauseExe, clauseProgram, clauseUser, clauseGroup:
		return c.whyCredentials(l, s.p, failed)
	case clauseUnit:
		return compare("unit", s.unitName(), c.unit.Text)
	case clauseCgroup:
		return fmt.Sprintf("cgroup is %s, not %q", cgroupList(s.p), m.Cgroup)
	case clauseCmdline:
		if s.commandLine() == "" {
			return "it has no command line"
		}
		return fmt.Sprintf("cmdline %q does not match", shorten(s.commandLine()))
	case clauseEnv:
		if s.p.Env == nil {
			return fmt.Sprintf("env %q is not there (the environment is empty or was not read)", m.Env)
		}
		return fmt.Sprintf("env %q is not there", m.Env)
	case clauseAncestor:
		return fmt.Sprintf("no ancestor runs %q", m.Ancestor)
	case clauseExcept:
		return "taken out by except: {" + matchkey.Text(&c.excepted(l, s).match) + "}"
	}
	all := "all keys match: " + strings.Join(matchkey.Names(m), ", ")
	if m.Helper != "" {
		all += " (" + s.describeHelp() + ")"
	}
	return all
}

func (c *compiled) whyInstance(l *look, s *subject, failed clause) string {
	switch {
	case failed == clauseServer:
		return fmt.Sprintf("%s, not of %s", belongs(s), c.serverName(l))
	case s.instance == nil:
		return "it belongs to no database instance"
	case failed == clausePart:
		return compare("part", s.part, c.match.Part)
	}
	key, have := s.instance.Mismatch(c.match)
	return compare(key+" of its instance", have, matchkey.Value(&c.match, key))
}

func (c *compiled) whyCredentials(l *look, p *procfs.Process, failed clause) string {
	m := &c.match
	switch {
	case failed == clauseProgram && p.Exe != "":
		return compare("program", cmp.Or(p.Script, p.Exe), m.Program)
	case failed <= clauseProgram && p.Exe == "":
		return "exe cannot be read"
	case failed == clauseExe:
		return compare("exe", shown(c.exe, p.Exe), m.Exe)
	case failed == clauseUser && l.uid(m.User) < 0:
		return fmt.Sprintf("user %q is not known on this host", m.User)
	case failed == clauseUser:
		return compare("user", named(p.UID, l.in.UserName), m.User)
	case l.gid(m.UnixGroup) < 0:
		return fmt.Sprintf("unix_group %q is not known on this host", m.UnixGroup)
	}
	return fmt.Sprintf("unix_group is %q and it is not in %q", named(p.GID, l.in.GroupName), m.UnixGroup)
}

// serverName describes the instance that a template's rule is bound to.
func (c *compiled) serverName(l *look) string {
	for i := range l.in.Instances {
		if l.in.Instances[i].Main == *c.server {
			return l.in.Instances[i].String()
		}
	}
	return fmt.Sprintf("the instance with main process %d, which is gone", c.server.PID)
}

func belongs(s *subject) string {
	if s.instance == nil {
		return "it is a process of no database instance"
	}
	return "it is a process of " + s.instance.String()
}

func compare(what, have, want string) string {
	if have == "" {
		return fmt.Sprintf("%s is none, not %q", what, want)
	}
	return fmt.Sprintf("%s is %q, not %q", what, have, want)
}

func named(id int, name func(int) string) string {
	if name != nil {
		if n := name(id); n != "" {
			return n
		}
	}
	return fmt.Sprint(id)
}

// shown returns what the pattern was compared with.
func shown(p pattern.Name, name string) string {
	if p.Whole {
		return name
	}
	return path.Base(name)
}

func cgroupList(p *procfs.Process) string {
	var all []string
	for _, c := range p.Cgroups {
		all = append(all, fmt.Sprintf("%q", c))
	}
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

func shorten(s string) string {
	const most = 120
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	return string(runes[:most]) + "…"
}
