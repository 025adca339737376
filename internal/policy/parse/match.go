package parse

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// matchField is one key of a match entry.
type matchField struct {
	name, doc  string
	of         func(*policy.Match) *string
	ofInstance bool // a property of an instance, so the entry needs its engine
	each       bool // also a key of `each:`
	check      func(text string) *policy.Fault
	schema     policy.JSONSchema
}

// engines that are recognised, each with its flavours ("mysql" is all of its own).
var (
	engines = []string{"mysql", "mariadb", "percona", "postgresql", "redis", "valkey", "oracle", "asm", "mongodb",
		"scylladb", "cassandra", "sqlserver", "clickhouse", "etcd"}
	otherNames = map[string]string{"postgres": "postgresql", "mongo": "mongodb", "scylla": "scylladb",
		"mssql": "sqlserver"}
)

// helperKinds are what a helper program may be to its instance; internal/engine says which program is what.
var helperKinds = []string{"agent", "backup", "exporter", "listener", "restore", "save", "tool"}

// matchFields are the keys of a match entry.
var matchFields = []matchField{
	{name: "engine", doc: "Database engine of the instance.", of: func(m *policy.Match) *string { return &m.Engine },
		each: true, check: checkEngine, schema: policy.JSONSchema{"enum": append(slices.Clone(engines), "{engine}")}},
	{name: "port", doc: "TCP port the instance listens on.", of: func(m *policy.Match) *string { return &m.Port },
		ofInstance: true, each: true, check: checkPort,
		schema: policy.JSONSchema{"anyOf": []any{policy.JSONSchema{"type": "integer", "minimum": 1, "maximum": 65535},
			policy.JSONSchema{"const": "{port}"}}}},
	{name: "socket", doc: "Unix socket the instance listens on.",
		of: func(m *policy.Match) *string { return &m.Socket }, ofInstance: true, each: true, check: checkPath},
	{name: "datadir", doc: "Data directory of the instance.", of: func(m *policy.Match) *string { return &m.DataDir },
		ofInstance: true, each: true, check: checkPath},
	{name: "sid", doc: "SID of the Oracle instance.", of: func(m *policy.Match) *string { return &m.SID },
		ofInstance: true, each: true, check: checkSID},
	{name: "instance", doc: "Name of the instance, such as PostgreSQL's 15/main.",
		of: func(m *policy.Match) *string { return &m.Instance }, ofInstance: true, each: true},
	{name: "part", doc: "Part of the instance, such as PostgreSQL's backends or walwriter.",
		of: func(m *policy.Match) *string { return &m.Part }, ofInstance: true},
	{name: "helper", doc: "Kind of helper program of the instance, such as backup.",
		of: func(m *policy.Match) *string { return &m.Helper }, check: checkHelper,
		schema: policy.JSONSchema{"enum": helperKinds}},
	{name: "exe", doc: "Executable: a glob over its base name, or over its whole path when it holds a /.",
		of: func(m *policy.Match) *string { return &m.Exe }, check: checkExe},
	{name: "program",
		doc: "What was started, executable or script: a base name, a path, or the beginning of one and a *.",
		of:  func(m *policy.Match) *string { return &m.Program }, check: checkProgram},
	{name: "cmdline", doc: "Regular expression (RE2, unanchored) over the arguments joined by single spaces.",
		of: func(m *policy.Match) *string { return &m.Cmdline }, check: checkRegexp,
		schema: policy.JSONSchema{"type": "string", "format": "regex", "minLength": 1}},
	{name: "user", doc: "Effective user, by name or number.", of: func(m *policy.Match) *string { return &m.User },
		each: true, check: checkAccount, schema: accountSchema},
	{name: "unix_group", doc: "Effective or supplementary Unix group, by name or number.",
		of: func(m *policy.Match) *string { return &m.UnixGroup }, check: checkAccount, schema: accountSchema},
	{name: "unit", doc: "systemd unit, such as mariadb.service or mysqld@*; a name without a type is a service.",
		of: func(m *policy.Match) *string { return &m.Unit }, check: checkUnit},
	{name: "cgroup", doc: "Control group in any hierarchy: a glob over its path, or a prefix ending in /.",
		of: func(m *policy.Match) *string { return &m.Cgroup }, check: checkCgroup},
	{name: "ancestor", doc: "Executable of any ancestor, written as for exe.",
		of: func(m *policy.Match) *string { return &m.Ancestor }, check: checkExe},
	{name: "env", doc: "Environment variable: NAME, or NAME=VALUE.",
		of: func(m *policy.Match) *string { return &m.Env }, check: checkEnv},
}

var accountSchema = policy.JSONSchema{"type": []any{"string", "integer"}, "minLength": 1, "minimum": 0}

// fieldOf makes a field of a match key.
func fieldOf(f matchField) yamlform.FormKey[policy.Match] {
	shape := f.schema
	if shape == nil {
		shape = policy.JSONSchema{"type": "string", "minLength": 1}
	}
	return yamlform.FormKey[policy.Match]{
		Name: f.name, Doc: f.doc, Schema: shape,
		Read: func(v yamlform.Item, m *policy.Match) {
			text, ok := v.Text()
			if !ok {
				return
			}
			*f.of(m) = text
			if f.check == nil {
				return
			}
			if wrong := f.check(text); wrong != nil {
				v.Fail(wrong.Hint, "%s: %s", f.name, wrong.Msg)
			}
		},
	}
}

