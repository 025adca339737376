// Package remedy makes settings of a host (package sepolicy) of the verdicts on denials, as far as they can be set
// safely: labels, types of ports, booleans, and a module for each domain with the rules that are needed. What it does
// not set is left to the DBA, with the reason. Of changes nothing; the policy of the host is asked through Host.
package remedy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/verdict"
)

// Setting is what is to be set: a name and a value of package sepolicy, with Prefix.
type Setting struct {
	Name  string   `json:"name"`
	Value string   `json:"value"`
	Why   []string `json:"why"`
	// Denials are those that it puts right.
	Denials int `json:"denials"`
}

// Left is what is left to the DBA.
type Left struct {
	Verdict verdict.Kind `json:"verdict"`
	What    string       `json:"what"` // the rule that would allow it
	Why     string       `json:"why"`
	Do      []string     `json:"do"`
	Denials int          `json:"denials"`
}

// Plan is what can be set, and what is left.
type Plan struct {
	Settings []Setting `json:"settings"`
	Left     []Left    `json:"left_to_you"`
}

// Host is asked what a plan needs to know beside the verdicts.
type Host interface {
	// Labels are the types that the file contexts give a path and all below it, as sepolicy.Labels has them.
	Labels(path string) (string, error)
	// Module is the text of a module of bulkhead's that is installed; "" is none.
	Module(ctx context.Context, name string) (string, error)
	// Foreign is a local file context of somebody else below a tree, or of the tree itself; "" is none.
	Foreign(tree string) (string, error)
}

// Of makes a plan of a report. Take are ports, "tcp/4444", that may be taken from the type that has them.
func Of(ctx context.Context, report *verdict.Report, host Host, take []string) *Plan {
	p := &planner{host: host, take: take, Plan: Plan{Settings: []Setting{}, Left: []Left{}}}
	for _, v := range report.Verdicts {
		p.add(v)
	}
	p.contexts()
	p.modules(ctx)
	slices.SortStableFunc(p.Settings, func(a, b Setting) int { return cmp.Compare(a.Name, b.Name) })
	return &p.Plan
}

type planner struct {
	Plan
	host  Host
	take  []string
	trees []place
	rules []needed
}

// place is a path that wants a type of its own.
type place struct {
	verdict.Remedy
	of verdict.Verdict
}

// needed is a rule.
type needed struct {
	of   verdict.Verdict
	text string
}

func (p *planner) leave(v verdict.Verdict, format string, args ...any) {
	p.Left = append(p.Left, Left{Verdict: v.Kind, What: v.Rule, Why: fmt.Sprintf(format, args...), Do: v.Fix,
		Denials: v.Count})
}

// set adds a setting, once. What cannot be set is left.
func (p *planner) set(v verdict.Verdict, name, value string) {
	if err := sepolicy.Check(name, value); err != nil {
		p.leave(v, "%v", err)
		return
	}
	name = sepolicy.Prefix + name
	i := slices.IndexFunc(p.Settings, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		i = len(p.Settings)
		p.Settings = append(p.Settings, Setting{Name: name, Value: value, Why: []string{}})
	}
	s := &p.Settings[i]
	if s.Value != value {
		p.leave(v, "%s is to be %s for other denials, and %s for these", name, s.Value, value)
		return
	}
	s.Denials += v.Count
	for _, why := range v.Because {
		if !slices.Contains(s.Why, why) {
			s.Why = append(s.Why, why)
		}
	}
}

// add takes a verdict's remedies.
func (p *planner) add(v verdict.Verdict) {
	switch {
	case v.Kind == verdict.Stale:
		return
	case len(v.Remedies) == 0:
		p.leave(v, "%s", cmp.Or(strings.Join(v.Undecided, "; "), strings.Join(v.Because, "; ")))
		return
	case v.Kind == verdict.Domain:
		p.leave(v, "a process keeps its domain: once the label of the program is right, start the service again")
	case v.Kind == verdict.Boolean && len(v.Remedies) > 1:
		p.leave(v, "several booleans would allow it, each alone: choose one")
		return
	}
	for _, r := range v.Remedies {
		switch {
		case r.Port != "" && r.Owner != "" && !slices.Contains(p.take, r.Port):
			p.leave(v, "%s is %s's own port: a server of that kind on this host would lose it. Let the database use "+
				"another port; --take-port %s takes it all the same", r.Port, r.Owner, r.Port)
		case r.Port != "" && r.Owner != "":
			p.set(v, "port "+r.Port, r.Types[0]+" from "+r.Owner)
		case r.Port != "":
			p.set(v, "port "+r.Port, r.Types[0])
		case r.Boolean != "":
			p.set(v, "boolean "+r.Boolean, map[bool]string{true: "on", false: "off"}[r.On])
		case len(r.Permissions) > 0:
			p.rule(v, r)
		case r.Listed:
			p.labels(v, r)
		default:
			p.trees = append(p.trees, place{r, v})
		}
	}
}

