package check

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/filecon"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/verdict"
)

// needs are the permissions that a server needs by what a path is for and by class. A file that is not read is only
// looked at.
var needs = map[places.Kind]map[string][]string{
	places.Data: {"dir": changed, "file": {"getattr", "open", "read", "write", "create", "unlink"}},
	places.Log:  {"dir": changed, "file": {"getattr", "open", "append", "create"}},
	places.Runtime: {"dir": changed, "file": {"getattr", "open", "write", "create", "unlink"},
		"sock_file": {"getattr", "create", "unlink"}},
	places.Temporary:   {"dir": changed, "file": {"getattr", "open", "read", "write", "create", "unlink"}},
	places.Config:      {"dir": {"getattr", "search", "open", "read"}, "file": {"getattr", "open", "read"}},
	places.Certificate: {"dir": {"getattr", "search"}, "file": {"getattr", "open", "read"}},
	places.Share:       {"dir": {"getattr", "search"}, "file": {"getattr", "open", "read"}},
	places.Library:     {"dir": {"getattr", "search"}, "file": {"getattr", "open", "read", "execute"}},
}

var changed = []string{"getattr", "search", "open", "read", "write", "add_name", "remove_name"}

// made is the class of what a server makes where a path of a kind is not there yet.
func made(kind places.Kind, name string) string {
	switch {
	case kind == places.Runtime && strings.HasSuffix(name, "pid"):
		return "file"
	case kind == places.Runtime:
		return "sock_file"
	}
	return "file"
}

// writes says whether a server makes files of a kind.
func writes(kind places.Kind) bool { return slices.Contains(needs[kind]["dir"], "add_name") }

// access asks the policy of a type, as a path of a kind. Of is the class whose permissions it is about: in a directory,
// that of what the server makes there.
func (c *checking) access(kind places.Kind, class, target string) (a policydb.Access, of string) {
	a = c.Policy.Access(c.Domain, target, class, needs[kind][class])
	if class != "dir" || !writes(kind) || !a.Known || len(a.Missing) > 0 {
		return a, class
	}
	// What it makes there has a type of its own, or that of the directory.
	inside := "file"
	if kind == places.Runtime {
		inside = "sock_file"
	}
	made := c.Transitions.Created(c.Domain, target, inside)
	return c.Policy.Access(c.Domain, made, inside, needs[kind][inside]), inside
}

// kindOf is what a path is for. What is below a directory of data has its label, whatever it is.
func (c *checking) kindOf(p places.Place) places.Kind {
	if slices.ContainsFunc(c.Places, func(d places.Place) bool {
		return d.Kind == places.Data && mountinfo.Within(p.Path, d.Path)
	}) {
		return places.Data
	}
	return p.Kind
}

// place follows the way to a path.
func (c *checking) place(p places.Place) {
	w, err := c.Files.Way(c.PID, p.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the server ended
		return
	case errors.Is(err, fs.ErrPermission):
		c.undecided("paths: only root may follow them as the server sees them; run it with sudo")
		return
	case err != nil:
		c.undecided(fmt.Sprintf("%s: %v", said(p.Setting, p.From), err))
		return
	}
	last, reached := len(w.Components)-1, true
	for i, part := range w.Components {
		if i < last && part.Class == "dir" || part.Class == "lnk_file" {
			reached = c.passed(p, part) && reached
		}
	}
	if w.Missing != "" {
		c.absent(p, w, reached)
		return
	}
	end := w.Last()
	done := Checked{Place: p, Real: end.Path, Class: end.Class, Type: typeOf(end.Label)}
	done.Contexts, _ = c.Contexts.Expected(end.Path, end.Class)
	done.Fits = c.fits(p, w) && reached
	if _, asked := needs[c.kindOf(p)][end.Class]; asked && done.Fits {
		a, _ := c.access(c.kindOf(p), end.Class, done.Type)
		done.Undecided, done.Fits = !a.Known, a.Known
	}
	c.Paths = append(c.Paths, done)
	if end.Class == "dir" && done.Fits && p.Kind == places.Data && c.Entries != nil {
		c.inside(p, end.Path)
	}
}

// fits judges what is at the end of a way.
func (c *checking) fits(p places.Place, w selinux.Way) bool {
	end, kind := w.Last(), c.kindOf(p)
	_, known := needs[kind][end.Class]
	switch {
	case p.Kind == places.Runtime && end.Class != "dir":
		// It is made anew at each start, with the type that the directory makes it have.
		return c.maker(p, c.parent(w), end.Class)
	case !known:
		return true
	case p.Kind == places.Log && end.Class != "dir":
		again := c.maker(p, c.parent(w), end.Class) // as after a rotation
		return c.judge(p, kind, end, 0, false) && again
	}
	return c.judge(p, kind, end, 0, false)
}

