package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/current"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/network"
	"bulkhead/internal/systemd"
)

// writeValues brings every knob file to its value.
func (w *writer) writeValues() {
	raise := make(map[cgroup.Dir][]knob.Change)
	lower := make(map[cgroup.Dir][]knob.Change)
	first := make(map[cgroup.Dir][]knob.Change)
	for _, dir := range w.Desired.Layout.Dirs() {
		raise[dir], lower[dir] = knob.Split(w.changes(dir))
		first[dir], lower[dir] = partition(lower[dir], comesFirst)
		for i, c := range raise[dir] {
			if least := c.Row.Least(c.From, c.To); c.Row.Budget() && !c.Row.Same(least, c.From) {
				first[dir] = append(first[dir], knob.Change{Row: c.Row, On: c.On, From: c.From, To: least})
				raise[dir][i].From = least
			}
		}
		// What one device no longer needs is taken off it before others get it, and one that joins gets what others
		// gave up before.
		lifted, others := partition(raise[dir], func(c knob.Change) bool { return w.frees(dir, c, c.To) })
		raise[dir] = append(lifted, others...)
		joined, others := partition(first[dir], func(c knob.Change) bool { return w.frees(dir, c, c.From) })
		first[dir] = append(others, joined...)
	}
	dirs := slices.Clone(w.Desired.Layout.Dirs())
	for _, dir := range w.Obsolete {
		up, down := knob.Split(w.fit(dir))
		if len(up)+len(down) == 0 {
			continue
		}
		raise[dir] = up
		first[dir], lower[dir] = partition(down, comesFirst)
		dirs = append(dirs, dir)
	}
	slices.SortStableFunc(dirs, depth)
	w.emit(slices.Backward(dirs), first)
	w.emit(slices.All(dirs), raise)
	w.emit(slices.Backward(dirs), lower)
}

// frees says whether a device has no part of a budget with a value that a change begins or ends with.
func (w *writer) frees(dir cgroup.Dir, c knob.Change, value string) bool {
	rest, known := w.Desired.Rest(dir, c.Row)
	return c.Row.Budget() && known && c.Row.Same(rest, value)
}

// depth orders by the depth of the directory, shallow first.
func depth(a, b cgroup.Dir) int {
	return cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/"))
}

func partition(changes []knob.Change, in func(knob.Change) bool) (those, others []knob.Change) {
	for _, c := range changes {
		if in(c) {
			those = append(those, c)
		} else {
			others = append(others, c)
		}
	}
	return those, others
}

// comesFirst says whether a value is lowered before others are raised, as they share something.
func comesFirst(c knob.Change) bool { return c.Row.File == desired.FileRTRuntime || c.Row.Budget() }

func (w *writer) emit(dirs func(func(int, cgroup.Dir) bool), changes map[cgroup.Dir][]knob.Change) {
	for _, dir := range dirs {
		for _, c := range changes[dir] {
			w.write(dir, c)
		}
	}
}

// changes gives what is to become of each file of a directory: the values that are asked for, those
// that are so already included, and files that hold what nobody asks for any more.
func (w *writer) changes(dir cgroup.Dir) []knob.Change {
	var changes []knob.Change
	for _, v := range w.Desired.Values[dir] {
		c := knob.Change{Row: v.Row, On: v.On, From: w.Now(dir, v), To: v.Text}
		if w.IsLeft(dir, v, v.Text) {
			c.To = c.From
		}
		changes = append(changes, c)
	}
	if w.Desired.Layout.Theirs(dir) {
		return append(changes, w.liftByFile(dir)...)
	}
	for _, row := range w.Desired.Rows[dir.Hierarchy] {
		rest, ok := w.Desired.Rest(dir, row)
		if !ok || !w.HandsDown(dir, row.Controller) {
			continue // not known, or the file goes away with its controller
		}
		for _, on := range w.Present(dir, row) {
			v := desired.ValueAt(row, on)
			if w.Asked(dir, v) || w.Leaves(dir, row) {
				continue
			}
			if now := w.Now(dir, v); !row.Same(rest, now) && !(desired.IsWide(row) && now == "") &&
				!w.IsLeft(dir, v, rest) {
				changes = append(changes, knob.Change{Row: row, On: on, From: now, To: rest})
			}
		}
	}
	return changes
}

