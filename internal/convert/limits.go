package convert

import (
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// Live is one control group of a running host with the limits that it has.
type Live struct {
	Path   string // "/mysql3306/backup", the same in every hierarchy
	Files  []LiveFile
	Owners []policy.Owner // beside root, where somebody is
	// Processes are what runs in it now, for a comment.
	Processes string
}

// LiveFile is a file that holds a limit.
type LiveFile struct {
	Path string // absolute
	Name string
	Text string
}

// LiveUnit is a unit of systemd with the properties that limit it, as a unit file has them: "MemoryMax=1073741824".
type LiveUnit struct {
	Name  string
	Lines []string
}

// Limits makes a policy of the limits that are in force on a host. It never fails for what is there: a value that it cannot
// read is left, and said.
func Limits(groups []Live, units []LiveUnit) *Result {
	r := &report{}
	d := newDraft(r)
	d.head = append(d.head, "Made by bulkhead import limits. Say with match: which processes belong to each group.")
	for _, l := range groups {
		d.live(l)
	}
	im := &sliceImport{draft: d, bySlice: map[string]*group{}, done: map[string]bool{}, rank: map[string]int{}}
	for _, u := range units {
		im.liveUnit(u)
	}
	d.compareShares(im.both)
	d.settleWeights(&d.root)
	for _, p := range r.problems {
		r.left = append(r.left, Remark{Pos: p.Pos, What: "value", Why: p.Msg, Instead: p.Hint})
	}
	r.problems = nil
	if len(d.root.children) == 0 {
		r.note("no control group that bulkhead has not made has a limit, and no unit")
	}
	res, _ := r.result(d, nil)
	return res
}

func (d *draft) live(l Live) {
	at := policy.Pos{File: l.Path}
	for element := range strings.SplitSeq(strings.Trim(l.Path, "/"), "/") {
		if why := policy.ReservedName(element); why != "" && element != "db" {
			d.leave(at, "its manager governs it", "group "+l.Path, "%s", why)
			return
		}
	}
	g := d.group(l.Path, at)
	if g == nil || !d.describe(g, at, clean(l.Processes)) {
		return
	}
	p := params{draft: d, g: g}
	for _, f := range l.Files {
		p.all = append(p.all, param{f.Name, f.Text, policy.Pos{File: f.Path}})
	}
	p.carry()
	for _, o := range l.Owners {
		g.owner = append(g.owner, raw{key: "owner", text: ownerFlow(o)})
	}
}

// liveUnit reads the properties of a unit as if they stood in its file.
func (im *sliceImport) liveUnit(l LiveUnit) {
	section := "Slice"
	if systemd.TypeOf(l.Name) != "slice" {
		section = "Service"
	}
	u := &unitFile{name: l.Name, at: policy.Pos{File: l.Name}}
	for _, line := range l.Lines {
		if name, value, ok := strings.Cut(line, "="); ok && value != "" {
			u.lines = append(u.lines, assignment{section, name, value, policy.Pos{File: l.Name}})
		}
	}
	own := &group{}
	im.limits(own, u, section)
	if len(own.settings) == 0 && own.shares == nil {
		return
	}
	if section == "Slice" {
		if g := im.ofSlice(l.Name, u.at); g != nil {
			g.settings, g.shares, g.from = own.settings, own.shares, from(u.at, "")
		}
		return
	}
	g := im.draft.group(strings.TrimSuffix(l.Name, "."+systemd.TypeOf(l.Name)), u.at)
	if g == nil || !im.describe(g, u.at, from(u.at, "")) {
		return
	}
	g.settings, g.shares = slices.Clone(own.settings), own.shares
	im.claim(g, raw{key: "match", text: matchFlow(policy.Match{Unit: l.Name})}, l.Name)
}
