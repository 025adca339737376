package check

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/selinux"
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
	case kind == places.Runtime && (strings.HasSuffix(name, ".pid") || strings.HasSuffix(name, "pid")):
		return "file"
	case kind == places.Runtime:
		return "sock_file"
	}
	return "file"
}

// writes says whether a server makes files of a kind.
func writes(kind places.Kind) bool { return slices.Contains(needs[kind]["dir"], "add_name") }

// access asks the policy of a type, as a path of a kind.
func (c *checking) access(kind places.Kind, class, target string) policydb.Access {
	a := c.Policy.Access(c.Domain, target, class, needs[kind][class])
	if class != "dir" || !writes(kind) || !a.Known || len(a.Missing) > 0 {
		return a
	}
	// What it makes there has a type of its own, or that of the directory.
	inside := "file"
	if kind == places.Runtime {
		inside = "sock_file"
	}
	return c.Policy.Access(c.Domain, c.Transitions.Created(c.Domain, target, inside), inside, needs[kind][inside])
}

// place follows the way to a path.
func (c *checking) place(p places.Place) {
	w, err := c.Files.Way(c.PID, p.Path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.Undecided = append(c.Undecided, fmt.Sprintf("%s: %v", said(p.Setting, p.From), err))
		}
		return
	}
	last := len(w.Components) - 1
	for i, part := range w.Components {
		if i < last && part.Class == "dir" || part.Class == "lnk_file" {
			c.passed(p, part)
		}
	}
	end := w.Last()
	if w.Missing != "" {
		c.absent(p, w)
		return
	}
	_, known := needs[p.Kind][end.Class]
	done := Checked{Place: p, Real: end.Path, Class: end.Class, Type: typeOf(end.Label), Fits: true}
	done.Contexts, _ = c.Contexts.Expected(end.Path, end.Class)
	if known {
		done.Fits = c.judge(p, p.Kind, end, 0)
	}
	c.Paths = append(c.Paths, done)
	if end.Class == "dir" && done.Fits && p.Kind == places.Data && c.Entries != nil {
		c.inside(p, end.Path)
	}
}

// passed asks whether the domain may go through a directory or a link.
func (c *checking) passed(p places.Place, part selinux.Component) {
	permissions := []string{"search"}
	if part.Class == "lnk_file" {
		permissions = []string{"read"}
	}
	has := typeOf(part.Label)
	a := c.Policy.Access(c.Domain, has, part.Class, permissions)
	if !a.Known || len(a.Missing) == 0 {
		return // a type that the policy does not know is said of the path itself
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
		for _, name := range places.Customary(c.Engine, p.Kind) {
			if kind, known := c.Contexts.Expected(path.Dir(name), "dir"); known && allowed(kind) {
				return kind
			}
		}
		return ""
	}
	c.fix(&f, a, allowed, usual, false)
	c.add(f, said(p.Setting, p.From))
}

// absent is for a path of which the last part is not there yet: may it be made?
func (c *checking) absent(p places.Place, w selinux.Way) {
	dir := w.Last()
	if !writes(p.Kind) || path.Dir(w.Missing) != dir.Path || dir.Class != "dir" {
		return
	}
	class := made(p.Kind, p.Path)
	has := typeOf(dir.Label)
	a := c.Policy.Access(c.Domain, has, "dir", []string{"search", "write", "add_name"})
	if a.Known && len(a.Missing) == 0 {
		a = c.Policy.Access(c.Domain, c.Transitions.Created(c.Domain, has, class), class, needs[p.Kind][class])
	}
	done := Checked{Place: p, Real: w.Missing, Class: class, Fits: !a.Known || len(a.Missing) == 0}
	done.Contexts, _ = c.Contexts.Expected(w.Missing, class)
	c.Paths = append(c.Paths, done)
	if !done.Fits {
		c.judge(p, p.Kind, dir, 0)
	}
}

