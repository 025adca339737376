package control

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
)

// probePrefix begins the name of each directory that a probe makes; no group may be called so. The process follows that removes it, and
// the moment at which that process began.
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

// close removes what was made. The load is gone by then, or lingers for a moment; what stays is removed by the next probe.
func (pl *place) close() {
	for _, d := range slices.Backward(pl.made) {
		_ = pl.tree.Remove(d)
	}
}

// errUnit says why no directory is made beside that of a unit.
var errUnit = errors.New("systemd owns the group's directories, so nothing can be made beside them: --inside measures in the group itself")

// errNoDir says that there is nothing to measure in.
var errNoDir = errors.New("the group has no directory yet")

// recipe says what of a group's directory one beside it gets.
type recipe struct {
	controllers []string
	without     []string          // files
	values      map[string]string // instead of the group's
}

// inside is where the group's own processes are.
func (p *prober) inside(group string, controllers ...string) (*place, error) {
	pl := &place{tree: p.v.Tree}
	for _, h := range p.hierarchies(controllers) {
		d, ok := p.v.Layout.Member(group)[h.ID]
		if !ok {
			continue
		}
		switch units := p.v.Layout.Outside(group, h.ID); {
		case len(units) > 0: // a unit that carries the group's limits by itself: its processes are there
			pl.into = append(pl.into, units[0])
		case p.systemds(h, group):
			return &place{tree: p.v.Tree, enter: group}, nil
		default:
			pl.into = append(pl.into, p.members(group, d, p.v.Layout.Own(group)[h.ID]))
		}
	}
	if len(pl.into) == 0 {
		return nil, errNoDir
	}
	return pl, nil
}

