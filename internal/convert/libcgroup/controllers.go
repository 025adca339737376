package libcgroup

import (
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// led is a rule that leads processes to a group.
type led struct {
	rule        rule
	controllers []string // for which it does, those of its % lines too; * is all
}

// lead remembers a rule for a group and for those above it, whose limits its processes are under, too.
func (p *placer) lead(to *convert.Group, r rule, controllers []string) {
	for path := to.Path; path != ""; {
		p.led[path] = append(p.led[path], led{r, controllers})
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
}

// readLed reads rules for nothing but where they lead, before the groups have their limits. On cgroup v2 a process is
// in one group for all controllers, whatever its rule names.
func (im *cgImport) readLed(rules []policy.Source) {
	if im.unified() {
		return
	}
	im.led = readRules(convert.NewDraft(&convert.Report{}), rules, nil)
	im.mounted = map[string]string{}
	for _, f := range im.parsed {
		for _, m := range f.mounts {
			for name := range strings.SplitSeq(m.name.text, ",") {
				im.mounted[name] = strings.TrimRight(m.value.text, "/")
			}
		}
	}
}

// inForce gives those files of a group that limit somebody. On cgroup v1 a rule brings processes under the limits of
// the controllers that it names, and of no others: what no rule names is left out, and what some name is said. A group
// to which no rule leads has its processes from elsewhere.
func (im *cgImport) inForce(to *convert.Group, all []kernelfile.Param) (held []kernelfile.Param) {
	rules := im.led[to.Path]
	if len(rules) == 0 {
		return all
	}
	for _, f := range all {
		controller, _, _ := strings.Cut(f.File, ".")
		names := func(l led) bool { return im.names(l, controller) }
		without := slices.IndexFunc(rules, func(l led) bool { return !names(l) })
		switch {
		case without < 0 || !kernelfile.Carried(f.File):
		case slices.ContainsFunc(rules, names):
			r := rules[without].rule
			im.Change(f.At, f.What(), "limits more processes here: the rule `%s` of %s does not name %s, and what it "+
				"brings in is limited here, too", r.what, r.at, controller)
		default:
			im.Leave(f.At, "write it into the group if it is to limit them from now on", f.What(), "it limits no "+
				"process that a rule brings in: no rule that leads to %s names %s", to.Path, controller)
			continue
		}
		held = append(held, f)
	}
	return held
}

// names says whether a rule brings processes under the limits of a controller: it names that one, or one that is
// mounted together with it. Where no file says how they are mounted, cpu and cpuacct are, as systemd has it.
func (im *cgImport) names(l led, controller string) bool {
	return slices.ContainsFunc(l.controllers, func(name string) bool {
		mine, theirs := im.mounted[controller], im.mounted[name]
		pair := controller == "cpu" && name == "cpuacct"
		return name == "*" || name == controller || mine == theirs && (mine != "" || pair)
	})
}

// unified says whether the files are for cgroup v2, where a process is in one group for all controllers.
func (im *cgImport) unified() (v2 bool) {
	for _, f := range im.parsed {
		if len(f.mounts) > 0 {
			return false
		}
		for _, g := range slices.Concat(f.groups, f.templates) {
			for _, s := range g.sections {
				for _, pair := range s.pairs {
					switch kernelfile.Version(pair.name.text) {
					case 1:
						return false
					case 2:
						v2 = true
					}
				}
			}
		}
	}
	return v2
}