// exceptForm is one entry of `except:`.
func exceptForm() yamlform.Form[policy.Match] {
	o := yamlform.Form[policy.Match]{Name: "an except entry",
		Elsewhere: map[string]string{"except": "exceptions have no exceptions; write a rule of a more specific group"}}
	for _, f := range matchFields {
		o.Keys = append(o.Keys, fieldOf(f))
	}
	return o
}

// matchForm is one entry of `match:`.
func matchForm() yamlform.Form[policy.Match] {
	o, except := exceptForm(), exceptForm()
	o.Name, o.Elsewhere = "a match entry", map[string]string{"group": "did you mean unix_group?"}
	o.Keys = append(o.Keys, yamlform.FormKey[policy.Match]{
		Name: "except", Doc: "Processes that the entry does not mean after all.",
		Schema: yamlform.ListOf(policy.JSONSchema{"$ref": "#/$defs/except"}),
		Read:   func(v yamlform.Item, m *policy.Match) { m.Except = readMatches(v, except) },
	})
	return o
}

// eachForm is `each:`.
func eachForm() yamlform.Form[policy.Match] {
	o := yamlform.Form[policy.Match]{Name: "each", Elsewhere: map[string]string{}}
	for _, f := range matchFields {
		if f.each {
			o.Keys = append(o.Keys, fieldOf(f))
		} else {
			o.Elsewhere[f.name] = "each picks instances, not processes: its keys are engine, port, socket, datadir, " +
				"sid, instance and user"
		}
	}
	return o
}

// matches reads a list of match entries.
func readMatches(v yamlform.Item, o yamlform.Form[policy.Match]) []policy.Match {
	all := []policy.Match{} // not nil: it is there, and may be empty
	for _, item := range v.Items(fmt.Sprintf("write a list: `%s: [{exe: mysqld}]`", v.Name())) {
		m := policy.Match{Pos: item.Pos()}
		sound := o.Read(item, "", &m)
		all = append(all, m)
		says := slices.ContainsFunc(matchFields, func(f matchField) bool { return *f.of(&m) != "" })
		if !says && sound && !item.IsAlias() {
			item.Fail("say which processes are meant: {exe: …}, {user: …}, {cmdline: …}",
				"%s without a key would match every process", o.Name)
		}
	}
	return all
}

// each reads `each:`.
func readEach(v yamlform.Item, o yamlform.Form[policy.Match]) *policy.Match {
	m := &policy.Match{Pos: v.Pos()}
	if sound := o.Read(v, "", m); sound && m.Engine == "" {
		v.Fail("write `each: {engine: mysql}`, or another of "+yamlform.JoinWords(engines), "each needs engine")
	}
	for _, f := range matchFields {
		if found := policy.Placeholder.FindString(*f.of(m)); found != "" {
			v.Fail("write the value out, or take the key out",
				"%s: each picks the instances that fill %s, so it cannot hold it", f.name, found)
		}
	}
	return m
}

// checkMatches checks what a match entry may say where it stands. Below a template its instance fills
// the placeholders and stands for the engine; an exception is about the engine of its entry.
func checkMatches(entries []policy.Match, group string, inTemplate bool, engine string, r *yamlform.Report) {
	for _, m := range entries {
		fail := func(hint, format string, args ...any) {
			r.Fail(m.Pos, hint, format, args...)
		}
		engine := cmp.Or(m.Engine, engine)
		for _, f := range matchFields {
			text := *f.of(&m)
			found := policy.Placeholder.FindString(text)
			switch {
			case found != "" && !inTemplate:
				fail(fmt.Sprintf("add `each: {engine: …}` to group %s, or write the value out", group),
					"%s: %s has a value only in a group with `each`, or below one", f.name, found)
			case text != "" && f.ofInstance && engine == "" && (f.name != "part" || !inTemplate):
				hint := "add `engine:` beside it, one of " + yamlform.JoinWords(engines)
				if f.name == "sid" {
					hint = "add `engine: oracle`"
				}
				fail(hint, "%s needs engine beside it", f.name)
			}
		}
		checkMatches(m.Except, group, inTemplate, engine, r)
	}
}

func checkEngine(text string) *policy.Fault {
	switch {
	case slices.Contains(engines, text) || text == "{engine}":
		return nil
	case otherNames[text] != "":
		return policy.Faultf("write "+otherNames[text], "%s goes by another name here", text)
	}
	return policy.Faultf(yamlform.DidYouMean(text, engines, "engines are "+yamlform.JoinWords(engines)),
		"%q is not known", text)
}

func checkHelper(text string) *policy.Fault {
	if slices.Contains(helperKinds, text) {
		return nil
	}
	return policy.Faultf(yamlform.DidYouMean(text, helperKinds, "helpers are "+yamlform.JoinWords(helperKinds)),
		"%q is no kind of helper; a program is matched by exe", text)
}

