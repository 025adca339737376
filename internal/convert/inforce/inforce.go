// Package inforce makes a policy of the limits that are in force on a host: those of control groups, and those of
// systemd's units. Who calls Import has read them.
package inforce

import (
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

// Group is one control group of a running host with the limits that it has.
type Group struct {
	Path   string // "/mysql3306/backup", the same in every hierarchy
	Files  []File
	Owners []policy.Owner // beside root, where somebody is
	// Processes are what runs in it now, for a comment.
	Processes string
}

// File is a file that holds a limit.
type File struct {
	Path string // absolute
	Name string
	Text string
}

// Import makes a policy of the limits that are in force on a host. It never fails for what is there: a value that it
// cannot read is left, and said.
func Import(groups []Group, live []unitfile.LiveUnit) *convert.Result {
	r := &convert.Report{}
	d := convert.NewDraft(r)
	d.Head = append(d.Head, "Made by bulkhead import limits. Say with match: which processes belong to each group.")
	for _, l := range groups {
		importGroup(d, l)
	}
	unitfile.InForce(d, live)
	d.SettleWeights(&d.Root)
	for _, p := range r.Problems {
		r.Left = append(r.Left, convert.Remark{Pos: p.Pos, What: "value", Why: p.Msg, Instead: p.Hint})
	}
	r.Problems = nil
	if len(d.Root.Children) == 0 {
		r.Note("no control group that bulkhead has not made has a limit, and no unit")
	}
	res, _ := r.Result(d, nil)
	return res
}

// importGroup adds one group with what its files hold.
func importGroup(d *convert.Draft, l Group) {
	at := policy.Pos{File: l.Path}
	for element := range strings.SplitSeq(strings.Trim(l.Path, "/"), "/") {
		if why := policy.ReservedName(element); why != "" && element != "db" {
			d.Leave(at, "its manager governs it", "group "+l.Path, "%s", why)
			return
		}
	}
	g := d.Group(l.Path, at)
	if g == nil || !d.Describe(g, at, convert.Clean(l.Processes)) {
		return
	}
	p := kernelfile.Params{Draft: d, G: g}
	for _, f := range l.Files {
		p.All = append(p.All, kernelfile.Param{File: f.Name, Text: f.Text, At: policy.Pos{File: f.Path}})
	}
	p.Carry()
	for _, o := range l.Owners {
		g.Owner = append(g.Owner, convert.Raw{Key: "owner", Text: convert.OwnerFlow(o)})
	}
}
