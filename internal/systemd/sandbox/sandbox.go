// Package sandbox says what bulkhead.service must allow, beyond what it does as packaged, so that the agent can do what
// a policy asks for.
//
//	text := sandbox.DropIn(sandbox.Needs(p))
//
// It looks at the policy alone, not at the host. Nothing here is kept, so it is safe for concurrent use.
package sandbox

import (
	"slices"
	"strings"

	"bulkhead/internal/dblogin"
	"bulkhead/internal/policy"
)

// Need is something that a policy asks for and the packaged unit forbids.
type Need struct {
	For     string `json:"for"`     // what of the policy: "owner of group reports"
	Because string `json:"because"` // what the kernel asks for
	// Allow are settings of the unit's section [Service] (systemd.exec(5)); each adds to the unit's.
	Allow []string `json:"allow"`
}

// inet allows sockets of IP.
const inet = "RestrictAddressFamilies=AF_INET AF_INET6"

// Needs are those of a policy as it was parsed, in the order of the file's reference; nil where the packaged unit will
// do. One kind is named once, with the first group that asks for it.
func Needs(p *policy.Policy) []Need {
	var needs []Need
	var groups []*policy.Group
	var gather func([]*policy.Group)
	gather = func(all []*policy.Group) {
		for _, g := range all {
			groups = append(groups, g)
			gather(g.Groups)
		}
	}
	gather(p.Groups)
	for _, window := range p.Schedules {
		for _, set := range window.Set {
			groups = append(groups, &policy.Group{Path: set.Group, Settings: set.Settings})
		}
	}
	add := func(is func(*policy.Group) bool, n Need) {
		if i := slices.IndexFunc(groups, is); i >= 0 {
			n.For += " of group " + groups[i].Path
			needs = append(needs, n)
		}
	}
	if p.Agent.FastMoves {
		needs = append(needs, Need{"agent.fast_moves", "it is a mount option of the control groups",
			[]string{"CapabilityBoundingSet=CAP_SYS_ADMIN", "SystemCallFilter=@mount"}})
	}
	add(func(g *policy.Group) bool { return slices.ContainsFunc(g.Owner, givesFiles) }, Need{"owner",
		"the kernel's files of the group get another owner",
		[]string{"CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER", "SystemCallFilter=@chown"}})
	add(func(g *policy.Group) bool {
		return slices.ContainsFunc(g.Settings, func(s policy.Setting) bool {
			return strings.HasPrefix(s.On, policy.ASMPrefix)
		})
	}, Need{"io", "the headers of disks say which ASM disk group they are of", []string{"DeviceAllow=block-* r"}})
	add(func(g *policy.Group) bool {
		return slices.ContainsFunc(g.Settings, func(s policy.Setting) bool { return s.Key.OfNetwork() })
	}, Need{"network", "packets are told by BPF programs, which are found again by number, and the kernel's " +
		"pieces are tried in a network namespace", []string{"CapabilityBoundingSet=CAP_BPF CAP_SYS_ADMIN",
		"SystemCallFilter=bpf", "RestrictNamespaces=net", "RestrictRealtime=no"}})
	if slices.ContainsFunc(p.Host.Network, func(l policy.NetworkLink) bool { return l.Peer != "" }) {
		needs = append(needs, Need{"host.network", "a peer is to be reached over TCP", []string{inet}})
	}
	add(func(g *policy.Group) bool { return g.SLO != nil && overTCP(g.SLO.DSN) },
		Need{"slo", "the database is asked over TCP", []string{inet}})
	if p.Guard != nil {
		if i := slices.IndexFunc(p.Guard.Groups, func(g policy.Guarded) bool { return overTCP(g.DSN) }); i >= 0 {
			needs = append(needs, Need{"guard of group " + p.Guard.Groups[i].Group, "the database is asked over TCP",
				[]string{inet}})
		}
	}
	return needs
}

// Of are the needs of several policies together: those of the first, then what others need beside.
func Of(policies ...*policy.Policy) (all []Need) {
	for _, p := range policies {
		for _, n := range Needs(p) {
			if !slices.ContainsFunc(all, func(o Need) bool { return slices.Equal(o.Allow, n.Allow) }) {
				all = append(all, n)
			}
		}
	}
	return all
}

// Settings are those that any of the needs adds to the unit's, each once.
func Settings(needs []Need) (all []string) {
	for _, n := range needs {
		for _, line := range n.Allow {
			if !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	return all
}

// givesFiles says whether the kernel's files get this owner.
func givesFiles(o policy.Owner) bool { return o.Sets() || o.Enters() }

// overTCP says whether a database is asked over TCP. What an instance fills in may be a number.
func overTCP(dsn string) bool {
	login, err := dblogin.Parse(policy.Placeholder.ReplaceAllString(dsn, "1"))
	if dsn == "" || err != nil {
		return false
	}
	network, _ := login.Place()
	return network != "unix"
}

// Mark begins each drop-in.
const Mark = "# What the policy needs beyond bulkhead.service as packaged.\n"

// DropIn is a drop-in of bulkhead.service that allows what is needed, "" for nothing.
func DropIn(needs []Need) string {
	if len(needs) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(Mark + "[Service]\n")
	var said []string
	for _, n := range needs {
		b.WriteString("# " + n.For + ": " + n.Because + "\n")
		for _, line := range n.Allow {
			if !slices.Contains(said, line) {
				said = append(said, line)
				b.WriteString(line + "\n")
			}
		}
	}
	return b.String()
}
