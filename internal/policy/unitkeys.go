package policy

import "bulkhead/internal/systemd"

// AdoptNextStart has a unit that a group claims whole start in the group's slice from its next start on.
const AdoptNextStart = "next-start"

// unitFields are the keys about systemd's units.
func unitFields() []FormKey[Group] {
	return []FormKey[Group]{
		{
			Name: "slice", Doc: "A systemd slice of yours that is the group: it gets the group's limits and is never removed.",
			Schema: JSONSchema{"type": "string", "pattern": `^[a-zA-Z0-9:_.\\-]+\.slice$`},
			Read: func(v Item, g *Group) {
				text, ok := v.Text()
				if err := systemd.CheckName(text); ok && (err != nil || systemd.TypeOf(text) != "slice" || text == "-.slice") {
					v.Fail("write the name of a slice, such as scylla-helper.slice", "%s cannot be %q", v.Name(), text)
					return
				}
				g.Slice, g.slicePos = text, v.Pos()
			},
		},
		{
			Name: "adopt", Doc: "When a systemd unit that the group claims whole comes into the group's slice. Without it the unit stays in its own slice, and carries the group's limits by itself.",
			Schema: JSONSchema{"enum": []string{AdoptNextStart}},
			Read:   func(v Item, g *Group) { g.Adopt, _ = v.Word(AdoptNextStart) },
		},
		{
			Name: "from_unit", Doc: "Whether processes may be taken out of a systemd unit of which the group claims only a part. They escape the unit's limits and its stop.",
			Schema: JSONSchema{"type": "boolean"},
			Read: func(v Item, g *Group) {
				text, ok := v.Word("true", "false")
				g.FromUnit = ok && text == "true"
			},
		},
	}
}
