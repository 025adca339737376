package classify

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// Others is the group of the processes that match no rule, where the policy has host.others. Each session has a group
// of its own below it, so that a login shell beside a user's hogs still answers.
const Others = "others"

// maxSessions is how many sessions have a group of their own; those that come after share one, Others/rest.
const maxSessions = 256

// ByOthers marks a placement of a process that matches no rule.
const ByOthers = "others"

// IsOthers says whether a group is of processes that match no rule.
func IsOthers(group string) bool {
	return group == Others || strings.HasPrefix(group, Others+"/") || slices.Contains(othersSlices, group)
}

// othersSlices are the groups that stand for slices of systemd's: "others.system" is system.slice.
var othersSlices = []string{Others + ".system", Others + ".user"}

// gateways are programs of root that hand out logins, beside sshd: they stay outside.
var gateways = []string{"login", "agetty", "getty", "mingetty", "mgetty", "sulogin",
	"telnetd", "in.telnetd", "inetd", "xinetd",
	"gdm", "gdm3", "gdm-session-worker", "lightdm", "sddm", "sddm-helper", "xdm"}

// gather places a process that nothing claims in the group of its session. Those that take logins, calls of bulkhead
// and real-time tasks stay where they are, as does who is in a group already.
func (c *classifier) gather(s *subject) {
	in := &c.look.in
	name := path.Base(s.p.Exe)
	if name == "busybox" {
		name = s.p.Comm
	}
	if in.Settled == nil || s.p.RT || in.Settled(s.p) || s.p.UID == 0 && slices.Contains(gateways, name) ||
		in.SelfExe != "" && s.p.Exe == in.SelfExe {
		return
	}
	group := Others + "/" + strconv.Itoa(s.p.Session)
	if !c.groups[group] {
		if len(c.sessions) >= maxSessions {
			group = Others + "/rest"
		}
		if c.sessions == nil {
			c.sessions = make(map[string]bool)
		}
		c.sessions[group] = true
	}
	c.placements = append(c.placements, Placement{Process: *s.p, Group: group, By: ByOthers,
		Rule: "no rule matches it, and host.others gathers its session"})
}

// sessionGroups adds the groups of sessions to those of the policy.
func (c *classifier) sessionGroups(groups []Group) []Group {
	if len(c.sessions) == 0 {
		return groups
	}
	i := slices.IndexFunc(groups, func(g Group) bool { return g.Path == Others })
	if i < 0 {
		return groups
	}
	groups = slices.Clone(groups)
	groups[i].Inner = true
	var more []Group
	for name := range c.sessions {
		more = append(more, Group{Path: name, Parent: Others, Pos: groups[i].Pos})
	}
	slices.SortFunc(more, func(a, b Group) int { return strings.Compare(a.Path, b.Path) })
	return slices.Insert(groups, i+1, more...)
}

// OthersGroups are the groups of processes that match no rule, as a policy has it; with systemd, which sorts processes
// itself, its two slices.
func OthersGroups(h policy.HostPart, systemd bool) []Group {
	switch {
	case len(h.Others) == 0:
		return nil
	case !systemd:
		return []Group{{Path: Others, Settings: h.Others, Pos: h.OthersPos}}
	}
	var groups []Group
	for _, name := range othersSlices {
		slice := strings.TrimPrefix(name, Others+".") + ".slice"
		groups = append(groups, Group{Path: name, Slice: slice, Settings: h.Others, Pos: h.OthersPos})
	}
	return groups
}

// A Settled says whether a process is sorted already: it is in a group that is none of Others, or somebody else put it
// somewhere.
type Settled func(p *procfs.Process) bool
