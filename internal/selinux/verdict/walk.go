package verdict

import (
	"bytes"
	"maps"
	"path"
	"slices"

	"bulkhead/internal/selinux/avc"
)

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

// walked says of denials of a walk what they come from.
func (j *judge) walked(blamed []avc.Denial) {
	w, comm := j.walks[walkerOf(blamed[0])], blamed[0].Comm
	j.because("%q looks at all that is right in /, and does no more there: it was denied %s", comm,
		some(slices.Sorted(maps.Keys(w.entries))))
	j.because("a shell does so with a pattern such as /*/ that is not quoted; a rule would be for nothing")
	var scripts []string
	for _, word := range j.log.Processes[blamed[0].PID].Command {
		if !path.IsAbs(word) || j.Files == nil {
			continue
		}
		if text, err := j.Files.Read(word); err == nil && isScript(text) {
			scripts = append(scripts, word)
		}
	}
	if len(scripts) == 0 {
		j.undecided("the script that %q runs: the log has no command line of it", comm)
	} else {
		j.because("it runs %s", join(scripts))
	}
	j.fix("nothing, where the case passes without a rule; else quote the pattern in the script")
}

func isScript(text []byte) bool { return bytes.HasPrefix(text, []byte("#!")) }
