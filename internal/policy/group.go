package policy

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxDepth is how deep groups nest.
const maxDepth = 4

// ownGroup is the name of the leaf that holds the processes of a group that has children.
const ownGroup = "db"

// Names become directory names, so they hold nothing that a path, a shell or `group:key=value` gives
// a meaning to.
const (
	namePattern     = `^[a-z0-9A-Z][a-zA-Z0-9_.-]*$`
	templatePattern = `^([a-z0-9A-Z]|\{(port|socket|datadir|sid|engine|instance|user)\})([a-zA-Z0-9_.-]|\{(port|socket|datadir|sid|engine|instance|user)\})*$`
	nameHint        = "a name starts with a letter or a digit and goes on with letters, digits, _ . and -"
	maxName         = 128
)

var (
	nameRegexp  = regexp.MustCompile(namePattern)
	braces      = regexp.MustCompile(`\{[a-z]+\}`)
	placeholder = regexp.MustCompile(`\{(port|socket|datadir|sid|engine|instance|user)\}`)
)

// placeholders are what a template's strings may hold for a property of the instance.
var placeholders = []string{"{port}", "{socket}", "{datadir}", "{sid}", "{engine}", "{instance}", "{user}"}

func validName(name string) bool { return len(name) <= maxName && nameRegexp.MatchString(name) }

// groups reads a `groups:` block.
func readGroups(v Item, form *Form[Group]) []*Group {
	var all []*Group
	for _, e := range v.Entries("") {
		g := &Group{Name: e.Name, Pos: e.Key.Pos()}
		if e.Item.IsNull() {
			e.Key.Fail(fmt.Sprintf("write `%s: {}` for a group without settings", g.Name), "group %q has nothing in it", g.Name)
			continue
		}
		form.Read(e.Item, "", g)
		g.Settings = g.Settings.settle("group")
		all = append(all, g)
	}
	return all
}

