package convert

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"

	"bulkhead/internal/policy"
)

// tuneFlow are the settings of the kernel for the host, "" for none. Those of a disk, a unit, a mount or a file, and of
// the kernel command line, stand below its name.
func tuneFlow(all []policy.Tuning) string {
	var pairs []Raw
	things := map[string][]Raw{}
	for _, t := range all {
		thing, name := tunedThing(t.Name)
		one := Raw{Key: yamlform.Quote(name), Text: yamlform.Quote(t.Value)}
		if thing == "" {
			pairs = append(pairs, one)
			continue
		}
		things[thing] = append(things[thing], one)
	}
	for _, thing := range slices.Sorted(maps.Keys(things)) {
		pairs = append(pairs, Raw{Key: yamlform.Quote(thing), Text: flowOf(things[thing]...)})
	}
	return blockOf(pairs...)
}

// tunedThing splits "disk vda/scheduler" and "kernel psi"; thing is "" of a sysctl, and of a path below /sys.
func tunedThing(setting string) (thing, name string) {
	kind, name, several := strings.Cut(setting, " ")
	switch last := strings.LastIndexByte(setting, '/'); {
	case strings.HasPrefix(setting, "/") || !several:
		return "", setting
	case kind == "kernel" || last < 0:
		return kind, name
	default:
		return setting[:last], setting[last+1:]
	}
}

// guardFlow is the block "guard", "" when nothing is watched.
func guardFlow(g *policy.Guard) string {
	if g == nil {
		return ""
	}
	share := func(n *float64) string {
		if n == nil {
			return ""
		}
		return percentText(*n)
	}
	var groups []Raw
	for _, one := range g.Groups {
		kills := ""
		if one.OOMKills != nil {
			kills = strconv.FormatInt(*one.OOMKills, 10)
		}
		groups = append(groups, Raw{Key: yamlform.Quote(one.Group), Text: flowOf(
			Raw{Key: "oom_kills", Text: kills}, Raw{Key: "memory_pressure", Text: share(one.MemoryPressure)},
			Raw{Key: "throttled", Text: share(one.Throttled)},
			Raw{Key: "throughput_falls", Text: share(one.Throughput)},
			Raw{Key: "dsn", Text: quote(withoutPassword(one.DSN))},
		)})
	}
	return flowOf(Raw{Key: "for", Text: quote(spanText(g.For))}, Raw{Key: "window", Text: quote(spanText(g.Window))},
		Raw{Key: "before", Text: quote(spanText(g.Before))}, Raw{Key: "groups", Text: blockOf(groups...)})
}

// withoutPassword is a data source name as an export has it: everybody may read units and cgconfig.conf.
func withoutPassword(dsn string) string {
	engine, rest, _ := strings.Cut(dsn, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	host := strings.LastIndexByte(rest[:end], '@')
	if host < 0 {
		return dsn
	}
	user, _, has := strings.Cut(rest[:host], ":")
	switch {
	case !has:
		return dsn
	case user == "":
		host++
	}
	return engine + "://" + user + rest[host:]
}

// percentText is a share, 0 to 1, as the percentage of which a policy reads that very share.
func percentText(share float64) string {
	n := 100 * share
	for digits := range 17 {
		text := strconv.FormatFloat(n, 'f', digits, 64)
		if back, err := strconv.ParseFloat(text, 64); err == nil && back/100 == share {
			return text + "%"
		}
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + "%"
}

// sloFlow is what a group's database is to keep, "" for nothing.
func sloFlow(s *policy.SLO) string {
	if s == nil {
		return ""
	}
	var target string
	switch s.Signal {
	case "waits":
		target = percentText(s.Value)
	case "work":
		target = strconv.FormatFloat(s.Value, 'f', -1, 64) + "/s"
	default:
		target = time.Duration(math.Round(s.Value * float64(time.Second))).String()
	}
	return flowOf(Raw{Key: s.Signal, Text: quote(target)}, Raw{Key: "dsn", Text: quote(withoutPassword(s.DSN))})
}

// sloPartFlow is the block "slo", "" when it says nothing. A list of no groups is not the same as none.
func sloPartFlow(p policy.SLOPart) string {
	squeeze := listOf(p.Squeeze, yamlform.Quote)
	if p.Squeeze != nil && squeeze == "" {
		squeeze = "[]"
	}
	var within []Raw
	for _, group := range slices.Sorted(maps.Keys(p.Within)) {
		within = append(within, Raw{Key: yamlform.Quote(group), Text: cmp.Or(boundsFlow(p.Within[group]), "{}")})
	}
	return blockOf(Raw{Key: "mode", Text: quote(p.Mode)}, Raw{Key: "squeeze", Text: squeeze},
		Raw{Key: "within", Text: blockOf(within...)})
}

// snapshotsFlow is the block "snapshots", "" when it says nothing. It is read from the files: a Policy does not have
// it.
func snapshotsFlow(p *policy.Policy) string {
	var rules []Raw
	for _, r := range parse.Snapshots(p.Sources) {
		keep, older := "", ""
		if r.Keep > 0 {
			keep = strconv.Itoa(r.Keep)
		}
		if r.Older > 0 {
			older = strconv.Itoa(int(r.Older/time.Hour)) + "h"
		}
		rules = append(rules, Raw{Key: yamlform.Quote(r.Instance),
			Text: flowOf(Raw{Key: "keep", Text: keep}, Raw{Key: "older", Text: older})})
	}
	return blockOf(rules...)
}
