// Package unitfile reads and writes policies as units of systemd: slices, and services that have limits or a slice.
//
// Import makes a policy of unit files and drop-ins, InForce adds the limits that running units have to a draft, and
// Export writes a policy as files for /etc/systemd/system. What systemd has no setting for goes along in a section that
// it does not read, so that an import of an export is the same policy.
package unitfile

import (
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd/unitname"
)

// Import imports unit files and drop-ins of slices, and of services that have limits or a slice. The error is
// policy.Problems.
func Import(sources []policy.Source) (*convert.Result, error) {
	r := &convert.Report{}
	d := convert.NewDraft(r)
	d.Head = append(d.Head, "Made by bulkhead import slice; a comment says which line each setting comes from.")
	im := newSliceImport(d)
	all := units(r, sources)
	for _, u := range all {
		im.exported(u)
	}
	for _, u := range all {
		if unitname.TypeOf(u.name) == "slice" {
			im.slice(u)
		}
	}
	for _, limited := range []bool{false, true} { // groups of slices are there before those of units beside them
		for _, u := range all {
			if unitname.TypeOf(u.name) != "slice" {
				im.member(u, limited)
			}
		}
	}
	convert.Reorder(&d.Root, im.rank)
	compareShares(d, im.both)
	d.SettleWeights(&d.Root)
	if len(d.Root.Children) == 0 && len(r.Problems) == 0 {
		r.Note("there is no slice, and no service with limits, in what was read")
	}
	return r.Result(d, sources)
}

// slice makes the group of a slice.
func (im *sliceImport) slice(u *unitFile) {
	if im.done[u.name] {
		return
	}
	switch {
	case u.name == "-.slice":
		im.Leave(u.at, "", u.name, "it holds every unit of the host, and bulkhead governs its own groups only")
		return
	case unitname.CheckName(u.name) != nil:
		im.Leave(u.at, "name the file as the slice", u.name, "systemd has no slice of this name")
		return
	}
	g := im.ofSlice(u.name, u.at)
	if g == nil || !im.Describe(g, u.at, convert.From(u.at, u.name)) {
		return
	}
	im.limits(g, u, "Slice")
}

// sections are where a unit that is no slice has its limits, by type.
var sections = map[string]string{"service": "Service", "scope": "Scope", "socket": "Socket", "mount": "Mount",
	"swap": "Swap"}

// member places a unit that is no slice: with limits of a group's, where they are asked for, as a group of its own,
// else into the group of its slice.
func (im *sliceImport) member(u *unitFile, limited bool) {
	section := sections[unitname.TypeOf(u.name)]
	slice, placed := u.last("Slice")
	switch {
	case section == "" && !limited:
		im.Leave(u.at, "", u.name, "a unit of this type has no processes")
		return
	case section == "" || limited != u.limits(section):
		return
	}
	own := &convert.Group{}
	count := len(im.Left)
	im.limits(own, u, section)
	switch {
	case placed && strings.Contains(slice.value, "%"):
		im.Leave(slice.at, "import what an instance has in force, or name its slice", slice.what(),
			"systemd makes a slice for each instance, and names it when the instance starts")
		placed = false
	case placed && (unitname.CheckName(slice.value) != nil || unitname.TypeOf(slice.value) != "slice"):
		im.Fail(slice.at, "write the name of a slice, such as scylla-server.slice", "Slice= cannot be %q",
			convert.Clean(slice.value))
		return
	}
	entry := im.entry(u, section)
	switch {
	case len(own.Settings) == 0 && own.Shares == nil && !placed:
		if len(im.Left) == count {
			im.Leave(u.at, "", u.name, "it has neither limits nor a Slice=")
		}
	case !limited && placed:
		im.inSlice(u, own, slice, entry)
	default:
		im.beside(u, own, entry)
		if placed {
			im.Leave(slice.at, "", slice.what(), "%s has limits of its own, and so is a group of its own beside %s",
				u.name, slice.value)
		}
	}
}

// entry is how a group matches a unit; a template all its instances but those that have files of their own.
func (im *sliceImport) entry(u *unitFile, section string) convert.Raw {
	if strings.Contains(u.name, "@.") && u.limits(section) {
		im.Change(u.at, u.name, "each instance has these limits for itself in systemd, and here they are of all "+
			"instances together; import the unit of an instance for one of its own")
	}
	match := policy.Match{Unit: unitPattern(u.name)}
	for _, name := range u.instances {
		match.Except = append(match.Except, policy.Match{Unit: name})
	}
	return convert.Raw{Key: "match", Text: convert.MatchFlow(match),
		From: convert.From(u.at, u.name)}
}

// limits says whether a unit has a limit of a group's, and not of its processes alone (OOMScoreAdjust=).
func (u *unitFile) limits(section string) bool {
	return slices.ContainsFunc(u.lines, func(a assignment) bool {
		last, counts := u.last(a.name)
		_, left := leftProperties[a.name]
		return a.section == section && counts && resource(a.name) && !left && last.value != "infinity"
	})
}

