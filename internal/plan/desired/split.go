package desired

import (
	"fmt"
	"math"
	"strings"

	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// unlimited is an ask that takes whatever there is.
const unlimited int64 = math.MaxInt64

// fill splits a budget evenly: nobody gets more than it asks, what one leaves goes to the others, and the
// sum is never above the budget. A remainder that cannot be split goes to the first. It is the water
// level of a vessel whose columns are the asks.
func fill(budget int64, asks []int64) []int64 {
	parts := make([]int64, len(asks))
	open := make([]int, 0, len(asks))
	for i := range asks {
		open = append(open, i)
	}
	for len(open) > 0 {
		level := budget / int64(len(open))
		rest := open[:0:0]
		for _, i := range open {
			if asks[i] <= level {
				parts[i] = asks[i]
				budget -= asks[i]
			} else {
				rest = append(rest, i)
			}
		}
		if len(rest) == len(open) {
			odd := budget % int64(len(open))
			for n, i := range open {
				parts[i] = level
				if int64(n) < odd {
					parts[i]++
				}
			}
			return parts
		}
		open = rest
	}
	return parts
}

// splitBudgets gives the settings of every group as one hierarchy has to hold them. Where a
// row does not descend, a group's limit is split between the directory of its own processes and those
// of the groups below it that have one of their own.
func (d *State) splitBudgets(hierarchy string, rows []*knob.Row) map[string]policy.Settings {
	settings := make(map[string]policy.Settings, len(d.Forest.Nodes))
	for _, n := range d.Forest.Nodes {
		settings[n.Path] = n.Settings
	}
	for _, row := range rows {
		if !layout.IsBudget(row) {
			continue
		}
		for _, device := range d.devices(row) {
			s := splitter{d: d, hierarchy: hierarchy, key: row.Keys[0], device: device, settings: settings,
				sharers: sharers{d, row, hierarchy}}
			s.give(d.Forest.Nodes[0], unlimited, false)
		}
	}
	return settings
}

// devices lists what any group limits by this row.
func (d *State) devices(row *knob.Row) []string {
	seen := make(map[string]bool)
	var all []string
	for _, n := range d.Forest.Nodes {
		for _, on := range row.Instances(n.Settings) {
			if !seen[on] {
				seen[on] = true
				all = append(all, on)
			}
		}
	}
	return all
}

// splitter splits one limit on one device over the tree.
type splitter struct {
	d         *State
	hierarchy string
	key       policy.Key
	device    string
	settings  map[string]policy.Settings // by group; changed in place
	sharers   sharers
}

// give lets n have budget for itself and everything below it, shared evenly or by use.
func (s *splitter) give(n *layout.Node, budget int64, even bool) {
	budget = min(budget, s.ask(n))
	if setting, asked := n.Settings.Get(s.key, s.device); asked {
		even = setting.Even()
	}
	below := s.d.domains(n, s.hierarchy)
	if budget == unlimited {
		for _, c := range below {
			s.give(c, unlimited, even)
		}
		return
	}
	asks, columns := []int64{unlimited}, []column{s.sharers.own(n, s.key, s.device)} // the group's own processes
	for _, c := range below {
		col := s.sharers.all(c, s.key, s.device)
		col.ask = s.ask(c)
		asks, columns = append(asks, col.ask), append(columns, col)
	}
	parts := fill(budget, asks)
	if !even && len(below) > 0 {
		parts = share(budget, columns, s.d.use != nil)
	}
	s.set(n, parts[0], budget)
	if len(below) > 0 {
		s.explain(n, budget, below, parts, even)
	}
	for i, c := range below {
		s.give(c, parts[i+1], even)
	}
}

// ask is what the group itself asks for.
func (s *splitter) ask(n *layout.Node) int64 {
	setting, ok := n.Settings.Get(s.key, s.device)
	if !ok {
		return unlimited
	}
	if n, limited := amountOf(setting.Value); limited {
		return n
	}
	return unlimited
}

// domains gives the nearest groups below n whose processes sit in a directory of their own.
func (d *State) domains(n *layout.Node, hierarchy string) []*layout.Node {
	var all []*layout.Node
	for _, c := range n.Children {
		dir, ok := d.Layout.Member(c.Path)[hierarchy]
		if ok && d.Layout.Owner[dir] == c.Path {
			all = append(all, c)
		} else {
			all = append(all, d.domains(c, hierarchy)...)
		}
	}
	return all
}

// set writes the group's part into its settings.
func (s *splitter) set(n *layout.Node, part, whole int64) {
	part = max(part, 1) // the kernel takes 0 for no limit
	if part == s.ask(n) {
		return
	}
	setting, ok := n.Settings.Get(s.key, s.device)
	if !ok {
		setting = policy.Setting{Key: s.key, On: s.device, Dev: s.device, From: plan.FromAbove}
	}
	setting.Value, setting.Raw = s.value(part), fmt.Sprintf("its part of %s", s.value(whole))
	s.settings[n.Path] = s.settings[n.Path].With(setting)
}

func (s *splitter) value(n int64) policy.Value { return ioValue(s.key, n) }

// explain says how the budget was split.
func (s *splitter) explain(n *layout.Node, budget int64, below []*layout.Node, parts []int64, even bool) {
	how := "is split evenly"
	if !even {
		how = "is split by use, at present"
	}
	terms := []string{fmt.Sprintf("own processes %s", s.value(parts[0]))}
	for i, c := range below {
		term := fmt.Sprintf("%s %s", strings.TrimPrefix(c.Path, n.Path+"/"), s.value(parts[i+1]))
		if ask := s.ask(c); ask != unlimited && ask != parts[i+1] {
			term += fmt.Sprintf(" of %s asked", s.value(ask))
		}
		terms = append(terms, term)
	}
	s.d.Notes = append(s.d.Notes, plan.Note{Group: n.Path, Key: s.key,
		Text: fmt.Sprintf("%s %s on %s does not reach the groups below it in the %s hierarchy and %s: %s",
			s.key, s.value(budget), s.device, s.hierarchy, how, strings.Join(terms, " + "))})
}
