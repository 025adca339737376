package verify

import (
	"bulkhead/internal/cgroup"
	"maps"
	"slices"
	"strings"
)

// residence is the directory in which the group's processes really are, if that is the one that carries its limits or
// lies below it; else the one in which they ought to be.
func (v *Snapshot) residence(group string, own cgroup.Dir) cgroup.Dir {
	ought := own
	if d, ok := v.Layout.Member(group)[own.Hierarchy]; ok && (d == own || strings.HasPrefix(d.Path, own.Path+"/")) {
		ought = d
	}
	return v.mostly(group, ought, own)
}

// mostly is the directory at or below own in which most of the group's processes are; ought without any.
func (v *Snapshot) mostly(group string, ought, own cgroup.Dir) cgroup.Dir {
	in := map[string]int{}
	for _, m := range v.Members {
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