// inSlice puts a unit into the group of its slice. What is said of its processes is the group's, unless another unit
// of the slice says otherwise: then the unit is a group of its own.
func (im *sliceImport) inSlice(u *unitFile, own *convert.Group, slice assignment, entry convert.Raw) {
	g := im.ofSlice(slice.value, slice.at)
	if g == nil {
		return
	}
	score, _ := u.last("OOMScoreAdjust")
	kill, _ := u.last("OOMPolicy")
	said := [2]string{score.value, kill.value}
	if before, other := im.processes[g]; other && before != said {
		im.beside(u, own, entry)
		im.Leave(slice.at, "", slice.what(), "%s says of its processes what others in %s do not, and so is a group of "+
			"its own beside it", u.name, slice.value)
		return
	}
	im.processes[g] = said
	im.claim(g, entry, u.name)
	g.Join(own)
}

// beside makes a group of a unit, by its whole name where a slice has the short one.
func (im *sliceImport) beside(u *unitFile, own *convert.Group, entry convert.Raw) {
	name := strings.TrimSuffix(u.name, "."+unitname.TypeOf(u.name))
	if im.paths[name] {
		name = u.name
	}
	g := im.Draft.Group(name, u.at)
	if g == nil || !im.Describe(g, u.at, convert.From(u.at, u.name)) {
		return
	}
	g.Settings, g.Shares = own.Settings, own.Shares
	im.claim(g, entry, u.name)
}

// claim adds a unit to what a group matches.
func (im *sliceImport) claim(g *convert.Group, entry convert.Raw, unit string) {
	short := convert.MatchFlow(policy.Match{Unit: strings.TrimSuffix(unitPattern(unit), ".service")})
	known := im.claimed[g]
	if known == nil {
		known = map[string]bool{}
		for _, m := range g.Match {
			known[m.Text] = true
		}
		im.claimed[g] = known
	}
	if !known[entry.Text] && !known[short] {
		known[entry.Text] = true
		g.Match = append(g.Match, entry)
	}
}

// unitPattern is a unit's name as match takes it: of a template all its instances.
func unitPattern(name string) string {
	if before, after, ok := strings.Cut(name, "@."); ok {
		return before + "@*." + after
	}
	return name
}

// LiveUnit is a unit of systemd with the properties that limit it, as a unit file has them: "MemoryMax=1073741824".
type LiveUnit struct {
	Name  string
	Lines []string
}

// InForce adds the limits that units have to a draft.
func InForce(d *convert.Draft, all []LiveUnit) {
	im := newSliceImport(d)
	for _, u := range all {
		im.liveUnit(u)
	}
	compareShares(d, im.both)
}

// liveUnit reads the properties of a unit as if they stood in its file.
func (im *sliceImport) liveUnit(l LiveUnit) {
	section := "Slice"
	if unitname.TypeOf(l.Name) != "slice" {
		section = "Service"
	}
	u := &unitFile{name: l.Name, at: policy.Pos{File: l.Name}}
	for _, line := range l.Lines {
		if name, value, ok := strings.Cut(line, "="); ok && value != "" {
			u.lines = append(u.lines, assignment{section, name, value, policy.Pos{File: l.Name}})
		}
	}
	own := &convert.Group{}
	im.limits(own, u, section)
	if len(own.Settings) == 0 && own.Shares == nil {
		return
	}
	if section == "Slice" {
		if g := im.ofSlice(l.Name, u.at); g != nil {
			g.Settings, g.Shares, g.From = own.Settings, own.Shares, convert.From(u.at, "")
		}
		return
	}
	g := im.Draft.Group(strings.TrimSuffix(l.Name, "."+unitname.TypeOf(l.Name)), u.at)
	if g == nil || !im.Describe(g, u.at, convert.From(u.at, "")) {
		return
	}
	g.Settings, g.Shares = slices.Clone(own.Settings), own.Shares
	im.claim(g, convert.Raw{Key: "match", Text: convert.MatchFlow(policy.Match{Unit: l.Name})}, l.Name)
}

// compareShares reports where the older weights of units beside each other have another ratio than the newer ones.
func compareShares(d *convert.Draft, all []twoWeights) {
	first := map[string]twoWeights{}
	for _, two := range all {
		parent, err := unitname.ParentSlice(two.unit)
		if err != nil {
			parent = "system.slice"
		}
		other, beside := first[parent]
		if !beside {
			first[parent] = two
			continue
		}
		if two.weight*other.shares != other.weight*two.shares {
			d.Change(two.at, two.what, "gives way to CPUWeight=%d: against %s it says %.3g to 1, the weights %.3g to 1",
				two.weight, other.unit,
				float64(two.shares)/float64(other.shares), float64(two.weight)/float64(other.weight))
		}
	}
}
