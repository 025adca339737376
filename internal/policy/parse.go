package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

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
}

// Parse reads a policy from its sources; the first is the main file, the others are what it
// includes. It is pure. The error is Problems: everything wrong in every file, in file order.
func Parse(sources []Source) (*Policy, error) {
	p, problems := parse(sources)
	if len(problems) > 0 {
		return nil, problems
	}
	return p, nil
}

// ProblemsOn gives every problem of a policy: of the text, and of what is sound of it on a host.
func ProblemsOn(sources []Source, f *host.Facts, with ...Resolver) Problems {
	p, problems := parse(sources)
	if p != nil {
		_, onHost := p.Resolve(f, with...)
		problems = append(problems, onHost...)
	}
	return problems.inOrder(sources)
}

// parse gives what is sound of a policy, nil when nothing can be, and every problem of its text.
func parse(sources []Source) (*Policy, Problems) {
	if len(sources) == 0 {
		return nil, Problems{{Msg: "there is no policy file"}}
	}
	all := document{classes: make(map[string]*class), byName: make(map[string]*Group), host: HostPart{Root: defaultRoot}}
	var problems Problems
	for i, s := range sources {
		d, ps := parseSource(s, i == 0)
		problems = append(problems, ps...)
		problems = append(problems, all.add(d)...)
		if i == 0 {
			all.version, all.agent, all.schedules, all.guard = d.version, d.agent, d.schedules, d.guard
			d.host.Root = cmp.Or(d.host.Root, defaultRoot)
			all.host = d.host
		}
	}
	p := &Policy{Version: all.version, Host: all.host, Agent: all.agent, Groups: all.groups, Sources: sources}
	for _, g := range p.Groups {
		problems = append(problems, all.mergeClass(g)...)
	}
	var more Problems
	p.Schedules, more = settleSchedules(all.schedules, p.Groups)
	problems = append(problems, more...)
	p.Guard, more = settleGuard(all.guard, p.Groups)
	problems = append(problems, more...)
	lines := newLines(sources)
	for i := range problems {
		problems[i].Source = cmp.Or(problems[i].Source, lines.of(problems[i].Pos))
	}
	return p, problems.inOrder(sources)
}

// RootOf is the name of the root group that a policy asks for, whatever is wrong with the rest of it; the default
// one when it asks for none that can be.
func RootOf(sources []Source) string {
	if len(sources) == 0 {
		return defaultRoot
	}
	d, _ := parseSource(sources[0], true)
	if !validName(d.host.Root) || reservedRootName(d.host.Root) != "" {
		return defaultRoot
	}
	return d.host.Root
}

// parseSource walks one file.
func parseSource(s Source, isMain bool) (document, Problems) {
	d := document{classes: make(map[string]*class)}
	if p := checkText(s); p != nil {
		return d, Problems{*p}
	}
	root, problems := decode(s)
	if root == nil {
		return d, problems
	}
	w := newWalker(s)
	w.problems = problems
	top := value{root, "the policy"}
	if isMain {
		mainObject().read(w, top, "", &d)
		if root.Kind == yaml.MappingNode && !hasKey(root, "version") {
			w.fail(root, "start the file with `version: 1`", "version is missing")
		}
	} else {
		includedObject().read(w, top, "", &d)
	}
	for _, g := range d.groups {
		w.checkGroup(g, nil, 1)
	}
	return d, w.problems
}

func hasKey(n *yaml.Node, name string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}

// add puts the classes and groups of one file to those of the others.
func (d *document) add(from document) Problems {
	var problems Problems
	for _, name := range slices.Sorted(maps.Keys(from.classes)) {
		c := from.classes[name]
		if other := d.classes[name]; other != nil {
			problems = append(problems, twice("class", name, c.pos, other.pos))
			continue
		}
		d.classes[name] = c
	}
	for _, g := range from.groups {
		if other := d.byName[g.Name]; other != nil {
			problems = append(problems, twice("group", g.Name, g.Pos, other.Pos))
			continue
		}
		d.byName[g.Name] = g
		d.groups = append(d.groups, g)
	}
	return problems
}

func twice(what, name string, at, other Pos) Problem {
	return Problem{Pos: at, Msg: fmt.Sprintf("%s %q is defined twice", what, name), Hint: "give one of them another name", Also: []Pos{other}}
}

// mergeClass adds to a group and those below what their classes ask and they do not ask themselves.
func (d *document) mergeClass(g *Group) Problems {
	var problems Problems
	switch c := d.classes[g.Class]; {
	case g.Class == "":
	case c == nil:
		problems = append(problems, d.undefined(g))
	default:
		g.Role = cmp.Or(g.Role, c.role)
		g.Settings = g.Settings.Over(c.settings)
		if g.Owner == nil {
			g.Owner = c.owner
		}
	}
	for _, child := range g.Groups {
		problems = append(problems, d.mergeClass(child)...)
	}
	return problems
}

