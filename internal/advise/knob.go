package advise

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
)

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
		version, _ := values.Get("instance.version").Is.(string)
		w, wants, versioned := e.rule.WantedBy(engine, version)
		if versioned {
			e.undecided(obj.Name, values, &rule.UndecidedError{Facts: []string{"instance.version"}})
		}
		if wants {
			buffer, _ := obj.Values.Get("instance.buffer").Is.(int64)
			all = append(all, wish{obj.Name, values, w, buffer})
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
