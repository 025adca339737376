package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/host"
)

// Resolver answers what Facts alone cannot. Its zero value takes paths as they are written.
type Resolver struct {
	// EvalSymlinks gives a path without symbolic links, as filepath.EvalSymlinks does on the host.
	// When it is nil, a path that does not exist goes unnoticed and links are not followed.
	EvalSymlinks func(path string) (string, error)
	// Storage gives what files lie on. It is asked at most once, and only when a limit names a target. When it is nil,
	// the facts have to do, which do not know the devices of a btrfs and the cache of a bcache.
	Storage func() (*host.Storage, error)
	// Interface finds the network interface that a name, "default" or a network means. When it is nil, names are taken as they
	// are written. An *ErrNoInterface says that there is none.
	Interface func(on string) (Interface, error)
	// Host is the host part of the policy, for ResolveSetting; Resolve goes by the policy's own.
	Host *HostPart
}

// roleDefaults is the design's table of roles. Nothing else comes from a role.
var roleDefaults = map[Role]Settings{
	RoleDatabase: {{Key: KeyCPUWeight, Value: Weight(1000)}, {Key: KeyIOWeight, Value: Weight(1000)}},
	RoleHelper:   {{Key: KeyCPUWeight, Value: Weight(10)}, {Key: KeyIOWeight, Value: Weight(10)}},
	RoleBatch:    {{Key: KeyCPUWeight, Value: Weight(1)}, {Key: KeyCPUIdle, Value: Flag(true)}, {Key: KeyIOWeight, Value: Weight(1)}},
}

// Resolve fits a policy to a host. The copy it returns has percentages as bytes, io limits for
// devices, NUMA nodes as CPUs, and the defaults of roles; p is left alone. Problems are what can
// never work on this host; the copy then holds what could be resolved.
func (p *Policy) Resolve(f *host.Facts, with ...Resolver) (*Policy, Problems) {
	r := resolution{facts: f, Report: NewReport(p.Sources)}
	if len(with) > 0 {
		r.Resolver = with[0]
	}
	r.Host = &p.Host
	out := &Policy{Version: p.Version, Host: p.Host, Agent: p.Agent, Sources: slices.Clone(p.Sources)}
	out.Host.Reserve.Memory = r.reserve(p.Host.Reserve)
	out.Host.IO = r.resolveCeilings(p.Host.IO)
	out.Host.Network = r.resolveLinks(p.Host.Network)
	for _, g := range p.Groups {
		out.Groups = append(out.Groups, r.group(g))
	}
	spreadWeights(out.Groups)
	var all []Limits
	for _, g := range out.Groups {
		all = g.limits(all, "")
	}
	r.check(out.Host, all)
	out.Notes = r.notes
	out.Schedules = r.schedules(p, out.Host, all)
	out.Guard = r.guard(p.Guard)
	return out, r.Problems()
}

// ResolveSetting fits one setting, of an override, to a host: an io limit without a target becomes
// one for each device. What it comes to beside other settings is Check's.
func ResolveSetting(s Setting, f *host.Facts, with Resolver) (Settings, Problems) {
	r := resolution{Resolver: with, facts: f, Report: NewReport(nil)}
	return r.settings(Settings{s}, ""), r.Problems()
}

// Limits is the resolved settings of one group, for Check.
type Limits struct {
	Group, Parent string // paths; the parent of a group at the top is ""
	Settings      Settings
	Model         *MemoryModel
}

// Check looks for what can never work on a host in resolved settings: above the host, above what
// the reserve or a parent leaves, or at odds with each other. Parents come before their children.
// Resolve has done it for the policy itself; it is needed again once overrides are laid over it.
func Check(f *host.Facts, h HostPart, groups []Limits) (Problems, []Note) {
	r := resolution{facts: f, Report: NewReport(nil)}
	r.check(h, groups)
	return r.Problems(), r.notes
}

// limits lists a group and those below it.
func (g *Group) limits(all []Limits, parent string) []Limits {
	all = append(all, Limits{g.Path, parent, g.Settings, g.Model})
	for _, child := range g.Groups {
		all = child.limits(all, g.Path)
	}
	return all
}

// resolution is one run of Resolve.
type resolution struct {
	Resolver
	*Report
	facts *host.Facts
	notes []Note
	disks *host.Storage // once it was asked for
}

func (r *resolution) note(at Pos, group, format string, args ...any) {
	n := Note{Pos: at, Group: group, Text: fmt.Sprintf(format, args...)}
	if len(r.notes) == 0 || r.notes[len(r.notes)-1] != n { // once for the several keys of one io entry
		r.notes = append(r.notes, n)
	}
}

// reserve resolves `host.reserve`, and checks that it leaves something.
func (r *resolution) reserve(reserve Reserve) Value {
	if reserve.CPU >= r.cores() {
		r.Fail(cmp.Or(reserve.cpuPos, reserve.Pos), "", "host.reserve.cpu %s leaves nothing of the host's %s", reserve.CPU, plural(len(r.facts.CPUs), "CPU"))
	}
	memory := reserve.Memory
	if share, ok := memory.(MemoryPercent); ok {
		memory = share.Of(r.memory())
	}
	if b, ok := memory.(Bytes); ok && b >= r.memory() {
		r.Fail(cmp.Or(reserve.memoryPos, reserve.Pos), "", "host.reserve.memory %s leaves nothing of the host's %s", b, r.memory().Human())
	}
	return memory
}

