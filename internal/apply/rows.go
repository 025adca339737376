package apply

import (
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
)

// unified is the ID of the cgroup v2 hierarchy; every other one is v1.
const unified = "unified"

// note takes a change of controllers, with the lists before and after, into account.
func (h handed) note(c journal.Change) {
	if c.Kind != cgroup.KindControllers {
		return
	}
	d := file(c).Dir
	before, after := strings.Fields(c.Old), strings.Fields(c.New)
	if h[d] == nil {
		h[d] = map[string]bool{}
	}
	for _, name := range before {
		if !slices.Contains(after, name) {
			delete(h[d], name)
		}
	}
	for _, name := range after {
		if !slices.Contains(before, name) {
			h[d][name] = true
		}
	}
}

// brings says whether a change is to a file that is there only since one of the changes noted.
func (h handed) brings(c journal.Change) bool {
	f, is := cgroup.FileOf(c.Target)
	if !is || c.Kind == cgroup.KindControllers || f.Path == "/" {
		return false
	}
	row := knob.RowOf(f)
	return row != nil && h[f.Parent()][row.Controller]
}
