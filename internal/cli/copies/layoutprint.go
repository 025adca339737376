package copies

import (
	"cmp"
	"io"
	"slices"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy"
	"bulkhead/internal/zfslayout"
)

// printLayoutPlan prints a plan for people.
func printLayoutPlan(out io.Writer, p *zfslayout.Plan) {
	render.Printf(out, "%s (%s) onto ZFS\n\n", p.Instance, p.Server)
	is := "there"
	if len(p.Pool.Create) > 0 {
		is = "to be made"
	}
	render.Printf(out, "pool %s, %s: %s; %s free, %s to copy\n\n", p.Pool.Name, is, cmp.Or(p.Pool.Made,
		"nothing known"),
		policy.Bytes(p.Pool.Free).Human(), policy.Bytes(p.Pool.Need).Human())
	printSets(out, p)
	for _, e := range p.Edits {
		if e.Old == "" {
			render.Printf(out, "%s, behind line %d: %s\n", e.File, e.Line, e.New)
		} else {
			render.Printf(out, "%s, line %d, becomes: %s\n", e.File, e.Line, e.New)
		}
	}
	for i, step := range p.Steps {
		if i == 0 {
			render.Println(out)
			render.Println(out, "STEPS")
		}
		render.Printf(out, "%2d. %s\n", i+1, step.What)
		if step.Writes != "" {
			render.Printf(out, "      %s\n", step.Writes)
		}
	}
	for i, n := range p.Notes {
		if i == 0 {
			render.Println(out)
		}
		render.Printf(out, "note: %s\n", n)
	}
	for i, r := range p.Refused {
		if i == 0 {
			render.Println(out)
			render.Println(out, "REFUSED")
		}
		render.Printf(out, "  %s\n      hint: %s\n", r.What, r.Hint)
	}
}

// printSets prints the data sets with their properties, and the reasons of those that are set for this server.
func printSets(out io.Writer, p *zfslayout.Plan) {
	if len(p.Sets) == 0 {
		return
	}
	unseen := []string{"mountpoint", "canmount", "snapdir", "acltype"}
	head := []string{"DATA SET", "MOUNTED AT"}
	for _, property := range p.Sets[0].Properties {
		if !slices.Contains(unseen, property.Name) {
			head = append(head, property.Name)
		}
	}
	rows := [][]string{head}
	for _, set := range p.Sets {
		row := []string{set.Name, cmp.Or(set.Point, "nowhere")}
		for _, property := range set.Properties {
			mark := "*"
			if property.From != "" {
				mark = "+"
			}
			if !slices.Contains(unseen, property.Name) {
				row = append(row, property.Value+mark)
			}
		}
		rows = append(rows, row)
	}
	render.Table(out, rows)
	render.Println(out, "* set on the data set itself, + inherited from "+p.Sets[0].Name+", which also has "+
		"acltype=posixacl and snapdir=hidden. "+zfslayout.Owner+" of each says which move made it.")
	for _, set := range p.Sets[1:] {
		for _, property := range set.Properties {
			if property.Why != "" {
				render.Printf(out, "%s=%s of %s: %s\n", property.Name, property.Value, set.Name, property.Why)
			}
		}
	}
	if len(p.Edits) > 0 {
		render.Println(out)
	}
}

// printAside prints the directories that are kept.
func printAside(out io.Writer, p *zfslayout.Plan) {
	for _, set := range p.Sets {
		if set.Aside != "" {
			render.Printf(out, "  %s\n", set.Aside)
		}
	}
}

// printRecord prints a move that was begun.
func printRecord(out io.Writer, rec *zfslayout.Record) {
	render.Printf(out, "%s: %s since %s, into %s\n", rec.Plan.Instance, rec.Phase,
		rec.Begun.Local().Format("2006-01-02 15:04"),
		rec.Plan.Sets[0].Name)
	switch {
	case rec.Restored:
		render.Println(out, "The old directories are whole, and count. The data sets do not any more.")
	case rec.CopyingBack:
		render.Println(out, "New data is being copied back: the data sets count.")
	case rec.Newer:
		render.Println(out, "The data sets count: the server may have written to them.")
	default:
		render.Println(out, "The old directories count: the server has not run on the data sets.")
	}
	render.Println(out, "Kept:")
	printAside(out, rec.Plan)
}
