package planner

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// explainAll says what this host does not hold of what the groups ask, what of it is a role's default,
// and which groups are left alone.
func (d *desired) explainAll(in *plan.Input) []plan.Note {
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
	for _, n := range d.forest.Nodes {
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

// noteRestart says what a limit of memory may cost a PostgreSQL: its postmaster ends every other backend when one was
// killed, as that one may have left shared memory half written, and recovers from the log (PostgreSQL's manual, "Linux
// Memory Overcommit").
func (p *planner) noteRestart() {
	holds := map[string]bool{}
	mark := func(group string) {
		for ; group != layout.RootGroup; group = layout.ParentGroup(group) {
			holds[group] = true
		}
	}
	for _, g := range p.in.Classified.Groups {
		if strings.HasPrefix(g.Instance, "postgresql ") {
			mark(g.Path)
		}
	}
	for i := range p.in.Classified.Placements {
		if pl := &p.in.Classified.Placements[i]; pl.Process.Comm == "postgres" || pl.Process.Comm == "postmaster" {
			mark(pl.Group)
		}
	}
	for _, n := range p.d.forest.Nodes {
		s, asked := n.Settings.Get(policy.KeyMemoryMax, "")
		if _, limited := s.Value.(policy.Bytes); asked && limited && holds[n.Path] {
			p.note(n.Path, policy.KeyMemoryMax,
				"when the OOM killer ends one backend at this limit, PostgreSQL restarts all of them: every session "+
					"is lost and the log is replayed; memory.high slows down instead")
		}
	}
}

// keepsAffinity is the first kernel whose cpuset controller leaves alone, where it comes to, what a process set with
// sched_setaffinity(2) ("sched: Always preserve the user requested cpumask"; 6.1 forgets it, measured).
var keepsAffinity = [2]int{6, 2}

// noteAffinity says that cpuset comes to strangers with a group's, and what they lose by it. On cgroup v2 a controller
// is handed to all children of a directory.
func (p *planner) noteAffinity() {
	h, ok := p.in.Facts.HierarchyOf("cpuset")
	top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	if !ok || h.Version != 2 || p.in.Facts.Kernel.AtLeast(keepsAffinity[0], keepsAffinity[1]) ||
		slices.Contains(host.V1Names(p.o.Subtree[top].Enabled), "cpuset") {
		return
	}
	for _, n := range p.d.forest.Nodes {
		for _, key := range []policy.Key{policy.KeyCPUCPUs, policy.KeyMemoryNUMA} {
			if _, asked := n.Settings.Get(key, ""); asked {
				p.note(n.Path, key, "brings the cpuset controller to every group beside bulkhead's, and this kernel "+
					"(before %d.%d) forgets there what taskset, numactl or CPUAffinity= has set: look at what else "+
					"on this host pins itself, and pin it anew after the apply", keepsAffinity[0], keepsAffinity[1])
			}
		}
	}
}

// caveats turns what the knob table has to say of a group's settings into notes. A role's default that
// this host lacks is no broken promise.
func caveats(d *desired, n *layout.Node) []plan.Note {
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
			n.Group, n.Groups, n.Text = "", all, n.Text+" ("+strings.Join(names(all), ", ")+")"
		}
		told[id] = true
		merged = append(merged, n)
	}
	return merged
}

// names gives groups for people; our root group has none of its own.
func names(groups []string) []string {
	return mapped(groups, groupName)
}

func groupName(group string) string {
	if group == layout.RootGroup {
		return "the root group"
	}
	return group
}