// beside makes directories beside those that carry the group's limits, with the same values in the kernel's files as they hold now, and
// where the group's processes sit below, the same below.
func (p *prober) beside(group string, r recipe) (*place, error) {
	pl := &place{tree: p.v.Tree}
	name := fmt.Sprintf("%s%d-%d-%d", probePrefix, p.c.self.PID, p.c.self.Start, madeForProbes.Add(1))
	for _, h := range p.hierarchies(r.controllers) {
		own, ok := p.v.Layout.Own(group)[h.ID]
		if !ok {
			continue
		}
		if p.systemds(h, group) {
			pl.close()
			return nil, errUnit
		}
		if there, err := p.v.Tree.Exists(own); err != nil || !there {
			pl.close()
			return nil, cmp.Or(err, errNoDir)
		}
		if err := p.copyTree(pl, h, own, p.below(group, own), own.Parent().Child(name), r); err != nil {
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
func (p *prober) systemds(h host.Hierarchy, group string) bool {
	own, ok := p.v.Layout.Own(group)[h.ID]
	return ok && p.v.Layout.Unit(own) != "" || len(p.v.Layout.Outside(group, h.ID)) > 0
}

// hierarchies are those that hold one of the controllers, each once.
func (p *prober) hierarchies(controllers []string) (found []host.Hierarchy) {
	for _, name := range controllers {
		h, ok := p.v.Facts.HierarchyOf(name)
		if ok && !slices.ContainsFunc(found, func(o host.Hierarchy) bool { return o.ID == h.ID }) {
			found = append(found, h)
		}
	}
	return found
}

// below is the directory in which the group's processes really are, if that is the one that carries its limits or lies below it; else the
// one in which they ought to be.
func (p *prober) below(group string, own cgroup.Dir) cgroup.Dir {
	ought := own
	if d, ok := p.v.Layout.Member(group)[own.Hierarchy]; ok && (d == own || strings.HasPrefix(d.Path, own.Path+"/")) {
		ought = d
	}
	return p.members(group, ought, own)
}

// members is the directory at or below own in which most of the group's processes are; ought without any.
func (p *prober) members(group string, ought, own cgroup.Dir) cgroup.Dir {
	in := map[string]int{}
	for _, m := range p.v.Members {
		at := m.Process.Cgroups[ought.Hierarchy]
		if m.Group == group && (at == own.Path || strings.HasPrefix(at, own.Path+"/")) {
			in[at]++
		}
	}
	best, most := ought.Path, in[ought.Path]
	for _, at := range slices.Sorted(maps.Keys(in)) {
		if in[at] > most {
			best, most = at, in[at]
		}
	}
	return cgroup.Dir{Hierarchy: ought.Hierarchy, Path: best}
}

// copyTree copies a directory, and those that lead from it to the one in which the processes are.
func (p *prober) copyTree(pl *place, h host.Hierarchy, own, inner, to cgroup.Dir, r recipe) error {
	from := own
	rest := strings.Trim(strings.TrimPrefix(inner.Path, own.Path), "/")
	for {
		if err := p.v.Tree.Make(to); err != nil {
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
			_, enabled, err := p.v.Tree.Subtree(from)
			if err == nil && len(enabled) > 0 {
				err = p.v.Tree.Enable(to, enabled)
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
func (p *prober) rows(h host.Hierarchy, r recipe) (rows []*knob.Row) {
	for _, row := range knob.RowsFor(p.v.Facts) {
		// Protections and real-time time are taken out of what those above have; what happens at a limit is no limit.
		apart := row.PerSize || row.Covers || row.Inherits || row.File == "memory.oom.group" || slices.Contains(r.without, row.File)
		if row.HierarchyID(p.v.Facts) == h.ID && slices.Contains(r.controllers, row.Controller) && !apart {
			rows = append(rows, row)
		}
	}
	return rows
}

// copyValues writes into a new directory what another one holds.
func (p *prober) copyValues(h host.Hierarchy, from, to cgroup.Dir, r recipe) error {
	rows := p.rows(h, r)
	var names []string
	for _, row := range rows {
		names = append(names, row.File)
	}
	values, err := p.v.Tree.ReadMany(from, names)
	if err != nil {
		return err
	}
	maps.Copy(values, r.values)
	fresh, err := p.v.Tree.ReadMany(to, names)
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
			changes = append(changes, knob.Change{Row: row, On: on, From: row.Default, To: row.Parse(row.Line(text, on))})
		}
	}
	for _, ch := range knob.Sequence(changes) {
		if err := p.v.Tree.Write(cgroup.File{Dir: to, Name: ch.Row.Name(ch.On), Key: ch.On}, ch.To); err != nil {
			return err
		}
	}
	return nil
}

// otherDevices names the devices that a directory has a limit for and the group has none on.
func (p *prober) otherDevices(group string, d cgroup.Dir, row *knob.Row) (names []string) {
	if !row.PerDevice {
		return nil
	}
	text, err := p.v.Tree.Read(d.File(row.File))
	if err != nil {
		return nil
	}
	for _, number := range cgroup.Devices(text) {
		asked := slices.ContainsFunc(p.v.Plan.Want, func(w plan.Wanted) bool { return w.Dir == d && w.File == row.File && w.Key == number })
		if asked {
			continue
		}
		name := number
		if device, ok := p.v.Facts.Device(number); ok {
			name += " (" + device.Name + ")"
		}
		names = append(names, name)
	}
	return names
}

// sweepProbes removes the directories that probes left below our root, this process's own and those whose process is gone; with all those of a probe under way,
// whose loads it kills.
func (c *Controller) sweepProbes(t *cgroup.Tree, names plan.Names, all bool) error {
	var failed []error
	for _, h := range t.Hierarchies() {
		tops, err := topsOf(t, names, h.ID)
		if err != nil {
			return err
		}
		var dirs []cgroup.Dir
		for _, top := range tops {
			below, err := t.Walk(top)
			if err != nil && !errors.Is(err, cgroup.ErrGone) {
				return err
			}
			dirs = append(dirs, below...)
		}
		for _, d := range slices.Backward(dirs) {
			maker, ours := probeMaker(d.Path)
			if !ours || maker != c.self && c.Host.Proc.Alive(maker) && !all {
				continue
			}
			if all {
				c.endLoads(t, d, maker)
			}
			if err := t.Remove(d); err != nil && !errors.Is(err, cgroup.ErrGone) {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// probeMaker says which process made a directory for a probe.
func probeMaker(dir string) (maker procfs.ID, ours bool) {
	for element := range strings.SplitSeq(dir, "/") {
		rest, is := strings.CutPrefix(element, probePrefix)
		words := strings.Split(rest, "-")
		if !is || len(words) != 3 {
			continue
		}
		pid, err := strconv.Atoi(words[0])
		start, err2 := strconv.ParseUint(words[1], 10, 64)
		if err == nil && err2 == nil {
			return procfs.ID{PID: pid, Start: start}, true
		}
	}
	return maker, false
}

// endLoads kills the loads in a directory of a probe that is under way.
func (c *Controller) endLoads(t *cgroup.Tree, d cgroup.Dir, maker procfs.ID) {
	pids, err := t.Procs(d)
	if err != nil || len(pids) == 0 || !c.Host.Proc.Alive(maker) {
		return
	}
	procs, err := c.Host.Proc.Processes(procfs.Options{PIDs: pids})
	if err != nil {
		return
	}
	for _, proc := range procs {
		if proc.PPID == maker.PID && proc.PID != os.Getpid() {
			_ = syscall.Kill(proc.PID, syscall.SIGKILL)
		}
	}
}

// sweepBeforeChange does the same before a verb that makes or gives back groups.
func (c *Controller) sweepBeforeChange(verb string) {
	facts, err := c.Host.Facts()
	if err != nil {
		return
	}
	names := treeNames(c.stateOrNone(facts.BootID), c.madeRoots(facts))
	if err := c.sweepProbes(c.tree(facts), names, verb == "release"); err != nil {
		c.Log.Warn("remove what a probe left", "err", err)
	}
}