// parent is the directory that the end of a way is in.
func (c *checking) parent(w selinux.Way) selinux.Component {
	dir := path.Dir(w.Last().Path)
	for _, part := range slices.Backward(w.Components) {
		if part.Path == dir {
			return part
		}
	}
	return selinux.Component{}
}

// passed asks whether the domain may go through a directory or a link.
func (c *checking) passed(p places.Place, part selinux.Component) bool {
	permissions := []string{"search"}
	if part.Class == "lnk_file" {
		permissions = []string{"read"}
	}
	has := typeOf(part.Label)
	a := c.Policy.Access(c.Domain, has, part.Class, permissions)
	if !a.Known || len(a.Missing) == 0 {
		return true // a type that the policy does not know is said of the path itself
	}
	f := Finding{About: Label, Path: part.Path, Class: part.Class, Domain: c.Domain, Has: has, Missing: a.Missing,
		Denied: true, way: true}
	f.Contexts, _ = c.Contexts.Expected(part.Path, part.Class)
	f.Why = fmt.Sprintf("on the way to %s: %s may not pass %s, whose type is %s", p.Path, c.Domain, part.Path, has)
	allowed := func(kind string) bool {
		b := c.Policy.Access(c.Domain, kind, part.Class, permissions)
		return b.Known && len(b.Missing) == 0
	}
	usual := func() string {
		// One type for the directories of all kinds, that of the parent of the data where it suits.
		for _, name := range slices.Concat(places.Customary(c.Engine, places.Data),
			places.Customary(c.Engine, p.Kind)) {
			if kind, known := c.Contexts.Expected(path.Dir(name), "dir"); known && allowed(kind) {
				return kind
			}
		}
		return ""
	}
	c.fix(&f, a, allowed, usual, false)
	c.add(f, said(p.Setting, p.From))
	return false
}

// absent is for a path of which the last part is not there yet: may it be made?
func (c *checking) absent(p places.Place, w selinux.Way, reached bool) {
	dir := w.Last()
	if !writes(c.kindOf(p)) || path.Dir(w.Missing) != dir.Path || dir.Class != "dir" {
		return
	}
	class := made(p.Kind, p.Path)
	done := Checked{Place: p, Real: w.Missing, Class: class, Fits: c.maker(p, dir, class) && reached}
	done.Contexts, _ = c.Contexts.Expected(w.Missing, class)
	c.Paths = append(c.Paths, done)
}

// maker asks whether the server may make a file in a directory.
func (c *checking) maker(p places.Place, dir selinux.Component, class string) bool {
	has := typeOf(dir.Label)
	a := c.Policy.Access(c.Domain, has, "dir", []string{"search", "write", "add_name"})
	if a.Known && len(a.Missing) == 0 {
		a = c.Policy.Access(c.Domain, c.Transitions.Created(c.Domain, has, class), class, needs[p.Kind][class])
	}
	return !a.Known || len(a.Missing) == 0 || c.judge(p, c.kindOf(p), dir, 0, true)
}

// alone says whether nothing of another kind is below a directory.
func (c *checking) alone(dir string, kind places.Kind) bool {
	return !slices.ContainsFunc(c.Places, func(p places.Place) bool {
		return c.kindOf(p) != kind && strings.HasPrefix(p.Path, strings.TrimSuffix(dir, "/")+"/")
	})
}