// liftByFile lifts what bulkhead has written by file into the directory of a unit, once nobody asks for it: for devices
// that systemd would take others for, and what it knows no property for.
func (w *writer) liftByFile(dir cgroup.Dir) []knob.Change {
	if _, ours := w.In.Systemd.KeptOf(w.Desired.Layout.Unit(dir)); !ours {
		return nil
	}
	var changes []knob.Change
	for _, row := range w.Desired.Rows[dir.Hierarchy] {
		for _, on := range row.Devices(w.Observed.Dirs[dir][row.File]) {
			v := desired.ValueAt(row, on)
			if now := w.Now(dir, v); (w.Desired.MovesDown(on) || !w.ByProperty(dir, row)) && !w.Asked(dir, v) &&
				!w.Leaves(dir, row) && !row.Same(row.Default, now) {
				changes = append(changes, knob.Change{Row: row, On: on, From: now, To: row.Default})
			}
		}
	}
	return changes
}

// fit gives the changes that an obsolete directory needs so that those above it can be changed: the kernel
// refuses a parent below its child. The rest of its limits go away with it.
func (w *writer) fit(dir cgroup.Dir) []knob.Change {
	kept := dir.Parent()
	for !w.Desired.Layout.Holds(kept) {
		if kept.Path == "/" {
			return nil // no directory above it is changed
		}
		kept = kept.Parent()
	}
	var changes []knob.Change
	for _, row := range w.Desired.Rows[dir.Hierarchy] {
		text, ok := w.Observed.Dirs[dir][row.File]
		if !ok {
			continue
		}
		from, to := row.Parse(text), ""
		switch {
		case row.File == desired.FileQuota:
			outer, limited := w.quotaAbove(kept)
			mine := desired.Quota{Quota: desired.Number(from),
				Period: desired.Number(w.Observed.Dirs[dir][desired.FilePeriod])}
			if limited && mine.Quota >= 0 && mine.Above(outer) {
				to = row.Default
			}
		case row.File == desired.FileRTRuntime:
			to = row.Default
		case row.Seed:
			if final := w.ValueOf(kept, row); !desired.IDSet(from).Subset(desired.IDSet(final)) {
				to = final
			}
		}
		if to != "" && !row.Same(to, from) {
			changes = append(changes, knob.Change{Row: row, From: from, To: to})
		}
	}
	return changes
}

// quotaAbove is the v1 CPU limit of a directory or of the nearest above it that will have one.
func (w *writer) quotaAbove(dir cgroup.Dir) (desired.Quota, bool) {
	for ; dir.Path != "/"; dir = dir.Parent() {
		if q, ok := desired.QuotaOf(w.Desired.Values[dir]); ok {
			return q, true
		}
	}
	return desired.Quota{}, false
}

// write adds one write. A memory limit that falls below what is charged now is lowered in steps.
func (w *writer) write(dir cgroup.Dir, c knob.Change) {
	if v, asked := w.Find(dir, c.Row, c.On); asked && v.Text != c.To && w.Together(dir, c.Row) {
		return
	}
	switch lowers := !c.Row.Loosens(c.From, c.To); {
	case lowers && isMemoryLimit(c.Row):
		w.lowerMemory(dir, c)
		return
	case lowers && c.Row.File == fileMemsw:
		w.lowerMemsw(dir, c)
		return
	}
	w.addWrite(w.writeStep(dir, c.Row, c.On, c.From, c.To))
}

// addWrite adds a write to the plan and remembers what the file holds from then on.
func (w *writer) addWrite(step plan.Step) {
	w.out.Steps = append(w.out.Steps, step)
	w.written[step.Target] = step.New
}

