// Package resolve fits a policy to one host: percentages become bytes, paths become devices, NUMA nodes become CPUs,
// roles add their defaults. It reports what can never work there: limits above the host or above a parent's, limits on
// devices that the kernel does not limit, and limits that contradict each other.
//
// It takes the host as values (host.Facts) and as the functions of a Resolver, and leaves what it is given alone. A
// Resolver is called from the goroutine that called Policy, Setting or Check.
package resolve

import (
	"cmp"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

// ProblemsOn returns every problem of a policy: of the text, and of what is sound of it on a host.
func ProblemsOn(sources []policy.Source, f *host.Facts, with ...Resolver) policy.Problems {
	p, r := parse.Sound(sources)
	problems := r.Problems()
	if p != nil {
		_, onHost := Policy(p, f, with...)
		problems = append(problems, onHost...)
	}
	return problems.InOrder(sources)
}

// schedules fits the settings of schedules to the host, and looks for what can never work while a window is open.
func (r *resolution) schedules(p *policy.Policy, host policy.HostPart, all []Limits) []policy.Schedule {
	var out []policy.Schedule
	for _, s := range p.Schedules {
		s.Set = slices.Clone(s.Set)
		laid := slices.Clone(all)
		for i, set := range s.Set {
			set.Settings = r.settings(set.Settings, set.Group)
			s.Set[i] = set
			for j := range laid {
				if laid[j].Group != set.Group {
					continue
				}
				for _, one := range set.Settings {
					if p := Overlaps(set.Group, laid[j].Settings, one); p != nil {
						p.Hint = "name the target as the group does"
						r.Add(*p)
					}
				}
				laid[j].Settings = set.Settings.Over(Under(laid[j].Settings, set.Settings))
			}
		}
		checks{r}.check(host, laid)
		out = append(out, s)
	}
	return out
}

// guard holds the guard against what this host counts, and against what can be told of throughput in its times. The
// second is not in parse: an older policy that was applied so is still read.
func (r *resolution) guard(g *policy.Guard) *policy.Guard {
	if g == nil {
		return nil
	}
	unified, _ := r.facts.Unified()
	for _, one := range g.Groups {
		switch {
		case one.Throughput == nil:
		case g.Before < 5*g.Window:
			r.Fail(one.Pos, "lengthen `before`, or shorten `window`",
				"guard: %s before a change are less than five windows of %s: how much throughput differs by itself "+
					"cannot be told", g.Before, g.Window)
		case g.For < 2*g.Window:
			r.Fail(one.Pos, "lengthen `for`, or shorten `window`",
				"guard: %s are less than two windows of %s: a fall of throughput counts when it lasts for two", g.For,
				g.Window)
		}
		if one.MemoryPressure != nil && !unified.Has("memory") {
			r.Fail(one.PressurePos, "watch oom_kills or throughput_falls instead",
				"guard: this host does not count the memory pressure of group %s: that takes the memory controller "+
					"on cgroup v2", one.Group)
		}
	}
	return g
}

// Policy fits a policy to a host. The copy it returns has percentages as bytes, io limits for
// devices, NUMA nodes as CPUs, and the defaults of roles; p is left alone. Problems are what can
// never work on this host; the copy then holds what could be resolved.
func Policy(p *policy.Policy, f *host.Facts, with ...Resolver) (*policy.Policy, policy.Problems) {
	r := resolution{facts: f, Report: yamlform.NewReport(p.Sources)}
	if len(with) > 0 {
		r.Resolver = with[0]
	}
	r.Host = &p.Host
	out := &policy.Policy{Version: p.Version, Host: p.Host, Agent: p.Agent, Sources: slices.Clone(p.Sources)}
	if h := p.Host; h.Weight > 0 && h.Root == "" { // not in parse: an older policy that was applied so is still read
		r.Fail(h.Pos, "outermost groups stand beside the rest of the host, each with its own cpu.weight; "+
			"`root: NAME` puts a group above them all, for those who want one",
			"host.weight is the weight of host.root, and there is none")
	}
	for _, g := range p.Groups {
		if p.Host.Others != nil && (g.Name == "others" || strings.HasPrefix(g.Name, "others.")) {
			r.Fail(g.Pos, "choose another name for the group", "groups called others are those that host.others makes")
		}
	}
	out.Host.Reserve.Memory = r.reserve(p.Host.Reserve)
	out.Host.IO = diskLimits{&r}.resolveCeilings(p.Host.IO)
	out.Host.Network = interfaces{&r}.resolveLinks(p.Host.Network)
	for _, g := range p.Groups {
		out.Groups = append(out.Groups, r.group(g))
	}
	spreadWeights(out.Groups)
	var all []Limits
	for _, g := range out.Groups {
		all = limitsOf(g, all, "")
	}
	checks{&r}.check(out.Host, all)
	always := len(r.notes)
	out.Schedules = r.schedules(p, out.Host, all)
	for i, n := range r.notes {
		if slices.Contains(out.Notes, n) {
			continue // a window says again what holds without it
		}
		n.Void = n.Void && i < always // while a window is open, that is said of the group as it is then
		out.Notes = append(out.Notes, n)
	}
	out.Guard, out.SLO = r.guard(p.Guard), p.SLO
	return out, r.Problems()
}

// Setting fits one setting, of an override, to a host: an io limit without a target becomes
// one for each device. What it comes to beside other settings is Check's.
func Setting(s policy.Setting, f *host.Facts, with Resolver) (policy.Settings, policy.Problems) {
	r := resolution{Resolver: with, facts: f, Report: yamlform.NewReport(nil)}
	return r.settings(policy.Settings{s}, ""), r.Problems()
}

// reserve resolves `host.reserve`, and checks that it leaves something.
func (r *resolution) reserve(reserve policy.Reserve) policy.Value {
	if reserve.CPU >= r.cores() {
		r.Fail(cmp.Or(reserve.CPUPos, reserve.Pos), "", "host.reserve.cpu %s leaves nothing of the host's %s",
			reserve.CPU, policy.Counted(len(r.facts.CPUs), "CPU"))
	}
	memory := reserve.Memory
	if share, ok := memory.(policy.MemoryPercent); ok {
		memory = share.Of(r.memory())
	}
	if b, ok := memory.(policy.Bytes); ok && b >= r.memory() {
		r.Fail(cmp.Or(reserve.MemoryPos, reserve.Pos), "", "host.reserve.memory %s leaves nothing of the host's %s", b,
			r.memory().Human())
	}
	return memory
}

// group resolves a group and those below it.
func (r *resolution) group(g *policy.Group) *policy.Group {
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
		r.Fail(g.SlicePos, "take the key out here, or keep this group in a file for the hosts that have systemd",
			"slice %s: PID 1 of this host is not systemd", g.Slice)
	}
	out.Settings = r.settings(g.Settings.Over(RoleSettings(g)), g.Path)
	out.Groups = nil
	for _, child := range g.Groups {
		out.Groups = append(out.Groups, r.group(child))
	}
	return &out
}

