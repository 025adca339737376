package desired

import (
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// Value is what one knob file, or one line of it, should hold.
type Value struct {
	Row     *knob.Row
	File    string
	Key     string // device of a per-device file
	On      string // what Encode was asked for: device or page size
	Text    string
	Setting policy.Setting
}

// ValueAt is a value of a row that is not known yet, for a device or a page size.
func ValueAt(row *knob.Row, on string) Value {
	v := Value{Row: row, File: row.Name(on), On: on}
	if row.PerDevice {
		v.Key = on
	}
	return v
}

// In is the file, or its line, of a directory.
func (v Value) In(dir cgroup.Dir) cgroup.File { return cgroup.File{Dir: dir, Name: v.File, Key: v.Key} }

// Target is In as a target.
func (v Value) Target(dir cgroup.Dir) change.Target { return v.In(dir).Target() }

// State is the whole of what a plan leads to.
type State struct {
	facts  *host.Facts
	Layout layout.Layout
	Forest *layout.Forest
	Rows   map[string][]*knob.Row // hierarchy ID → rows, all hierarchies of the host
	Values map[cgroup.Dir][]Value
	// rests holds what a file of a directory should hold that no group asks for, where that is not
	// the row's default: the value of the directory above.
	rests map[cgroup.Dir]map[string]string
	// Enabled holds, for each v2 directory including those above our root, the controllers that it
	// must hand to its children.
	Enabled map[cgroup.Dir][]string
	Notes   []plan.Note
	// observed and use are what those that share a limit have now, and use.
	observed *plan.Observation
	use      map[cgroup.Dir]map[string]plan.IOUse
	loose    map[string]int    // processes in no unit, by group; under systemd only
	classes  map[string]uint32 // of traffic control, by group
}

// Wanted lists every value, directory by directory, parents first.
func (d *State) Wanted() []plan.Wanted {
	var all []plan.Wanted
	for _, dir := range d.Layout.Dirs() {
		for _, v := range d.Values[dir] {
			all = append(all, plan.Wanted{Target: v.Target(dir), Group: d.Layout.Owner[dir], Value: v.Text,
				Setting: v.Setting, Row: v.Row})
		}
	}
	return all
}

// Number reads a kernel number; -1, which is no limit everywhere it can occur, when it is none.
func Number(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// IDSet reads a cpuset list; a text that is none is the empty set.
func IDSet(text string) idset.Set {
	set, err := idset.Parse(text)
	if err != nil {
		return nil
	}
	return set
}
