package convert

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

// draft is a policy that is being made.
type draft struct {
	*report
	head []string // comments at the top
	top  []raw    // blocks beside groups: host
	root group    // holds the groups at the top
	// schedules is what an export carried along of them.
	schedules []carriedAlong
}

// raw is a key whose value was written out already, as a flow or a scalar.
type raw struct{ key, text, from string }

// group is one group of a draft.
type group struct {
	name, path string
	pos        policy.Pos
	from       string // what it was, for the comment; "" for one made to hold others
	children   []*group
	byName     map[string]*group // by the name that it had
	taken      map[string]*group // by the name that it has
	keys       []raw             // role, slice, adopt, from_unit, each: scalars and flows of the group itself
	match      []raw
	owner      []raw
	settings   []setting
	shares     *share // of the CPU, on v1's scale
	asked      bool   // it was described, not only made to hold others
	described  policy.Pos
}

// setting is one limit.
type setting struct {
	key      policy.Key
	on, text string
	from     string
	even     bool // io: devices share it evenly
}

func newDraft(r *report) *draft { return &draft{report: r} }

// isGroupName says whether a policy takes a name.
func isGroupName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return name != "" && len(name) <= longestName
}

// isReserved says whether a name means something to the kernel or to others. No such name has a digit, but behind a dot or a dash.
func isReserved(name string) bool {
	return (!strings.ContainsAny(name, "0123456789") || strings.ContainsAny(name, ".-")) && policy.ReservedName(name) != ""
}

const (
	longestName = 128
	deepest     = 4
)

// fitName makes a name that a policy takes of one that it does not.
func fitName(name string) string {
	fit := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '_'
	}, name)
	if fit == "" || strings.ContainsAny(fit[:1], "_.-") {
		fit = "g" + fit
	}
	if len(fit) > longestName {
		fit = fit[:longestName]
	}
	if policy.ReservedName(fit) != "" {
		fit = "g-" + fit
	}
	return fit
}

// group finds or makes a group by the path that it had, "a/b". nil when a policy cannot have it; the report says why.
func (d *draft) group(name string, at policy.Pos) *group {
	elements := strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
	switch {
	case len(elements) == 0:
		return nil
	case slices.Contains(elements, "..") || slices.Contains(elements, "."):
		d.fail(at, "write the path from the top of the hierarchy", "%q is not the path of a group", clean(name))
		return nil
	case len(elements) > deepest:
		d.leave(at, "move it up, or merge it with the group above", "group "+name, "groups nest at most %d deep in a policy", deepest)
		return nil
	}
	g := &d.root
	for _, element := range elements {
		next := g.byName[element]
		if next == nil {
			if next = d.child(g, element, at); next == nil {
				return nil
			}
		}
		g = next
	}
	return g
}

// child makes one group inside another.
func (d *draft) child(parent *group, name string, at policy.Pos) *group {
	c := &group{name: name, pos: at}
	if !isGroupName(name) || isReserved(name) {
		c.name = fitName(name)
		why := fmt.Sprintf("is called %s: a name of a policy has letters, digits, _ . and - only", c.name)
		if policy.ReservedName(name) != "" {
			why = fmt.Sprintf("is called %s: %s", c.name, policy.ReservedName(name))
		}
		d.change(at, "group "+name, "%s", why)
	}
	if parent.byName == nil {
		parent.byName, parent.taken = map[string]*group{}, map[string]*group{}
	}
	if other := parent.taken[c.name]; other != nil {
		d.failWith(at, other.pos, "rename one of them", "groups %q and %q would both be called %s", clean(name), clean(other.name), c.name)
		return nil
	}
	c.path = strings.TrimPrefix(parent.path+"/"+c.name, "/")
	parent.byName[name], parent.taken[c.name] = c, c
	parent.children = append(parent.children, c)
	return c
}

// describe marks a group as described, once.
func (d *draft) describe(g *group, at policy.Pos, from string) bool {
	if g.asked {
		d.failWith(at, g.described, "put both into one, or rename one", "group %q is described twice", g.path)
		return false
	}
	g.asked, g.described, g.from, g.pos = true, at, from, at
	return true
}

// set adds a limit after the policy's own parser has read it. what is the line that it comes from.
func (d *draft) set(g *group, key policy.Key, on, text string, at policy.Pos, what string) bool {
	_, s, err := parse.ParseAssignment("g:"+string(key)+"="+text, on)
	if err != nil {
		var problems policy.Problems
		if errors.As(err, &problems) {
			d.fail(at, problems[0].Hint, "%s: %s", clean(what), problems[0].Msg)
		} else {
			d.fail(at, "", "%v", err)
		}
		return false
	}
	g.settings = slices.DeleteFunc(g.settings, func(o setting) bool { return o.key == key && o.on == s.On })
	g.settings = append(g.settings, setting{key: key, on: s.On, text: cmp.Or(s.Raw, s.Value.String()), from: from(at, what)})
	return true
}

