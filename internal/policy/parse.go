package policy

import (
	"cmp"
	"maps"
	"slices"

	"bulkhead/internal/host"
)

// The default of `host.root`. That of `host.weight` depends on where the databases are, so plan has it.
const defaultRoot = "bulkhead"

// class is a named set of settings that groups share.
type class struct {
	name     string
	pos      Pos
	role     Role
	settings Settings
	owner    []Owner
}

// document is one file as walked, or all of them together.
type document struct {
	version int
	host    HostPart
	agent   AgentPart
	classes map[string]*class
	groups  []*Group
	byName  map[string]*Group // of groups; only in all files together
	// schedules are the main file's.
	schedules []Schedule
	guard     *Guard // the main file's
	// classNames are those of all classes in order, once they were asked for.
	classNames []string
}

// The bounds on the size of a policy. Beyond them a host could not hold the groups, and looking at what is wrong with
// them would take minutes.
const (
	maxGroups    = 10000
	maxMatches   = 20000
	maxSchedules = 500
)

// Parse reads a policy from its sources; the first is the main file, the others are what it includes. It is pure. The
// error is Problems: everything wrong in every file, in file order.
func Parse(sources []Source) (*Policy, error) {
	p, r := parse(sources)
	if problems := r.Problems(); len(problems) > 0 {
		return nil, problems
	}
	return p, nil
}

// ProblemsOn returns every problem of a policy: of the text, and of what is sound of it on a host.
func ProblemsOn(sources []Source, f *host.Facts, with ...Resolver) Problems {
	p, r := parse(sources)
	problems := r.Problems()
	if p != nil {
		_, onHost := p.Resolve(f, with...)
		problems = append(problems, onHost...)
	}
	return problems.inOrder(sources)
}

// parse returns what is sound of a policy, nil when nothing can be, and the report on its text.
func parse(sources []Source) (*Policy, *Report) {
	r := NewReport(sources)
	if len(sources) == 0 {
		r.Add(Problem{Msg: "there is no policy file"})
		return nil, r
	}
	all := document{classes: make(map[string]*class), byName: make(map[string]*Group)}
	for i, s := range sources {
		d := parseSource(s, i == 0, r)
		all.add(d, r)
		if i == 0 {
			all.version, all.agent, all.schedules, all.guard, all.host = d.version, d.agent, d.schedules, d.guard, d.host
			all.host.Root = cmp.Or(d.host.Root, defaultRoot)
		}
	}
	if !all.bounded(r) {
		return nil, r
	}
	p := &Policy{Version: all.version, Host: all.host, Agent: all.agent, Groups: all.groups, Sources: sources}
	for _, g := range p.Groups {
		all.mergeClass(g, r)
	}
	p.Schedules = settleSchedules(all.schedules, p.Groups, r)
	p.Guard = settleGuard(all.guard, p.Groups, r)
	return p, r
}

// bounded says whether a policy is small enough to go on with.
func (d *document) bounded(r *Report) bool {
	groups, matches := 0, 0
	eachGroup(d.groups, func(g *Group) {
		if groups++; groups == maxGroups+1 {
			r.Fail(g.Pos, "let processes share a group", "a policy has at most %d groups", maxGroups)
		}
		for _, m := range g.Match {
			if matches++; matches == maxMatches+1 {
				r.Fail(m.Pos, "one pattern can match many processes", "a policy has at most %d match entries", maxMatches)
			}
			matches += len(m.Except)
		}
	})
	return groups <= maxGroups && matches <= maxMatches
}

// eachGroup calls do for every group, parents first.
func eachGroup(groups []*Group, do func(*Group)) {
	for _, g := range groups {
		do(g)
		eachGroup(g.Groups, do)
	}
}

// RootOf is the name of the root group that a policy asks for, whatever is wrong with the rest of it; the default
// one when it asks for none that can be.
func RootOf(sources []Source) string {
	if len(sources) == 0 {
		return defaultRoot
	}
	d := parseSource(sources[0], true, NewReport(sources))
	if !validName(d.host.Root) || reservedRootName(d.host.Root) != "" {
		return defaultRoot
	}
	return d.host.Root
}

