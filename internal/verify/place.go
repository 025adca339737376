package verify

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// probePrefix begins the name of each directory that a probe makes; no group may be called so. The process follows that
// removes it, and the moment at which that process began.
const probePrefix = ".probe-"

// madeForProbes counts the directories that this process made: one whose load lingers keeps its name for a while.
var madeForProbes atomic.Int64

// place is where a load runs.
type place struct {
	tree  *cgroup.Tree
	made  []cgroup.Dir // parents first
	into  []cgroup.Dir
	enter string // the group that the load enters by itself, as `run` does
}

// close removes what was made. The load is gone by then, or lingers for a moment; what stays is removed by the next
// probe.
func (pl *place) close() {
	for _, d := range slices.Backward(pl.made) {
		_ = pl.tree.Remove(d)
	}
}

// errUnit says why no directory is made beside that of a unit.
var errUnit = errors.New("systemd owns the group's directories, so nothing can be made beside them: " +
	"--inside measures in the group itself")

// errNoDir says that there is nothing to measure in.
var errNoDir = errors.New("the group has no directory yet")

// placer finds and makes the directories in which loads run.
type placer struct {
	snap *Snapshot
	self procfs.ID
}

// recipe says what of a group's directory one beside it gets.
type recipe struct {
	controllers []string
	without     []string          // files
	values      map[string]string // instead of the group's
}

// inside is where the group's own processes are.
func (p placer) inside(group string, controllers ...string) (*place, error) {
	pl := &place{tree: p.snap.Tree}
	for _, h := range p.hierarchies(controllers) {
		d, ok := p.snap.Layout.Member(group)[h.ID]
		if !ok {
			continue
		}
		switch units := p.snap.Layout.Outside(group, h.ID); {
		case len(units) > 0: // a unit that carries the group's limits by itself: its processes are there
			pl.into = append(pl.into, units[0])
		case p.systemds(h, group):
			return &place{tree: p.snap.Tree, enter: group}, nil
		default:
			pl.into = append(pl.into, p.snap.mostly(group, d, p.snap.Layout.Own(group)[h.ID]))
		}
	}
	if len(pl.into) == 0 {
		return nil, errNoDir
	}
	return pl, nil
}

// insideUnified is where the group's own processes are in cgroup2: traffic is told apart there.
func (p placer) insideUnified(group string) (*place, error) {
	h, ok := p.snap.Facts.Unified()
	d, there := p.snap.Layout.Member(group)[h.ID]
	units := p.snap.Layout.Outside(group, h.ID)
	switch {
	case !ok || !there && len(units) == 0:
		return nil, errNoDir
	case len(units) > 0:
		d = units[0]
	case p.systemds(h, group):
		return &place{tree: p.snap.Tree, enter: group}, nil
	}
	return &place{tree: p.snap.Tree, into: []cgroup.Dir{d}}, nil
}

// beside makes directories beside those that carry the group's limits, with the same values in the kernel's files as
// they hold now, and where the group's processes sit below, the same below.
func (p placer) beside(group string, r recipe) (*place, error) {
	pl := &place{tree: p.snap.Tree}
	name := fmt.Sprintf("%s%d-%d-%d", probePrefix, p.self.PID, p.self.Start, madeForProbes.Add(1))
	for _, h := range p.hierarchies(r.controllers) {
		own, ok := p.snap.Layout.Own(group)[h.ID]
		if !ok {
			continue
		}
		if p.systemds(h, group) {
			pl.close()
			return nil, errUnit
		}
		if there, err := p.snap.Tree.Exists(own); err != nil || !there {
			pl.close()
			return nil, cmp.Or(err, errNoDir)
		}
		if err := p.copyTree(pl, h, own, p.snap.residence(group, own), own.Parent().Child(name), r); err != nil {
			pl.close()
			return nil, fmt.Errorf("make a directory beside the group's: %w", err)
		}
	}
	if len(pl.into) == 0 {
		return nil, errNoDir
	}
	return pl, nil
}

// systemds says whether systemd makes and removes the directories of a group in a hierarchy.
func (p placer) systemds(h host.Hierarchy, group string) bool {
	own, ok := p.snap.Layout.Own(group)[h.ID]
	return ok && p.snap.Layout.Unit(own) != "" || len(p.snap.Layout.Outside(group, h.ID)) > 0
}

// hierarchies are those that hold one of the controllers, each once.
func (p placer) hierarchies(controllers []string) (found []host.Hierarchy) {
	for _, name := range controllers {
		h, ok := p.snap.Facts.HierarchyOf(name)
		if ok && !slices.ContainsFunc(found, func(o host.Hierarchy) bool { return o.ID == h.ID }) {
			found = append(found, h)
		}
	}
	return found
}

// copyTree copies a directory, and those that lead from it to the one in which the processes are.
func (p placer) copyTree(pl *place, h host.Hierarchy, own, inner, to cgroup.Dir, r recipe) error {
	from := own
	rest := strings.Trim(strings.TrimPrefix(inner.Path, own.Path), "/")
	for {
		if err := p.snap.Tree.Make(to); err != nil {
			return err
		}
		pl.made = append(pl.made, to)
		if err := p.copyValues(h, from, to, r); err != nil {
			return err
		}
		r.values = nil // only at the top
		if rest == "" {
			break
		}
		if h.Version == 2 {
			_, enabled, err := p.snap.Tree.Subtree(from)
			if err == nil && len(enabled) > 0 {
				err = p.snap.Tree.Enable(to, enabled)
			}
			if err != nil {
				return err
			}
		}
		var next string
		next, rest, _ = strings.Cut(rest, "/")
		from, to = from.Child(next), to.Child(next)
	}
	pl.into = append(pl.into, to)
	return nil
}

// rows are those of the files that a directory beside a group's gets.
func (p placer) rows(h host.Hierarchy, r recipe) (rows []*knob.Row) {
	for _, row := range knob.RowsFor(p.snap.Facts) {
		// Protections and real-time time are taken out of what those above have; what happens at a limit is no limit.
		apart := row.PerSize || row.Covers || row.Inherits || row.File == "memory.oom.group" ||
			slices.Contains(r.without, row.File)
		if row.HierarchyID(p.snap.Facts) == h.ID && slices.Contains(r.controllers, row.Controller) && !apart {
			rows = append(rows, row)
		}
	}
	return rows
}

// copyValues writes into a new directory what another one holds.
func (p placer) copyValues(h host.Hierarchy, from, to cgroup.Dir, r recipe) error {
	rows := p.rows(h, r)
	var names []string
	for _, row := range rows {
		names = append(names, row.File)
	}
	values, err := p.snap.Tree.ReadMany(from, names)
	if err != nil {
		return err
	}
	maps.Copy(values, r.values)
	fresh, err := p.snap.Tree.ReadMany(to, names)
	if err != nil {
		return err
	}
	var changes []knob.Change
	for _, row := range rows {
		text, there := values[row.File]
		if _, offered := fresh[row.File]; !there || !offered || text == "" {
			continue
		}
		if !row.PerDevice {
			changes = append(changes, knob.Change{Row: row, From: row.Parse(fresh[row.File]), To: row.Parse(text)})
			continue
		}
		for _, on := range row.Devices(text) {
			to := row.Parse(row.Line(text, on))
			changes = append(changes, knob.Change{Row: row, On: on, From: row.Default, To: to})
		}
	}
	for _, ch := range knob.Sequence(changes) {
		if err := p.snap.Tree.Write(cgroup.File{Dir: to, Name: ch.Row.Name(ch.On), Key: ch.On}, ch.To); err != nil {
			return err
		}
	}
	return nil
}
