package unitfile

import (
	"strings"

	"bulkhead/internal/convert"
)

func (im *sliceImport) exportedGroup(in *convert.Input, u *unitFile, a assignment) {
	key, flow, ok := cutKey(a.value)
	if !ok {
		im.Fail(a.at, "", "%s=: %q is nothing that an export carries along", a.name, convert.Clean(a.value))
		return
	}
	parent, g := in.ExactGroup(convert.CarriedAlong{Key: key, Text: flow, At: a.at})
	switch {
	case g == nil:
		return
	case g.Each != nil:
		im.Template(parent, g, a.at)
		return
	}
	name := strings.TrimPrefix(parent+"/"+g.Name, "/")
	to := im.Draft.Group(name, a.at)
	if to == nil || !im.Describe(to, a.at, convert.From(a.at, u.name)) {
		return
	}
	im.isSlice(u.name, to)
	if sliceLines(g).says(u) {
		im.Take(to, g, a.at)
		return
	}
	im.limits(to, u, "Slice")
	im.Complement(to, g, a.at)
}

// cutKey splits "group a/b: {…}".
func cutKey(text string) (key, flow string, ok bool) {
	key, flow, ok = strings.Cut(text, ": {")
	return key, "{" + flow, ok
}

// exported takes over what an export carried along in a unit.
func (im *sliceImport) exported(u *unitFile) {
	for _, a := range u.lines {
		if a.section != ownSection {
			continue
		}
		in := &convert.Input{Report: im.Report, File: a.at.File, Starts: []int{0}}
		im.done[u.name] = true
		switch a.name {
		case "Root": // holds the others, and is no group
		case "Order":
			for i, name := range strings.Fields(a.value) {
				im.rank[name] = i
			}
		case "Host", "Agent", "Schedules", "Guard", "Slo", "Snapshots":
			in.Top(im.Draft, convert.CarriedAlong{Key: strings.ToLower(a.name), Text: a.value, At: a.at})
		case "Template", "Group":
			im.exportedGroup(in, u, a)
		default:
			im.Fail(a.at, "known here: Group, Template, Order, Root, Host, Agent, Schedules, Guard, Slo and Snapshots",
				"%s= is nothing that an export carries along", convert.Clean(a.name))
		}
	}
}
