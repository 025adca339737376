// Package export writes a plan (package remedy) as what a site builds a package of the policy from: a module's rules
// and file contexts for checkmodule(8) and semodule_package(8), and the commands that install them, set the rest and
// take all of it back. It changes nothing and opens no file.
package export

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/remedy"
)

// File is one of them.
type File struct {
	Name string
	Mode fs.FileMode
	Text string
}

// names of modules.
var names = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]{0,63}$`)

// Valid says whether a module may have this name.
func Valid(name string) bool { return names.MatchString(name) }

// Of makes the files of a module of a name: of a plan without rules and file contexts there is no module.
func Of(name string, p *remedy.Plan) []File {
	m := module{name: name, classes: map[string]map[string]bool{}, types: map[string]bool{}}
	for _, s := range p.Settings {
		m.add(s)
	}
	files := []File{}
	if len(m.rules)+len(m.contexts) > 0 {
		files = append(files, File{name + ".te", 0o644, m.te()})
	}
	if len(m.contexts) > 0 {
		files = append(files, File{name + ".fc", 0o644, m.fc()})
	}
	return append(files, File{"apply.sh", 0o755, m.apply()}, File{"undo.sh", 0o755, m.undo()})
}

// module is what a plan comes to.
type module struct {
	name     string
	rules    []sepolicy.RuleParts
	types    map[string]bool
	classes  map[string]map[string]bool
	contexts [][2]string // path and type
	trees    []string    // to be labelled
	ports    [][4]string // protocol, ports, type, and whose they were
	booleans []string
}

func (m *module) add(s remedy.Setting) {
	name := strings.TrimPrefix(s.Name, sepolicy.Prefix)
	t := sepolicy.Target(name)
	switch t.Kind {
	case sepolicy.KindModule:
		for _, r := range sepolicy.Rules(s.Value) {
			m.rules = append(m.rules, r)
			m.types[r.Source] = true
			if r.Target != "self" {
				m.types[r.Target] = true
			}
			if m.classes[r.Class] == nil {
				m.classes[r.Class] = map[string]bool{}
			}
			for _, p := range r.Permissions {
				m.classes[r.Class][p] = true
			}
		}
	case sepolicy.KindContext:
		m.contexts = append(m.contexts, [2]string{t.Addr, s.Value})
		m.types[s.Value] = true
		m.trees = append(m.trees, t.Addr)
	case sepolicy.KindLabels:
		m.trees = append(m.trees, t.Addr)
	case sepolicy.KindPort:
		protocol, ports, _ := strings.Cut(t.Addr, "/")
		kind, from, _ := strings.Cut(s.Value, " from ")
		m.ports = append(m.ports, [4]string{protocol, ports, kind, from})
	case sepolicy.KindBoolean:
		m.booleans = append(m.booleans, t.Addr)
	}
}

// te is the module in the language of checkmodule.
func (m *module) te() string {
	var b strings.Builder
	fmt.Fprintf(&b, "module %s 1.0;\n\nrequire {\n", m.name)
	for _, t := range slices.Sorted(maps.Keys(m.types)) {
		fmt.Fprintf(&b, "\ttype %s;\n", t)
	}
	for _, c := range slices.Sorted(maps.Keys(m.classes)) {
		fmt.Fprintf(&b, "\tclass %s { %s };\n", c, strings.Join(slices.Sorted(maps.Keys(m.classes[c])), " "))
	}
	b.WriteString("}\n")
	if len(m.rules) > 0 {
		b.WriteByte('\n')
	}
	for _, r := range m.rules {
		fmt.Fprintf(&b, "allow %s %s:%s { %s };\n", r.Source, r.Target, r.Class, strings.Join(r.Permissions, " "))
	}
	return b.String()
}

// fc are its file contexts.
func (m *module) fc() string {
	var b strings.Builder
	for _, c := range m.contexts {
		fmt.Fprintf(&b, "%s\tsystem_u:object_r:%s:s0\n", sepolicy.Expression(c[0]), c[1])
	}
	return b.String()
}

// hasModule says whether there is one to build.
func (m *module) hasModule() bool { return len(m.rules)+len(m.contexts) > 0 }

const begin = "#!/bin/sh\n# %s Run it as root; stop the databases first.\nset -eu\ncd \"$(dirname \"$0\")\"\n"

// apply are the commands that set it.
func (m *module) apply() string {
	var b strings.Builder
	what := "Sets ports, booleans and labels."
	if m.hasModule() {
		what = "Builds the module, installs it and sets the rest."
	}
	fmt.Fprintf(&b, begin, what)
	if m.hasModule() {
		with := ""
		if len(m.contexts) > 0 {
			with = fmt.Sprintf(" -f %s.fc", m.name)
		}
		// In a directory of its own, whose label semodule may read.
		fmt.Fprintf(&b, "work=$(mktemp -d)\ntrap 'rm -rf \"$work\"' EXIT\n"+
			"checkmodule -M -m -o \"$work/%[1]s.mod\" %[1]s.te\n"+
			"semodule_package -o \"$work/%[1]s.pp\" -m \"$work/%[1]s.mod\"%[2]s\n"+
			"semodule -i \"$work/%[1]s.pp\"\n", m.name, with)
	}
	for _, p := range m.ports {
		if p[3] != "" {
			fmt.Fprintf(&b, "# %s/%s is %s's: a server of that kind on this host loses it\n", p[0], p[1], p[3])
		}
		args := fmt.Sprintf("-t %s -p %s %s", p[2], p[0], p[1])
		fmt.Fprintf(&b, "semanage port -a %[1]s || semanage port -m %[1]s\n", args)
	}
	for _, name := range m.booleans {
		fmt.Fprintf(&b, "setsebool -P %s on\n", name)
	}
	m.relabel(&b)
	return b.String()
}

// undo are the commands that take it back. A boolean is switched off: it was off, or its rules would have allowed what
// was denied.
func (m *module) undo() string {
	var b strings.Builder
	fmt.Fprintf(&b, begin, "Takes back what apply.sh has set.")
	if m.hasModule() {
		fmt.Fprintf(&b, "semodule -r %s\n", m.name)
	}
	for _, p := range m.ports {
		fmt.Fprintf(&b, "semanage port -d -p %s %s\n", p[0], p[1])
	}
	for _, name := range m.booleans {
		fmt.Fprintf(&b, "setsebool -P %s off\n", name)
	}
	m.relabel(&b)
	return b.String()
}

// relabel gives trees the labels of the file contexts as they are then.
func (m *module) relabel(b *strings.Builder) {
	for _, tree := range slices.Sorted(slices.Values(m.trees)) {
		fmt.Fprintf(b, "restorecon -R -v '%s'\n", tree)
	}
}
