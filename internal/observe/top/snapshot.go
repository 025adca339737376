package top

import "path"

// Cells are figures by the names of their columns, as text and as numbers in base units: cores, bytes, bytes in a
// second, parts of one. What is not known is left out.
type Cells struct {
	Shown  map[string]string  `json:"shown"`
	Values map[string]float64 `json:"values"`
}

// Add adds a figure, where it is known.
func (c *Cells) Add(name string, cell Cell) {
	if c.Shown == nil {
		c.Shown, c.Values = map[string]string{}, map[string]float64{}
	}
	if cell.Known {
		c.Shown[name], c.Values[name] = cell.Text, cell.Value
	}
}

// OneGroup is one group with its figures, as `top --json` and the page have it.
type OneGroup struct {
	Group  string `json:"group"`
	Role   string `json:"role,omitempty"`
	Engine string `json:"engine,omitempty"`
	Cells
}

// Named is a row with its figures by name. The row has all of Columns.
func (r *Row) Named() OneGroup {
	g := OneGroup{Group: r.Name, Role: r.Role, Engine: r.Engine}
	for i, c := range r.Cells {
		g.Add(Columns[i].Name, c)
	}
	return g
}

// Named is the host with its figures by name.
func (h *Host) Named() (all Cells) {
	for name, cell := range h.Cells() {
		all.Add(name, cell)
	}
	return all
}

// Waits are the parts of the time in which a task of a group waited, by what for: wait_cpu, wait_memory and wait_disk.
func (s *State) Waits(group string) (all Cells) {
	for resource, name := range map[string]string{"cpu": "wait_cpu", "memory": "wait_memory", "io": "wait_disk"} {
		if v, ok := s.waited(group, resource); ok {
			all.Add(name, known(v, percent(v)))
		}
	}
	return all
}

// Holder is a limit that holds a group back: of the group itself, or of one above it.
type Holder struct {
	Group string `json:"group"`
	Limit
}

// Holders are the limits that bite a group now, its own first.
func (s *State) Holders(group string) (all []Holder) {
	for at := group; at != "."; at = path.Dir(at) {
		for _, l := range s.Limits(at) {
			if l.Bites {
				all = append(all, Holder{at, l})
			}
		}
	}
	return all
}

// Verdict says in some words whether something holds a group back. Alarm says that somebody should look.
type Verdict struct {
	Alarm bool   `json:"alarm,omitempty"`
	Word  string `json:"word"` // killed, held, waits, wrong or free
	Text  string `json:"text"`
}

// Verdict says the worst that is counted of a group: a killed process, a limit that bites, a resource that it waits
// for, a limit that is not in force.
func (s *State) Verdict(group string) Verdict {
	v := Verdict{Alarm: s.alarm(group), Word: "free", Text: "not held"}
	killed, _ := s.sum(oomKills, group, true)
	off, _ := s.sum(notInForce, group, false)
	part, _ := s.throttled(group)
	wait := waits(s, group)
	holders := s.Holders(group)
	waiting := Verdict{v.Alarm, "waits", ""}
	for _, r := range waitable {
		if c, known := s.waited(group, r.resource); known && c == wait.Value {
			waiting.Text = "waits for " + r.name + ", " + percent(c) + " of the time"
		}
	}
	switch {
	case killed > 0:
		v.Word, v.Text = "killed", "processes killed for want of memory"
	case len(holders) > 0:
		h := &holders[0]
		v.Word, v.Text = "held", "held by "+h.Name()
		if h.Group != group {
			v.Text += " of " + h.Group
		}
	case part >= muchOfTime: // which limit is not known while the collector of limits is off
		v.Word, v.Text = "held", "held by a CPU limit"
	case wait.Value >= muchOfTime:
		v = waiting
	case off > 0:
		v.Word, v.Text = "wrong", count(off)+" of its limits not in force"
	case wait.Value >= waitsFrom:
		v = waiting
	case !wait.Known:
		v.Text = "not held by limits"
	}
	return v
}
