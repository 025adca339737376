package apply

import (
	"strings"

	"bulkhead/internal/cgroup"
)

// ownersOf names what of a directory somebody beside root owns: the kernel forgets it with the directory.
func (n *run) ownersOf(d cgroup.Dir) (names []string) {
	version := 1
	if d.Hierarchy == unified {
		version = 2
	}
	for _, name := range cgroup.OwnerFiles(version) {
		text, err := n.Files.Read(d.File(name))
		if err != nil {
			continue // gone, or where owners are not known
		}
		for entry := range strings.SplitSeq(text, ", ") {
			if !strings.HasPrefix(entry, "0:0 ") && !strings.Contains(entry, " 0:0 ") {
				names = append(names, name)
				break
			}
		}
	}
	return names
}
