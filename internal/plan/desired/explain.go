package desired

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// ExplainAll says what this host does not hold of what the groups ask, what of it is a role's default,
// and which groups are left alone.
func (d *State) ExplainAll(in *plan.Input) []plan.Note {
	var notes []plan.Note
	for _, g := range in.Classified.Groups {
		if in.Released[g.Path] {
			notes = append(notes, plan.Note{Group: g.Path,
				Text: "released: its limits stay lifted, and nothing of it is changed, until the next apply"})
		}
	}
	for _, n := range in.Classified.Notes {
		notes = append(notes, plan.Note{Group: n.Group, Text: n.Text})
	}
	for _, n := range d.Forest.Nodes {
		for _, s := range n.Settings {
			if s.Lost != "" {
				notes = append(notes, plan.Note{Group: n.Path, Key: s.Key,
					Text: fmt.Sprintf("%s on %s: what the kernel holds of it stays as it is: %s", s.Key, s.On, s.Lost)})
			}
		}
		notes = append(notes, caveats(d, n)...)
	}
	return mergeNotes(notes)
}

// caveats turns what the knob table has to say of a group's settings into notes. A role's default that
// this host lacks is no broken promise.
func caveats(d *State, n *layout.Node) []plan.Note {
	var notes []plan.Note
	for _, c := range knob.Caveats(d.facts, n.Settings) {
		note := plan.Note{Group: n.Path, Key: c.Key, Text: c.Text, NotEnforced: c.NotEnforced, Partly: c.Partly}
		s, ok := n.Settings.Get(c.Key, c.On)
		if ok && s.FromRole() {
			note.NotEnforced = false
			note.Text = "the default of its " + s.From + " is not held: " + c.Text
			if !c.NotEnforced {
				continue
			}
		}
		notes = append(notes, note)
	}
	return notes
}

// mergeNotes says once what several groups share, unless a limit is not enforced, or not wholly: that is said to each.
func mergeNotes(notes []plan.Note) []plan.Note {
	type same struct {
		key  policy.Key
		text string
	}
	groups := make(map[same][]string)
	for _, n := range notes {
		id := same{n.Key, n.Text}
		if !n.Broken() && !slices.Contains(groups[id], n.Group) {
			groups[id] = append(groups[id], n.Group)
		}
	}
	var merged []plan.Note
	told := make(map[same]bool)
	for _, n := range notes {
		id := same{n.Key, n.Text}
		all := groups[id]
		switch {
		case n.Broken() || len(all) == 1:
			if !n.Broken() && told[id] {
				continue
			}
		case told[id]:
			continue
		default:
			shown := slices.Clone(all)
			if i := slices.Index(all, layout.RootGroup); i >= 0 {
				shown[i] = "the root group"
			}
			n.Group, n.Groups, n.Text = "", all, n.Text+" ("+strings.Join(shown, ", ")+")"
		}
		told[id] = true
		merged = append(merged, n)
	}
	return merged
}
