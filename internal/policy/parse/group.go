package parse

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/systemd/unitname"
)

// maxDepth is how deep groups nest.
const maxDepth = 4

// placeholders are what a template's strings may hold for a property of the instance.
var placeholders = []string{"{port}", "{socket}", "{datadir}", "{sid}", "{engine}", "{instance}", "{user}"}

// groups reads a `groups:` block.
func readGroups(v yamlform.Item, form *yamlform.Form[policy.Group]) []*policy.Group {
	var all []*policy.Group
	for _, e := range v.Entries("") {
		g := &policy.Group{Name: e.Name, Pos: e.Key.Pos()}
		if e.Item.IsNull() {
			e.Key.Fail(fmt.Sprintf("write `%s: {}` for a group without settings", g.Name), "group %q has nothing in it",
				g.Name)
			continue
		}
		form.Read(e.Item, "", g)
		g.Settings = g.Settings.Settle("group")
		all = append(all, g)
	}
	return all
}

// checkGroup checks what depends on where a group stands: its name, depth and placeholders.
func checkGroup(g, parent *policy.Group, depth int, r *yamlform.Report) {
	fail := func(hint, format string, args ...any) {
		r.Fail(g.Pos, hint, format, args...)
	}
	g.Path = g.Name
	template := g.Each
	if parent != nil {
		g.Path = parent.Path + "/" + g.Name
		if template == nil {
			template = parent.Each
		}
	}
	switch filled := policy.Placeholder.ReplaceAllString(g.Name, "x"); {
	case !policy.ValidName(filled):
		hint := policy.NameHint
		if unknown := policy.Braces.FindString(filled); unknown != "" {
			hint = "placeholders are " + yamlform.JoinWords(placeholders)
		}
		fail(hint, "%q is not a group name", g.Name)
	case policy.ReservedName(filled) != "":
		fail("choose another name", "%s", policy.ReservedName(filled))
	case depth > maxDepth:
		fail("", "group %s is nested deeper than %d groups", g.Path, maxDepth)
	case filled != g.Name && template == nil:
		fail("add `each: {engine: …}` to the group, or write the name out",
			"%s has a value only in a group with `each`, or below one", policy.Placeholder.FindString(g.Name))
	}
	if g.Each != nil {
		checkTemplate(g, parent, fail)
	}
	switch {
	case g.Slice == "":
	case template != nil:
		fail("take `slice` out: each instance has a group of its own",
			"group %s: one slice cannot be the group of several instances", g.Path)
	case parent != nil:
		fail("move the group to the top", "group %s: only a group at the top can be a slice of yours", g.Path)
	case len(g.Groups) > 0:
		fail("make them groups of their own", "group %s is a slice of yours, and bulkhead makes no slices in it",
			g.Path)
	}
	if g.Model != nil && template != nil {
		if wrong := g.Model.CheckEngine(template.Engine); wrong != "" {
			fail("take the model out, or correct `each`", "group %s: %s", g.Path, wrong)
		}
	}
	checkMatches(g.Match, g.Path, template != nil, "", r)
	for _, child := range g.Groups {
		below := *g
		below.Each = template
		checkGroup(child, &below, depth+1, r)
	}
}

// checkTemplate checks that a template makes a group of its own for each instance.
func checkTemplate(g, parent *policy.Group, fail func(hint, format string, args ...any)) {
	if parent != nil && parent.Each != nil {
		fail("take one `each` out", "group %s is a template inside a template", g.Path)
	}
	e := g.Each
	pinned := e.Port != "" || e.Socket != "" || e.DataDir != "" || e.SID != "" || e.Instance != ""
	if own := []string{"{port}", "{socket}", "{datadir}", "{sid}", "{instance}"}; !pinned &&
		!slices.ContainsFunc(own, func(p string) bool { return strings.Contains(g.Name, p) }) {
		fail("put {port}, {socket}, {datadir}, {sid} or {instance} into the name",
			"all instances of %s would share the one name %q", e.Engine, g.Name)
	}
}

