package unitfile

import (
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
		return name, true, ok && unitname.TypeOf(name) != ""
	}
	return name, false, unitname.TypeOf(name) != ""
}

// units reads the files of an import and gives each unit once: its own file before its drop-ins, these by name.
func units(r *convert.Report, sources []policy.Source) []*unitFile {
	order := slices.Clone(sources)
	slices.SortStableFunc(order, func(a, b policy.Source) int {
		_, dropA, _ := unitOf(a.Path)
		_, dropB, _ := unitOf(b.Path)
		switch {
		case dropA && dropB:
			return strings.Compare(path.Base(a.Path), path.Base(b.Path))
		case dropA:
			return 1
		case dropB:
			return -1
		}
		return 0
	})
	var all []*unitFile
	byName := map[string]*unitFile{}
	files := map[string]policy.Source{}
	for _, s := range sources {
		files[filepath.Clean(s.Path)] = s
	}
	for _, s := range order {
		at := policy.Pos{File: s.Path, Line: 1, Column: 1}
		name, dropIn, ok := unitOf(s.Path)
		if !ok {
			r.Fail(at, "name it as systemd would find it: NAME.slice, NAME.service, or NAME.slice.d/50-x.conf",
				"%q is not the name of a unit's file", path.Base(s.Path))
			continue
		}
		u := byName[name]
		if u == nil {
			u = &unitFile{name: name, at: at}
			byName[name] = u
			all = append(all, u)
		} else if !dropIn {
			r.FailWith(at, u.at, "keep one of them: systemd reads the one in /etc", "unit %s has two files", name)
			continue
		}
		if in, ok := r.Open(s); ok {
			p := unitParser{Input: in, unit: u, files: files, chain: []string{filepath.Clean(s.Path)}}
			p.parse()
		}
	}
	return all
}

// unitParser reads one file of a unit.
type unitParser struct {
	*convert.Input
	unit    *unitFile
	section string
	files   map[string]policy.Source // that were given, for .include
	chain   []string                 // of files that include each other
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
	case len(p.chain) > 16:
		p.Bad(offset, "", "files include each other too deep")
	default:
		in, ok := p.Open(s)
		if !ok {
			return
		}
		inner := unitParser{Input: in, unit: p.unit, files: p.files, chain: append(slices.Clone(p.chain), file)}
		inner.parse()
	}
}

// last is the assignment of a name that counts; an empty one takes those before it away.
func (u *unitFile) last(name string) (assignment, bool) {
	for _, a := range slices.Backward(u.lines) {
		if a.name == name && !strings.HasPrefix(a.section, "X-") {
			return a, a.value != ""
		}
	}
	return assignment{}, false
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
