package apply

import (
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
)

// captureOwners reads what of a directory somebody beside root owns, as changes that only undoing needs: the kernel
// forgets it with the directory.
func (n *preparer) captureOwners(i int, s plan.Step) (before []journal.Change) {
	owners := n.Actuators[cgroup.KindOwner]
	if owners == nil {
		return nil
	}
	version := 1
	if s.Dir.Hierarchy == unified {
		version = 2
	}
	for _, name := range cgroup.OwnerFiles(version) {
		c := journal.Change{Seq: seq(i, phaseBefore), Group: s.Group}
		c.Target = s.Dir.File(name).Target()
		text, err := owners.Read(n.ctx, c.Addr)
		if err != nil {
			continue // gone, or where owners are not known
		}
		for entry := range strings.SplitSeq(text, ", ") {
			if !strings.HasPrefix(entry, "0:0 ") && !strings.Contains(entry, " 0:0 ") {
				c.Old, c.New, c.Undo = text, text, text
				before = append(before, c)
				break
			}
		}
	}
	return before
}
