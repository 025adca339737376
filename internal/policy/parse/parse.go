// Package parse turns the text of a policy into a policy.Policy, without knowing any host. It also reads the arguments
// of `set` and `unset` (Assignment, Target) and makes the JSON Schema of the file.
//
// Each block of the file is a yamlform.Form; the forms of the `host:` and `agent:` blocks are in hostpart. What two
// places of a file say together (classes, schedules, the guard) is settled once all files are read.
//
// Its functions are pure and may be called from several goroutines.
package parse

import (
	"cmp"
	"maps"
	"slices"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse/hostpart"
	"bulkhead/internal/policy/retention"
	"bulkhead/internal/policy/yamlform"
)

// class is a named set of settings that groups share.
type class struct {
	name     string
	pos      policy.Pos
	role     policy.Role
	settings policy.Settings
	owner    []policy.Owner
}

// document is one file as walked, or all of them together.
type document struct {
	version int
	host    policy.HostPart
	agent   policy.AgentPart
	classes map[string]*class
	groups  []*policy.Group
	byName  map[string]*policy.Group // of groups; only in all files together
	// schedules are the main file's.
	schedules []policy.Schedule
	guard     *policy.Guard // the main file's
	slo       policy.SLOPart
	sloPlaces sloPlaces
	snapshots retention.Rules // the main file's
	// classNames are those of all classes in order, once they were asked for.
	classNames []string
}

// bounded says whether a policy is small enough to go on with.
func (d *document) bounded(r *yamlform.Report) bool {
	groups, matches := 0, 0
	policy.EachGroup(d.groups, func(g *policy.Group) {
		if groups++; groups == maxGroups+1 {
			r.Fail(g.Pos, "let processes share a group", "a policy has at most %d groups", maxGroups)
		}
		for _, m := range g.Match {
			if matches++; matches == maxMatches+1 {
				r.Fail(m.Pos, "one pattern can match many processes", "a policy has at most %d match entries",
					maxMatches)
			}
			matches += len(m.Except)
		}
	})
	return groups <= maxGroups && matches <= maxMatches
}

// add adds the classes and groups of one file to those of the others.
func (d *document) add(from document, r *yamlform.Report) {
	for _, name := range slices.Sorted(maps.Keys(from.classes)) {
		c := from.classes[name]
		if other := d.classes[name]; other != nil {
			twice(r, "class", name, c.pos, other.pos)
			continue
		}
		d.classes[name] = c
	}
	for _, g := range from.groups {
		if other := d.byName[g.Name]; other != nil {
			twice(r, "group", g.Name, g.Pos, other.Pos)
			continue
		}
		d.byName[g.Name] = g
		d.groups = append(d.groups, g)
	}
}

// mergeClass adds to a group and those below what their classes ask and they do not ask themselves.
func (d *document) mergeClass(g *policy.Group, r *yamlform.Report) {
	switch c := d.classes[g.Class]; {
	case g.Class == "":
	case c == nil:
		d.undefined(g, r)
	default:
		g.Role = cmp.Or(g.Role, c.role)
		g.Settings = g.Settings.Over(c.settings)
		if g.Owner == nil {
			g.Owner = c.owner
		}
	}
	for _, child := range g.Groups {
		d.mergeClass(child, r)
	}
}

func (d *document) undefined(g *policy.Group, r *yamlform.Report) {
	hint := "no class is defined; define it under `classes:`"
	if len(d.classes) > 0 && !r.Many() {
		if d.classNames == nil {
			d.classNames = slices.Sorted(maps.Keys(d.classes))
		}
		hint = yamlform.DidYouMean(g.Class, d.classNames, "classes here: "+yamlform.JoinSome(d.classNames))
	}
	r.Fail(g.ClassPos, hint, "class %q is not defined", g.Class)
}

// The bounds on the size of a policy. Beyond them a host could not hold the groups, and looking at what is wrong with
// them would take minutes.
const (
	maxGroups  = 10000
	maxMatches = 20000
)

// Policy reads a policy from its sources; the first is the main file, the others are what it includes. It is pure. The
// error is Problems: everything wrong in every file, in file order.
func Policy(sources []policy.Source) (*policy.Policy, error) {
	p, r := Sound(sources)
	if problems := r.Problems(); len(problems) > 0 {
		return nil, problems
	}
	return p, nil
}

// Sound returns what is sound of a policy, nil when nothing can be, and the report on its text.
func Sound(sources []policy.Source) (*policy.Policy, *yamlform.Report) {
	r := yamlform.NewReport(sources)
	if len(sources) == 0 {
		r.Add(policy.Problem{Msg: "there is no policy file"})
		return nil, r
	}
	all := document{classes: make(map[string]*class), byName: make(map[string]*policy.Group)}
	for i, s := range sources {
		d := parseSource(s, i == 0, r)
		all.add(d, r)
		if i == 0 {
			all.version, all.agent, all.schedules, all.guard, all.host = d.version, d.agent, d.schedules, d.guard,
				d.host
			all.slo, all.sloPlaces = d.slo, d.sloPlaces
		}
	}
	if !all.bounded(r) {
		return nil, r
	}
	p := &policy.Policy{Version: all.version, Host: all.host, Agent: all.agent, Groups: all.groups, Sources: sources}
	for _, g := range p.Groups {
		all.mergeClass(g, r)
	}
	p.Schedules = settleSchedules(all.schedules, p.Groups, r)
	p.Guard = settleGuard(all.guard, p.Groups, r)
	p.SLO = all.slo
	checkSLO(p, all.sloPlaces, r)
	return p, r
}

