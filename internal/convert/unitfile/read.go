package unitfile

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// A unit as its files say it: systemd.syntax(7), with what systemd.unit(5) says of drop-ins.

// unitFile is one unit with what its files, in the order in which the last one counts, assign.
type unitFile struct {
	name  string
	at    policy.Pos
	lines []assignment
	// instances are units of this template that have files of their own.
	instances []string

	lasts map[string]int // the last of lines of each name; made when it is asked for
}

// assignment is `Name=value` in a section.
type assignment struct {
	section, name, value string
	at                   policy.Pos
}

func (a assignment) what() string { return a.name + "=" + a.value }

// unitOf gives the unit that a file is about: its own name, or for a drop-in the directory's.
func unitOf(file string) (name string, dropIn, ok bool) {
	name = path.Base(filepath.ToSlash(file))
	if path.Ext(name) == ".conf" {
		dir := path.Base(path.Dir(filepath.ToSlash(file)))
		name, ok = strings.CutSuffix(dir, ".d")
		return name, true, ok && (unitname.TypeOf(name) != "" || sections[name] != "" || name == "slice")
	}
	return name, false, unitname.TypeOf(name) != ""
}

// fragment is one file of a unit.
type fragment struct {
	of     string // the unit, a template, "user-.slice" for all that begin so, or "service" for all of a type
	file   string
	dropIn bool
	at     policy.Pos
	lines  []assignment
	used   bool
}

// rank orders the directories of systemd.unit(5): the unit's file of the first one counts.
func (f *fragment) rank() int {
	for i, dir := range []string{"/etc/", "/run/", "/usr/local/lib/", "/usr/lib/", "/lib/"} {
		if strings.HasPrefix(f.at.File, dir) {
			return i
		}
	}
	return 0
}

// library are the files of an import, by the units that they are about.
type library struct {
	report   *convert.Report
	files    map[string]policy.Source // that were given, for .include
	own      map[string]*fragment
	dropIns  map[string][]*fragment
	includes int // how many files were included so far
}

// units reads the files of an import and gives each unit once, with what its own file and its drop-ins say, and those
// of its template, of all units whose names begin as its own, and of its type.
func units(r *convert.Report, sources []policy.Source) (all []*unitFile) {
	l := library{report: r, files: map[string]policy.Source{}, own: map[string]*fragment{},
		dropIns: map[string][]*fragment{}}
	for _, s := range sources {
		l.files[filepath.Clean(s.Path)] = s
	}
	byName := map[string]*unitFile{}
	for _, dropIn := range []bool{false, true} { // units in the order of their files
		for _, s := range sources {
			name, isDropIn, ok := unitOf(s.Path)
			switch {
			case isDropIn != dropIn:
			case !ok:
				r.Fail(policy.Pos{File: s.Path, Line: 1, Column: 1},
					"name it as systemd would find it: NAME.slice, NAME.service, or NAME.slice.d/50-x.conf",
					"%q is not the name of a unit's file", path.Base(s.Path))
			default:
				l.add(name, dropIn, s)
				if byName[name] == nil && !forMany(name) {
					byName[name] = &unitFile{name: name}
					all = append(all, byName[name])
				}
			}
		}
	}
	for _, u := range all {
		u.compose(l.own, l.dropIns)
		if template := templateOf(u.name); byName[template] != nil {
			byName[template].instances = append(byName[template].instances, u.name)
		}
	}
	l.unused()
	return all
}

// add takes in a file: of several of one unit that of the first directory.
func (l *library) add(name string, dropIn bool, s policy.Source) {
	f := &fragment{of: name, file: path.Base(s.Path), dropIn: dropIn,
		at: policy.Pos{File: s.Path, Line: 1, Column: 1}}
	first := l.own[name]
	switch {
	case dropIn:
		l.dropIns[name] = append(l.dropIns[name], f)
	case first == nil:
		l.own[name] = f
	case first.rank() == f.rank():
		l.report.FailWith(f.at, first.at, "keep one of them: systemd reads the one in /etc", "unit %s has two files",
			name)
		return
	case first.rank() < f.rank():
		l.report.Leave(f.at, "", name, "systemd reads %s instead", first.at.File)
		return
	default:
		l.own[name] = f
		l.report.Leave(first.at, "", name, "systemd reads %s instead", s.Path)
	}
	if in, ok := l.report.Open(s, convert.LineComments("#;")); ok {
		p := unitParser{Input: in, unit: f, library: l, chain: []string{filepath.Clean(s.Path)}}
		p.parse()
	}
}

// unused reports drop-ins for many units of which none is there.
func (l *library) unused() {
	for _, name := range slices.Sorted(maps.Keys(l.dropIns)) {
		for _, f := range l.dropIns[name] {
			if !f.used && forMany(name) {
				l.report.Leave(f.at, "import it with the units that it is for, or name a group of each", name+".d",
					"its settings are for every unit whose name %s, and none of these is imported", whose(name))
			}
		}
	}
}

