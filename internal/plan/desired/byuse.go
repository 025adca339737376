package desired

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// column is one of those that share a budget by use: a device, or on cgroup v1 a directory.
type column struct {
	ask  int64 // the most it may have
	now  int64 // the part it has; 0 when it has none yet
	used int64 // in a second
}

// How a budget is shared by use.
const (
	floorShare = 4   // nobody gets less than a quarter of an even part
	hungryAt   = 90  // per cent of its part from which one would use more if it had more
	headroom   = 115 // per cent of what it uses that one gets which does not
	worthwhile = 20  // a change of less than a twentieth of an even part is none
)

// floor is the least that a column gets.
func (c column) floor(budget int64, columns int) int64 {
	return min(c.ask, budget/int64(floorShare*columns))
}

func (c column) isHungry() bool { return c.used*100 >= c.now*hungryAt }

// share gives the columns their parts of a budget. They begin evenly and keep what they have as long as that is a sound
// way to share it; with shift they get more where more is used. The sum is never above the budget.
func share(budget int64, columns []column, shift bool) []int64 {
	asks := make([]int64, len(columns))
	now := make([]int64, len(columns))
	for i, c := range columns {
		asks[i], now[i] = c.ask, c.now
	}
	sound := isSound(budget, columns)
	switch {
	case budget < int64(2*floorShare*len(columns)) ||
		slices.Min(now) <= 0: // nothing to speak of, or one that has just come
		return fill(budget, asks)
	case shift:
		parts := byUse(budget, columns)
		if sound && !differ(budget, parts, now) {
			return now
		}
		return parts
	case sound:
		return now
	}
	return fill(budget, asks)
}

// isSound says whether the parts that columns have share a budget as it should be: all of it, but for what nobody asks,
// and nobody has too much or too little.
func isSound(budget int64, columns []column) bool {
	var sum, asked int64
	for _, c := range columns {
		if c.now > c.ask || c.now < c.floor(budget, len(columns)) {
			return false
		}
		sum += c.now
		asked += min(c.ask, budget)
	}
	whole := min(budget, asked)
	return sum <= budget && sum >= whole-whole/1000-int64(len(columns))
}

// differ says whether new parts are worth the writing.
func differ(budget int64, parts, now []int64) bool {
	for i := range parts {
		if d := parts[i] - now[i]; max(d, -d) > budget/int64(worthwhile*len(parts)) {
			return true
		}
	}
	return false
}

// byUse gives each its floor, then to those that do not use up their part what they use and a little more, then the
// rest to the others, and what is left then to all.
func byUse(budget int64, columns []column) []int64 {
	parts, wants, room := make([]int64, len(columns)), make([]int64, len(columns)), make([]int64, len(columns))
	left := budget
	for i, c := range columns {
		parts[i] = c.floor(budget, len(columns))
		left -= parts[i]
		wants[i] = c.ask - parts[i]
		if !c.isHungry() {
			wants[i] = min(wants[i], max(c.used*headroom/100-parts[i], 0))
		}
	}
	for i, more := range fill(left, wants) {
		parts[i] += more
		left -= more
		room[i] = columns[i].ask - parts[i]
	}
	for i, more := range fill(left, room) {
		parts[i] += more
	}
	return parts
}

// sharers answers what those that share the budgets of one row have now, and use.
type sharers struct {
	d         *State
	row       *knob.Row
	hierarchy string
}

// cell is the directory in which a group's budget stands; ok is false when it has none of its own.
func (s sharers) cell(n *layout.Node) (dir cgroup.Dir, ok bool) {
	if !layout.IsBudget(s.row) {
		dir, ok = s.d.Layout.Own(n.Path)[s.hierarchy]
		return dir, ok
	}
	dir, ok = s.d.Layout.Member(n.Path)[s.hierarchy]
	return dir, ok && s.d.Layout.Owner[dir] == n.Path
}

// own is what a group's own cell has and uses of a device.
func (s sharers) own(n *layout.Node, key policy.Key, device string) column {
	c := column{ask: unlimited}
	dir, ok := s.cell(n)
	if !ok {
		return c
	}
	c.now, _ = s.row.Amount(key, s.d.observed.Dirs[dir][s.row.File], device)
	c.used = s.d.use[dir][device].Of(key)
	for other, g := range s.d.Layout.Governed { // what runs in a unit that has the group's limits elsewhere
		if _, inside := layout.Below(dir.Path, other.Path); g.Group == n.Path && other.Hierarchy == s.hierarchy &&
			!inside {
			c.used += s.d.use[other][device].Of(key)
		}
	}
	return c
}