// checkGroup checks what depends on where a group stands: its name, depth and placeholders.
func checkGroup(g, parent *Group, depth int, r *Report) {
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
	switch filled := placeholder.ReplaceAllString(g.Name, "x"); {
	case !validName(filled):
		hint := nameHint
		if unknown := braces.FindString(filled); unknown != "" {
			hint = "placeholders are " + joinWords(placeholders)
		}
		fail(hint, "%q is not a group name", g.Name)
	case ReservedName(filled) != "":
		fail("choose another name", "%s", ReservedName(filled))
	case depth > maxDepth:
		fail("", "group %s is nested deeper than %d groups", g.Path, maxDepth)
	case filled != g.Name && template == nil:
		fail("add `each: {engine: …}` to the group, or write the name out", "%s has a value only in a group with `each`, or below one", placeholder.FindString(g.Name))
	}
	if g.Each != nil {
		checkTemplate(g, parent, fail)
	}
	switch {
	case g.Slice == "":
	case template != nil:
		fail("take `slice` out: each instance has a group of its own", "group %s: one slice cannot be the group of several instances", g.Path)
	case parent != nil:
		fail("move the group to the top", "group %s: only a group at the top can be a slice of yours", g.Path)
	case len(g.Groups) > 0:
		fail("make them groups of their own", "group %s is a slice of yours, and bulkhead makes no slices in it", g.Path)
	}
	if g.Model != nil && template != nil {
		if wrong := g.Model.checkEngine(template.Engine); wrong != "" {
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
func checkTemplate(g, parent *Group, fail func(hint, format string, args ...any)) {
	if parent != nil && parent.Each != nil {
		fail("take one `each` out", "group %s is a template inside a template", g.Path)
	}
	e := g.Each
	pinned := e.Port != "" || e.Socket != "" || e.DataDir != "" || e.SID != "" || e.Instance != ""
	if own := []string{"{port}", "{socket}", "{datadir}", "{sid}", "{instance}"}; !pinned &&
		!slices.ContainsFunc(own, func(p string) bool { return strings.Contains(g.Name, p) }) {
		fail("put {port}, {socket}, {datadir}, {sid} or {instance} into the name", "all instances of %s would share the one name %q", e.Engine, g.Name)
	}
}

// checkMatches checks what a match entry may say where it stands. Below a template its instance fills
// the placeholders and stands for the engine; an exception is about the engine of its entry.
func checkMatches(entries []Match, group string, inTemplate bool, engine string, r *Report) {
	for _, m := range entries {
		fail := func(hint, format string, args ...any) {
			r.Fail(m.Pos, hint, format, args...)
		}
		engine := cmp.Or(m.Engine, engine)
		for _, f := range matchFields {
			text := *f.of(&m)
			found := placeholder.FindString(text)
			switch {
			case found != "" && !inTemplate:
				fail(fmt.Sprintf("add `each: {engine: …}` to group %s, or write the value out", group), "%s: %s has a value only in a group with `each`, or below one", f.name, found)
			case text != "" && f.ofInstance && engine == "" && (f.name != "part" || !inTemplate):
				hint := "add `engine:` beside it, one of " + joinWords(engines)
				if f.name == "sid" {
					hint = "add `engine: oracle`"
				}
				fail(hint, "%s needs engine beside it", f.name)
			}
		}
		checkMatches(m.Except, group, inTemplate, engine, r)
	}
}

// groupForm is one group.
func groupForm() *Form[Group] {
	each, match := eachForm(), matchForm()
	o := &Form[Group]{}
	*o = Form[Group]{
		Name: "a group",
		Elsewhere: map[string]string{
			"weight": "write it below `cpu:`", "limit": "write it below `cpu:`", "dsn": "write it at the top of the file: `guard: {groups: {NAME: {dsn: …}}}`",
			"guard": "write it at the top of the file: `guard: {groups: {NAME: {…}}}`",
		},
		Keys: []FormKey[Group]{
			{
				Name: "class", Doc: "Name of a class whose settings hold where the group has none of its own.", Schema: JSONSchema{"type": "string", "pattern": namePattern},
				Read: func(v Item, g *Group) { g.Class, _ = v.Text(); g.classPos = v.Pos() },
			},
			{
				Name: "each", Doc: "Makes the group a template: one group for each running instance that matches.", Schema: JSONSchema{"$ref": "#/$defs/each"},
				Read: func(v Item, g *Group) { g.Each = readEach(v, each) },
			},
			{
				Name: "match", Doc: "Which processes belong to the group: the keys of an entry must all match, one entry is enough.", Schema: listOf(JSONSchema{"$ref": "#/$defs/match"}),
				Read: func(v Item, g *Group) { g.Match = readMatches(v, match) },
			},
			{
				Name: "groups", Doc: "Groups inside this one, whose limits cover them.", Schema: groupsSchema(),
				Read: func(v Item, g *Group) { g.Groups = readGroups(v, o) },
			},
		},
	}
	o.Keys = append(o.Keys, settingFields(func(g *Group) (*Settings, *Role) { return &g.Settings, &g.Role })...)
	o.Keys = append(o.Keys,
		memoryModelField(),
		ownerField(func(g *Group) *[]Owner { return &g.Owner }),
	)
	o.Keys = append(o.Keys, unitFields()...)
	return o
}

// classForm is one class: the settings of a group, without what makes a group a group.
func classForm() Form[class] {
	const ofGroup = "this belongs to a group, not to a class"
	o := Form[class]{
		Name:      "a class",
		Elsewhere: map[string]string{"match": ofGroup, "each": ofGroup, "groups": ofGroup, "class": ofGroup, "slice": ofGroup},
		Keys:      settingFields(func(c *class) (*Settings, *Role) { return &c.settings, &c.role }),
	}
	o.Keys = append(o.Keys, ownerField(func(c *class) *[]Owner { return &c.owner }))
	return o
}

// matchField is one key of a match entry.
type matchField struct {
	name, doc  string
	of         func(*Match) *string
	ofInstance bool // a property of an instance, so the entry needs its engine
	each       bool // also a key of `each:`
	check      func(text string) *fault
	schema     JSONSchema
}

// engines that are recognised, each with its flavours ("mysql" is all of its own).
var (
	engines = []string{"mysql", "mariadb", "percona", "postgresql", "redis", "valkey", "oracle", "asm", "mongodb",
		"scylladb", "cassandra", "sqlserver", "clickhouse", "etcd"}
	otherNames = map[string]string{"postgres": "postgresql", "mongo": "mongodb", "scylla": "scylladb", "mssql": "sqlserver"}
)

// helperKinds are what a helper program may be to its instance; internal/engine says which program is what.
var helperKinds = []string{"agent", "backup", "exporter", "listener", "restore", "save", "tool"}

// matchFields are the keys of a match entry.
var matchFields = []matchField{
	{name: "engine", doc: "Database engine of the instance.", of: func(m *Match) *string { return &m.Engine }, each: true, check: checkEngine, schema: JSONSchema{"enum": append(slices.Clone(engines), "{engine}")}},
	{name: "port", doc: "TCP port the instance listens on.", of: func(m *Match) *string { return &m.Port }, ofInstance: true, each: true, check: checkPort,
		schema: JSONSchema{"anyOf": []any{JSONSchema{"type": "integer", "minimum": 1, "maximum": 65535}, JSONSchema{"const": "{port}"}}}},
	{name: "socket", doc: "Unix socket the instance listens on.", of: func(m *Match) *string { return &m.Socket }, ofInstance: true, each: true, check: checkPath},
	{name: "datadir", doc: "Data directory of the instance.", of: func(m *Match) *string { return &m.DataDir }, ofInstance: true, each: true, check: checkPath},
	{name: "sid", doc: "SID of the Oracle instance.", of: func(m *Match) *string { return &m.SID }, ofInstance: true, each: true, check: checkSID},
	{name: "instance", doc: "Name of the instance, such as PostgreSQL's 15/main.", of: func(m *Match) *string { return &m.Instance }, ofInstance: true, each: true},
	{name: "part", doc: "Part of the instance, such as PostgreSQL's backends or walwriter.", of: func(m *Match) *string { return &m.Part }, ofInstance: true},
	{name: "helper", doc: "Kind of helper program of the instance, such as backup.", of: func(m *Match) *string { return &m.Helper }, check: checkHelper, schema: JSONSchema{"enum": helperKinds}},
	{name: "exe", doc: "Executable: a glob over its base name, or over its whole path when it holds a /.", of: func(m *Match) *string { return &m.Exe }, check: checkExe},
	{name: "cmdline", doc: "Regular expression (RE2, unanchored) over the arguments joined by single spaces.", of: func(m *Match) *string { return &m.Cmdline }, check: checkRegexp, schema: JSONSchema{"type": "string", "format": "regex", "minLength": 1}},
	{name: "user", doc: "Effective user, by name or number.", of: func(m *Match) *string { return &m.User }, each: true, check: checkAccount, schema: accountSchema},
	{name: "unix_group", doc: "Effective or supplementary Unix group, by name or number.", of: func(m *Match) *string { return &m.UnixGroup }, check: checkAccount, schema: accountSchema},
	{name: "unit", doc: "systemd unit, such as mariadb.service or mysqld@*; a name without a type is a service.", of: func(m *Match) *string { return &m.Unit }, check: checkUnit},
	{name: "cgroup", doc: "Control group in any hierarchy: a glob over its path, or a prefix ending in /.", of: func(m *Match) *string { return &m.Cgroup }, check: checkCgroup},
	{name: "ancestor", doc: "Executable of any ancestor, written as for exe.", of: func(m *Match) *string { return &m.Ancestor }, check: checkExe},
	{name: "env", doc: "Environment variable: NAME, or NAME=VALUE.", of: func(m *Match) *string { return &m.Env }, check: checkEnv},
}

var accountSchema = JSONSchema{"type": []any{"string", "integer"}, "minLength": 1, "minimum": 0}

// fieldOf makes a field of a match key.
func fieldOf(f matchField) FormKey[Match] {
	shape := f.schema
	if shape == nil {
		shape = JSONSchema{"type": "string", "minLength": 1}
	}
	return FormKey[Match]{
		Name: f.name, Doc: f.doc, Schema: shape,
		Read: func(v Item, m *Match) {
			text, ok := v.Text()
			if !ok {
				return
			}
			*f.of(m) = text
			if f.check == nil {
				return
			}
			if wrong := f.check(text); wrong != nil {
				v.Fail(wrong.hint, "%s: %s", f.name, wrong.msg)
			}
		},
	}
}

// exceptForm is one entry of `except:`.
func exceptForm() Form[Match] {
	o := Form[Match]{Name: "an except entry", Elsewhere: map[string]string{"except": "exceptions have no exceptions; write a rule of a more specific group"}}
	for _, f := range matchFields {
		o.Keys = append(o.Keys, fieldOf(f))
	}
	return o
}

// matchForm is one entry of `match:`.
func matchForm() Form[Match] {
	o, except := exceptForm(), exceptForm()
	o.Name, o.Elsewhere = "a match entry", map[string]string{"group": "did you mean unix_group?"}
	o.Keys = append(o.Keys, FormKey[Match]{
		Name: "except", Doc: "Processes that the entry does not mean after all.", Schema: listOf(JSONSchema{"$ref": "#/$defs/except"}),
		Read: func(v Item, m *Match) { m.Except = readMatches(v, except) },
	})
	return o
}

// eachForm is `each:`.
func eachForm() Form[Match] {
	o := Form[Match]{Name: "each", Elsewhere: map[string]string{}}
	for _, f := range matchFields {
		if f.each {
			o.Keys = append(o.Keys, fieldOf(f))
		} else {
			o.Elsewhere[f.name] = "each picks instances, not processes: its keys are engine, port, socket, datadir, sid, instance and user"
		}
	}
	return o
}

// matches reads a list of match entries.
func readMatches(v Item, o Form[Match]) []Match {
	var all []Match
	for _, item := range v.Items(fmt.Sprintf("write a list: `%s: [{exe: mysqld}]`", v.Name())) {
		m := Match{Pos: item.Pos()}
		sound := o.Read(item, "", &m)
		all = append(all, m)
		says := slices.ContainsFunc(matchFields, func(f matchField) bool { return *f.of(&m) != "" })
		if !says && sound && !item.IsAlias() {
			item.Fail("say which processes are meant: {exe: …}, {user: …}, {cmdline: …}", "%s without a key would match every process", o.Name)
		}
	}
	return all
}

// each reads `each:`.
func readEach(v Item, o Form[Match]) *Match {
	m := &Match{Pos: v.Pos()}
	if sound := o.Read(v, "", m); sound && m.Engine == "" {
		v.Fail("write `each: {engine: mysql}`, or another of "+joinWords(engines), "each needs engine")
	}
	for _, f := range matchFields {
		if found := placeholder.FindString(*f.of(m)); found != "" {
			v.Fail("write the value out, or take the key out", "%s: each picks the instances that fill %s, so it cannot hold it", f.name, found)
		}
	}
	return m
}

func checkEngine(text string) *fault {
	switch {
	case slices.Contains(engines, text) || text == "{engine}":
		return nil
	case otherNames[text] != "":
		return faultf("write "+otherNames[text], "%s goes by another name here", text)
	}
	return faultf(didYouMean(text, engines, "engines are "+joinWords(engines)), "%q is not known", text)
}

func checkHelper(text string) *fault {
	if slices.Contains(helperKinds, text) {
		return nil
	}
	return faultf(didYouMean(text, helperKinds, "helpers are "+joinWords(helperKinds)), "%q is no kind of helper; a program is matched by exe", text)
}

// sidPattern is what Oracle takes: letters, digits and a few signs, with + before ASM's and - before MGMTDB's.
var sidPattern = regexp.MustCompile(`^[+-]?[A-Za-z0-9_$#]{1,30}$`)

func checkSID(text string) *fault {
	if text != "{sid}" && !sidPattern.MatchString(text) {
		return faultf("write it as it stands behind ora_pmon_", "%q is not a SID", text)
	}
	return nil
}

func checkPort(text string) *fault {
	if text == "{port}" {
		return nil
	}
	_, wrong := integer(text, "a port", 1, 65535)
	return wrong
}

func checkPath(text string) *fault {
	filled := text
	if strings.HasPrefix(text, "{") {
		filled = placeholder.ReplaceAllString(text, "/x")
	}
	if !path.IsAbs(filled) {
		return faultf("write the whole path, from /", "%q is not an absolute path", text)
	}
	return nil
}

// checkExe checks a base name or a path glob.
func checkExe(text string) *fault {
	if _, err := path.Match(text, ""); err != nil {
		return faultf("see path globs: * ? [a-z]", "%q is not a glob: %v", text, err)
	}
	if strings.Contains(text, "/") {
		if !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "*") && !strings.HasPrefix(text, "{") {
			return faultf("write the base name alone, or the whole path from /", "%q is neither a base name nor an absolute path", text)
		}
		return nil
	}
	if strings.Trim(text, "*?") == "" {
		return faultf("say which executable is meant: mysqld*", "%q would match every process", text)
	}
	if strings.ContainsAny(text, " \t") {
		return faultf("arguments are matched by cmdline", "%q holds a space", text)
	}
	return nil
}

// checkRegexp compiles a regular expression and refuses one that says nothing about a process.
func checkRegexp(text string) *fault {
	re, err := regexp.Compile(placeholder.ReplaceAllString(text, "x"))
	if err != nil {
		return faultf("the syntax is RE2's: https://github.com/google/re2/wiki/Syntax", "%s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	// What matches each of these one-character command lines matches whatever holds a character.
	for _, one := range []string{"a", "0", "/", "-", "ß", "_"} {
		if !re.MatchString(one) {
			return nil
		}
	}
	return faultf("say what the command line holds", "%q would match every process", text)
}

func checkAccount(text string) *fault {
	if strings.ContainsAny(text, " \t:/,") && !placeholder.MatchString(text) {
		return faultf("write one name or number", "%q is not a user or group name", text)
	}
	return nil
}

func checkUnit(text string) *fault {
	if strings.Contains(text, "/") {
		return faultf("write the name alone, or use cgroup for a path", "%q is not a unit name", text)
	}
	if _, err := path.Match(text, ""); err != nil || strings.Trim(text, "*?") == "" {
		return faultf("write its name: mariadb.service", "%q names no unit", text)
	}
	return nil
}

func checkCgroup(text string) *fault {
	if _, err := path.Match(text, ""); err != nil {
		return faultf("see path globs: * ? [a-z]", "%q is not a glob: %v", text, err)
	}
	if !strings.HasPrefix(text, "/") {
		return faultf("write the path inside the hierarchy, from /", "%q does not start with a /", text)
	}
	if strings.Trim(text, "/") == "" {
		return faultf("say which group is meant: /user.slice/", "%q would match every process", text)
	}
	for element := range strings.SplitSeq(strings.TrimSuffix(text[1:], "/"), "/") {
		if element == "" || element == "." || element == ".." {
			return faultf("write it as /proc/PID/cgroup does", "%q matches nothing: no path of the kernel has an element %q", text, element)
		}
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(=|$)`)

func checkEnv(text string) *fault {
	if !envName.MatchString(text) {
		return faultf("write NAME or NAME=VALUE", "%q is not an environment variable", text)
	}
	return nil
}