// compose gathers what the files of a unit say.
func (u *unitFile) compose(own map[string]*fragment, dropIns map[string][]*fragment) {
	main := own[u.name]
	if main == nil {
		main = own[templateOf(u.name)]
	}
	if main != nil {
		u.at, u.lines = main.at, main.lines
	}
	names := map[string]*fragment{} // of drop-ins; the first directory that has one counts
	for _, dir := range dropInNames(u.name) {
		for _, f := range dropIns[dir] {
			f.used = true
			if other := names[f.file]; other == nil || other.of == f.of && f.rank() < other.rank() {
				names[f.file] = f
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if u.at.File == "" {
			u.at = names[name].at
		}
		u.lines = append(slices.Clip(u.lines), names[name].lines...)
	}
}

// forMany says whether drop-ins of a name are for many units.
func forMany(name string) bool {
	return unitname.TypeOf(name) == "" || strings.HasSuffix(strings.TrimSuffix(name, "."+unitname.TypeOf(name)), "-") &&
		name != "-.slice"
}

// whose says which units drop-ins are for.
func whose(name string) string {
	kind := unitname.TypeOf(name)
	if kind == "" {
		return "ends in ." + name
	}
	return "begins with " + strings.TrimSuffix(name, "."+kind) + " and ends in ." + kind
}

// templateOf is the template of an instance, "" for any other unit.
func templateOf(name string) string {
	prefix, instance, ok := strings.Cut(name, "@")
	kind := unitname.TypeOf(name)
	if !ok || instance == "."+kind {
		return ""
	}
	return prefix + "@." + kind
}

// dropInNames names the directories, without .d, in which systemd looks for drop-ins of a unit (systemd.unit(5)).
func dropInNames(name string) []string {
	names := []string{name}
	if template := templateOf(name); template != "" {
		names = append(names, template)
	}
	kind := unitname.TypeOf(name)
	base, _, _ := strings.Cut(strings.TrimSuffix(name, "."+kind), "@")
	for {
		dash := strings.LastIndexByte(strings.TrimRight(base, "-"), '-')
		if dash < 1 {
			return append(names, kind)
		}
		base = base[:dash+1]
		names = append(names, base+"."+kind)
	}
}

// mostIncludes bounds how often files are included: each of them may name the others many times.
const mostIncludes = 1000

// unitParser reads one file of a unit.
type unitParser struct {
	*convert.Input
	unit    *fragment
	section string
	*library
	chain []string // of files that include each other
}

func (p *unitParser) parse() {
	for offset, line := range systemd.UnitLines(p.Body) {
		p.line(offset, line)
	}
}

// line reads one line, after systemd has joined it.
func (p *unitParser) line(offset int, text string) {
	switch {
	case strings.HasPrefix(text, "["):
		if !strings.HasSuffix(text, "]") {
			p.Bad(offset, "write [Slice]", "%q is no section", convert.Clean(text))
			return
		}
		p.section = text[1 : len(text)-1]
		return
	case strings.HasPrefix(text, ".include"):
		p.include(offset, strings.TrimSpace(strings.TrimPrefix(text, ".include")))
		return
	}
	name, value, ok := systemd.UnitAssignment(text)
	switch {
	case !ok:
		p.Bad(offset, "write NAME=VALUE, or begin a comment with #", "%q assigns nothing", convert.Clean(text))
	case p.section == "":
		p.Bad(offset, "begin with [Unit], [Slice] or [Service]", "%s= stands in no section", convert.Clean(name))
	case name == "" || strings.ContainsAny(name, " \t"):
		p.Bad(offset, "write NAME=VALUE", "%q is not the name of a setting", convert.Clean(name))
	default:
		p.unit.lines = append(p.unit.lines, assignment{p.section, name, value, p.At(offset)})
	}
}

// include reads another of the files that were given, as systemd did before 253.
func (p *unitParser) include(offset int, name string) {
	file := filepath.Clean(name)
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(p.File), file)
	}
	s, given := p.files[file]
	switch {
	case slices.Contains(p.chain, file):
		loop := append(slices.Clone(p.chain[slices.Index(p.chain, file):]), file)
		p.Bad(offset, "take one of them out", ".include loops: %s", strings.Join(loop, " includes "))
	case !given:
		p.Bad(offset, "give it to import too, or write a drop-in instead: systemd 253 no longer has .include",
			".include %q: it is not among the files that are imported", convert.Clean(name))
	case len(p.chain) > 16 || p.includes > mostIncludes:
		p.Bad(offset, "", "files include each other too deep, or too often")
	default:
		p.includes++
		in, ok := p.Open(s, convert.LineComments("#;"))
		if !ok {
			return
		}
		inner := unitParser{Input: in, unit: p.unit, library: p.library,
			chain: append(slices.Clone(p.chain), file)}
		inner.parse()
	}
}

// last is the assignment of a name that counts; an empty one takes those before it away.
func (u *unitFile) last(name string) (assignment, bool) {
	if u.lasts == nil {
		u.lasts = map[string]int{}
		for i, a := range u.lines {
			if !strings.HasPrefix(a.section, "X-") {
				u.lasts[a.name] = i
			}
		}
	}
	i, there := u.lasts[name]
	if !there {
		return assignment{}, false
	}
	return u.lines[i], u.lines[i].value != ""
}

// all are the assignments of a list, without those that an empty one has taken away.
func (u *unitFile) all(name string) (list []assignment) {
	for _, a := range u.lines {
		switch {
		case a.name != name || strings.HasPrefix(a.section, "X-"):
		case a.value == "":
			list = nil
		default:
			list = append(list, a)
		}
	}
	return list
}
