package advise

import (
	"errors"
	"slices"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

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
		Change: Change{Class: r.Change.Class, Key: r.Change.Key, Value: r.Want, Cost: r.Cost}}
	if r.Value != nil {
		if value, err := r.Value.Gives(values); err == nil { // else it is what the rule says in words
			f.Change.Value = value
		}
	}
	switch disk, is := values.Get(r.Change.Disk).Is.(string); {
	case r.Change.Class != rule.ClassQueue:
	case is:
		f.Change.Disk = disk
	case r.Scope == fact.Disk:
		f.Change.Disk = on
	}
	if unit, is := values.Get("instance.unit").Is.(string); is && r.Change.Class == rule.ClassUnit {
		f.Change.Unit = unit
	}
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
	for _, name := range append(e.rule.Reads(), e.rule.Apart.Reads()...) {
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
	for _, name := range []string{"instance.engine", "instance.version", "instance.unit", e.rule.Change.Disk} {
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
