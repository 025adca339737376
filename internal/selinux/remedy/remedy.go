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
	// Denials are those that it puts right; 0 is of what settings name.
	Denials int `json:"denials"`
	// InUse are databases that use files whose labels it changes.
	InUse []string `json:"in_use"`
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
	// Note says why there is nothing to plan on this host; "" is that there may be.
	Note string `json:"note,omitempty"`
}

// Only leaves the settings of some names in a plan, with Prefix or without, and gives those names that it does not
// have.
func (p *Plan) Only(names []string) (unknown []string) {
	asked := map[string]bool{}
	for _, name := range names {
		asked[sepolicy.Prefix+strings.TrimPrefix(name, sepolicy.Prefix)] = true
	}
	p.Settings = slices.DeleteFunc(p.Settings, func(s Setting) bool { return !asked[s.Name] })
	for _, s := range p.Settings {
		delete(asked, s.Name)
	}
	return slices.Sorted(maps.Keys(asked))
}

// Tree is what is at a path, and below it.
type Tree struct {
	// Labels are the types that the file contexts give it, as sepolicy.Labels has them; "" where they do not give all.
	Labels string
	// Has are the types that its files have, each with one of these files.
	Has map[string]string
	// Narrower is a file that the file contexts give another type than the path, Stranger one of another owner, Linked
	// one with several names, Mounted a place at which something is mounted; "" is none.
	Narrower, Stranger, Linked, Mounted string
	// Owned says that its owner is the account of a database that runs.
	Owned bool
}

// Host is asked what a plan needs to know beside the verdicts.
type Host interface {
	// Tree looks at a path and all below it.
	Tree(ctx context.Context, path string) (Tree, error)
	// Module is the text of a module of bulkhead's that is installed; "" is none.
	Module(ctx context.Context, name string) (string, error)
	// Foreign is a local file context of somebody else below a tree, or of the tree itself; "" is none.
	Foreign(tree string) (string, error)
	// Using are the databases that use files at a path or below it.
	Using(path string) []string
}

// Options say for what a plan is.
type Options struct {
	// Domains are those of databases: denials of others are left.
	Domains []string
	// Take are ports, "tcp/4444", that may be taken from the type that has them.
	Take []string
}

// Of makes a plan of a report.
func Of(ctx context.Context, report *verdict.Report, host Host, o Options) *Plan {
	p := &planner{host: host, Options: o, Plan: Plan{Settings: []Setting{}, Left: []Left{}}}
	for _, v := range report.Verdicts {
		p.add(ctx, v)
	}
	p.contexts(ctx)
	p.modules(ctx)
	slices.SortStableFunc(p.Settings, func(a, b Setting) int { return cmp.Compare(a.Name, b.Name) })
	for i := range p.Settings {
		s := &p.Settings[i]
		s.InUse = []string{}
		if at := sepolicy.LabelledBy(s.Name); at != "" {
			s.InUse = append(s.InUse, host.Using(at)...)
		}
	}
	return &p.Plan
}

