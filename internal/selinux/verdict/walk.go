package verdict

import (
	"maps"
	"path"
	"slices"

	"bulkhead/internal/selinux/avc"
)

var fileClasses = []string{"file", "dir", "lnk_file", "sock_file", "fifo_file", "chr_file", "blk_file"}

// walker is a process of a domain.
type walker struct {
	source, comm string
	pid          int
}

// walk is what one looked at right below "/", and the types that this has.
type walk struct{ entries, types map[string]bool }

// walks are processes that look at all that is right in "/", as a shell does with a pattern such as /*/ that is not
// quoted.
type walks map[walker]*walk

// leastTypes are how many types what one looks at has. Fewer are directories that somebody has made there.
const leastTypes = 3

// walksOf finds them. One that does more than look at something of such a type needs it: it is none.
func walksOf(denials []avc.Denial) walks {
	all := walks{}
	for _, d := range denials {
		if who := walkerOf(d); glances(d) && path.Dir(d.Path) == "/" && d.Path != "/" {
			if all[who] == nil {
				all[who] = &walk{entries: map[string]bool{}, types: map[string]bool{}}
			}
			all[who].entries[d.Path], all[who].types[d.Target.Type] = true, true
		}
	}
	maps.DeleteFunc(all, func(_ walker, w *walk) bool { return len(w.types) < leastTypes })
	for _, d := range denials {
		if w := all[walkerOf(d)]; w != nil && w.types[d.Target.Type] && !glances(d) {
			delete(all, walkerOf(d))
		}
	}
	return all
}

func walkerOf(d avc.Denial) walker { return walker{d.Source.Type, d.Comm, d.PID} }

// glances says whether a denial is of one that looks whether a file is there, or goes by it.
func glances(d avc.Denial) bool {
	if d.Comm == "" || d.PID == 0 || d.User || d.Target.Domain() || !slices.Contains(fileClasses, d.Class) {
		return false
	}
	may := []string{"getattr"}
	switch d.Class {
	case "dir":
		may = append(may, "search")
	case "lnk_file":
		may = append(may, "read")
	}
	return !slices.ContainsFunc(d.Permissions, func(p string) bool { return !slices.Contains(may, p) })
}

// blames says whether a denial is of a walk.
func (all walks) blames(d avc.Denial) bool {
	w := all[walkerOf(d)]
	return w != nil && w.types[d.Target.Type] && glances(d)
}