// supported says whether a policy can hold a limit already.
func supported(key policy.Key, text string) bool {
	_, _, err := parse.ParseAssignment("g:"+string(key)+"="+text, "")
	return err == nil
}

// from is the comment behind a line: where it comes from, and what it was.
func from(at policy.Pos, what string) string {
	if at.Line == 0 { // a file of the kernel, or a unit: what begins with its name
		if name := filepath.Base(at.File); strings.HasPrefix(what, name+" = ") {
			what = strings.TrimPrefix(what, name+" ")
		}
		return clean(at.File + " " + what)
	}
	return clean(fmt.Sprintf("%s:%d %s", filepath.Base(at.File), at.Line, what))
}

// writer writes a policy as text.
type writer struct{ b strings.Builder }

// line writes one line with its comment.
func (w *writer) line(depth int, text, comment string) {
	w.b.WriteString(strings.Repeat("  ", depth))
	w.b.WriteString(text)
	if comment != "" {
		w.b.WriteString(" # ")
		w.b.WriteString(comment)
	}
	w.b.WriteByte('\n')
}

// text is the policy.
func (d *draft) text(sources []policy.Source) string {
	var w writer
	size := 0
	for _, s := range sources {
		size += len(s.Text)
	}
	w.b.Grow(size)
	for _, line := range d.head {
		w.line(0, "# "+clean(line), "")
	}
	w.line(0, "version: 1", "")
	for _, r := range d.top {
		w.line(0, r.key+": "+r.text, r.from)
	}
	if len(d.root.children) > 0 {
		w.line(0, "groups:", "")
	}
	for _, g := range d.root.children {
		w.group(g, 1)
	}
	return w.b.String()
}

// group writes a group and those inside it.
func (w *writer) group(g *group, depth int) {
	name := yamlform.Quote(g.name)
	if len(g.keys)+len(g.match)+len(g.owner)+len(g.settings)+len(g.children) == 0 {
		w.line(depth, name+": {}", g.from)
		return
	}
	w.line(depth, name+":", g.from)
	for _, r := range g.keys {
		w.line(depth+1, r.key+": "+r.text, r.from)
	}
	w.list("match", g.match, depth+1)
	w.list("owner", g.owner, depth+1)
	w.settings(g.settings, depth+1)
	if len(g.children) > 0 {
		w.line(depth+1, "groups:", "")
	}
	for _, c := range g.children {
		w.group(c, depth+2)
	}
}

func (w *writer) list(key string, all []raw, depth int) {
	if len(all) > 0 {
		w.line(depth, key+":", "")
	}
	for _, r := range all {
		w.line(depth+1, "- "+r.text, r.from)
	}
}

// settings writes limits: those of one block together, in the order of the table.
func (w *writer) settings(all []setting, depth int) {
	order := policy.KnownKeys()
	rank := func(s setting) int { return slices.Index(order, s.key) }
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b setting) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.on, b.on)) })
	open, huge := "", false
	var io []setting
	for _, s := range all {
		block, name, nested := strings.Cut(string(s.key), ".")
		switch {
		case block == "io":
			io = append(io, s)
		case !nested:
			w.line(depth, block+": "+value(s), s.from)
		default:
			if block != open {
				w.line(depth, block+":", "")
				open = block
			}
			if s.key != policy.KeyMemoryHuge {
				w.line(depth+1, name+": "+value(s), s.from)
				continue
			}
			if !huge {
				w.line(depth+1, "huge:", "")
				huge = true
			}
			w.line(depth+2, pageName(s.on)+": "+value(s), s.from)
		}
	}
	w.io(io, depth)
}

// pageName is a huge page size as the policy's documents write it.
func pageName(kernel string) string { return strings.TrimSuffix(kernel, "B") + "iB" }

// io writes the limits of devices, an entry for each target.
func (w *writer) io(all []setting, depth int) {
	if len(all) == 0 {
		return
	}
	w.line(depth, "io:", "")
	var targets []string
	for _, s := range all {
		if !slices.Contains(targets, s.on) {
			targets = append(targets, s.on)
		}
	}
	for _, on := range targets {
		lead := "- "
		line := func(text, comment string) {
			w.line(depth+1, lead+text, comment)
			lead = "  "
		}
		if on != "" {
			line("on: "+yamlform.Quote(on), "")
		}
		if slices.ContainsFunc(all, func(s setting) bool { return s.on == on && s.even }) {
			line("split: even", "")
		}
		block := ""
		for _, s := range all {
			if s.on != on {
				continue
			}
			name := strings.TrimPrefix(string(s.key), "io.")
			way, last, nested := strings.Cut(name, ".")
			if !nested {
				line(name+": "+value(s), s.from)
				continue
			}
			if way != block {
				line(way+":", "")
				block = way
			}
			line("  "+last+": "+value(s), s.from)
		}
	}
}

// value is a limit as YAML.
func value(s setting) string {
	switch s.key {
	case policy.KeyCPUCPUs, policy.KeyCPUNUMA, policy.KeyMemoryNUMA:
		return "'" + s.text + "'"
	}
	return s.text
}