// all is what a group and those below it that have cells of their own have and use together, where a budget is for the
// processes of the very directory.
func (s sharers) all(n *layout.Node, key policy.Key, device string) column {
	sum := s.own(n, key, device)
	if !layout.IsBudget(s.row) {
		return sum
	}
	for _, b := range s.d.domains(n, s.hierarchy) {
		c := s.all(b, key, device)
		if sum.used += c.used; c.now == 0 || sum.now == 0 {
			sum.now = 0
		} else {
			sum.now += c.now
		}
	}
	return sum
}

// shareDevices gives the devices that share a limit by use their parts.
func (d *State) shareDevices() {
	for hierarchy, rows := range d.Rows {
		for _, row := range rows {
			if !row.Budget() {
				continue
			}
			s := sharers{d, row, hierarchy}
			for _, n := range d.Forest.Nodes {
				for _, set := range sharedByUse(n.Settings, row.Keys) {
					s.shareSet(n, set)
				}
			}
		}
	}
}

// shareSet shares one limit of a group over devices.
func (s sharers) shareSet(n *layout.Node, set policy.Settings) {
	whole, _ := amountOf(set[0].Whole)
	columns := make([]column, len(set))
	for i, setting := range set {
		columns[i] = s.all(n, setting.Key, setting.Dev)
	}
	for i, part := range share(whole, columns, s.d.use != nil) {
		setting := set[i]
		if even, _ := amountOf(setting.Value); part == even || part == even+1 {
			continue // as it was written, but for what cannot be split
		}
		setting.Value = ioValue(setting.Key, part)
		_, on, _ := strings.Cut(setting.Raw, ", on ")
		setting.Raw = fmt.Sprintf("by use, of %s, on %s", setting.Whole, on)
		n.Settings = n.Settings.With(setting)
	}
}

// sharedByUse gives the limits that several devices share by use, each with the settings of all of its devices. One
// that does not have all of them, as another limit stands for one, stays as it is.
func sharedByUse(settings policy.Settings, keys []policy.Key) []policy.Settings {
	type limit struct {
		key             policy.Key
		on, whole, from string
	}
	sets := make(map[limit]policy.Settings)
	var order []limit
	for _, setting := range settings {
		if setting.Whole == nil || setting.Even() || !slices.Contains(keys, setting.Key) {
			continue
		}
		if _, limited := amountOf(setting.Value); !limited {
			continue
		}
		l := limit{setting.Key, setting.On, setting.Whole.String(), setting.From}
		if sets[l] == nil {
			order = append(order, l)
		}
		sets[l] = append(sets[l], setting)
	}
	var all []policy.Settings
	for _, l := range order {
		if len(sets[l]) == sets[l][0].Parts {
			all = append(all, sets[l])
		}
	}
	return all
}

// SharesByUse says whether any limit goes to several devices by what is used of them, or on cgroup v1 to several
// directories.
func SharesByUse(in *plan.Input) bool {
	h, ok := in.Facts.HierarchyOf("blkio")
	if !ok {
		return false
	}
	limited := make(map[string]bool) // groups
	for _, g := range in.InForce() {
		for _, setting := range g.Settings {
			if _, is := amountOf(setting.Value); is && setting.Dev != "" && !setting.Even() {
				limited[g.Path] = true
				if setting.Parts > 1 {
					return true
				}
			}
		}
		for above := g.Path; h.Version == 1 && limited[g.Path] && above != layout.RootGroup; {
			if above = layout.ParentGroup(above); limited[above] {
				return true
			}
		}
	}
	return false
}

// amountOf is an io limit as a number.
func amountOf(v policy.Value) (amount int64, limited bool) {
	switch v := v.(type) {
	case policy.Rate:
		return int64(v), true
	case policy.IOPS:
		return int64(v), true
	}
	return 0, false
}

func ioValue(key policy.Key, n int64) policy.Value {
	if key == policy.KeyIOReadIOPS || key == policy.KeyIOWriteIOPS {
		return policy.IOPS(n)
	}
	return policy.Rate(n)
}
