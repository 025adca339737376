// Package verdict says of each group of denials what it comes from: a wrong label, a wrong port, a program in the
// wrong domain, a boolean that is off, a script's fault, a constraint, nothing any more, or a rule that is needed.
// Each verdict has its reasons and the lines of the log that it rests on. What only the policy of the host can tell is
// asked through Policy and Files; without them that part is said to be undecided.
//
// Judge changes nothing and keeps nothing.
package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"bulkhead/internal/selinux/avc"
)

// Judge gives a verdict on each group of denials, sorted by what puts it right.
func Judge(log *avc.Log, host Host) *Report {
	sweeps, walks := sweepsOf(log.Denials), walksOf(log.Denials)
	r := &Report{Verdicts: []Verdict{}, Rules: []string{}}
	for _, g := range avc.Groups(log.Denials) {
		j := &judge{Host: host, log: log, walks: walks, group: g, left: g.Denials, Verdict: verdictOf(g)}
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
	if j.Policy == nil || j.Policy.Access(j.Source, j.Target, j.Class, permissions).Known { // semodule takes no other
		j.remedy(Remedy{Permissions: permissions})
	}
}

// linesOf gives the first denials, a different target, port or program first.
func linesOf(denials []avc.Denial) []Line {
	lines := []Line{}
	seen := map[string]bool{}
	for _, again := range []bool{false, true} {
		for _, d := range denials {
			what := fmt.Sprint(d.Comm, " ", cmp.Or(d.Path, d.Name), " ", d.Port)
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
