// Package advise holds rules against the facts of a host and says what it found: by severity, with what was read and
// where, what it means on this host, and what would put it right.
//
// It takes values and gives values. A rule that lacks a fact is undecided and never a finding. Where instances want
// what one host cannot give them together, one value is chosen and who loses is named.
package advise

import (
	"cmp"
	"slices"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

// Options say what to leave out.
type Options struct {
	Instance string // findings that do not concern it are left out; "" is all
	Severity string // the least to report; "" is all
	Today    string // "2026-11-24", for the ends of what is silenced
}

// Run holds the rules against the facts.
func Run(set *rule.Set, facts *fact.Set, o Options) *Report {
	rep := &Report{Findings: []Finding{}, Undecided: []Undecided{}, Passed: []Passed{}, Silenced: []Silenced{},
		Notes: orEmpty(facts.Notes)}
	for _, r := range set.Rules {
		e := evaluation{rule: r, facts: facts, report: rep}
		if len(r.Wanted) > 0 {
			e.knob()
		} else {
			e.objects()
		}
		if !e.spoke {
			rep.Apart++
		}
	}
	rep.Findings = slices.DeleteFunc(rep.Findings, func(f Finding) bool {
		if o.Severity != "" && !rule.Worse(f.Severity, o.Severity) {
			return true
		}
		if o.Instance != "" && len(f.On) > 0 && !slices.Contains(f.On, o.Instance) && !holds(facts, f, o.Instance) {
			return true
		}
		for _, s := range set.Silence {
			if s.Rule == f.Rule && (s.On == "" || slices.Equal(f.On, []string{s.On})) && o.Today <= s.Until {
				rep.Silenced = append(rep.Silenced, Silenced{f.Rule, f.On, s.Reason, s.Until})
				return true
			}
		}
		return false
	})
	rep.Undecided = slices.DeleteFunc(rep.Undecided, func(u Undecided) bool {
		r, _ := set.Find(u.Rule)
		return o.Severity != "" && !rule.Worse(r.Severity, o.Severity)
	})
	slices.SortStableFunc(rep.Findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(rule.Severities, a.Severity), slices.Index(rule.Severities, b.Severity))
	})
	return rep
}

// holds says whether a finding is on a disk or a mount that keeps files of an instance.
func holds(facts *fact.Set, f Finding, instance string) bool {
	for _, scope := range []fact.Scope{fact.Disk, fact.Mount} {
		for _, obj := range facts.Of(scope) {
			users, _ := obj.Values.Get(string(scope) + ".databases").Is.([]string)
			if slices.Contains(f.On, obj.Name) && slices.Contains(users, instance) {
				return true
			}
		}
	}
	return false
}