// groupForm is one group.
func groupForm() *yamlform.Form[policy.Group] {
	each, match := eachForm(), matchForm()
	o := &yamlform.Form[policy.Group]{}
	*o = yamlform.Form[policy.Group]{
		Name: "a group",
		Elsewhere: map[string]string{
			"cpu.shares": ofShares, "weight": "write it below `cpu:`", "limit": "write it below `cpu:`",
			"dsn":   "write it below `slo:`, or at the top of the file: `guard: {groups: {NAME: {dsn: …}}}`",
			"guard": "write it at the top of the file: `guard: {groups: {NAME: {…}}}`",
		},
		Keys: []yamlform.FormKey[policy.Group]{
			{
				Name: "class", Doc: "Name of a class whose settings hold where the group has none of its own.",
				Schema: policy.JSONSchema{"type": "string", "pattern": policy.NamePattern},
				Read:   func(v yamlform.Item, g *policy.Group) { g.Class, _ = v.Text(); g.ClassPos = v.Pos() },
			},
			{
				Name: "each", Doc: "Makes the group a template: one group for each running instance that matches.",
				Schema: policy.JSONSchema{"$ref": "#/$defs/each"},
				Read:   func(v yamlform.Item, g *policy.Group) { g.Each = readEach(v, each) },
			},
			{
				Name: "match",
				Doc: "Which processes belong to the group: the keys of an entry must all match, one " +
					"entry is enough.", Schema: yamlform.ListOf(policy.JSONSchema{"$ref": "#/$defs/match"}),
				Read: func(v yamlform.Item, g *policy.Group) { g.Match = readMatches(v, match) },
			},
			{
				Name: "groups", Doc: "Groups inside this one, whose limits cover them.", Schema: groupsSchema(),
				Read: func(v yamlform.Item, g *policy.Group) { g.Groups = readGroups(v, o) },
			},
		},
	}
	o.Keys = append(o.Keys, settingFields(func(g *policy.Group) (*policy.Settings, *policy.Role) {
		return &g.Settings,
			&g.Role
	})...)
	o.Keys = append(o.Keys,
		memoryModelField(),
		groupSLOKey(),
		ownerField(func(g *policy.Group) *[]policy.Owner { return &g.Owner }),
	)
	o.Keys = append(o.Keys, unitFields()...)
	return o
}

// classForm is one class: the settings of a group, without what makes a group a group.
func classForm() yamlform.Form[class] {
	const ofGroup = "this belongs to a group, not to a class"
	o := yamlform.Form[class]{
		Name: "a class",
		Elsewhere: map[string]string{"match": ofGroup, "each": ofGroup, "groups": ofGroup, "class": ofGroup,
			"slice": ofGroup},
		Keys: settingFields(func(c *class) (*policy.Settings, *policy.Role) { return &c.settings, &c.role }),
	}
	o.Keys = append(o.Keys, ownerField(func(c *class) *[]policy.Owner { return &c.owner }))
	return o
}

// unitFields are the keys about systemd's units.
func unitFields() []yamlform.FormKey[policy.Group] {
	return []yamlform.FormKey[policy.Group]{
		{
			Name:   "slice",
			Doc:    "A systemd slice of yours that is the group: it gets the group's limits and is never removed.",
			Schema: policy.JSONSchema{"type": "string", "pattern": `^[a-zA-Z0-9:_.\\-]+\.slice$`},
			Read: func(v yamlform.Item, g *policy.Group) {
				text, ok := v.Text()
				if err := unitname.CheckName(text); ok &&
					(err != nil || unitname.TypeOf(text) != "slice" || text == "-.slice") {
					v.Fail("write the name of a slice, such as scylla-helper.slice", "%s cannot be %q", v.Name(), text)
					return
				}
				g.Slice, g.SlicePos = text, v.Pos()
			},
		},
		{
			Name: "adopt",
			Doc: "When a systemd unit that the group claims whole comes into the group's slice. Without it the " +
				"unit stays in its own slice, and carries the group's limits by itself.",
			Schema: policy.JSONSchema{"enum": []string{policy.AdoptNextStart}},
			Read:   func(v yamlform.Item, g *policy.Group) { g.Adopt, _ = v.Word(policy.AdoptNextStart) },
		},
		{
			Name: "from_unit",
			Doc: "Whether processes may be taken out of a systemd unit of which the group claims only a part. " +
				"They escape the unit's limits and its stop.",
			Schema: policy.JSONSchema{"type": "boolean"},
			Read: func(v yamlform.Item, g *policy.Group) {
				text, ok := v.Word("true", "false")
				g.FromUnit = ok && text == "true"
			},
		},
	}
}

// groupsSchema is the schema of a `groups:` block.
func groupsSchema() policy.JSONSchema {
	s := yamlform.MapOf(policy.TemplatePattern, policy.JSONSchema{"$ref": "#/$defs/group"})
	s["propertyNames"].(policy.JSONSchema)["not"] = policy.JSONSchema{"pattern": policy.ReservedGroup}
	return s
}
