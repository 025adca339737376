package memory

import (
	"cmp"
	"fmt"
	"io"
	"sync"

	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/idset"
)

// sizing is how many huge pages the databases take.
type sizing struct {
	Instances []want         `json:"instances"`
	Pool      hugepages.Pool `json:"pool"`
}

// want is what an instance takes, and what it wants of transparent huge pages: "always", "madvise" or "never"; "" where
// no rule says it.
type want struct {
	hugepages.Need
	Transparent string `json:"transparent_wanted,omitempty"`
}

// thpRule is the rule that says what engines want of transparent huge pages.
const thpRule = "MEM-12"

// thp reads that rule once: all rules are parsed for it.
var thp = sync.OnceValues(func() (r *rule.Rule, known bool) {
	rules, err := rule.Library()
	if err != nil {
		return nil, false
	}
	return rules.Find(thpRule)
})

func wantOf(inst engine.Instance, n hugepages.Need) want {
	w := want{Need: n}
	if r, known := thp(); known {
		wanted, _, _ := r.WantedBy(cmp.Or(inst.Flavor, inst.Engine), inst.Version)
		w.Transparent = wanted.Value
	}
	return w
}

// lines say of what the pages are made up.
func (w want) lines() (lines []string) {
	if w.Setting != "" {
		lines = []string{w.Setting}
	}
	for _, i := range w.Inputs {
		lines = append(lines, i.String())
	}
	switch {
	case w.Unknown != "":
		lines = append(lines, "not known: "+w.Unknown)
	case w.Setting == "":
		lines = append(lines, "none of a pool")
	}
	if w.Nodes != nil {
		lines = append(lines, fmt.Sprintf("of the nodes %s alone", idset.New(w.Nodes...)))
	}
	if w.Transparent != "" {
		lines = append(lines, fmt.Sprintf("transparent huge pages: it wants %s (%s)", w.Transparent, thpRule))
	}
	return lines
}

// printSizing prints what each instance takes, with where it is from, and the sum.
func printSizing(out io.Writer, s sizing) {
	if s.Pool.Page == 0 || len(s.Instances) == 0 {
		return
	}
	rows := [][]string{{"TAKES HUGE PAGES", "PAGES", "COUNTS", "FROM"}}
	for _, w := range s.Instances {
		pages, counts := count(w.Pages), "-"
		if w.Unknown != "" {
			pages = "?"
		}
		switch {
		case w.Told && w.Page != s.Pool.Page:
			counts = "of " + sizeOf(w.Page)
		case w.Told:
			counts = "yes"
		case w.Setting != "":
			counts = "no"
		}
		name := w.Instance
		for _, line := range w.lines() {
			rows = append(rows, []string{name, pages, counts, line})
			name, pages, counts = "", "", ""
		}
	}
	render.Table(out, rows)
	p := s.Pool
	render.Printf(out, "the pool of pages of %s is to have %d: %d of the instances that count, 1 %% more (%d), %d "+
		"of other programs. It has %d.\n", sizeOf(p.Page), p.Pages, p.Instances, p.Margin, p.Others, p.Has)
	for _, n := range p.Nodes {
		render.Printf(out, "  node %d: %d; it has %d\n", n.Node, n.Pages, n.Has)
	}
	for _, name := range p.Unknown {
		render.Printf(out, "  and those of %s, which are not known\n", name)
	}
	if p.Missing > 0 {
		render.Printf(out, "%s: `bulkhead tune plan` says what to set\n",
			render.Count(int(p.Missing), "page is missing", "pages are missing"))
	}
	render.Println(out)
}
