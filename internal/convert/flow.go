package convert

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"

	"bulkhead/internal/policy"
)

// A flow is a value on one line, as YAML has it between { and }. An export carries each group as one, beside what its
// own format has words for, so that an import of it can give back the very policy.

// flowOf joins the keys of a mapping that have a value.
func flowOf(pairs ...Raw) string {
	var parts []string
	for _, p := range pairs {
		if p.Text != "" {
			parts = append(parts, p.Key+": "+p.Text)
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// blockOf is flowOf, "" when no key has a value.
func blockOf(pairs ...Raw) string {
	if text := flowOf(pairs...); text != "{}" {
		return text
	}
	return ""
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

// MatchFlow is an entry of match, except or each.
func MatchFlow(m policy.Match) string {
	engine := m.Engine
	return flowOf(
		Raw{Key: "engine", Text: quote(engine)}, Raw{Key: "port", Text: quote(m.Port)},
		Raw{Key: "socket", Text: quote(m.Socket)},
		Raw{Key: "datadir", Text: quote(m.DataDir)}, Raw{Key: "sid", Text: quote(m.SID)},
		Raw{Key: "instance", Text: quote(m.Instance)},
		Raw{Key: "part", Text: quote(m.Part)}, Raw{Key: "helper", Text: quote(m.Helper)},
		Raw{Key: "exe", Text: quote(m.Exe)}, Raw{Key: "program", Text: quote(m.Program)},
		Raw{Key: "cmdline", Text: quote(m.Cmdline)}, Raw{Key: "user", Text: quote(m.User)},
		Raw{Key: "unix_group", Text: quote(m.UnixGroup)},
		Raw{Key: "unit", Text: quote(m.Unit)}, Raw{Key: "cgroup", Text: quote(m.Cgroup)},
		Raw{Key: "ancestor", Text: quote(m.Ancestor)},
		Raw{Key: "env", Text: quote(m.Env)}, Raw{Key: "except", Text: listOf(m.Except, MatchFlow)},
	)
}

// GroupFlow is a group without those inside it; a template has them, since they take their placeholders from it.
func GroupFlow(g *policy.Group) string {
	pairs := groupKeys(g)
	block, open := "", []Raw(nil)
	flush := func() {
		if len(open) > 0 {
			pairs = append(pairs, Raw{Key: block, Text: flowOf(open...)})
			open = nil
		}
	}
	var huge []Raw
	for _, s := range g.Settings {
		of, name, nested := strings.Cut(string(s.Key), ".")
		switch {
		case of == "io" || of == "network":
			continue
		case s.Key == policy.KeyMemoryHuge:
			huge = append(huge, Raw{Key: pageName(s.On), Text: s.Value.String()})
			continue
		case !nested:
			flush()
			pairs = append(pairs, Raw{Key: of, Text: settingText(s)})
			continue
		case of != block:
			flush()
			block = of
		}
		if len(huge) > 0 && of == "memory" {
			open = append(open, Raw{Key: "huge", Text: flowOf(huge...)})
			huge = nil
		}
		open = append(open, Raw{Key: name, Text: settingText(s)})
	}
	if len(huge) > 0 {
		if block != "memory" {
			flush()
			block = "memory"
		}
		open = append(open, Raw{Key: "huge", Text: flowOf(huge...)})
	}
	flush()
	pairs = append(pairs, Raw{Key: "io", Text: ioFlow(g.Settings)}, Raw{Key: "network", Text: networkFlow(g.Settings)})
	if g.Each != nil {
		pairs = append(pairs, Raw{Key: "groups", Text: childrenFlow(g.Groups)})
	}
	return flowOf(pairs...)
}

// childrenFlow are groups with all that lies inside them.
func childrenFlow(groups []*policy.Group) string {
	var pairs []Raw
	for _, g := range groups {
		text := GroupFlow(g)
		if g.Each == nil && len(g.Groups) > 0 {
			inside := "groups: " + childrenFlow(g.Groups) + "}"
			if text != "{}" {
				inside = ", " + inside
			}
			text = strings.TrimSuffix(text, "}") + inside
		}
		pairs = append(pairs, Raw{Key: quote(g.Name), Text: text})
	}
	return blockOf(pairs...)
}

// groupKeys are the keys of a group beside its limits.
func groupKeys(g *policy.Group) []Raw {
	pairs := []Raw{{Key: "role", Text: string(g.Role)}}
	if g.Each != nil {
		pairs = append(pairs, Raw{Key: "each", Text: MatchFlow(*g.Each)})
	}
	if g.FromUnit {
		pairs = append(pairs, Raw{Key: "from_unit", Text: "true"})
	}
	return append(pairs, Raw{Key: "slice", Text: quote(g.Slice)}, Raw{Key: "adopt", Text: g.Adopt},
		Raw{Key: "match", Text: listOf(g.Match, MatchFlow)}, Raw{Key: "owner", Text: listOf(g.Owner, OwnerFlow)},
		Raw{Key: "model", Text: memoryModelFlow(g.Model)}, Raw{Key: "slo", Text: sloFlow(g.SLO)})
}

// OwnerFlow is an entry of owner.
func OwnerFlow(o policy.Owner) string {
	return flowOf(
		Raw{Key: "user", Text: quote(o.User)}, Raw{Key: "unix_group", Text: quote(o.UnixGroup)},
		Raw{Key: "may", Text: listOf(o.May, func(r policy.Right) string { return string(r) })},
		Raw{Key: "mode", Text: quote(o.Mode)}, Raw{Key: "directory", Text: quote(o.Directory)},
		Raw{Key: "bounds", Text: boundsFlow(o.Bounds)},
	)
}

// boundsFlow is within what limits may be set, "" for everything.
func boundsFlow(bounds map[policy.Key]policy.Bound) string {
	var pairs []Raw
	for _, key := range policy.Keys() {
		if b, bounded := bounds[key]; bounded {
			pairs = append(pairs, Raw{Key: string(key), Text: quote(b.String())})
		}
	}
	return blockOf(pairs...)
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
		if strings.HasPrefix(string(s.Key), block) && !slices.ContainsFunc(first,
			func(o policy.Setting) bool { return o.On == s.On }) {
			first = append(first, s)
		}
	}
	slices.SortFunc(first, func(a, b policy.Setting) int { return cmp.Compare(a.On, b.On) })
	return first
}

// pairFlow is two limits of one target as a block of their own.
func pairFlow(all policy.Settings, on, name1 string, key1 policy.Key, name2 string, key2 policy.Key) string {
	return blockOf(Raw{Key: name1, Text: limitText(all, key1, on)}, Raw{Key: name2, Text: limitText(all, key2, on)})
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
			Raw{Key: "on", Text: quote(s.On)}, Raw{Key: "weight", Text: limitText(all, policy.KeyIOWeight, s.On)},
			Raw{Key: "read", Text: pairFlow(all, s.On, "bandwidth", policy.KeyIOReadBandwidth, "iops",
				policy.KeyIOReadIOPS)},
			Raw{Key: "write", Text: pairFlow(all, s.On, "bandwidth", policy.KeyIOWriteBandwidth, "iops",
				policy.KeyIOWriteIOPS)},
			Raw{Key: "layer", Text: string(s.Layer)}, Raw{Key: "split", Text: string(s.Split)},
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
			Raw{Key: "on", Text: quote(s.On)},
			Raw{Key: "egress", Text: pairFlow(all, s.On, "min", policy.KeyNetworkEgressMin, "max",
				policy.KeyNetworkEgressMax)},
			Raw{Key: "ingress", Text: pairFlow(all, s.On, "min", policy.KeyNetworkIngressMin, "max",
				policy.KeyNetworkIngressMax)},
			Raw{Key: "replace", Text: replace}, Raw{Key: "ports", Text: ports},
			Raw{Key: "by", Text: string(s.Network.Sort)},
		)
	})
}

