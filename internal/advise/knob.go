package advise

import (
	"cmp"
	"maps"
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
func (w wish) suits(knob string, value any) (bool, error) {
	values := maps.Clone(w.values)
	values[knob] = fact.Known(value, "wanted")
	return w.wanted.OK.Holds(values)
}

// knob asks a rule about one value of the host that each engine has its own wish for.
func (e *evaluation) knob() {
	wishes, apart := e.wishes()
	happy, unhappy := e.asked(wishes)
	decided := append(slices.Clone(unhappy), happy...)
	value := e.facts.Host.Get(e.rule.Knob).Is // as it is, or as it is to be
	if len(unhappy) > 0 {
		row, _ := fact.Find(e.rule.Knob)
		f := e.shared(unhappy, decided)
		if f.Change.Value != "" {
			value = typed(row, f.Change.Value)
		}
		e.report.Findings = append(e.report.Findings, f)
	}
	e.apart(&happy, apart, value)
	if e.spoke = e.spoke || len(decided)+len(happy) > 0; len(unhappy) == 0 && len(happy) > 0 {
		p := Passed{e.rule.ID, e.rule.Title, []string{}, e.evidence(happy[0].values, []string{e.rule.Knob})}
		for _, w := range happy {
			p.On = append(p.On, w.instance)
		}
		e.report.Passed = append(e.report.Passed, p)
	}
}

// asked says whom the host's value suits.
func (e *evaluation) asked(wishes []wish) (happy, unhappy []wish) {
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
	return happy, unhappy
}

// shared is the finding of those whom the host's value does not suit, with one that all get.
func (e *evaluation) shared(unhappy, decided []wish) Finding {
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
	return f
}

// apart finds those whose unit can have the wish for itself, and has not, where the host's value does not suit them.
func (e *evaluation) apart(happy *[]wish, wishes []wish, value any) {
	for _, w := range wishes {
		well, err := e.rule.Apart.OK.Holds(w.values)
		if err == nil && !well {
			well, err = w.suits(e.rule.Knob, value)
		}
		want := ""
		if err == nil && !well {
			want, err = e.rule.Apart.Value.Gives(w.values)
		}
		switch {
		case err != nil:
			e.undecided(w.instance, w.values, err)
			continue
		case well:
			*happy = append(*happy, w)
			continue
		}
		e.spoke = true
		f := e.finding(w.instance, w.values)
		unit, _ := w.values.Get("instance.unit").Is.(string)
		f.Change = Change{Class: rule.ClassUnit, Key: e.rule.Apart.Key, Value: want, Unit: unit, Cost: e.rule.Cost}
		f.Evidence = e.evidence(w.values, append([]string{e.rule.Knob}, e.rule.Apart.Reads()...))
		e.report.Findings = append(e.report.Findings, f)
	}
}

// wishes are those of the instances that the rule is for; apart those that a unit can have for itself.
func (e *evaluation) wishes() (all, apart []wish) {
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
			own := wish{obj.Name, values, w, buffer}
			if e.canBeApart(own) {
				apart = append(apart, own)
			} else {
				all = append(all, own)
			}
		}
	}
	return all, apart
}

// canBeApart says whether the unit of an instance can have its wish; where that is not known it cannot.
func (e *evaluation) canBeApart(w wish) bool {
	if e.rule.Apart == nil {
		return false
	}
	can, err := e.rule.Apart.When.Holds(w.values)
	return err == nil && can
}

// resolve gives the value that suits all; else the one that the rule prefers in a conflict; else what suits most
// memory. Losers are those whom it does not suit.
func (e *evaluation) resolve(wishes []wish) (string, []Loser) {
	row, _ := fact.Find(e.rule.Knob)
	losers := func(value string) []Loser {
		list := []Loser{}
		for _, w := range wishes {
			if ok, err := w.suits(e.rule.Knob, typed(row, value)); err != nil || !ok {
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
