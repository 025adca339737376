package desired

import (
	"fmt"
	"slices"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// own says who owns the files of each directory: as the policy asks, and where it no longer asks, root. Who may bring
// processes in owns the files for that where the group's processes are, and who may set limits the others.
func (d *State) own(h host.Hierarchy, o *plan.Observation) {
	for _, dir := range d.Layout.Dirs() {
		if dir.Hierarchy != h.ID {
			continue
		}
		group := d.Layout.Owner[dir]
		n := d.Forest.ByPath[group]
		if n == nil || d.Layout.Theirs(dir) || d.Layout.Anchors[dir] || group == layout.RootGroup {
			continue
		}
		if _, governed := d.Layout.Governed[dir]; governed {
			if len(n.Owner) > 0 {
				d.Notes = append(d.Notes, plan.Note{Group: group, Key: policy.KeyOwner,
					Text: fmt.Sprintf("%s: systemd owns the directory of its unit", dir), Partly: true})
			}
			continue
		}
		values := disown(o.Dirs[dir], h.Version)
		for _, owner := range n.Owner {
			for _, v := range ownerValues(owner, h.Version) {
				values = append(slices.DeleteFunc(values, func(old Value) bool { return old.File == v.File }), v)
			}
		}
		d.Values[dir] = append(d.Values[dir], values...)
	}
}

// ownerValues is what an owner means in a directory.
func ownerValues(o policy.Owner, version int) (values []Value) {
	add := func(file, mode string) {
		text := cgroup.Ownership{UID: o.UID, GID: o.GID, Mode: cgroup.Keep}
		if bits, ok := policy.Permissions(mode); ok {
			text.Mode = bits
		}
		values = append(values, Value{Row: knob.Ownership(file), File: file, Text: text.String(),
			Setting: policy.Setting{Key: policy.KeyOwner, Value: ownerWords(o), Pos: o.Pos}})
	}
	if o.Sets() {
		add(cgroup.OwnedDir, o.Directory)
		add(cgroup.OwnedRest, o.Mode)
	}
	if o.Enters() {
		for _, name := range cgroup.MemberFiles(version) {
			add(cgroup.OwnerOf(name), o.Mode)
		}
	}
	return values
}

// ownerWords is an owner as a reason names it.
type ownerWords policy.Owner

func (o ownerWords) String() string { return policy.Owner(o).String() }

// disown gives the files of a directory that somebody owns back to root.
func disown(have map[string]string, version int) (values []Value) {
	for _, file := range cgroup.OwnerFiles(version) {
		now := have[file]
		if now == "" {
			continue
		}
		if unowned := cgroup.Unowned(now); !cgroup.SameOwner(unowned, now) {
			values = append(values, Value{
				Row: knob.Ownership(file), File: file, Text: unowned,
				Setting: policy.Setting{Key: policy.KeyOwner, Value: ownerWords{},
					From: "no owner is asked for any more"},
			})
		}
	}
	return values
}