// restoresAll gives what a directory that is removed at this point of the plan held: its values, and on v2
// the controllers that it handed down.
func (w *writer) restoresAll(dir cgroup.Dir) []plan.Restore {
	writes := w.restores(dir, func(r *knob.Row) bool { return !slices.Contains(w.dropped[dir.Parent()], r.Controller) })
	if handed := current.Without(w.Handed(dir), w.dropped[dir]); len(handed) > 0 {
		writes = append(writes, plan.Restore{File: dir.File(desired.FileSubtree), Value: subtreeWords(handed, nil)})
	}
	return writes
}

// restores gives what a directory of ours holds, at this point of the plan, in the files of the rows
// picked, as the writes that bring it from a fresh directory's values to these.
func (w *writer) restores(dir cgroup.Dir, pick func(*knob.Row) bool) []plan.Restore {
	var changes []knob.Change
	for _, row := range w.Desired.Rows[dir.Hierarchy] {
		if !pick(row) {
			continue
		}
		for _, on := range w.Present(dir, row) {
			v := desired.ValueAt(row, on)
			text, written := w.written[v.Target(dir)]
			if !written {
				text = w.Now(dir, v)
			}
			from := row.Default
			if row.Inherits {
				from = current.NotKnown
			}
			changes = append(changes, knob.Change{Row: row, On: on, From: from, To: row.Parse(text)})
		}
	}
	var writes []plan.Restore
	for _, c := range knob.Sequence(changes) {
		writes = append(writes, plan.Restore{File: desired.ValueAt(c.Row, c.On).In(dir), Value: c.To})
	}
	return writes
}

// finalWide is why an undo writes the CPUs or nodes of the directory above instead of the empty list.
const finalWide = "the kernel takes no empty list back while processes are inside (ENOSPC); the undo names the same " +
	"by number"

// writeStep describes one write with its reason.
func (w *writer) writeStep(dir cgroup.Dir, row *knob.Row, on, from, to string) plan.Step {
	step := plan.Step{
		Change: change.Of(desired.ValueAt(row, on).Target(dir), from, to), Group: w.GroupOf(dir), Setting: row.Keys[0],
		Final: network.FinalClass(w.In.Facts, row, to),
	}
	if from == current.NotKnown {
		step.Old, step.Undo = "", ""
	}
	if w.IsNew[dir] {
		step.Old = ""
	} else if desired.IsWide(row) && from == "" {
		step.Undo, step.Final = w.OuterSet(dir, row), finalWide
	}
	if step.Undo != "" {
		step.Undo = row.Parse(step.Undo)
	}
	if !row.Loosens(from, to) || row.Risk == knob.RiskMigrate {
		step.Risk = row.Risk
	}
	if w.IsNew[dir] {
		step.Risk = knob.RiskNone // nobody is in it yet
	}
	v, asked := w.Find(dir, row, on)
	switch {
	case asked && v.Text == to:
		step.Setting = v.Setting.Key
		step.Reason = plan.Reason(v.Setting)
	case asked && row.Budget():
		step.Setting = v.Setting.Key
		step.Reason = "on the way to " + row.Human(v.Text) +
			": less first, so that those who share the limit never have more than it"
	case asked:
		step.Setting = v.Setting.Key
		step.Reason = "on the way to " + row.Human(v.Text) + ": the kernel refuses the direct way"
	case w.IsObsolete[dir]:
		step.Reason = "the group goes away, and the one above it must not be below it until then"
	default:
		step.Reason = fmt.Sprintf("%s is no longer asked for", row.Keys[0])
	}
	if unit, set := w.properties(dir, row, step.File().Key, to); len(set) > 0 {
		step.Unit, step.Do, step.Undo = unit, systemd.Assigned(set), systemd.Assigned(unset(w, dir, row))
	} else if counts := countsBy(w, dir, row); counts != "" {
		step.Unit = w.Desired.Layout.Unit(dir)
		step.Do = systemd.Assigned([]systemd.Assignment{{Name: counts, Text: "yes"}})
		step.Undo = systemd.Assigned([]systemd.Assignment{{Name: counts, Text: "no"}})
	}
	return step
}