// hostFlow is the host block of a policy; "" when it says nothing.
func hostFlow(h policy.HostPart) string {
	reserve := blockOf(
		Raw{Key: "cpu", Text: textIf(h.Reserve.CPU > 0, h.Reserve.CPU)},
		Raw{Key: "memory", Text: textIf(h.Reserve.Memory != nil, h.Reserve.Memory)},
		Raw{Key: "network", Text: textIf(h.Reserve.Network > 0, h.Reserve.Network)},
	)
	return blockOf(
		Raw{Key: "root", Text: quote(h.Root)}, Raw{Key: "weight", Text: textIf(h.Weight > 0, h.Weight)},
		Raw{Key: "others", Text: othersFlow(h.Others)}, Raw{Key: "reserve", Text: reserve},
		Raw{Key: "io", Text: listOf(h.IO, ceilingFlow)}, Raw{Key: "asm", Text: listOf(h.ASM, diskGroupFlow)},
		Raw{Key: "network", Text: listOf(h.Network, linkFlow)},
		Raw{Key: "reclaim", Text: spanText(time.Duration(h.Reclaim))},
		Raw{Key: "history", Text: historyFlow(h.History)}, Raw{Key: "tune", Text: tuneFlow(h.Tune)},
	)
}

// othersFlow is the limits of processes that match no rule, "" when there are none.
func othersFlow(all policy.Settings) string {
	pairs := make([]Raw, len(all))
	for i, s := range all {
		pairs[i] = Raw{Key: policy.LimitOf(s.Key).Name(), Text: s.Value.String()}
	}
	return blockOf(pairs...)
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
	return blockOf(Raw{Key: "on_conflict", Text: conflict}, Raw{Key: "read", Text: read},
		Raw{Key: "fast_moves", Text: fast}, Raw{Key: "record", Text: recordFlow(a.Record)})
}

