package top

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
)

// View is how somebody wants to see the groups. The zero value is by name, all of them.
type View struct {
	// Sort is the name of the column by which groups that have one parent are sorted, largest first; "": by name.
	Sort    string
	Reverse bool
	// Filter shows only groups that have it in their names, roles or engines, with those above them.
	Filter string
	// Folded are the groups whose children are not shown.
	Folded map[string]bool
}

// Row is one line of the table.
type Row struct {
	Group
	Depth int
	Title string // the last part of its name
	// Parent says that groups are below it, and Folded that they are not shown.
	Parent, Folded bool
	Alarm          bool // somebody should look at it
	Cells          []Cell
}

// Rows gives the lines of a table with these columns.
func (v *View) Rows(s *State, columns []Column) []Row {
	groups := s.Groups()
	shown := map[string]bool{}
	for _, g := range groups {
		if v.matches(g) {
			for at := g.Name; at != "." && !shown[at]; at = path.Dir(at) {
				shown[at] = true
			}
		}
	}
	below := map[string][]Group{}
	for _, g := range groups {
		if !shown[g.Name] {
			continue
		}
		parent := parentOf(g.Name, groups)
		below[parent] = append(below[parent], g)
	}
	return v.branch(s, columns, below, "", 0)
}

// Outermost are the groups that have none above them, in the order of their names.
func (s *State) Outermost() []Group {
	groups := s.Groups()
	return slices.DeleteFunc(slices.Clone(groups), func(g Group) bool { return parentOf(g.Name, groups) != "" })
}

// parentOf is the nearest group above one; "" when there is none.
func parentOf(name string, groups []Group) string {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if slices.ContainsFunc(groups, func(o Group) bool { return o.Name == parent }) {
			return parent
		}
	}
	return ""
}

// branch gives the groups below one, and those below them.
func (v *View) branch(s *State, columns []Column, below map[string][]Group, parent string, depth int) (all []Row) {
	groups := below[parent]
	v.sort(s, groups)
	for _, g := range groups {
		row := Row{Group: g, Depth: depth, Title: strings.TrimPrefix(g.Name, parent+"/"),
			Parent: len(below[g.Name]) > 0, Alarm: s.alarm(g.Name), Cells: make([]Cell, len(columns))}
		for i := range columns {
			row.Cells[i] = columns[i].Cell(s, g.Name)
		}
		row.Folded = row.Parent && v.Folded[g.Name]
		all = append(all, row)
		if !row.Folded {
			all = append(all, v.branch(s, columns, below, g.Name, depth+1)...)
		}
	}
	return all
}

func (v *View) matches(g Group) bool {
	word := strings.ToLower(v.Filter)
	return slices.ContainsFunc([]string{g.Name, g.Role, g.Engine}, func(text string) bool {
		return strings.Contains(strings.ToLower(text), word)
	})
}

func (v *View) sort(s *State, groups []Group) {
	at := slices.IndexFunc(Columns, func(c Column) bool { return c.Name == v.Sort })
	values := map[string]float64{}
	if at >= 0 {
		for _, g := range groups {
			values[g.Name] = Columns[at].Cell(s, g.Name).Value
		}
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		order := cmp.Or(cmp.Compare(values[b.Name], values[a.Name]), strings.Compare(a.Name, b.Name))
		if v.Reverse {
			return -order
		}
		return order
	})
}

// Fitting are the columns that fit into so many characters beside the names of groups, with a blank before each.
func Fitting(width int) []Column {
	for i, c := range Columns {
		if width -= 1 + c.Width; width < 0 {
			return Columns[:i]
		}
	}
	return Columns
}

// Host is what the whole machine does.
type Host struct {
	CPUs                 Cell // that are online
	Busy                 Cell // part of their time
	Load                 Cell // average over one minute
	WaitCPU, WaitMem     Cell // part of the time in which at least one task waited
	WaitIO, Used, Memory Cell // of memory: bytes that are not available, and all
	Filled               Cell // bytes of memory with something in them, page cache too, as groups are charged for it
}

// Host says what the machine does.
func (s *State) Host() Host {
	h := Host{CPUs: unknown, Busy: unknown, Load: unknown, WaitCPU: unknown, WaitMem: unknown, WaitIO: unknown,
		Used: unknown, Memory: unknown, Filled: unknown}
	if n, ok := s.sum(hostCPUs, "", false); ok {
		h.CPUs = known(n, count(n))
	}
	busy, ok := s.sum(hostCPU, "", true, "busy")
	if idle, there := s.sum(hostCPU, "", true, "idle"); ok && there && busy+idle > 0 {
		h.Busy = known(busy/(busy+idle), percent(busy/(busy+idle)))
	}
	if n, ok := s.sum(hostLoad, "", false); ok {
		h.Load = known(n, cores(n))
	}
	for resource, into := range map[string]*Cell{"cpu": &h.WaitCPU, "memory": &h.WaitMem, "io": &h.WaitIO} {
		if n, ok := s.sum(hostPressure, "", true, resource, "some"); ok {
			*into = known(n, percent(n))
		}
	}
	total, ok := s.sum(hostMemory, "", false, "total")
	if free, there := s.sum(hostMemory, "", false, "available"); ok && there {
		h.Used, h.Memory = known(total-free, size(total-free)), known(total, size(total))
	}
	if free, there := s.sum(hostMemory, "", false, "free"); ok && there {
		h.Filled = known(total-free, size(total-free))
	}
	return h
}

// Cells are what is known of the host, by name.
func (h *Host) Cells() map[string]Cell {
	all := map[string]Cell{"cpus": h.CPUs, "busy": h.Busy, "load": h.Load, "wait_cpu": h.WaitCPU,
		"wait_memory": h.WaitMem, "wait_disk": h.WaitIO, "used": h.Used, "memory": h.Memory, "filled": h.Filled}
	maps.DeleteFunc(all, func(_ string, c Cell) bool { return !c.Known })
	return all
}
