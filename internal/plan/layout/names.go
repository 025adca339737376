package layout

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Names tells the directories and units of our groups from all others by their names. The zero value is the default:
// outermost groups stand side by side at the top of each hierarchy, in "/bulkhead.mysql3306" or
// "/bulkhead.mysql3306.slice".
type Names struct {
	// Root is the name of a root group of ours above all groups; "" when there is none.
	Root string
	// Former are the values of Root that trees of ours were made with which are still there. A plan brings their
	// groups over, and a release lifts them.
	Former []string
}

// each yields the name in force first, and then the former ones.
func (n Names) each(yield func(root string) bool) {
	if !yield(n.Root) {
		return
	}
	for _, root := range n.Former {
		if root != n.Root && !yield(root) {
			return
		}
	}
}

// String lists what directories at the top are called: "bulkhead.* or ora".
func (n Names) String() string {
	var all []string
	for root := range n.each {
		if name := cmp.Or(root, unitname.TopPrefix+"*"); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, " or ")
}

// GroupOfUnit gives the group that a unit of ours stands for, as systemd.GroupOf.
func (n Names) GroupOfUnit(unit string) (group string, ok bool) {
	for root := range n.each {
		if group, ok = unitname.GroupOf(root, unit); ok {
			return group, true
		}
	}
	return "", false
}

// IsKeeperUnit says whether a unit keeps the loose processes of a group.
func (n Names) IsKeeperUnit(unit string) bool {
	group, ok := n.GroupOfUnit(unit)
	return ok && group != RootGroup && unitname.TypeOf(unit) == "service"
}

// IsRun says whether a unit is the scope that `run` made around a command.
func (n Names) IsRun(unit string) bool {
	for root := range n.each {
		if unitname.IsRun(root, unit) {
			return true
		}
	}
	return false
}

// RunDir gives the directory of the scope of `run` in which a path lies, which may be it; "" when it is in none.
func (n Names) RunDir(dir string) string {
	for at := dir; at != "/" && at != "." && at != ""; at = path.Dir(at) {
		if n.IsRun(path.Base(at)) {
			return at
		}
	}
	return ""
}

// UnitDir gives the directory and the name of the service or scope in which systemd has a process. Processes of our
// own tree, commands of `run` among them, and of users' sessions are loose: nobody loses a limit or an end when they
// are moved.
func (n Names) UnitDir(p *procfs.Process) (dir, unit string, ok bool) {
	at := UnitPath(p)
	if strings.HasPrefix(at, "/user.slice/") {
		return "", "", false
	}
	rest := strings.TrimPrefix(at, "/")
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		dir += "/" + name
		if kind := unitname.TypeOf(name); kind != "service" && kind != "scope" {
			continue
		}
		if name == "init.scope" || n.IsKeeperUnit(name) || n.IsRun(name) {
			return "", "", false
		}
		return dir, name, true
	}
	return "", "", false
}

// IsKeeper says whether a process is the one that holds a keeper's unit.
func (n Names) IsKeeper(p *procfs.Process) bool { return n.IsKeeperDir(UnitPath(p)) }

// IsKeeperDir says whether a directory is that of a keeper's own process: the unit's, or since systemd 254 one in it.
func (n Names) IsKeeperDir(dir string) bool {
	if path.Base(dir) == systemd.KeeperSubgroup {
		dir = path.Dir(dir)
	}
	return n.IsKeeperUnit(path.Base(dir))
}

// slice is the directory of a group's slice.
func (n Names) slice(group string) (string, error) {
	name, err := unitname.SliceName(n.Root, group)
	if err != nil {
		return "", err
	}
	return unitname.SliceDir(name)
}

// Dir is where a group lies in a hierarchy that systemd leaves alone; "" for a root group that is not there.
func (n Names) Dir(group string) string {
	switch {
	case n.Root != "":
		return path.Join("/", n.Root, group)
	case group == RootGroup:
		return ""
	}
	return "/" + unitname.TopPrefix + group
}

// IsTop says whether a directory at the top of a hierarchy, by its name, is one of ours: a root group or an outermost
// group.
func (n Names) IsTop(name string) bool {
	for root := range n.each {
		if root == "" && strings.HasPrefix(name, unitname.TopPrefix) {
			return true
		}
		if group, ok := unitname.GroupOf(root, name); name == root && root != "" || ok && group == RootGroup {
			return true
		}
	}
	return false
}

// GroupOf gives the group that a directory of ours belongs to, in a hierarchy that systemd leaves alone.
func (n Names) GroupOf(dir string) (group string, ok bool) {
	for root := range n.each {
		if root != "" {
			group, ok = Below("/"+root, dir)
		} else if group, ok = strings.CutPrefix(dir, "/"+unitname.TopPrefix); group == "" {
			ok = false
		}
		if !ok {
			continue
		}
		if path.Base(group) == Leaf {
			group = path.Dir(group)
		}
		if group == "." {
			group = RootGroup
		}
		return group, true
	}
	return "", false
}

// groupOfSlice gives the group that a directory below a slice of ours belongs to. What others made in a slice of ours
// belongs to the slice's group.
func (n Names) groupOfSlice(dir string) (group string, ok bool) {
	for name := range strings.SplitSeq(strings.TrimPrefix(dir, "/"), "/") {
		inner, ours := n.GroupOfUnit(name)
		if !ours || unitname.TypeOf(name) != "slice" {
			break
		}
		group, ok = inner, true
	}
	return group, ok
}

// Anchor is the directory of the slice that holds controllers beside a unit, "" for one at the top.
func (n Names) Anchor(unit string) string {
	above := path.Dir(unit)
	name, ok := strings.CutSuffix(path.Base(above), ".slice")
	if !ok {
		return ""
	}
	return path.Join(above, name+"-"+unitname.Escape(cmp.Or(n.Root, programName))+".slice")
}

// programName names what is ours alone where there is no root group to name it after.
const programName = "bulkhead"

// IsAnchor says whether a directory is that of a slice of ours beside a unit that is to start elsewhere.
func (n Names) IsAnchor(dir string) bool {
	if path.Dir(dir) == "/" {
		return false
	}
	for root := range n.each {
		if (Names{Root: root}).Anchor(path.Join(path.Dir(dir), "x")) == dir {
			return true
		}
	}
	return false
}

// Keepers lists the directories of keepers whose process lives.
func (n Names) Keepers(processes []procfs.Process) map[string]bool {
	keepers := map[string]bool{}
	for i := range processes {
		if !n.IsKeeper(&processes[i]) || processes[i].Exited() {
			continue
		}
		dir := UnitPath(&processes[i])
		if path.Base(dir) == systemd.KeeperSubgroup {
			dir = path.Dir(dir)
		}
		keepers[dir] = true
	}
	return keepers
}