// recordFlow is the block "agent.record", "" when it says nothing.
func recordFlow(r policy.Record) string {
	size, age := "", ""
	if r.Size > 0 || r.Off {
		size = r.Size.String()
	}
	if r.Age > 0 {
		age = strconv.Itoa(int(r.Age/time.Hour)) + "h"
	}
	return blockOf(Raw{Key: "size", Text: size}, Raw{Key: "age", Text: age})
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
	return blockOf(Raw{Key: "entries", Text: entries}, Raw{Key: "age", Text: age})
}

// memoryModelFlow is what a group says of the memory of its instances.
func memoryModelFlow(m *policy.MemoryModel) string {
	if m == nil {
		return ""
	}
	var pairs []Raw
	names, values := m.Inputs()
	for i := range names {
		pairs = append(pairs, Raw{Key: names[i], Text: values[i]})
	}
	if m.Huge {
		pairs = append(pairs, Raw{Key: "huge", Text: "true"})
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
	var set []Raw
	for _, of := range s.Set {
		set = append(set, Raw{Key: yamlform.Quote(of.Group), Text: GroupFlow(&policy.Group{Settings: of.Settings})})
	}
	return flowOf(
		Raw{Key: "name", Text: quote(s.Name)}, Raw{Key: "when", Text: quote(s.Windows.When.String())},
		Raw{Key: "zone", Text: quote(s.Zone)},
		Raw{Key: "for", Text: s.Windows.Length.String()}, Raw{Key: "except", Text: listOf(days, quote)},
		Raw{Key: "set", Text: flowOf(set...)},
	)
}

func linkFlow(l policy.NetworkLink) string {
	return flowOf(Raw{Key: "on", Text: quote(l.On)}, Raw{Key: "rate", Text: textIf(l.Rate > 0, l.Rate)},
		Raw{Key: "peer", Text: quote(l.Peer)})
}

func ceilingFlow(c policy.Ceiling) string {
	return flowOf(Raw{Key: "on", Text: quote(c.On)}, Raw{Key: "bandwidth", Text: textIf(c.Bandwidth > 0, c.Bandwidth)},
		Raw{Key: "iops", Text: textIf(c.IOPS > 0, c.IOPS)}, Raw{Key: "model", Text: modelFlow(c.Model)})
}

func modelFlow(m *policy.Model) string {
	if m == nil {
		return ""
	}
	rates := func(r policy.ModelRates) string {
		return flowOf(Raw{Key: "bandwidth", Text: r.Bandwidth.String()},
			Raw{Key: "sequential", Text: r.Sequential.String()}, Raw{Key: "random", Text: r.Random.String()})
	}
	return flowOf(Raw{Key: "read", Text: rates(m.Read)}, Raw{Key: "write", Text: rates(m.Write)})
}

func diskGroupFlow(g policy.DiskGroup) string {
	return flowOf(Raw{Key: "group", Text: quote(g.Name)}, Raw{Key: "disks", Text: listOf(g.Disks, quote)},
		Raw{Key: "list", Text: quote(g.File)})
}

// parseFlow reads a group, or a block at the top of the file, that an export carried along. It gives nil when somebody
// has made it something that no policy has; the report says so.
func (in *Input) parseFlow(at policy.Pos, text string) *policy.Policy {
	p, err := parse.Policy([]policy.Source{{Path: in.File, Text: text}})
	if err == nil {
		return p
	}
	msg := err.Error()
	var problems policy.Problems
	if errors.As(err, &problems) {
		msg = problems[0].Msg
	}
	in.Fail(at, "take the line out, and the rest is imported as if bulkhead had not written it",
		"what an export of bulkhead says here is no part of a policy: %s", msg)
	return nil
}