func (r *resolution) cores() Cores  { return Cores(len(r.facts.CPUs)) * One }
func (r *resolution) memory() Bytes { return Bytes(r.facts.MemTotal) }

// group resolves a group and those below it.
func (r *resolution) group(g *Group) *Group {
	out := *g
	out.Match = slices.Clone(g.Match)
	for i := range out.Match {
		out.Match[i].Except = slices.Clone(out.Match[i].Except)
	}
	if g.Each != nil {
		each := *g.Each
		out.Each = &each
	}
	if g.Slice != "" && !r.facts.Systemd {
		r.Fail(g.slicePos, "take the key out here, or keep this group in a file for the hosts that have systemd", "slice %s: PID 1 of this host is not systemd", g.Slice)
	}
	out.Settings = r.settings(g.Settings.Over(roleSettings(g)), g.Path)
	out.Groups = nil
	for _, child := range g.Groups {
		out.Groups = append(out.Groups, r.group(child))
	}
	return &out
}

// roleSettings is what the role of a group asks. A weight and "idle" exclude each other in the kernel
// (cpu.shares is EINVAL beside cpu.idle), so a group that asks for a weight is not made idle.
func roleSettings(g *Group) Settings {
	defaults := roleDefaults[g.Role].settle("role " + string(g.Role))
	for i := range defaults {
		defaults[i].Pos = g.Pos
	}
	if _, weighted := g.Settings.Get(KeyCPUWeight, ""); weighted {
		defaults = slices.DeleteFunc(defaults, func(s Setting) bool { return s.Key == KeyCPUIdle })
	}
	return defaults
}

// settings turns what was written into what the kernel can take.
func (r *resolution) settings(ss Settings, group string) Settings {
	var out Settings
	for _, s := range ss {
		switch {
		case s.Key == KeyIOWeight:
			out = append(out, r.resolveWeight(s, group)...)
			continue
		case strings.HasPrefix(string(s.Key), "io."):
			out = append(out, r.resolveIO(s, group)...)
			continue
		case s.Key.OfNetwork():
			out = append(out, r.resolveNetwork(s, group)...)
			continue
		case s.Key == KeyCPUNUMA:
			if _, ok := ss.Get(KeyCPUCPUs, ""); ok {
				r.note(s.Pos, group, "cpu.numa is not used: cpu.cpus says which CPUs")
				continue
			}
			s = r.nodeCPUs(s)
		}
		if share, ok := s.Value.(MemoryPercent); ok {
			s.Value = share.Of(r.memory())
		}
		out = append(out, s)
	}
	out = r.oneEach(out)
	out.sort()
	r.noteOneSided(out, group)
	return out
}

// nodeCPUs turns NUMA nodes into their CPUs.
func (r *resolution) nodeCPUs(s Setting) Setting {
	s.Raw = cmp.Or(s.Raw, "numa "+s.Value.String())
	s.Key = KeyCPUCPUs
	ids, ok := s.Value.(IDs)
	if !ok {
		return s
	}
	var cpus host.IDSet
	for _, n := range r.nodes(s.Pos, ids) {
		if len(n.CPUs) == 0 {
			r.Fail(s.Pos, "name the CPUs with cpu.cpus", "NUMA node %d has no CPUs", n.ID)
		}
		cpus = cpus.Union(n.CPUs)
	}
	s.Value = IDs{cpus}
	return s
}

// nodes gives the nodes that a setting names, and reports those that do not exist.
func (r *resolution) nodes(at Pos, ids IDs) []host.Node {
	var nodes []host.Node
	var all host.IDSet
	for _, n := range r.facts.Nodes {
		all = append(all, n.ID)
		if ids.Contains(n.ID) {
			nodes = append(nodes, n)
		}
	}
	if missing := ids.Minus(all); len(missing) > 0 {
		r.Fail(at, fmt.Sprintf("nodes here: %s", all), "NUMA node %s does not exist on this host", missing)
	}
	return nodes
}

// oneEach leaves one setting for each key and device. Of two, the group's own goes before its
// class's, and an entry for the device before the default for all devices. Two that are equally
// strong are a problem.
func (r *resolution) oneEach(ss Settings) Settings {
	var out Settings
	for _, s := range ss {
		i := slices.IndexFunc(out, func(o Setting) bool { return s.Dev != "" && o.Key == s.Key && o.Dev == s.Dev })
		if i < 0 {
			out = append(out, s)
			continue
		}
		switch order := cmp.Compare(strength(s), strength(out[i])); {
		case order > 0:
			out[i] = s
		case order == 0 && s.Key == KeyIOWeight && SameValue(s.Value, out[i].Value): // of two volumes that lie on one disk
		case order == 0:
			hint := "a limit is for a whole disk: keep one of them"
			if s.Key.OfNetwork() {
				hint = "a limit is for a whole interface: keep one of them"
			}
			r.Fail(s.Pos, hint, "%s: %s and %s are both on %s", s.Key, out[i].On, s.On, r.deviceName(s.Dev))
			r.Also(out[i].Pos)
		}
	}
	return out
}

func strength(s Setting) int {
	n := 0
	if s.From == "group" {
		n = 2
	}
	if s.On != "" {
		n++
	}
	return n
}
