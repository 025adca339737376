package policy

import "bulkhead/internal/systemd"

// AdoptNextStart has a unit that a group claims whole start in the group's slice from its next start on.
const AdoptNextStart = "next-start"

// unitFields are the keys about systemd's units.
func unitFields() []field[Group] {
	return []field[Group]{
		{
			name: "slice", doc: "A systemd slice of yours that is the group: it gets the group's limits and is never removed.",
			schema: schema{"type": "string", "pattern": `^[a-zA-Z0-9:_.\\-]+\.slice$`},
			read: func(w *walker, v value, g *Group) {
				text, ok := w.text(v)
				if err := systemd.CheckName(text); ok && (err != nil || systemd.TypeOf(text) != "slice" || text == "-.slice") {
					w.fail(v.Node, "write the name of a slice, such as scylla-helper.slice", "%s cannot be %q", v.name, text)
					return
				}
				g.Slice, g.slicePos = text, w.at(v.Node)
			},
		},
		{
			name: "adopt", doc: "When a systemd unit that the group claims whole comes into the group's slice. Without it the unit stays in its own slice, and carries the group's limits by itself.",
			schema: schema{"enum": []string{AdoptNextStart}},
			read:   func(w *walker, v value, g *Group) { g.Adopt, _ = w.word(v, AdoptNextStart) },
		},
		{
			name: "from_unit", doc: "Whether processes may be taken out of a systemd unit of which the group claims only a part. They escape the unit's limits and its stop.",
			schema: schema{"type": "boolean"},
			read: func(w *walker, v value, g *Group) {
				text, ok := w.word(v, "true", "false")
				g.FromUnit = ok && text == "true"
			},
		},
	}
}