// judge says whether the label of what is at the end of a way suits; entries are how many stand for it. Parent is a
// directory that no setting names: a file of the server is to be in it, and others may have files there, too, so that
// its tree is not to be labelled.
func (c *checking) judge(p places.Place, kind places.Kind, end selinux.Component, entries int,
	parent bool) (fits bool) {
	has := typeOf(end.Label)
	f := Finding{Path: end.Path, Class: end.Class, Domain: c.Domain, Has: has, Entries: entries}
	contexts, given := c.Contexts.Expected(end.Path, end.Class)
	f.Contexts = contexts
	allowed := func(t string) bool {
		a, _ := c.access(kind, end.Class, t)
		return a.Known && len(a.Missing) == 0
	}
	usual := func() string { return c.usual(kind, end.Class, allowed) }
	a, of := c.access(kind, end.Class, has)
	if !a.Known {
		why := fmt.Sprintf("the policy does not know the type %q, or not all of what is asked of class %s", has,
			end.Class)
		if has == "" {
			why = "it has no label that can be read"
		}
		c.undecided(end.Path + ": " + why)
		return true
	}
	labels, err := c.Files.Labelling(c.PID, end.Path)
	if err != nil {
		labels.Own = true
	}
	if len(a.Missing) == 0 {
		// What a server makes in its directories of sockets and temporary files has a type by rules of the policy.
		byRule := kind == places.Runtime || kind == places.Temporary
		if given && contexts != has && labels.Own && !byRule {
			c.differs(p, f, allowed, end.Class == "dir")
		}
		return true
	}
	f.About, f.Missing, f.Denied = Label, a.Missing, true
	f.Why = c.denied(end, a, of)
	tree, shared := c.whole(end, kind, parent)
	f.Why += shared
	if entries > 0 {
		f.Path, tree = path.Dir(end.Path), true
		f.Why += fmt.Sprintf("; so it is with %d entries of the directory", entries)
	}
	if !labels.Own {
		f.About, f.Want = Mount, usual()
		c.mount(&f, labels, a)
		c.add(f, said(p.Setting, p.From))
		return false
	}
	c.fix(&f, a, allowed, usual, tree)
	c.add(f, said(p.Setting, p.From))
	return false
}

// whole says whether all that is below a directory may be labelled with it, and what is to be said where not.
func (c *checking) whole(end selinux.Component, kind places.Kind, parent bool) (tree bool, why string) {
	switch {
	case parent && kind != places.Data:
		return false, "; where other programs have files in it, a directory of its own is safer"
	case end.Class == "dir" && (parent || !c.alone(end.Path, kind)):
		return false, "; a directory of its own for what is " + string(kind) + " would be simpler"
	}
	return end.Class == "dir", ""
}

// denied says what the domain may not do; of is the class that it is about.
func (c *checking) denied(end selinux.Component, a policydb.Access, of string) string {
	missing, has := strings.Join(a.Missing, ", "), typeOf(end.Label)
	if of != end.Class {
		return fmt.Sprintf("in %s, whose type is %s, %s may not make a %s that it may use (%s)", end.Path, has,
			c.Domain, of, missing)
	}
	return fmt.Sprintf("%s is not allowed %s on %s, whose type is %s", c.Domain, missing, end.Path, has)
}

// usual is the type that the file contexts give the customary path of a kind, where the domain may use it so. A type of
// the packages' own comes before one that everything beside it has, which is none for what a server writes. What is
// temporary has the type that the domain gives what it makes in such a place.
func (c *checking) usual(kind places.Kind, class string, allowed func(string) bool) (general string) {
	for _, name := range places.Customary(c.Engine, kind) {
		t, known := c.Contexts.Expected(name, class)
		if known && kind == places.Temporary {
			t = c.Transitions.Created(c.Domain, t, class)
		}
		switch {
		case !known || !allowed(t):
		case c.common(name, class) != t:
			return t
		case general == "" && !writes(kind):
			general = t
		}
	}
	return general
}

// common is the type that the file contexts give what is of no package, beside the directory of one.
func (c *checking) common(name, class string) string {
	for _, dir := range places.Shared {
		if strings.HasPrefix(name, dir+"/") {
			t, _ := c.Contexts.Expected(path.Join(dir, beside), class)
			return t
		}
	}
	return ""
}

// differs is for a label that suits, and is not the one that the file contexts give.
func (c *checking) differs(p places.Place, f Finding, allowed func(string) bool, tree bool) {
	pattern := filecon.Pattern(f.Path)
	if tree {
		pattern += "(/.*)?"
	}
	if !allowed(f.Contexts) {
		f.About, f.Want, f.Pattern = Relabel, f.Has, pattern
		f.Why = fmt.Sprintf("its type %s suits, but the file contexts give it %s, which %s may not use so: it stops "+
			"at the next relabel", f.Has, f.Contexts, c.Domain)
		f.Fix = []string{fmt.Sprintf("semanage fcontext -a -t %s %s", f.Has, verdict.Quoted(pattern))}
	} else {
		f.About, f.Want = Drift, f.Contexts
		f.Why = fmt.Sprintf("its type is %s, the file contexts give it %s; %s may use both", f.Has, f.Contexts,
			c.Domain)
		f.Fix = []string{"restorecon -v " + verdict.Quoted(f.Path)}
	}
	c.add(f, said(p.Setting, p.From))
}