// RootOf is the name of the root group that a policy asks for, whatever is wrong with the rest of it; the default
// one when it asks for none that can be.
func RootOf(sources []policy.Source) string {
	if len(sources) == 0 {
		return ""
	}
	d := parseSource(sources[0], true, yamlform.NewReport(sources))
	if !policy.ValidName(d.host.Root) || policy.ReservedRootName(d.host.Root) != "" {
		return ""
	}
	return d.host.Root
}

// Snapshots are the rules of a sound policy for snapshots of databases.
func Snapshots(sources []policy.Source) retention.Rules {
	if len(sources) == 0 {
		return nil
	}
	return parseSource(sources[0], true, yamlform.NewReport(sources)).snapshots
}

// parseSource reads one file.
func parseSource(s policy.Source, isMain bool, r *yamlform.Report) document {
	d := document{classes: make(map[string]*class)}
	top, ok := yamlform.Open(s, "the policy", r)
	switch {
	case !ok:
		return d
	case isMain:
		mainForm().Read(top, "", &d)
		if top.IsBlock() && !top.Has("version") {
			top.Fail("start the file with `version: 1`", "version is missing")
		}
	default:
		includedForm().Read(top, "", &d)
	}
	for _, g := range d.groups {
		checkGroup(g, nil, 1, r)
	}
	return d
}

func twice(r *yamlform.Report, what, name string, at, other policy.Pos) {
	r.Fail(at, "give one of them another name", "%s %q is defined twice", what, name)
	r.Also(other)
}

// mainForm is the main file.
func mainForm() yamlform.Form[document] {
	o, host, agent, schedule, guard := includedForm(), hostpart.Form(), hostpart.AgentForm(), scheduleForm(),
		guardForm()
	o.Name, o.Elsewhere = "the policy", map[string]string{"reserve": "write it below `host:`",
		"root": "write it below `host:`"}
	o.Keys = append(o.Keys,
		yamlform.FormKey[document]{
			Name: "host", Doc: "The host as a whole.", Schema: host.Schema(),
			Read: func(v yamlform.Item, d *document) {
				d.host.Pos = v.Pos()
				host.Read(v, "host.", &d.host)
			},
		},
		yamlform.FormKey[document]{
			Name: "agent", Doc: "What the agent does.", Schema: agent.Schema(),
			Read: func(v yamlform.Item, d *document) { agent.Read(v, "agent.", &d.agent) },
		},
		yamlform.FormKey[document]{
			Name: "schedules", Doc: "Windows in which other settings hold.",
			Schema: yamlform.ListOf(schedulesSchema(schedule)),
			Read:   func(v yamlform.Item, d *document) { d.schedules = readSchedules(v, schedule) },
		},
		yamlform.FormKey[document]{
			Name: "guard", Doc: "What must not happen to groups after a change, which is undone else.",
			Schema: guard.Schema(),
			Read: func(v yamlform.Item, d *document) {
				d.guard = &policy.Guard{Pos: v.Pos()}
				guard.Read(v, "guard.", d.guard)
			},
		},
		sloKey(),
		yamlform.FormKey[document]{
			Name: "snapshots", Doc: "How many snapshots of a database on ZFS are kept, by instance; \"*\" is for the " +
				"others. `zfs snapshot --retain` and `zfs prune --retain` go by it.",
			Schema: retention.Schema(),
			Read:   func(v yamlform.Item, d *document) { d.snapshots = retention.Read(v) },
		},
	)
	return o
}

// includedForm is an included file: a team's classes and groups.
func includedForm() yamlform.Form[document] {
	groups := groupForm()
	classFields := classForm()
	const mainOnly = "write it into the main file, once for the host"
	return yamlform.Form[document]{
		Name: "an included file",
		Elsewhere: map[string]string{"host": mainOnly, "agent": mainOnly, "schedules": mainOnly, "guard": mainOnly,
			"snapshots": mainOnly,
			"slo":       mainOnly + "; what one group keeps is written below the group"},
		Keys: []yamlform.FormKey[document]{
			{
				Name: "version", Doc: "Version of the format.", Schema: policy.JSONSchema{"const": 1},
				Read: func(v yamlform.Item, d *document) {
					switch n, ok := v.Number("the version", 0, 1<<31); {
					case ok && n != 1:
						v.Fail("this bulkhead reads version 1", "version %d is not known", n)
					case ok:
						d.version = int(n)
					}
				},
			},
			{
				Name: "include", Doc: "Files to read too: paths or globs, relative to this file.",
				Schema: yamlform.ListOf(policy.JSONSchema{"type": "string", "minLength": 1}),
				Read: func(v yamlform.Item, _ *document) { // followed by Read; here only its form counts
					for _, item := range v.Items("write a list: [policy.d/*.yaml]") {
						item.Text()
					}
				},
			},
			{
				Name: "classes", Doc: "Named sets of settings that groups share.",
				Schema: yamlform.MapOf(policy.NamePattern, policy.JSONSchema{"$ref": "#/$defs/class"}),
				Read: func(v yamlform.Item, d *document) {
					for _, e := range v.Entries("") {
						c := &class{name: e.Name, pos: e.Key.Pos()}
						if !policy.ValidName(c.name) {
							e.Key.Fail(policy.NameHint, "%q is not a class name", c.name)
						}
						classFields.Read(e.Item, "", c)
						c.settings = c.settings.Settle("class " + c.name)
						d.classes[c.name] = c
					}
				},
			},
			{
				Name: "groups", Doc: "The groups.", Schema: groupsSchema(),
				Read: func(v yamlform.Item, d *document) { d.groups = readGroups(v, groups) },
			},
		},
	}
}
