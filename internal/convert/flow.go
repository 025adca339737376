package convert

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

// A flow is a value on one line, as YAML has it between { and }. An export carries each group as one, beside what its own
// format has words for, so that an import of it can give back the very policy.

// flowOf joins the keys of a mapping that have a value.
func flowOf(pairs ...raw) string {
	var parts []string
	for _, p := range pairs {
		if p.text != "" {
			parts = append(parts, p.key+": "+p.text)
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func listOf[T any](all []T, text func(T) string) string {
	if len(all) == 0 {
		return ""
	}
	parts := make([]string, len(all))
	for i, one := range all {
		parts[i] = text(one)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// quote is text, or nothing.
func quote(text string) string {
	if text == "" {
		return ""
	}
	return yamlform.Quote(text)
}

// matchFlow is an entry of match, except or each.
func matchFlow(m policy.Match) string {
	engine := m.Engine
	return flowOf(
		raw{key: "engine", text: quote(engine)}, raw{key: "port", text: quote(m.Port)}, raw{key: "socket", text: quote(m.Socket)},
		raw{key: "datadir", text: quote(m.DataDir)}, raw{key: "sid", text: quote(m.SID)}, raw{key: "instance", text: quote(m.Instance)},
		raw{key: "part", text: quote(m.Part)}, raw{key: "helper", text: quote(m.Helper)}, raw{key: "exe", text: quote(m.Exe)},
		raw{key: "cmdline", text: quote(m.Cmdline)}, raw{key: "user", text: quote(m.User)}, raw{key: "unix_group", text: quote(m.UnixGroup)},
		raw{key: "unit", text: quote(m.Unit)}, raw{key: "cgroup", text: quote(m.Cgroup)}, raw{key: "ancestor", text: quote(m.Ancestor)},
		raw{key: "env", text: quote(m.Env)}, raw{key: "except", text: listOf(m.Except, matchFlow)},
	)
}

// groupFlow is a group without those inside it; a template has them, since they take their placeholders from it.
func groupFlow(g *policy.Group) string {
	pairs := groupKeys(g)
	block, open := "", []raw(nil)
	flush := func() {
		if len(open) > 0 {
			pairs = append(pairs, raw{key: block, text: flowOf(open...)})
			open = nil
		}
	}
	var huge []raw
	for _, s := range g.Settings {
		of, name, nested := strings.Cut(string(s.Key), ".")
		switch {
		case of == "io" || of == "network":
			continue
		case s.Key == policy.KeyMemoryHuge:
			huge = append(huge, raw{key: pageName(s.On), text: s.Value.String()})
			continue
		case !nested:
			flush()
			pairs = append(pairs, raw{key: of, text: settingText(s)})
			continue
		case of != block:
			flush()
			block = of
		}
		if len(huge) > 0 && of == "memory" {
			open = append(open, raw{key: "huge", text: flowOf(huge...)})
			huge = nil
		}
		open = append(open, raw{key: name, text: settingText(s)})
	}
	if len(huge) > 0 {
		if block != "memory" {
			flush()
			block = "memory"
		}
		open = append(open, raw{key: "huge", text: flowOf(huge...)})
	}
	flush()
	pairs = append(pairs, raw{key: "io", text: ioFlow(g.Settings)}, raw{key: "network", text: networkFlow(g.Settings)})
	if g.Each != nil {
		pairs = append(pairs, raw{key: "groups", text: childrenFlow(g.Groups)})
	}
	return flowOf(pairs...)
}

// childrenFlow are groups with all that lies inside them.
func childrenFlow(groups []*policy.Group) string {
	var pairs []raw
	for _, g := range groups {
		text := groupFlow(g)
		if g.Each == nil && len(g.Groups) > 0 {
			inside := "groups: " + childrenFlow(g.Groups) + "}"
			if text != "{}" {
				inside = ", " + inside
			}
			text = strings.TrimSuffix(text, "}") + inside
		}
		pairs = append(pairs, raw{key: quote(g.Name), text: text})
	}
	if len(pairs) == 0 {
		return ""
	}
	return flowOf(pairs...)
}

// groupKeys are the keys of a group beside its limits.
func groupKeys(g *policy.Group) []raw {
	pairs := []raw{{key: "role", text: string(g.Role)}}
	if g.Each != nil {
		pairs = append(pairs, raw{key: "each", text: matchFlow(*g.Each)})
	}
	if g.FromUnit {
		pairs = append(pairs, raw{key: "from_unit", text: "true"})
	}
	return append(pairs, raw{key: "slice", text: quote(g.Slice)}, raw{key: "adopt", text: g.Adopt},
		raw{key: "match", text: listOf(g.Match, matchFlow)}, raw{key: "owner", text: listOf(g.Owner, ownerFlow)}, raw{key: "model", text: memoryModelFlow(g.Model)})
}

// ownerFlow is an entry of owner.
func ownerFlow(o policy.Owner) string {
	return flowOf(
		raw{key: "user", text: quote(o.User)}, raw{key: "unix_group", text: quote(o.UnixGroup)},
		raw{key: "may", text: listOf(o.May, func(r policy.Right) string { return string(r) })},
		raw{key: "mode", text: quote(o.Mode)}, raw{key: "directory", text: quote(o.Directory)}, raw{key: "bounds", text: boundsFlow(o)},
	)
}

// boundsFlow is what an owner may set, "" for everything.
func boundsFlow(o policy.Owner) string {
	var pairs []raw
	for _, key := range slices.Concat(policy.KnownKeys(), policy.NetworkKeys()) {
		if b, bounded := o.Bounds[key]; bounded {
			pairs = append(pairs, raw{key: string(key), text: quote(b.String())})
		}
	}
	if len(pairs) == 0 {
		return ""
	}
	return flowOf(pairs...)
}

// listed says whether a key is written as a list of its own.
func listed(key string) bool { return key == "match" || key == "owner" }

// settingText is the value of a setting as YAML.
func settingText(s policy.Setting) string {
	switch s.Value.(type) {
	case policy.IDs:
		return "'" + s.Value.String() + "'"
	}
	return s.Value.String()
}

// targetsOf gives the first setting of each target of a block, in the order of the targets.
func targetsOf(all policy.Settings, block string) (first []policy.Setting) {
	for _, s := range all {
		if strings.HasPrefix(string(s.Key), block) && !slices.ContainsFunc(first, func(o policy.Setting) bool { return o.On == s.On }) {
			first = append(first, s)
		}
	}
	slices.SortFunc(first, func(a, b policy.Setting) int { return cmp.Compare(a.On, b.On) })
	return first
}

// pairFlow is two limits of one target as a block of their own.
func pairFlow(all policy.Settings, on, name1 string, key1 policy.Key, name2 string, key2 policy.Key) string {
	text := flowOf(raw{key: name1, text: limitText(all, key1, on)}, raw{key: name2, text: limitText(all, key2, on)})
	if text == "{}" {
		return ""
	}
	return text
}

func limitText(all policy.Settings, key policy.Key, on string) string {
	if s, ok := all.Get(key, on); ok {
		return s.Value.String()
	}
	return ""
}

// ioFlow is the list of limits of devices.
func ioFlow(all policy.Settings) string {
	return listOf(targetsOf(all, "io."), func(s policy.Setting) string {
		return flowOf(
			raw{key: "on", text: quote(s.On)}, raw{key: "weight", text: limitText(all, policy.KeyIOWeight, s.On)},
			raw{key: "read", text: pairFlow(all, s.On, "bandwidth", policy.KeyIOReadBandwidth, "iops", policy.KeyIOReadIOPS)},
			raw{key: "write", text: pairFlow(all, s.On, "bandwidth", policy.KeyIOWriteBandwidth, "iops", policy.KeyIOWriteIOPS)},
			raw{key: "layer", text: string(s.Layer)}, raw{key: "split", text: string(s.Split)},
		)
	})
}

// networkFlow is the list of limits of interfaces.
func networkFlow(all policy.Settings) string {
	return listOf(targetsOf(all, "network."), func(s policy.Setting) string {
		replace, ports := "", ""
		if s.Network.Replace {
			replace = "true"
		}
		if s.Network.Ports != "" {
			ports = "[" + strings.ReplaceAll(s.Network.Ports, ",", ", ") + "]"
		}
		return flowOf(
			raw{key: "on", text: quote(s.On)},
			raw{key: "egress", text: pairFlow(all, s.On, "min", policy.KeyNetworkEgressMin, "max", policy.KeyNetworkEgressMax)},
			raw{key: "ingress", text: pairFlow(all, s.On, "min", policy.KeyNetworkIngressMin, "max", policy.KeyNetworkIngressMax)},
			raw{key: "replace", text: replace}, raw{key: "ports", text: ports}, raw{key: "by", text: string(s.Network.Sort)},
		)
	})
}

// hostFlow is the host block of a policy; "" when it says nothing.
func hostFlow(h policy.HostPart) string {
	root := h.Root
	if root == defaultRoot {
		root = ""
	}
	reserve := flowOf(
		raw{key: "cpu", text: textIf(h.Reserve.CPU > 0, h.Reserve.CPU)}, raw{key: "memory", text: textIf(h.Reserve.Memory != nil, h.Reserve.Memory)},
		raw{key: "network", text: textIf(h.Reserve.Network > 0, h.Reserve.Network)},
	)
	if reserve == "{}" {
		reserve = ""
	}
	text := flowOf(
		raw{key: "root", text: quote(root)}, raw{key: "weight", text: textIf(h.Weight > 0, h.Weight)}, raw{key: "reserve", text: reserve},
		raw{key: "io", text: listOf(h.IO, ceilingFlow)}, raw{key: "asm", text: listOf(h.ASM, diskGroupFlow)}, raw{key: "network", text: listOf(h.Network, linkFlow)},
		raw{key: "reclaim", text: spanText(time.Duration(h.Reclaim))}, raw{key: "history", text: historyFlow(h.History)},
	)
	if text == "{}" {
		return ""
	}
	return text
}

// agentFlow is the block "agent", "" when it says nothing.
func agentFlow(a policy.AgentPart) string {
	fast := ""
	if a.FastMoves {
		fast = "on"
	}
	conflict := string(a.OnConflict)
	if a.OnConflict == policy.ConflictEnforce {
		conflict = "" // as without it
	}
	read := string(a.Read)
	if a.Read == policy.ReadOwners {
		read = "" // as without it
	}
	if text := flowOf(raw{key: "on_conflict", text: conflict}, raw{key: "read", text: read}, raw{key: "fast_moves", text: fast}); text != "{}" {
		return text
	}
	return ""
}

// spanText is a length of time as the file has it, "" for none.
func spanText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func historyFlow(h policy.History) string {
	entries, age := "", ""
	if h.Entries > 0 {
		entries = strconv.Itoa(h.Entries)
	}
	if h.Age > 0 {
		age = strconv.Itoa(int(h.Age/time.Hour)) + "h"
	}
	if text := flowOf(raw{key: "entries", text: entries}, raw{key: "age", text: age}); text != "{}" {
		return text
	}
	return ""
}

// memoryModelFlow is what a group says of the memory of its instances.
func memoryModelFlow(m *policy.MemoryModel) string {
	if m == nil {
		return ""
	}
	var pairs []raw
	names, values := m.Inputs()
	for i := range names {
		pairs = append(pairs, raw{key: names[i], text: values[i]})
	}
	if m.Huge {
		pairs = append(pairs, raw{key: "huge", text: "true"})
	}
	return flowOf(pairs...)
}

// textIf is a value where it says something.
func textIf(says bool, v policy.Value) string {
	if !says {
		return ""
	}
	return v.String()
}

// scheduleFlow is an entry of schedules.
func scheduleFlow(s policy.Schedule) string {
	days := make([]string, len(s.Windows.Except))
	for i, day := range s.Windows.Except {
		days[i] = day.String()
	}
	var set []raw
	for _, of := range s.Set {
		set = append(set, raw{key: yamlform.Quote(of.Group), text: groupFlow(&policy.Group{Settings: of.Settings})})
	}
	return flowOf(
		raw{key: "name", text: quote(s.Name)}, raw{key: "when", text: quote(s.Windows.When.String())}, raw{key: "zone", text: quote(s.Zone)},
		raw{key: "for", text: s.Windows.Length.String()}, raw{key: "except", text: listOf(days, quote)}, raw{key: "set", text: flowOf(set...)},
	)
}

func linkFlow(l policy.NetworkLink) string {
	return flowOf(raw{key: "on", text: quote(l.On)}, raw{key: "rate", text: textIf(l.Rate > 0, l.Rate)}, raw{key: "peer", text: quote(l.Peer)})
}

// defaultRoot is the name of bulkhead's root group when the policy names none.
const defaultRoot = "bulkhead"

// Flow is a whole policy in one form whatever file it came from: two policies that ask for the same give the same text.
func Flow(p *policy.Policy) string {
	var b strings.Builder
	b.WriteString("host: " + hostFlow(p.Host) + "\n")
	if text := agentFlow(p.Agent); text != "" {
		b.WriteString("agent: " + text + "\n")
	}
	var walk func(groups []*policy.Group)
	walk = func(groups []*policy.Group) {
		for _, g := range groups {
			b.WriteString(g.Path + ": " + groupFlow(g) + "\n")
			if g.Each == nil {
				walk(g.Groups)
			}
		}
	}
	walk(p.Groups)
	b.WriteString("schedules: " + listOf(p.Schedules, scheduleFlow) + "\n")
	return b.String()
}

func ceilingFlow(c policy.Ceiling) string {
	return flowOf(raw{key: "on", text: quote(c.On)}, raw{key: "bandwidth", text: textIf(c.Bandwidth > 0, c.Bandwidth)}, raw{key: "iops", text: textIf(c.IOPS > 0, c.IOPS)}, raw{key: "model", text: modelFlow(c.Model)})
}

func modelFlow(m *policy.Model) string {
	if m == nil {
		return ""
	}
	rates := func(r policy.ModelRates) string {
		return flowOf(raw{key: "bandwidth", text: r.Bandwidth.String()}, raw{key: "sequential", text: r.Sequential.String()}, raw{key: "random", text: r.Random.String()})
	}
	return flowOf(raw{key: "read", text: rates(m.Read)}, raw{key: "write", text: rates(m.Write)})
}

func diskGroupFlow(g policy.DiskGroup) string {
	return flowOf(raw{key: "group", text: quote(g.Name)}, raw{key: "disks", text: listOf(g.Disks, quote)}, raw{key: "list", text: quote(g.File)})
}

// parseFlow reads a group, or a block at the top of the file, that an export carried along. It gives nil when somebody has
// made it something that no policy has; the report says so.
func (in *input) parseFlow(at policy.Pos, text string) *policy.Policy {
	p, err := parse.Policy([]policy.Source{{Path: in.file, Text: text}})
	if err == nil {
		return p
	}
	msg := err.Error()
	var problems policy.Problems
	if errors.As(err, &problems) {
		msg = problems[0].Msg
	}
	in.fail(at, "take the line out, and the rest is imported as if bulkhead had not written it", "what an export of bulkhead says here is no part of a policy: %s", msg)
	return nil
}
