// Package verdict says of each group of denials what it comes from: a wrong label, a wrong port, a program in the wrong
// domain, a boolean that is off, a script's fault, a constraint, nothing any more, or a rule that is needed. Each verdict
// has its reasons and the lines of the log that it rests on. What only the policy of the host can tell is asked through
// Policy and Files; without them that part is said to be undecided.
//
// Judge changes nothing and keeps nothing.
package verdict

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/policydb"
)

// Policy is the policy that the host has loaded; *policydb.Policy is one.
type Policy interface {
	Access(source, target, class string, permissions []string) policydb.Access
	PortType(protocol string, port int) (policydb.Port, bool)
	PortTypes(source, protocol, class string, permissions []string) map[string][]policydb.Port
	// Types are those of a prefix with which a source may do something.
	Types(prefix, source, class string, permissions []string) []string
}

// Starts says in which domain a process starts that runs a file; "" is its parent's. *policydb.Policy is one.
type Starts interface {
	Domain(source, file string) string
}

// Files are the files of the host.
type Files interface {
	// Expected is the type that the file contexts give a path of a class; known is false where no line matches.
	Expected(path, class string) (kind string, known bool)
	// Actual is the type that a file has now.
	Actual(path string) (kind string, known bool)
	// Read gives a file, or the beginning of it.
	Read(path string) ([]byte, error)
}

// Host is what can be asked; nil is what cannot.
type Host struct {
	Policy Policy
	Starts Starts
	Files  Files
}

// Kind is what a group of denials comes from.
type Kind string

// Kinds.
const (
	Script     Kind = "script"
	Label      Kind = "wrong label"
	Port       Kind = "wrong port"
	Domain     Kind = "wrong domain"
	Boolean    Kind = "boolean"
	Constraint Kind = "constraint"
	Stale      Kind = "stale"
	Rule       Kind = "rule"
)

// Kinds in the order in which they are put right.
var Kinds = []Kind{Script, Label, Port, Domain, Boolean, Constraint, Rule, Stale}

// Line is a line of the log.
type Line struct {
	Number int    `json:"line"`
	Text   string `json:"text"`
}

// Verdict is what is said of one group.
type Verdict struct {
	Kind        Kind     `json:"verdict"`
	Source      string   `json:"source"`
	Target      string   `json:"target"` // type; the same as the source is "self" in rules
	Class       string   `json:"class"`
	Permissions []string `json:"permissions"`
	// Rule would allow all of the group. Needed is the rule for what no other means puts right; "" is none.
	Rule   string `json:"rule"`
	Needed string `json:"needed_rule,omitempty"`
	// Because are the reasons, Fix what to do, Undecided what could not be asked.
	Because   []string `json:"because"`
	Fix       []string `json:"fix"`
	Undecided []string `json:"undecided"`
	// Broad says why the rule would allow too much.
	Broad []Flag `json:"over_broad"`
	// Count are the denials, of which Allowed were in permissive mode: they were allowed all the same, and logged once
	// for as long as the kernel remembered the answer.
	Count    int       `json:"denials"`
	Allowed  int       `json:"allowed_in_permissive_mode"`
	Commands []string  `json:"commands"` // names of processes
	First    time.Time `json:"first,omitzero"`
	Last     time.Time `json:"last,omitzero"`
	Evidence []Line    `json:"evidence"`
}

// Report is what is said of a log.
type Report struct {
	Verdicts []Verdict `json:"groups"`
	// Rules are those that are needed, over all.
	Rules []string `json:"needed_rules"`
}

// Of gives the verdicts of a kind.
func (r *Report) Of(k Kind) (all []Verdict) {
	for _, v := range r.Verdicts {
		if v.Kind == k {
			all = append(all, v)
		}
	}
	return all
}

// shown is how many lines and paths stand for all of a group.
const shown = 3

// Judge gives a verdict on each group of denials, sorted by what puts it right.
func Judge(log *avc.Log, host Host) *Report {
	sweeps := sweepsOf(log.Denials)
	r := &Report{Verdicts: []Verdict{}, Rules: []string{}}
	for _, g := range avc.Groups(log.Denials) {
		j := &judge{Host: host, log: log, group: g, left: g.Denials, Verdict: verdictOf(g)}
		j.decide(sweeps)
		if j.Needed != "" {
			r.Rules = append(r.Rules, j.Needed)
		}
		r.Verdicts = append(r.Verdicts, j.Verdict)
	}
	slices.SortStableFunc(r.Verdicts, func(a, b Verdict) int {
		return cmp.Compare(slices.Index(Kinds, a.Kind), slices.Index(Kinds, b.Kind))
	})
	return r
}

func verdictOf(g avc.Group) Verdict {
	v := Verdict{Source: g.Source, Target: g.Target, Class: g.Class, Permissions: g.Permissions, Rule: g.Rule(),
		Count: len(g.Denials), Because: []string{}, Fix: []string{}, Undecided: []string{}, Broad: []Flag{}}
	names := map[string]bool{}
	for _, d := range g.Denials {
		if d.Permissive == avc.Yes {
			v.Allowed++
		}
		if d.Comm != "" {
			names[d.Comm] = true
		}
		if !d.When.IsZero() {
			if v.First.IsZero() || d.When.Before(v.First) {
				v.First = d.When
			}
			if d.When.After(v.Last) {
				v.Last = d.When
			}
		}
	}
	v.Commands = slices.Sorted(maps.Keys(names))
	if v.Commands == nil {
		v.Commands = []string{}
	}
	return v
}

// judge decides on one group. Left are the denials that no reason was found for yet.
type judge struct {
	Host
	Verdict
	log   *avc.Log
	group avc.Group
	left  []avc.Denial
}

func (j *judge) decide(sweeps sweeps) {
	j.Evidence = linesOf(j.group.Denials)
	j.Broad = flagsOf(j.Source, j.Target, j.Class, j.Permissions, sweeps)
	if j.stale() || j.script(sweeps) {
		return
	}
	permissions := avc.Permissions(j.left)
	j.Broad = flagsOf(j.Source, j.Target, j.Class, permissions, sweeps)
	switch {
	case j.domain(), j.port(permissions), j.label(permissions), j.boolean(permissions):
		return
	}
	j.Kind = Rule
	j.Needed = avc.Rule(j.Source, j.Target, j.Class, permissions)
	j.Because = append(j.Because, "no label, port or boolean was found that would put it right")
	j.Fix = append(j.Fix, j.Needed)
}

// linesOf gives the first denials, a different target or program first.
func linesOf(denials []avc.Denial) []Line {
	lines := []Line{}
	seen := map[string]bool{}
	for _, again := range []bool{false, true} {
		for _, d := range denials {
			what := d.Comm + " " + cmp.Or(d.Path, d.Name)
			if len(lines) == shown || seen[what] != again || again && slices.ContainsFunc(lines, func(l Line) bool {
				return l.Number == d.Line
			}) {
				continue
			}
			seen[what] = true
			lines = append(lines, Line{Number: d.Line, Text: d.Text})
		}
	}
	slices.SortFunc(lines, func(a, b Line) int { return cmp.Compare(a.Number, b.Number) })
	return lines
}
