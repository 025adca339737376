package snapshot

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd/unitname"
)

// ExistingOptions say what is looked for by Existing.
type ExistingOptions struct {
	Facts *host.Facts
	// Names says what is ours, given the root groups that were made in this boot.
	Names       func(made []string) layout.Names
	Pins, Ended []state.Pin
}

// Existing takes a snapshot whose groups are the directories that are there, whatever a policy says, for a release.
// Where systemd does not answer it goes by what is recorded of units. Interfaces adds what there is on interfaces.
func (r *Reader) Existing(ctx context.Context, o ExistingOptions) (*Snapshot, error) {
	s := &Snapshot{
		Facts: o.Facts, Tree: r.Tree(o.Facts), homes: homesOf(o.Pins, o.Ended), procs: r.Host.Proc,
		records: r.read(o.Facts),
	}
	s.Names = o.Names(r.roots(s.records))
	s.Policy = &policy.Policy{Version: 1, Host: policy.HostPart{Root: s.Names.Root}}
	procs, err := r.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	s.Observed.Processes = procs
	mute := func() {
		if s.Facts.Systemd && s.Systemd == nil {
			s.Systemd = r.muteUnits(s.records)
		}
	}
	r.observeUnits(ctx, s, true)
	mute()
	s.Layout = layout.New(s.Facts, s.Names, layout.NewForest(s.Facts, s.Policy.Host, nil), s.Systemd)
	if err := r.observe(ctx, s); err != nil {
		return nil, err
	}
	mute() // it has fallen silent meanwhile
	s.Classified.Groups = groupsOf(s)
	return s, nil
}

// Owned is the snapshot with every directory of a name of ours taken as ours.
func (s *Snapshot) Owned() *Snapshot {
	next := *s
	next.Observed.Foreign = map[cgroup.Dir]bool{}
	return &next
}

// Interfaces gives the snapshot of a release with what there is on the interfaces that groups have to do with;
// everything looks at all of them, as the record may be lost.
func (r *Reader) Interfaces(s *Snapshot, everything bool) (*Snapshot, error) {
	next := *s
	if err := r.observeNetwork(&next, true, everything); err != nil {
		return nil, err
	}
	return &next, nil
}

// groupsOf reads the group names back from the directories below our root.
func groupsOf(v *Snapshot) []classify.Group {
	names := map[string]bool{}
	for d := range v.Observed.Dirs {
		if name, ok := v.Layout.Group(d); ok && name != layout.RootGroup {
			names[name] = true
		}
	}
	if v.Systemd != nil {
		for _, k := range v.Systemd.Kept {
			names[k.Group] = true
		}
	}
	var groups []classify.Group
	for name := range names {
		parent := path.Dir(name)
		if parent == "." {
			parent = ""
		}
		groups = append(groups, classify.Group{Path: name, Parent: parent})
	}
	slices.SortFunc(groups, func(a, b classify.Group) int { return strings.Compare(a.Path, b.Path) })
	for i, g := range groups {
		for _, other := range groups {
			groups[i].Inner = groups[i].Inner || other.Parent == g.Path
		}
	}
	return groups
}

// rootOver reads the name of the root group back from a directory that bulkhead made: from the root group's own, or
// from a keeper's, which may be in a slice of an administrator's. Other directories tell nothing: with an empty slice
// beside a unit of system.slice that slice would count as ours.
func rootOver(d cgroup.Dir, kept map[string]layout.Kept) (root string, ok bool) {
	names := strings.Split(strings.TrimPrefix(d.Path, "/"), "/")
	if top := names[0]; len(names) == 1 || isOutermost(top) {
		for _, k := range kept {
			if k.Dir == d.Path {
				return "", false // an administrator's slice that was not there yet
			}
		}
		return rootOf(top), true
	}
	for _, name := range names {
		if isOutermost(name) && unitname.TypeOf(name) == "service" {
			return "", true
		}
		if prefix, _, keeper := strings.Cut(name, "-"); keeper && unitname.TypeOf(name) == "service" {
			root, err := unitname.Unescape(prefix)
			return root, err == nil
		}
	}
	return "", false
}

// isOutermost says whether a name at the top of a hierarchy is that of an outermost group. The slice of the root group
// of earlier versions begins as they do.
func isOutermost(name string) bool {
	return strings.HasPrefix(name, unitname.TopPrefix) && name != state.FormerRoot+".slice"
}

// rootOf reads the name of a root group back from its directory's; "" for an outermost group that has none above it.
func rootOf(top string) string {
	if isOutermost(top) {
		return ""
	}
	if root, ok := strings.CutSuffix(top, ".slice"); ok {
		if name, err := unitname.Unescape(root); err == nil {
			return name
		}
	}
	return top
}

// roots names the root groups that the journal says we made in this boot; "" stands for groups without one.
func (r *Reader) roots(known records) []string {
	if known.wrong != nil {
		r.Log.Warn("looking for root groups without the record of units", "err", known.wrong)
	}
	found := map[string]bool{}
	for d := range known.made {
		if root, ok := rootOver(d, known.units); ok {
			found[root] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Roots names the root groups that were made in this boot, as far as the state directory knows; "" stands for groups
// without one.
func (r *Reader) Roots(f *host.Facts) []string { return r.roots(r.read(f)) }
