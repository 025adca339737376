package layout

import (
	"maps"
	"path"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/systemd/unitname"
)

// layUnits lays a hierarchy that systemd owns: a slice for each group, and in it a service whose sub-group holds the
// group's loose processes. In a flat one, where a limit holds nothing below its directory, that sub-group carries the
// limits.
// Without members nobody is moved in this hierarchy, and systemd makes the rest by itself.
func (l *Layout) layUnits(h host.Hierarchy, t *Forest, members bool) error {
	for _, n := range t.Nodes {
		if !l.Has(n.Path) {
			continue
		}
		slice, err := l.Names.slice(n.Path)
		if theirs, ok := t.slices[n.Path]; ok {
			slice, err = unitname.SliceDir(theirs)
			l.slices[slice] = n.Path
		}
		if err != nil {
			return err
		}
		l.own[n.Path][h.ID] = l.put(h.ID, n.Path, slice)
		if n.Path == RootGroup || classify.IsOthers(n.Path) { // nobody is brought there
			continue
		}
		keeper, err := unitname.KeeperName(l.Names.Root, n.Path)
		if err != nil {
			return err
		}
		l.put(h.ID, n.Path, path.Join(slice, keeper))
		if members {
			l.member[n.Path][h.ID] = l.put(h.ID, n.Path, path.Join(slice, keeper, Members))
		}
	}
	return nil
}

// shareMembers settles where processes sit in a flat hierarchy: with the nearest group, itself or above it, that has
// a limit there; nobody else is in it at all.
func (l *Layout) shareMembers(hierarchy string, t *Forest, asked map[string]asking) {
	own := make(map[string]cgroup.Dir, len(t.Nodes))
	for _, n := range t.Nodes {
		own[n.Path] = l.member[n.Path][hierarchy]
		delete(l.member[n.Path], hierarchy)
	}
	for _, n := range t.Nodes {
		for m := n; m != nil && m.Path != RootGroup; m = m.Parent {
			if asked[m.Path].any {
				l.member[n.Path][hierarchy] = own[m.Path]
				break
			}
		}
	}
}

func (l *Layout) put(hierarchy, group, at string) cgroup.Dir {
	d := cgroup.Dir{Hierarchy: hierarchy, Path: at}
	l.dirs = append(l.dirs, d)
	l.Owner[d] = group
	return d
}

// layGoverned adds the directories of governed units. They are never made or removed.
//
// systemd reckons a unit that is to start in another slice among that slice's as soon as it has read the drop-in, and
// hands controllers down for it there, although the unit runs on where it is: there they would go, and its limits with
// them (measured on 252: cpu.weight of the running unit is no more). So on cgroup v2 an empty slice beside the unit
// holds them until it starts again.
func (l *Layout) layGoverned(h host.Hierarchy) {
	hierarchy := h.ID
	for _, dir := range slices.Sorted(maps.Keys(l.systemd.Governed)) {
		g := l.systemd.Governed[dir]
		if _, there := l.own[g.Group]; !there {
			continue
		}
		if at := l.Names.Anchor(dir); h.Version == 2 && !g.Inside && at != "" &&
			(l.Adopts[g.Group] || l.systemd.Adopted[g.Unit] != "") {
			if d := (cgroup.Dir{Hierarchy: hierarchy, Path: at}); !l.Anchors[d] {
				l.Anchors[l.put(hierarchy, RootGroup, at)] = true
			}
		}
		l.Governed[l.put(hierarchy, g.Group, dir)] = g
	}
}