// settings turns what was written into what the kernel can take.
func (r *resolution) settings(ss policy.Settings, group string) policy.Settings {
	var out policy.Settings
	for _, s := range ss {
		switch {
		case s.Key == policy.KeyIOWeight:
			out = append(out, weights{diskLimits{r}}.resolveWeight(s, group)...)
			continue
		case strings.HasPrefix(string(s.Key), "io."):
			out = append(out, diskLimits{r}.resolveIO(s, group)...)
			continue
		case s.Key.OfNetwork():
			out = append(out, interfaces{r}.resolveNetwork(s, group)...)
			continue
		case s.Key == policy.KeyCPUNUMA:
			if _, ok := ss.Get(policy.KeyCPUCPUs, ""); ok {
				r.void(s, group, "cpu.numa is not used: cpu.cpus says which CPUs")
				continue
			}
			s = r.nodeCPUs(s)
		}
		if share, ok := s.Value.(policy.MemoryPercent); ok {
			s.Value = share.Of(r.memory())
		}
		out = append(out, s)
	}
	out = r.oneEach(out)
	out.Sort()
	r.noteOneSided(out, group)
	return out
}

// nodeCPUs turns NUMA nodes into their CPUs.
func (r *resolution) nodeCPUs(s policy.Setting) policy.Setting {
	s.Raw = cmp.Or(s.Raw, "numa "+s.Value.String())
	s.Key = policy.KeyCPUCPUs
	ids, ok := s.Value.(policy.IDs)
	if !ok {
		return s
	}
	var cpus idset.Set
	for _, n := range r.nodes(s.Pos, ids) {
		if len(n.CPUs) == 0 {
			r.Fail(s.Pos, "name the CPUs with cpu.cpus", "NUMA node %d has no CPUs", n.ID)
		}
		cpus = cpus.Union(n.CPUs)
	}
	s.Value = policy.IDs{Set: cpus}
	return s
}

// oneEach leaves one setting for each key and device. Of two, the group's own goes before its
// class's, and an entry for the device before the default for all devices. Two that are equally
// strong are a problem.
func (r *resolution) oneEach(ss policy.Settings) policy.Settings {
	var out policy.Settings
	for _, s := range ss {
		i := slices.IndexFunc(out, func(o policy.Setting) bool {
			return s.Dev != "" && o.Key == s.Key &&
				o.Dev == s.Dev
		})
		if i < 0 {
			out = append(out, s)
			continue
		}
		switch order := cmp.Compare(strength(s), strength(out[i])); {
		case order > 0:
			out[i] = s
		case order == 0 && s.Key == policy.KeyIOWeight && policy.SameValue(s.Value,
			out[i].Value): // of two volumes that lie on one disk
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