func (d *document) undefined(g *Group) Problem {
	hint := "no class is defined; define it under `classes:`"
	if names := slices.Sorted(maps.Keys(d.classes)); len(names) > 0 {
		hint = "classes here: " + joinSome(names)
		if near := nearest(g.Class, names); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
	}
	return Problem{Pos: g.classPos, Msg: fmt.Sprintf("class %q is not defined", g.Class), Hint: hint}
}

// Over lays settings over weaker ones: what both ask for, the receiver decides. CPUs and the nodes
// whose CPUs to use are two ways to ask for the same, so either takes the other's place.
func (ss Settings) Over(weaker Settings) Settings {
	merged := slices.Clone(ss)
	asks := func(key Key) bool { return len(ss.All(key)) > 0 }
	for _, s := range weaker {
		switch {
		case s.Key == KeyCPUCPUs && asks(KeyCPUNUMA), s.Key == KeyCPUNUMA && asks(KeyCPUCPUs):
			continue
		}
		if _, taken := ss.Get(s.Key, s.On); !taken {
			merged = append(merged, s)
		}
	}
	merged.sort()
	return merged
}

// joinSome lists names for a hint, and not more than a line of them.
func joinSome(names []string) string {
	const most = 12
	if len(names) > most {
		names = append(slices.Clone(names[:most]), "…")
	}
	return joinWords(names)
}

func joinWords(names []string) string { return strings.Join(names, ", ") }

// mainObject is the main file.
func mainObject() object[document] {
	o, host, agent, schedule, guard := includedObject(), hostObject(), agentObject(), scheduleObject(), guardObject()
	o.name, o.elsewhere = "the policy", map[string]string{"reserve": "write it below `host:`", "root": "write it below `host:`"}
	o.fields = append(o.fields,
		field[document]{
			name: "host", doc: "The host as a whole.", schema: host.schema(),
			read: func(w *walker, v value, d *document) {
				d.host.Pos = w.at(v.Node)
				host.read(w, v, "host.", &d.host)
			},
		},
		field[document]{
			name: "agent", doc: "What the agent does.", schema: agent.schema(),
			read: func(w *walker, v value, d *document) { agent.read(w, v, "agent.", &d.agent) },
		},
		field[document]{
			name: "schedules", doc: "Windows in which other settings hold.", schema: listOf(schedulesSchema(schedule)),
			read: func(w *walker, v value, d *document) { d.schedules = w.schedules(v, schedule) },
		},
		field[document]{
			name: "guard", doc: "What must not happen to groups after a change, which is undone else.", schema: guard.schema(),
			read: func(w *walker, v value, d *document) {
				d.guard = &Guard{Pos: w.at(v.Node)}
				guard.read(w, v, "guard.", d.guard)
			},
		},
	)
	return o
}

// includedObject is an included file: a team's classes and groups.
func includedObject() object[document] {
	classFields := classObject()
	const mainOnly = "write it into the main file, once for the host"
	return object[document]{
		name:      "an included file",
		elsewhere: map[string]string{"host": mainOnly, "agent": mainOnly, "schedules": mainOnly, "guard": mainOnly},
		fields: []field[document]{
			{
				name: "version", doc: "Version of the format: 1.", schema: schema{"const": 1},
				read: func(w *walker, v value, d *document) {
					switch n, ok := w.number(v, "the version", 0, 1<<31); {
					case ok && n != 1:
						w.fail(v.Node, "this bulkhead reads version 1", "version %d is not known", n)
					case ok:
						d.version = int(n)
					}
				},
			},
			{
				name: "include", doc: "Files to read too: paths or globs, relative to this file.", schema: listOf(schema{"type": "string", "minLength": 1}),
				read: func(w *walker, v value, _ *document) { // followed by Read; here only its form counts
					for _, item := range w.items(v, "write a list: [policy.d/*.yaml]") {
						w.text(item)
					}
				},
			},
			{
				name: "classes", doc: "Named sets of settings that groups share.", schema: mapOf(namePattern, schema{"$ref": "#/$defs/class"}),
				read: func(w *walker, v value, d *document) {
					for _, e := range w.entries(v, "") {
						c := &class{name: e.key.Value, pos: w.at(e.key)}
						if !validName(c.name) {
							w.fail(e.key, nameHint, "%q is not a class name", c.name)
						}
						classFields.read(w, e.value, "", c)
						c.settings = c.settings.settle("class " + c.name)
						d.classes[c.name] = c
					}
				},
			},
			{
				name: "groups", doc: "The groups.", schema: groupsSchema(),
				read: func(w *walker, v value, d *document) { d.groups = w.groups(v) },
			},
		},
	}
}

// number reads a whole number between two bounds.
func (w *walker) number(v value, what string, lowest, highest int64) (int64, bool) {
	text, ok := w.text(v)
	if !ok {
		return 0, false
	}
	n, wrong := integer(text, what, lowest, highest)
	if wrong == nil && kindOf(v.Node) != "a number" {
		wrong = faultf("take the quotes off", "%q is text, not a number", text)
	}
	if wrong != nil {
		w.fail(v.Node, wrong.hint, "%s: %s", v.name, wrong.msg)
		return 0, false
	}
	return n, true
}