type planner struct {
	Plan
	Options
	host  Host
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
func (p *planner) add(ctx context.Context, v verdict.Verdict) {
	switch {
	case v.Kind == verdict.Stale:
		return
	case !slices.Contains(p.Domains, v.Source):
		p.leave(v, "%s is not known as the domain of a database on this host; --domain %s has it set all the same",
			v.Source, v.Source)
		return
	case len(v.Remedies) == 0:
		p.leave(v, "%s", cmp.Or(strings.Join(v.Undecided, "; "), strings.Join(v.Because, "; ")))
		return
	case v.Kind == verdict.Domain:
		p.leave(v, "a process keeps its domain: once the label of the program is right, start the service again")
		return
	case v.Kind == verdict.Boolean && len(v.Remedies) > 1:
		p.leave(v, "several booleans would allow it, each alone: choose one")
		return
	case v.Kind == verdict.Boolean && len(v.Broad) > 0:
		p.leave(v, "the boolean would allow too much (%s)", broad(v))
		return
	}
	for _, r := range v.Remedies {
		p.remedy(ctx, v, r)
	}
}

// remedy takes one.
func (p *planner) remedy(ctx context.Context, v verdict.Verdict, r verdict.Remedy) {
	switch {
	case r.Port != "" && r.Owner != "" && !slices.Contains(p.Take, r.Port):
		p.leave(v, "%s is %s's own port: a server of that kind on this host would lose it. Let the database use "+
			"another port; --take-port %s takes it all the same", r.Port, r.Owner, r.Port)
	case r.Port != "" && r.Owner != "":
		p.set(v, "port "+r.Port, r.Types[0]+" from "+r.Owner)
	case r.Port != "":
		p.set(v, "port "+r.Port, r.Types[0])
	case r.Boolean != "" && !r.On:
		p.leave(v, "%s would have to be switched off, which may take away what protects others", r.Boolean)
	case r.Boolean != "":
		p.set(v, "boolean "+r.Boolean, "on")
	case len(r.Permissions) > 0:
		p.rule(v, r)
	case r.Listed:
		p.labels(ctx, v, r)
	default:
		p.trees = append(p.trees, place{r, v})
	}
}

func (p *planner) rule(v verdict.Verdict, r verdict.Remedy) {
	if len(v.Broad) > 0 {
		p.leave(v, "the rule would allow too much (%s)", broad(v))
		return
	}
	p.rules = append(p.rules, needed{v, sepolicy.Rule(v.Source, v.Target, v.Class, r.Permissions)})
}

// broad says why a rule allows too much.
func broad(v verdict.Verdict) string {
	var why []string
	for _, f := range v.Broad {
		why = append(why, f.Name+": "+f.Why)
	}
	return strings.Join(why, "; ")
}

// labels gives a path the label that the file contexts have for it: a directory with all below it, where all of it has
// the label that was denied, or the one that it should have.
func (p *planner) labels(ctx context.Context, v verdict.Verdict, r verdict.Remedy) {
	t, err := p.host.Tree(ctx, r.Path)
	var why string
	switch {
	case err != nil:
		why = err.Error()
	case t.Labels == "":
		why = "the file contexts do not give all below it a label"
	default:
		may := typesIn(t.Labels)
		if v.Class != r.Class { // the file of a socket: what was denied is its server's domain
			may = slices.AppendSeq(may, maps.Keys(t.Has))
		}
		why = t.mixed(v, may)
	}
	if why != "" {
		p.leave(v, "%s: %s", r.Path, why)
		return
	}
	p.set(v, "labels "+r.Path, t.Labels)
}

// typesIn are the types of a listing of sepolicy.Labels.
func typesIn(labels string) (types []string) {
	for line := range strings.Lines(labels) {
		kind, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		types = append(types, kind)
	}
	return types
}

// mixed says why a tree is not one database's alone, so that its labels are left: beside the type that was denied it
// may have some others.
func (t Tree) mixed(v verdict.Verdict, may []string) string {
	for _, kind := range slices.Sorted(maps.Keys(t.Has)) {
		if kind != v.Target && !slices.Contains(may, kind) {
			return fmt.Sprintf("%s has the type %s, and not %s as what was denied: whose it is, you know", t.Has[kind],
				kind, v.Target)
		}
	}
	switch {
	case t.Stranger != "":
		return fmt.Sprintf("%s has another owner: it may be of another program", t.Stranger)
	case t.Linked != "":
		return fmt.Sprintf("%s has another name (a hard link), which would get the label, too", t.Linked)
	case t.Mounted != "":
		return fmt.Sprintf("something is mounted at %s, which keeps its labels", t.Mounted)
	}
	return ""
}

// contexts puts paths that want types of their own together to trees, one for each directory that a database has to
// itself. One of which only the directory was denied, and which no setting names, is left: nothing tells that what is
// below is the database's, too.
func (p *planner) contexts(ctx context.Context) {
	dirs := map[string]bool{}
	for _, t := range p.trees {
		if t.inside() {
			dirs[t.dir()] = true
		}
	}
	by := map[string][]place{}
	for _, t := range p.trees {
		by[topmost(dirs, t.dir())] = append(by[topmost(dirs, t.dir())], t)
	}
	for _, tree := range slices.Sorted(maps.Keys(by)) {
		all := by[tree]
		kind, why := typeFor(all)
		if why == "" {
			why = p.shared(ctx, tree, all)
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

// shared says why a directory is not given a type with all below it; "" is that it may be.
func (p *planner) shared(ctx context.Context, tree string, all []place) string {
	if err := sepolicy.Check("context "+tree, "any_t"); err != nil {
		return err.Error()
	}
	foreign, err := p.host.Foreign(tree)
	switch {
	case err != nil:
		return err.Error()
	case foreign != "":
		return fmt.Sprintf("a local file context is there already for %s: change that one", foreign)
	case !slices.ContainsFunc(all, place.inside):
		return "only the directory itself was denied, and nothing in it, so whether all below it is the database's " +
			"is not known: give it a type alone (`semanage fcontext` without \"(/.*)?\", `restorecon` without -R), " +
			"or let the database use a directory of its own"
	}
	t, err := p.host.Tree(ctx, tree)
	if err != nil {
		return err.Error()
	}
	switch {
	case t.Narrower != "":
		return fmt.Sprintf("the file contexts of this host have a type of its own for %s", t.Narrower)
	case !t.Owned && !slices.ContainsFunc(all, func(t place) bool { return t.of.Count > 0 && t.inside() }):
		return "only a setting names it, nothing in it was denied, and its owner is no account of a database that " +
			"runs: it may be of another program"
	}
	for _, one := range all {
		if why := t.mixed(one.of, slices.Concat(targets(all), one.Types)); why != "" {
			return why
		}
	}
	return ""
}

// targets are the types that were denied.
func targets(all []place) (types []string) {
	for _, t := range all {
		types = append(types, t.of.Target)
	}
	return types
}

// inside says whether what is in the directory is meant: something there was denied, or a setting names it.
func (p place) inside() bool { return p.Class != "dir" || p.of.Count == 0 }

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