func (p *planner) rule(v verdict.Verdict, r verdict.Remedy) {
	if len(v.Broad) > 0 {
		var why []string
		for _, f := range v.Broad {
			why = append(why, f.Name+": "+f.Why)
		}
		p.leave(v, "the rule would allow too much (%s)", strings.Join(why, "; "))
		return
	}
	p.rules = append(p.rules, needed{v, sepolicy.Rule(v.Source, v.Target, v.Class, r.Permissions)})
}

// labels gives a path the label that the file contexts have for it: a directory with all below it.
func (p *planner) labels(v verdict.Verdict, r verdict.Remedy) {
	value := r.Types[0]
	if r.Class == "dir" {
		var err error
		if value, err = p.host.Labels(r.Path); err != nil {
			p.leave(v, "%v", err)
			return
		}
	}
	p.set(v, "labels "+r.Path, value)
}

// contexts puts paths that want types of their own together to trees, one for each directory that a database has to
// itself.
func (p *planner) contexts() {
	dirs := map[string]bool{}
	for _, t := range p.trees {
		dirs[t.dir()] = true
	}
	by := map[string][]place{}
	for _, t := range p.trees {
		by[topmost(dirs, t.dir())] = append(by[topmost(dirs, t.dir())], t)
	}
	for _, tree := range slices.Sorted(maps.Keys(by)) {
		all := by[tree]
		kind, why := typeFor(all)
		foreign, err := p.host.Foreign(tree)
		switch {
		case err != nil:
			why = err.Error()
		case foreign != "":
			why = fmt.Sprintf("a local file context is there already for %s: change that one", foreign)
		}
		seen := map[string]bool{}
		for _, t := range all {
			switch {
			case seen[t.of.Rule]:
			case why != "":
				p.leave(t.of, "%s: %s", tree, why)
			default:
				p.set(t.of, "context "+tree, kind)
			}
			seen[t.of.Rule] = true
		}
	}
}

// dir is the directory that a path is, or is in.
func (p place) dir() string {
	if p.Class == "dir" {
		return path.Clean(p.Path)
	}
	return path.Dir(path.Clean(p.Path))
}

// topmost is the highest of some directories that a path is in, or the path.
func topmost(dirs map[string]bool, at string) (top string) {
	top = at
	for up := at; up != "/" && up != "."; up = path.Dir(up) {
		if dirs[up] && sepolicy.Check("context "+up, "any_t") == nil {
			top = up
		}
	}
	return top
}

// kinds of types by how their names end, in the order in which they are taken where several would do: data first.
var endings = []string{"_db_t", "_var_lib_t", "_data_t"}

// typeFor is the type with which all was allowed that was denied below a tree.
func typeFor(all []place) (kind, why string) {
	may := slices.Clone(all[0].Types)
	for _, t := range all {
		may = slices.DeleteFunc(may, func(k string) bool { return !slices.Contains(t.Types, k) })
	}
	if len(may) == 0 {
		return "", "no one type is allowed all that was denied there"
	}
	for _, ending := range endings {
		i := slices.IndexFunc(may, func(k string) bool { return strings.HasSuffix(k, ending) })
		if i >= 0 {
			return may[i], ""
		}
	}
	if len(may) > 1 {
		return "", fmt.Sprintf("it may have the types %s: choose one", strings.Join(may, ", "))
	}
	return may[0], ""
}

// modules makes a module of the rules of each domain. Rules of one that is installed stay in it: what they allow was
// not denied.
func (p *planner) modules(ctx context.Context) {
	by := map[string][]needed{}
	for _, n := range p.rules {
		by[n.of.Source] = append(by[n.of.Source], n)
	}
	for _, source := range slices.Sorted(maps.Keys(by)) {
		name := "bulkhead_" + source
		text, err := p.host.Module(ctx, name)
		for _, n := range by[source] {
			if err != nil {
				p.leave(n.of, "%v", err)
				continue
			}
			if !strings.Contains(text, n.text) {
				text = strings.TrimSpace(text + " " + n.text)
			}
		}
		for _, n := range by[source] {
			if err == nil {
				p.set(n.of, "module "+name, text)
			}
		}
	}
}