// parseSource reads one file.
func parseSource(s Source, isMain bool, r *Report) document {
	d := document{classes: make(map[string]*class)}
	top, ok := Open(s, "the policy", r)
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

// add adds the classes and groups of one file to those of the others.
func (d *document) add(from document, r *Report) {
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

func twice(r *Report, what, name string, at, other Pos) {
	r.Fail(at, "give one of them another name", "%s %q is defined twice", what, name)
	r.Also(other)
}

// mergeClass adds to a group and those below what their classes ask and they do not ask themselves.
func (d *document) mergeClass(g *Group, r *Report) {
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

func (d *document) undefined(g *Group, r *Report) {
	hint := "no class is defined; define it under `classes:`"
	if len(d.classes) > 0 && !r.Many() {
		if d.classNames == nil {
			d.classNames = slices.Sorted(maps.Keys(d.classes))
		}
		hint = didYouMean(g.Class, d.classNames, "classes here: "+joinSome(d.classNames))
	}
	r.Fail(g.classPos, hint, "class %q is not defined", g.Class)
}

// mainForm is the main file.
func mainForm() Form[document] {
	o, host, agent, schedule, guard := includedForm(), hostForm(), agentForm(), scheduleForm(), guardForm()
	o.Name, o.Elsewhere = "the policy", map[string]string{"reserve": "write it below `host:`", "root": "write it below `host:`"}
	o.Keys = append(o.Keys,
		FormKey[document]{
			Name: "host", Doc: "The host as a whole.", Schema: host.Schema(),
			Read: func(v Item, d *document) {
				d.host.Pos = v.Pos()
				host.Read(v, "host.", &d.host)
			},
		},
		FormKey[document]{
			Name: "agent", Doc: "What the agent does.", Schema: agent.Schema(),
			Read: func(v Item, d *document) { agent.Read(v, "agent.", &d.agent) },
		},
		FormKey[document]{
			Name: "schedules", Doc: "Windows in which other settings hold.", Schema: listOf(schedulesSchema(schedule)),
			Read: func(v Item, d *document) { d.schedules = readSchedules(v, schedule) },
		},
		FormKey[document]{
			Name: "guard", Doc: "What must not happen to groups after a change, which is undone else.", Schema: guard.Schema(),
			Read: func(v Item, d *document) {
				d.guard = &Guard{Pos: v.Pos()}
				guard.Read(v, "guard.", d.guard)
			},
		},
	)
	return o
}

// includedForm is an included file: a team's classes and groups.
func includedForm() Form[document] {
	groups := groupForm()
	classFields := classForm()
	const mainOnly = "write it into the main file, once for the host"
	return Form[document]{
		Name:      "an included file",
		Elsewhere: map[string]string{"host": mainOnly, "agent": mainOnly, "schedules": mainOnly, "guard": mainOnly},
		Keys: []FormKey[document]{
			{
				Name: "version", Doc: "Version of the format: 1.", Schema: JSONSchema{"const": 1},
				Read: func(v Item, d *document) {
					switch n, ok := v.Number("the version", 0, 1<<31); {
					case ok && n != 1:
						v.Fail("this bulkhead reads version 1", "version %d is not known", n)
					case ok:
						d.version = int(n)
					}
				},
			},
			{
				Name: "include", Doc: "Files to read too: paths or globs, relative to this file.", Schema: listOf(JSONSchema{"type": "string", "minLength": 1}),
				Read: func(v Item, _ *document) { // followed by Read; here only its form counts
					for _, item := range v.Items("write a list: [policy.d/*.yaml]") {
						item.Text()
					}
				},
			},
			{
				Name: "classes", Doc: "Named sets of settings that groups share.", Schema: mapOf(namePattern, JSONSchema{"$ref": "#/$defs/class"}),
				Read: func(v Item, d *document) {
					for _, e := range v.Entries("") {
						c := &class{name: e.Name, pos: e.Key.Pos()}
						if !validName(c.name) {
							e.Key.Fail(nameHint, "%q is not a class name", c.name)
						}
						classFields.Read(e.Item, "", c)
						c.settings = c.settings.settle("class " + c.name)
						d.classes[c.name] = c
					}
				},
			},
			{
				Name: "groups", Doc: "The groups.", Schema: groupsSchema(),
				Read: func(v Item, d *document) { d.groups = readGroups(v, groups) },
			},
		},
	}
}

// hostForm is `host:`.
func hostForm() Form[HostPart] {
	reserve, diskGroup, ceiling, link := reserveForm(), diskGroupForm(), ceilingForm(), linkForm()
	return Form[HostPart]{
		Name: "host",
		Keys: []FormKey[HostPart]{
			{
				Name: "root", Doc: "Name of the root group; one that bulkhead did not make is refused.", Schema: JSONSchema{"type": "string", "pattern": namePattern, "not": JSONSchema{"pattern": reservedRoot}, "default": defaultRoot},
				Read: func(v Item, h *HostPart) {
					h.RootPos = v.Pos()
					name, ok := v.Text()
					if ok && !validName(name) {
						v.Fail(nameHint, "host.root: %q is not a name", name)
					} else if why := reservedRootName(name); ok && why != "" {
						v.Fail("choose another name", "host.root: %s", why)
					}
					h.Root = name
				},
			},
			{
				Name: "weight", Doc: "CPU weight of the root group against the rest of the system, 1 to 10000.", Schema: limitOf(KeyCPUWeight).Schema(),
				Read: func(v Item, h *HostPart) {
					if n, ok := v.Number("a weight", 1, 10000); ok {
						h.Weight = Weight(n)
					}
				},
			},
			{
				Name: "reserve", Doc: "What root, sshd and the agent keep.", Schema: reserve.Schema(),
				Read: func(v Item, h *HostPart) {
					h.Reserve.Pos = v.Pos()
					reserve.Read(v, "host.reserve.", &h.Reserve)
				},
			},
			{
				Name: "io", Doc: "Known ceilings of devices: io limits may be a percentage of them.", Schema: listOf(ceiling.Schema()),
				Read: func(v Item, h *HostPart) { h.IO = readCeilings(v, ceiling) },
			},
			{
				Name: "asm", Doc: "Disks of Oracle ASM disk groups, where their headers cannot tell.", Schema: listOf(diskGroup.Schema()),
				Read: func(v Item, h *HostPart) { h.ASM = readDiskGroups(v, diskGroup) },
			},
			{
				Name: "network", Doc: "What is known of interfaces: what their link carries, and whom they must keep reaching.", Schema: listOf(link.Schema()),
				Read: func(v Item, h *HostPart) { h.Network = readNetworkLinks(v, link) },
			},
			reclaimField(),
			historyField(),
		},
	}
}

// reserveForm is `host.reserve:`.
func reserveForm() Form[Reserve] {
	cpu := &limit{key: "host.reserve.cpu", unit: coresUnit, zero: true}
	memory := &limit{key: "host.reserve.memory", unit: sizeUnit(true), zero: true}
	return Form[Reserve]{
		Name: "host.reserve",
		Keys: []FormKey[Reserve]{
			{
				Name: "cpu", Doc: "Cores that the groups together leave alone.", Schema: cpu.Schema(),
				Read: func(v Item, r *Reserve) {
					r.cpuPos = v.Pos()
					if s, ok := v.Limit(cpu); ok {
						r.CPU = s.Value.(Cores)
					}
				},
			},
			{
				Name: "memory", Doc: "Memory that the groups together leave alone.", Schema: memory.Schema(),
				Read: func(v Item, r *Reserve) {
					r.memoryPos = v.Pos()
					if s, ok := v.Limit(memory); ok {
						r.Memory = s.Value
					}
				},
			},
			reserveNetworkField(),
		},
	}
}

// agentForm is `agent:`.
func agentForm() Form[AgentPart] {
	return Form[AgentPart]{
		Name: "agent",
		Keys: []FormKey[AgentPart]{
			{
				Name: "on_conflict", Doc: "What to do when somebody else changes a limit: put it right, leave it, or leave it and call that an error.", Schema: JSONSchema{"enum": []string{"enforce", "yield", "alert"}, "default": "enforce"},
				Read: func(v Item, a *AgentPart) {
					word, _ := v.Word(string(ConflictEnforce), string(ConflictYield), string(ConflictAlert))
					a.OnConflict = OnConflict(word)
				},
			},
			{
				Name: "read", Doc: "Who beside root may ask the agent for status and history: nobody, who owns a group, or every user of this host.", Schema: JSONSchema{"enum": []string{"root", "owners", "everyone"}, "default": "owners"},
				Read: func(v Item, a *AgentPart) {
					word, _ := v.Word(string(ReadRoot), string(ReadOwners), string(ReadEveryone))
					a.Read = Readers(word)
				},
			},
			{
				Name: "fast_moves", Doc: "Switch the kernel to faster moves of processes (favordynmods, kernel 6.0). Kernel 6.18 keeps a part of it until the next boot.",
				Schema: JSONSchema{"enum": []string{"off", "on"}, "default": "off"},
				Read: func(v Item, a *AgentPart) {
					// YAML 1.1 readers take off for false; this file is YAML 1.2, where it is a word.
					word, _ := v.Word("off", "on")
					a.FastMoves, a.FastMovesPos = word == "on", v.Pos()
				},
			},
		},
	}
}