// writer plans writes to files of directories, and with them what only counts beside them.
type writer struct {
	*members
	dropped map[cgroup.Dir][]string  // controllers that steps so far take away from the children
	written map[change.Target]string // what the writes so far have put there
}

// subtreeWords is a write to cgroup.subtree_control: "+cpu -io".
func subtreeWords(add, remove []string) string {
	return strings.Join(append(signed("+", add), signed("-", remove)...), " ")
}

// signed are controllers as the files of cgroup2 name them, with a sign before each.
func signed(sign string, controllers []string) []string {
	words := make([]string, len(controllers))
	for i, c := range controllers {
		words[i] = sign + host.V2Name(c)
	}
	return words
}

// properties are those of its unit by which a value of a directory is set; none where it is written to the file.
func (w *writer) properties(dir cgroup.Dir, row *knob.Row, key, to string) (unit string, set []systemd.Assignment) {
	u, ok := w.Desired.Layout.KnobUnit(dir)
	if !ok || row.PerDevice && w.Desired.MovesDown(key) {
		return "", nil
	}
	told := func(file string) (devices []string, now string) {
		rows := w.Desired.Rows[dir.Hierarchy]
		i := slices.IndexFunc(rows, func(r *knob.Row) bool { return r.File == file })
		if i < 0 { // not on this host
			return nil, ""
		}
		return w.told(dir, rows[i])
	}
	devices := func(file string) []string { list, _ := told(file); return list }
	set, _ = row.Properties(u, devices, func(file, device string) string {
		if file == row.File && device == key {
			return to
		}
		for _, v := range w.Desired.Values[dir] {
			if v.File == file && v.Key == device {
				return v.Text
			}
		}
		if device != "" {
			_, now := told(file)
			return row.Line(now, device) // left as it is
		}
		return w.Fallback(dir, file)
	})
	return u.Name, set
}

// countsBy is the switch of a unit that has systemd make its directory on v1, "" where that is there: a service that no
// setting of the controller is known of has none, and what is written by file needs one.
func countsBy(w *writer, dir cgroup.Dir, row *knob.Row) string {
	_, there := w.Observed.Dirs[dir]
	if there || row.Version != 1 || w.Desired.Layout.Governed[dir].Unit == "" {
		return ""
	}
	switches := map[string]string{"blkio": "IOAccounting", "cpu": "CPUAccounting", "memory": "MemoryAccounting"}
	return switches[row.Controller]
}

// unset are the properties that give a directory back what it has now; none for a new one, which goes with its unit.
func unset(w *writer, dir cgroup.Dir, row *knob.Row) []systemd.Assignment {
	u, _ := w.Desired.Layout.KnobUnit(dir)
	if w.IsNew[dir] {
		return nil
	}
	observed := w.Observed.Dirs[dir]
	set, _ := row.Properties(u,
		func(file string) []string { return slices.DeleteFunc(row.Devices(observed[file]), w.Desired.MovesDown) },
		func(file, device string) string {
			text, ok := observed[file]
			switch {
			case !ok:
				return w.Fallback(dir, file)
			case device != "":
				return row.Line(text, device)
			}
			return text
		})
	return set
}

// told lists the devices for which systemd is told of a row of a unit's directory, and gives what the file holds now:
// those with a limit, and those whose limit is left as it is.
func (w *writer) told(dir cgroup.Dir, row *knob.Row) (devices []string, now string) {
	for _, v := range w.Desired.Values[dir] {
		if v.File == row.File && row.PerDevice && !w.Desired.MovesDown(v.Key) {
			devices = append(devices, v.Key)
		}
	}
	now = w.Observed.Dirs[dir][row.File]
	if w.Leaves(dir, row) {
		for _, on := range row.Devices(now) {
			if !slices.Contains(devices, on) && !w.Desired.MovesDown(on) {
				devices = append(devices, on)
			}
		}
	}
	return devices, now
}