// hostObject is `host:`.
func hostObject() object[HostPart] {
	reserve, diskGroup, ceiling, link := reserveObject(), diskGroupObject(), ceilingObject(), linkObject()
	return object[HostPart]{
		name: "host",
		fields: []field[HostPart]{
			{
				name: "root", doc: "Name of the root group; one that bulkhead did not make is refused.", schema: schema{"type": "string", "pattern": namePattern, "not": schema{"pattern": reservedRoot}, "default": defaultRoot},
				read: func(w *walker, v value, h *HostPart) {
					h.RootPos = w.at(v.Node)
					name, ok := w.text(v)
					if ok && !validName(name) {
						w.fail(v.Node, nameHint, "host.root: %q is not a name", name)
					} else if why := reservedRootName(name); ok && why != "" {
						w.fail(v.Node, "choose another name", "host.root: %s", why)
					}
					h.Root = name
				},
			},
			{
				name: "weight", doc: "CPU weight of the root group against the rest of the system, 1 to 10000.", schema: limitOf(KeyCPUWeight).schema(),
				read: func(w *walker, v value, h *HostPart) {
					if n, ok := w.number(v, "a weight", 1, 10000); ok {
						h.Weight = Weight(n)
					}
				},
			},
			{
				name: "reserve", doc: "What root, sshd and the agent keep.", schema: reserve.schema(),
				read: func(w *walker, v value, h *HostPart) {
					h.Reserve.Pos = w.at(v.Node)
					reserve.read(w, v, "host.reserve.", &h.Reserve)
				},
			},
			{
				name: "io", doc: "Known ceilings of devices: io limits may be a percentage of them.", schema: listOf(ceiling.schema()),
				read: func(w *walker, v value, h *HostPart) { h.IO = w.ceilings(v, ceiling) },
			},
			{
				name: "asm", doc: "Disks of Oracle ASM disk groups, where their headers cannot tell.", schema: listOf(diskGroup.schema()),
				read: func(w *walker, v value, h *HostPart) { h.ASM = w.diskGroups(v, diskGroup) },
			},
			{
				name: "network", doc: "What is known of interfaces: what their link carries, and whom they must keep reaching.", schema: listOf(link.schema()),
				read: func(w *walker, v value, h *HostPart) { h.Network = w.networkLinks(v, link) },
			},
			reclaimField(),
			historyField(),
		},
	}
}

// reserveObject is `host.reserve:`.
func reserveObject() object[Reserve] {
	cpu := &limit{key: "host.reserve.cpu", unit: coresUnit, zero: true}
	memory := &limit{key: "host.reserve.memory", unit: sizeUnit(true), zero: true}
	return object[Reserve]{
		name: "host.reserve",
		fields: []field[Reserve]{
			{
				name: "cpu", doc: "Cores that the groups together leave alone.", schema: cpu.schema(),
				read: func(w *walker, v value, r *Reserve) {
					r.cpuPos = w.at(v.Node)
					if s, ok := w.limit(v, cpu); ok {
						r.CPU = s.Value.(Cores)
					}
				},
			},
			{
				name: "memory", doc: "Memory that the groups together leave alone.", schema: memory.schema(),
				read: func(w *walker, v value, r *Reserve) {
					r.memoryPos = w.at(v.Node)
					if s, ok := w.limit(v, memory); ok {
						r.Memory = s.Value
					}
				},
			},
			reserveNetworkField(),
		},
	}
}

// agentObject is `agent:`.
func agentObject() object[AgentPart] {
	return object[AgentPart]{
		name: "agent",
		fields: []field[AgentPart]{
			{
				name: "on_conflict", doc: "What to do when somebody else changes a limit: put it right, leave it, or leave it and call that an error.", schema: schema{"enum": []string{"enforce", "yield", "alert"}, "default": "enforce"},
				read: func(w *walker, v value, a *AgentPart) {
					word, _ := w.word(v, string(ConflictEnforce), string(ConflictYield), string(ConflictAlert))
					a.OnConflict = OnConflict(word)
				},
			},
			{
				name: "read", doc: "Who beside root may ask the agent for status and history: nobody, who owns a group, or every user of this host.", schema: schema{"enum": []string{"root", "owners", "everyone"}, "default": "owners"},
				read: func(w *walker, v value, a *AgentPart) {
					word, _ := w.word(v, string(ReadRoot), string(ReadOwners), string(ReadEveryone))
					a.Read = Readers(word)
				},
			},
			{
				name: "fast_moves", doc: "Switch the kernel to faster moves of processes (favordynmods, kernel 6.0). Kernel 6.18 keeps a part of it until the next boot.",
				schema: schema{"enum": []string{"off", "on"}, "default": "off"},
				read: func(w *walker, v value, a *AgentPart) {
					// YAML 1.1 readers take off for false; this file is YAML 1.2, where it is a word.
					word, _ := w.word(v, "off", "on")
					a.FastMoves, a.FastMovesPos = word == "on", w.at(v.Node)
				},
			},
		},
	}
}