// sidPattern is what Oracle takes: letters, digits and a few signs, with + before ASM's and - before MGMTDB's.
var sidPattern = regexp.MustCompile(`^[+-]?[A-Za-z0-9_$#]{1,30}$`)

func checkSID(text string) *policy.Fault {
	if text != "{sid}" && !sidPattern.MatchString(text) {
		return policy.Faultf("write it as it stands behind ora_pmon_", "%q is not a SID", text)
	}
	return nil
}

func checkPort(text string) *policy.Fault {
	if text == "{port}" {
		return nil
	}
	_, wrong := policy.Integer(text, "a port", 1, 65535)
	return wrong
}

func checkPath(text string) *policy.Fault {
	filled := text
	if strings.HasPrefix(text, "{") {
		filled = policy.Placeholder.ReplaceAllString(text, "/x")
	}
	if !path.IsAbs(filled) {
		return policy.Faultf("write the whole path, from /", "%q is not an absolute path", text)
	}
	return nil
}

// checkExe checks a base name or a path glob.
func checkExe(text string) *policy.Fault {
	if _, err := path.Match(text, ""); err != nil {
		return policy.Faultf("see path globs: * ? [a-z]", "%q is not a glob: %v", text, err)
	}
	if strings.Contains(text, "/") {
		if !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "*") && !strings.HasPrefix(text, "{") {
			return policy.Faultf("write the base name alone, or the whole path from /",
				"%q is neither a base name nor an absolute path", text)
		}
		return nil
	}
	if strings.Trim(text, "*?") == "" {
		return policy.Faultf("say which executable is meant: mysqld*", "%q would match every process", text)
	}
	if strings.ContainsAny(text, " \t") {
		return policy.Faultf("arguments are matched by cmdline", "%q holds a space", text)
	}
	return nil
}

// checkProgram checks a base name, a path, or the beginning of a path.
func checkProgram(text string) *policy.Fault {
	name, begin := strings.CutSuffix(text, "*")
	whole := strings.HasPrefix(name, "/") || strings.HasPrefix(name, "{")
	switch {
	case strings.Trim(name, "/") == "":
		return policy.Faultf("say which program is meant: mysqld, or /opt/mysql/*", "%q would match every process",
			text)
	case !whole && (begin || strings.Contains(name, "/")):
		return policy.Faultf("write the whole path, from /, or the base name alone",
			"%q matches nothing: it is compared with the whole path", text)
	}
	return nil
}

// longestRegexp bounds a regular expression: each is run on every command line.
const longestRegexp = 64 << 10

// checkRegexp compiles a regular expression and refuses one that says nothing about a process.
func checkRegexp(text string) *policy.Fault {
	if len(text) > longestRegexp {
		return policy.Faultf("write several entries", "a regular expression of %d bytes is longer than %d", len(text),
			longestRegexp)
	}
	re, err := regexp.Compile(policy.Placeholder.ReplaceAllString(text, "x"))
	if err != nil {
		return policy.Faultf("the syntax is RE2's: https://github.com/google/re2/wiki/Syntax", "%s",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	// What matches each of these one-character command lines matches whatever holds a character.
	for _, one := range []string{"a", "0", "/", "-", "ß", "_"} {
		if !re.MatchString(one) {
			return nil
		}
	}
	return policy.Faultf("say what the command line holds", "%q would match every process", text)
}

func checkAccount(text string) *policy.Fault {
	if strings.ContainsAny(text, " \t:/,") && !policy.Placeholder.MatchString(text) {
		return policy.Faultf("write one name or number", "%q is not a user or group name", text)
	}
	return nil
}

func checkUnit(text string) *policy.Fault {
	if strings.Contains(text, "/") {
		return policy.Faultf("write the name alone, or use cgroup for a path", "%q is not a unit name", text)
	}
	if _, err := path.Match(text, ""); err != nil || strings.Trim(text, "*?") == "" {
		return policy.Faultf("write its name: mariadb.service", "%q names no unit", text)
	}
	return nil
}

func checkCgroup(text string) *policy.Fault {
	if _, err := path.Match(text, ""); err != nil {
		return policy.Faultf("see path globs: * ? [a-z]", "%q is not a glob: %v", text, err)
	}
	if !strings.HasPrefix(text, "/") {
		return policy.Faultf("write the path inside the hierarchy, from /", "%q does not start with a /", text)
	}
	if strings.Trim(text, "/") == "" {
		return policy.Faultf("say which group is meant: /user.slice/", "%q would match every process", text)
	}
	for element := range strings.SplitSeq(strings.TrimSuffix(text[1:], "/"), "/") {
		if element == "" || element == "." || element == ".." {
			return policy.Faultf("write it as /proc/PID/cgroup does",
				"%q matches nothing: no path of the kernel has an element %q", text, element)
		}
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(=|$)`)

func checkEnv(text string) *policy.Fault {
	if !envName.MatchString(text) {
		return policy.Faultf("write NAME or NAME=VALUE", "%q is not an environment variable", text)
	}
	return nil
}