// fix says what puts a label right: that of the file contexts, or a file context of its own, or a narrow boolean.
func (c *checking) fix(f *Finding, a policydb.Access, allowed func(string) bool, usual func() string, tree bool) {
	f.Tree = tree
	restore := "restorecon -v " + verdict.Quoted(f.Path)
	if tree {
		restore = "restorecon -R -v " + verdict.Quoted(f.Path)
	}
	if f.Contexts != "" && f.Contexts != f.Has && allowed(f.Contexts) {
		f.Want = f.Contexts
		f.Why += fmt.Sprintf("; the file contexts give it %s", f.Want)
		f.Fix = []string{restore}
		return
	}
	named := c.named(f.Path, f.Class)
	if t := usual(); !named && t != "" && t != f.Has {
		f.Want, f.Pattern = t, filecon.Pattern(f.Path)
		if tree {
			f.Pattern += "(/.*)?"
		}
		f.Why += fmt.Sprintf("; the file contexts give it %s, and where packages put it, it has %s", cmp.Or(f.Contexts,
			"none"), t)
		f.Fix = []string{fmt.Sprintf("semanage fcontext -a -t %s %s", t, verdict.Quoted(f.Pattern)), restore}
		return
	}
	if named {
		f.Why += "; the file contexts name this path, and give it another purpose: its label is not to be changed"
	}
	if !c.boolean(f, a) {
		f.Why += "; no label of the file contexts and no boolean was found that would put it right"
		f.Fix = []string{"another path, or a rule: bulkhead selinux explain says which, once it is denied"}
	}
}

// beside is a name that no package has.
const beside = "no-package-has-this"

// named says whether the file contexts mean a path itself, as /tmp or /home, and not all that is beside it.
func (c *checking) named(name, class string) bool {
	t, known := c.Contexts.Expected(name, class)
	other, _ := c.Contexts.Expected(path.Join(path.Dir(name), beside), class)
	return known && t != other
}

// boolean names a narrow one that would allow it.
func (c *checking) boolean(f *Finding, a policydb.Access) bool {
	for _, b := range a.Booleans {
		if why := verdict.Trap(b.Name); why != "" {
			f.Why += fmt.Sprintf("; boolean %s would allow it, but %s", b.Name, why)
			continue
		}
		to := map[bool]string{true: "on", false: "off"}[b.On]
		f.Boolean = b.Name
		f.Why += fmt.Sprintf("; boolean %s=%s allows it", b.Name, to)
		f.Fix = []string{fmt.Sprintf("setsebool -P %s %s", b.Name, to)}
		return true
	}
	return false
}

// mount is for a file system whose files have no labels of their own.
func (c *checking) mount(f *Finding, l selinux.Labelling, a policydb.Access) {
	if l.Context != "" {
		f.Why += fmt.Sprintf("; %s is mounted with context=%s, which is for all of its files", l.Mount, l.Context)
	} else {
		f.Why += fmt.Sprintf("; the file system at %s keeps no labels, and the policy gives one to all of its files",
			l.Mount)
	}
	f.Path, f.Class = l.Mount, "dir"
	if c.boolean(f, a) {
		return
	}
	if f.Want == "" {
		f.Fix = []string{"another file system, or a rule: bulkhead selinux explain says which, once it is denied"}
		return
	}
	f.Fix = []string{fmt.Sprintf("mount %s with context=system_u:object_r:%s:s0, or keep the files on a file system "+
		"with labels", verdict.Quoted(l.Mount), f.Want)}
}

// inside looks at what lies right in a directory of data: files that were copied or moved there keep labels of their
// old place.
func (c *checking) inside(p places.Place, dir string) {
	wrong, first := 0, selinux.Component{}
	for _, name := range c.Entries(dir) {
		w, err := c.Files.Way(c.PID, path.Join(dir, name))
		if err != nil || w.Missing != "" {
			continue
		}
		end := w.Last()
		kind := places.Data
		if end.Class == "sock_file" {
			kind = places.Runtime
		}
		if _, known := needs[kind][end.Class]; !known {
			continue
		}
		if a, _ := c.access(kind, end.Class, typeOf(end.Label)); a.Known && len(a.Missing) > 0 {
			if wrong++; wrong == 1 {
				first = end
			}
		}
	}
	if wrong == 0 {
		return
	}
	kind := places.Data
	if first.Class == "sock_file" {
		kind = places.Runtime
	}
	c.judge(p, kind, first, wrong, false)
}
