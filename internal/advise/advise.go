// Package advise holds rules against the facts of a host and says what it found: by severity, with what was read and
// where, what it means on this host, and what would put it right.
//
// It takes values and gives values. A rule that lacks a fact is undecided and never a finding. Where instances want
// what one host cannot give them together, one value is chosen and who loses is named.
package advise

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

// Report is what the rules say of a host.
type Report struct {
	Findings  []Finding   `json:"findings"` // worst first
	Undecided []Undecided `json:"undecided"`
	Passed    []Passed    `json:"passed"`
	Silenced  []Silenced  `json:"silenced"`
	// Apart counts the rules that have nothing to say here: what they are for is not on this host.
	Apart int `json:"not_applicable"`
}

// Finding is a rule that is not kept.
type Finding struct {
	Rule     string     `json:"rule"`
	Severity string     `json:"severity"`
	Title    string     `json:"title"`
	On       []string   `json:"on"` // disks, mounts, instances; none for the host
	Means    string     `json:"means"`
	Evidence []Evidence `json:"evidence"`
	Change   Change     `json:"change"`
	// Losers are the instances that the change does not give what they want, with it.
	Losers []Loser `json:"losers"`
}

// Evidence is a fact with where it was read.
type Evidence struct {
	Fact  string `json:"fact"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Change is what would put a finding right.
type Change struct {
	Class string `json:"class"`
	Key   string `json:"key"`
	Value string `json:"value"`
	Cost  string `json:"cost"`
}

// Loser is an instance and what it would want instead.
type Loser struct {
	Instance string `json:"instance"`
	Wants    string `json:"wants"`
}

// Undecided is a rule that lacks facts.
type Undecided struct {
	Rule    string    `json:"rule"`
	On      []string  `json:"on"`
	Missing []Missing `json:"missing"`
}

// Missing is an unknown fact.
type Missing struct {
	Fact   string `json:"fact"`
	Reason string `json:"reason"`
}

// Passed is a rule that is kept.
type Passed struct {
	Rule     string     `json:"rule"`
	Title    string     `json:"title"`
	On       []string   `json:"on"`
	Evidence []Evidence `json:"evidence"`
}

// Silenced is a finding that the site does not want to hear of.
type Silenced struct {
	Rule   string   `json:"rule"`
	On     []string `json:"on"`
	Reason string   `json:"reason"`
	Until  string   `json:"until"`
}

// Options say what to leave out.
type Options struct {
	Instance string // findings that do not concern it are left out; "" is all
	Severity string // the least to report; "" is all
	Today    string // "2026-11-24", for the ends of what is silenced
}

// Run holds the rules against the facts.
func Run(set *rule.Set, facts *fact.Set, o Options) *Report {
	rep := &Report{Findings: []Finding{}, Undecided: []Undecided{}, Passed: []Passed{}, Silenced: []Silenced{}}
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

// evaluation is one rule on one host.
type evaluation struct {
	rule   *rule.Rule
	facts  *fact.Set
	report *Report
	spoke  bool // it was found, passed or undecided on something
}

// objects asks a rule of each object of its scope.
func (e *evaluation) objects() {
	var passed []string
	var evidence []Evidence
	for _, obj := range e.facts.Of(e.rule.Scope) {
		values := e.with(obj.Values)
		if applies, err := e.applies(values); err != nil || !applies {
			e.undecided(obj.Name, values, err)
			continue
		}
		ok, err := e.rule.OK.Holds(values)
		switch {
		case err != nil:
			e.undecided(obj.Name, values, err)
		case ok:
			e.spoke = true
			if obj.Name != "" {
				passed = append(passed, obj.Name)
			}
			if evidence == nil {
				evidence = e.evidence(values, e.rule.Reads())
			}
		default:
			e.spoke = true
			e.report.Findings = append(e.report.Findings, e.finding(obj.Name, values))
		}
	}
	if evidence != nil {
		e.report.Passed = append(e.report.Passed, Passed{e.rule.ID, e.rule.Title, orEmpty(passed), evidence})
	}
}

func (e *evaluation) finding(on string, values fact.Values) Finding {
	r := e.rule
	f := Finding{Rule: r.ID, Severity: r.Severity, Title: r.Title, On: []string{}, Means: fill(r.Means, values),
		Evidence: e.evidence(values, r.Reads()), Losers: []Loser{},
		Change: Change{r.Change.Class, r.Change.Key, r.Want, r.Cost}}
	if on != "" {
		f.On = []string{on}
	}
	return f
}

// applies says whether the rule is for an object. What is not for its engine needs no other fact.
func (e *evaluation) applies(values fact.Values) (bool, error) {
	if len(e.rule.Engines) > 0 {
		engine, known := values.Get("instance.engine").Is.(string)
		if !known || !slices.Contains(e.rule.Engines, engine) {
			return false, nil
		}
	}
	if e.rule.When == nil {
		return true, nil
	}
	return e.rule.When.Holds(values)
}

// undecided notes that facts are missing; without an error there is nothing to note.
func (e *evaluation) undecided(on string, values fact.Values, err error) {
	var missing *rule.UndecidedError
	u := Undecided{Rule: e.rule.ID, On: []string{}}
	switch {
	case err == nil:
		return
	case errors.As(err, &missing):
		for _, name := range missing.Facts {
			u.Missing = append(u.Missing, Missing{name, values.Get(name).Unknown})
		}
	default:
		u.Missing = []Missing{{"", err.Error()}}
	}
	e.spoke = true
	if on != "" {
		u.On = []string{on}
	}
	all := e.report.Undecided
	if n := len(all); n > 0 && all[n-1].Rule == u.Rule && slices.Equal(all[n-1].Missing, u.Missing) {
		all[n-1].On = append(all[n-1].On, u.On...)
		return
	}
	e.report.Undecided = append(all, u)
}

// with gives the facts of an object and those of the host.
func (e *evaluation) with(own fact.Values) fact.Values {
	values := fact.Values{}
	for _, name := range e.rule.Reads() {
		values[name] = e.facts.Host.Get(name)
		if !strings.HasPrefix(name, "host.") {
			values[name] = own.Get(name)
		}
	}
	for _, m := range rule.Placeholder.FindAllStringSubmatch(e.rule.Means, -1) {
		values[m[1]] = e.facts.Host.Get(m[1])
		if !strings.HasPrefix(m[1], "host.") {
			values[m[1]] = own.Get(m[1])
		}
	}
	for _, name := range []string{"instance.engine", "instance.version"} {
		if v, has := own[name]; has {
			values[name] = v
		}
	}
	return values
}

// evidence gives the facts that are known of those named.
func (e *evaluation) evidence(values fact.Values, names []string) []Evidence {
	all := []Evidence{}
	for _, name := range names {
		if v := values.Get(name); v.Unknown == "" {
			row, _ := fact.Find(name)
			all = append(all, Evidence{name, fact.Format(row, v.Is), v.From})
		}
	}
	return all
}

// fill puts the values of facts into a text.
func fill(text string, values fact.Values) string {
	return rule.Placeholder.ReplaceAllStringFunc(text, func(p string) string {
		name := strings.Trim(p, "{}")
		row, _ := fact.Find(name)
		if v := values.Get(name); v.Unknown == "" {
			return fact.Format(row, v.Is)
		}
		return "an unknown value"
	})
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// wish is what an instance wants of a knob of the host.
type wish struct {
	instance string
	values   fact.Values
	wanted   rule.Wanted
	buffer   int64 // of the instance, 0 where it is not known
}

// suits says whether a value of the knob is what the instance wants.
func (w wish) suits(knob string, value any) bool {
	values := fact.Values{}
	for name, v := range w.values {
		values[name] = v
	}
	values[knob] = fact.Known(value, "wanted")
	ok, err := w.wanted.OK.Holds(values)
	return err == nil && ok
}

// knob asks a rule about one value of the host that each engine has its own wish for.
func (e *evaluation) knob() {
	wishes := e.wishes()
	var unhappy, happy []wish
	for _, w := range wishes {
		ok, err := w.wanted.OK.Holds(w.values)
		switch {
		case err != nil:
			e.undecided(w.instance, w.values, err)
		case ok:
			happy = append(happy, w)
		default:
			unhappy = append(unhappy, w)
		}
	}
	if len(happy)+len(unhappy) == 0 {
		return
	}
	e.spoke = true
	decided := append(slices.Clone(unhappy), happy...)
	if len(unhappy) == 0 {
		p := Passed{e.rule.ID, e.rule.Title, []string{}, e.evidence(decided[0].values, []string{e.rule.Knob})}
		for _, w := range happy {
			p.On = append(p.On, w.instance)
		}
		e.report.Passed = append(e.report.Passed, p)
		return
	}
	value, losers := e.resolve(decided)
	first := unhappy[0]
	f := e.finding("", first.values)
	f.Change.Value, f.Losers = value, losers
	reads := append([]string{e.rule.Knob}, slices.DeleteFunc(e.rule.Reads(), func(name string) bool {
		return name == e.rule.Knob || !strings.HasPrefix(name, "host.")
	})...)
	f.Evidence = e.evidence(first.values, reads)
	for _, w := range unhappy {
		f.On = append(f.On, w.instance)
	}
	row, _ := fact.Find(e.rule.Knob)
	if typed(row, value) == e.facts.Host.Get(e.rule.Knob).Is { // it is as good as this host can have it
		f.Severity = "info"
		f.Change = Change{Class: rule.ClassAdvice, Cost: ""}
	}
	e.report.Findings = append(e.report.Findings, f)
}

// wishes are those of the instances that the rule is for.
func (e *evaluation) wishes() []wish {
	var all []wish
	for _, obj := range e.facts.Instances {
		values := e.with(obj.Values)
		if applies, err := e.applies(values); err != nil || !applies {
			e.undecided(obj.Name, values, err)
			continue
		}
		engine, _ := values.Get("instance.engine").Is.(string)
		version := values.Get("instance.version")
		for _, w := range e.rule.Wanted {
			if w.Engine != engine {
				continue
			}
			if w.From != "" || w.Below != "" {
				v, known := version.Is.(string)
				if !known {
					e.undecided(obj.Name, values, &rule.UndecidedError{Facts: []string{"instance.version"}})
					break
				}
				if w.From != "" && !rule.Since(v, w.From) || w.Below != "" && rule.Since(v, w.Below) {
					continue
				}
			}
			buffer, _ := obj.Values.Get("instance.buffer").Is.(int64)
			all = append(all, wish{obj.Name, values, w, buffer})
			break
		}
	}
	return all
}

// resolve gives the value that suits all; else the one that the rule prefers in a conflict; else what suits most
// memory. Losers are those whom it does not suit.
func (e *evaluation) resolve(wishes []wish) (string, []Loser) {
	row, _ := fact.Find(e.rule.Knob)
	losers := func(value string) []Loser {
		list := []Loser{}
		for _, w := range wishes {
			if !w.suits(e.rule.Knob, typed(row, value)) {
				list = append(list, Loser{w.instance, w.wanted.Value})
			}
		}
		return list
	}
	var candidates []string
	memory := map[string]int64{}
	for _, w := range wishes {
		candidates = append(candidates, w.wanted.Value)
		memory[w.wanted.Value] += w.buffer
	}
	for _, c := range candidates {
		if l := losers(c); len(l) == 0 {
			return c, l
		}
	}
	value := e.rule.Resolve
	if value == "" {
		value = slices.MaxFunc(candidates, func(a, b string) int { return cmp.Compare(memory[a], memory[b]) })
	}
	return value, losers(value)
}

// typed is the value of a knob that a rule writes as text.
func typed(row fact.Row, text string) any {
	if row.Type == fact.Number {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil
		}
		return n
	}
	return text
}
