package planner

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// noteUnits says what the limits of a group do not hold because its processes sit in several units.
func (d *desired) noteUnits(in *plan.Input) {
	if in.Systemd == nil {
		return
	}
	outside := map[string][]string{} // group → units that carry its limits by themselves
	for _, g := range in.Systemd.Governed {
		if !g.Inside && d.forest.ByPath[g.Group] != nil && g.Group != layout.RootGroup {
			outside[g.Group] = append(outside[g.Group], g.Unit)
		}
	}
	loose := noteStuck(d, in)
	d.loose = loose
	for _, n := range d.forest.Nodes {
		units := outside[n.Path]
		if len(units) == 0 {
			continue
		}
		slices.Sort(units)
		if hasTotal(n.Settings) && apart(n.Path, outside, loose) > 1 {
			d.notes = append(d.notes, plan.Note{Group: n.Path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits hold %s and the rest of the group each for itself, not together: %s",
				strings.Join(units, ", "), whenTogether(d.layout, n.Path, in, units))})
		}
		if n.Parent != nil && n.Parent.Path != layout.RootGroup && hasTotal(n.Parent.Settings) {
			d.notes = append(d.notes, plan.Note{Group: n.Parent.Path, NotEnforced: true, Text: fmt.Sprintf(
				"its limits do not cover %s, which is not in its slice: %s", strings.Join(units, ", "),
				whenTogether(d.layout, n.Path, in, units))})
		}
		for _, key := range []policy.Key{policy.KeyMemoryMin, policy.KeyMemoryLow} {
			if s, ok := n.Settings.Get(key, ""); ok && !s.FromRole() {
				d.notes = append(d.notes, plan.Note{Group: n.Path, Key: key, NotEnforced: true, Text: fmt.Sprintf(
					"%s protects %s only as far as the slice that it is in is protected: `adopt: next-start` brings "+
						"it into the group's", key, strings.Join(units, ", "))})
			}
		}
	}
}

// noteStuck names the processes that are left in a unit which does not carry their group's limits, and counts by group
// those that are in none.
func noteStuck(d *desired, in *plan.Input) (loose map[string]int) {
	loose = map[string]int{}
	stuck := map[string][]string{}
	for i := range in.Classified.Placements {
		p := &in.Classified.Placements[i]
		switch unit := d.layout.Stuck(&p.Process, p.Group); {
		case unit != "":
			stuck[p.Group] = append(stuck[p.Group],
				fmt.Sprintf("process %d (%s) of %s", p.Process.PID, terminal.Printable(p.Process.Comm), unit))
		case !d.layout.StaysInUnit(&p.Process, p.Group):
			loose[p.Group]++
		}
	}
	for _, n := range d.forest.Nodes {
		if all := stuck[n.Path]; len(all) > 0 {
			d.notes = append(d.notes, plan.Note{Group: n.Path, NotEnforced: true, Text: fmt.Sprintf(
				"no limit of the group holds %s: it is a part of a unit; `from_unit: true` takes it out of there, "+
					"and out of the unit's limits and its stop", some(all))})
		}
	}
	return loose
}

// apart counts the places in which a group's processes sit apart from each other.
func apart(group string, outside map[string][]string, loose map[string]int) int {
	n := 0
	for g, units := range outside {
		if _, in := layout.Below(group, g); in {
			n += len(units)
		}
	}
	for g := range loose {
		if _, in := layout.Below(group, g); in {
			n++
		}
	}
	return n
}

// whenTogether says when a unit comes under its group's slice.
func whenTogether(l layout.Layout, group string, in *plan.Input, units []string) string {
	for _, u := range units {
		if in.Systemd.Adopted[u] == "" && !l.Adopts[group] {
			return "`adopt: next-start` brings it there at its next start"
		}
	}
	return "that waits for its next start"
}

// hasTotal says whether a group asks for a limit that counts over all of its processes.
func hasTotal(s policy.Settings) bool {
	return slices.ContainsFunc(s, func(s policy.Setting) bool {
		return !s.FromRole() && s.Key != policy.KeyOOMScoreAdj && s.Key != policy.KeyMemoryMin &&
			s.Key != policy.KeyMemoryLow
	})
}

// some names the first of many.
func some(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}
