package page

import (
	"time"

	"bulkhead/internal/observe/top"
)

// view is what is known at one moment: host and groups as `top --json` has them, and more of one group.
type view struct {
	At     time.Time     `json:"at"`
	Host   top.Cells     `json:"host"`
	Groups []compartment `json:"groups"`
	Group  *detail       `json:"group,omitempty"` // nil where none was asked for, or it is not there
	// Changes are the last ones up to then; of a live view alone.
	Changes []top.Change `json:"changes,omitempty"`
}

// compartment is one group among the others.
type compartment struct {
	top.OneGroup

	Depth   int         `json:"depth"`
	Title   string      `json:"title"`
	Verdict top.Verdict `json:"verdict"`
	May     []top.Limit `json:"may"` // its limits of which it is known how much is used
}

// detail is more of one group.
type detail struct {
	Name    string       `json:"name"`
	Waits   top.Cells    `json:"waits"`
	Reasons []top.Reason `json:"reasons"`
	Limits  []top.Limit  `json:"limits"`
	Holders []top.Holder `json:"holders"`
	Nodes   *top.Nodes   `json:"nodes,omitempty"` // nil where nothing is known of it
}

// column is how a figure is called and shown.
type column struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Help  string `json:"help"`
}

// columns are those of top.
var columns = func() (all []column) {
	for _, c := range top.Columns {
		all = append(all, column{c.Name, c.Title, c.Help})
	}
	return all
}()

// viewOf shows a state.
func viewOf(s *top.State, group string) *view {
	h := s.Host()
	v := &view{At: s.At, Host: h.Named(), Groups: []compartment{}}
	for _, r := range (&top.View{}).Rows(s, top.Columns) {
		c := compartment{OneGroup: r.Named(), Depth: r.Depth, Title: r.Title, Verdict: s.Verdict(r.Name),
			May: []top.Limit{}}
		limits := s.Limits(r.Name)
		for _, l := range limits {
			if l.Measured {
				c.May = append(c.May, l)
			}
		}
		v.Groups = append(v.Groups, c)
		if r.Name == group {
			v.Group = &detail{Name: group, Waits: s.Waits(group), Reasons: s.Reasons(group),
				Limits: append([]top.Limit{}, limits...), Holders: append([]top.Holder{}, s.Holders(group)...),
				Nodes: s.Nodes(group)}
		}
	}
	return v
}