// judge says whether the label of what is at the end of a way suits; entries are how many stand for it.
func (c *checking) judge(p places.Place, kind places.Kind, end selinux.Component, entries int) (fits bool) {
	has := typeOf(end.Label)
	f := Finding{Path: end.Path, Class: end.Class, Domain: c.Domain, Has: has, Entries: entries}
	contexts, given := c.Contexts.Expected(end.Path, end.Class)
	f.Contexts = contexts
	allowed := func(t string) bool {
		a := c.access(kind, end.Class, t)
		return a.Known && len(a.Missing) == 0
	}
	usual := func() string { return c.usual(kind, end.Class, allowed) }
	a := c.access(kind, end.Class, has)
	if !a.Known {
		c.Undecided = append(c.Undecided, fmt.Sprintf("%s: the policy does not know the type %q, or not all of what is "+
			"asked of class %s", end.Path, has, end.Class))
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
	f.Why = fmt.Sprintf("%s may not use %s so (%s), whose type is %s", c.Domain, end.Path, strings.Join(a.Missing, " "),
		has)
	tree := end.Class == "dir"
	if entries > 0 {
		f.Path, tree = path.Dir(end.Path), true
		f.Why += fmt.Sprintf("; so it is with %d entries of the directory", entries)
	}
	if !labels.Own {
		f.About, f.Want = Mount, usual()
		c.mount(&f, labels)
		c.add(f, said(p.Setting, p.From))
		return false
	}
	c.fix(&f, a, allowed, usual, tree)
	c.add(f, said(p.Setting, p.From))
	return false
}

// usual is the type that the file contexts give the customary path of a kind, where the domain may use it so. What a
// server writes has a type of its own there, or none: not that of everything beside it. What is temporary has none: its
// type is the one that the domain gives what it makes in such a place.
func (c *checking) usual(kind places.Kind, class string, allowed func(string) bool) string {
	for _, name := range places.Customary(c.Engine, kind) {
		t, known := c.Contexts.Expected(name, class)
		switch {
		case !known:
			continue
		case kind == places.Temporary:
			t = c.Transitions.Created(c.Domain, t, class)
		case writes(kind) && c.common(name, class) == t:
			continue
		}
		if allowed(t) {
			return t
		}
	}
	return ""
}

// common is the type that the file contexts give what is of no package, beside the directory of one.
func (c *checking) common(name, class string) string {
	for _, dir := range places.Shared {
		if strings.HasPrefix(name, dir+"/") {
			t, _ := c.Contexts.Expected(dir+"/no-package-has-this", class)
			return t
		}
	}
	return ""
}

// differs is for a label that suits, and is not the one that the file contexts give.
func (c *checking) differs(p places.Place, f Finding, allowed func(string) bool, tree bool) {
	pattern := verdict.Pattern(f.Path)
	if tree {
		pattern += "(/.*)?"
	}
	if !allowed(f.Contexts) {
		f.About, f.Want, f.Pattern = Relabel, f.Has, pattern
		f.Why = fmt.Sprintf("its type %s suits, but the file contexts give it %s, which %s may not use so: it stops at the "+
			"next relabel", f.Has, f.Contexts, c.Domain)
		f.Fix = []string{fmt.Sprintf("semanage fcontext -a -t %s %s", f.Has, verdict.Quoted(pattern))}
	} else {
		f.About, f.Want = Drift, f.Contexts
		f.Why = fmt.Sprintf("its type is %s, the file contexts give it %s; %s may use both", f.Has, f.Contexts, c.Domain)
		f.Fix = []string{"restorecon -v " + verdict.Quoted(f.Path)}
	}
	c.add(f, said(p.Setting, p.From))
}

// fix says what puts a label right: that of the file contexts, or a file context of its own, or a narrow boolean.
func (c *checking) fix(f *Finding, a policydb.Access, allowed func(string) bool, usual func() string, tree bool) {
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
	if t := usual(); t != "" && t != f.Has {
		f.Want, f.Pattern = t, verdict.Pattern(f.Path)
		if tree {
			f.Pattern += "(/.*)?"
		}
		f.Why += fmt.Sprintf("; no file context is for it (they give it %s), and where packages put it, it has %s",
			orNone(f.Contexts), t)
		f.Fix = []string{fmt.Sprintf("semanage fcontext -a -t %s %s", t, verdict.Quoted(f.Pattern)), restore}
		return
	}
	for _, b := range a.Booleans {
		if why := verdict.Trap(b.Name); why != "" {
			f.Why += fmt.Sprintf("; boolean %s would allow it, but %s", b.Name, why)
			continue
		}
		to := map[bool]string{true: "on", false: "off"}[b.On]
		f.Boolean = b.Name
		f.Why += fmt.Sprintf("; boolean %s=%s allows it", b.Name, to)
		f.Fix = []string{fmt.Sprintf("setsebool -P %s %s", b.Name, to)}
		return
	}
	f.Why += "; no label of the file contexts and no boolean was found that would put it right"
	f.Fix = []string{"another path, or a rule: bulkhead selinux explain says which, once it is denied"}
}

// mount is for a file system whose files have no labels of their own.
func (c *checking) mount(f *Finding, l selinux.Labelling) {
	if l.Context != "" {
		f.Why += fmt.Sprintf("; %s is mounted with context=%s, which is for all of its files", l.Mount, l.Context)
	} else {
		f.Why += fmt.Sprintf("; the file system at %s keeps no labels, and the policy gives one to all of its files",
			l.Mount)
	}
	f.Path, f.Class = l.Mount, "dir"
	if f.Want == "" {
		f.Fix = []string{"another file system, or a rule: bulkhead selinux explain says which, once it is denied"}
		return
	}
	f.Fix = []string{fmt.Sprintf("mount %s with context=system_u:object_r:%s:s0, or keep the files on a file system "+
		"with labels", verdict.Quoted(l.Mount), f.Want)}
}

func orNone(t string) string {
	if t == "" {
		return "none"
	}
	return t
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
		if a := c.access(kind, end.Class, typeOf(end.Label)); a.Known && len(a.Missing) > 0 {
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
	c.judge(p, kind, first, wrong)
}
