package convert

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"

	"strconv"

	"bulkhead/internal/policy"
)

// Draft is a policy that is being made.
type Draft struct {
	*Report
	Head []string // comments at the top
	top  []Raw    // blocks beside groups: host
	Root Group    // holds the groups at the top
	// naming are blocks that an export carried along and that name groups; they are held to the whole policy when it
	// is made.
	naming []CarriedAlong
}

// Raw is a key whose value was written out already, as a flow or a scalar.
type Raw struct{ Key, Text, From string }

// Group is one group of a draft.
type Group struct {
	name, Path string
	pos        policy.Pos
	From       string // what it was, for the comment; "" for one made to hold others
	Children   []*Group
	byName     map[string]*Group // by the name that it had
	taken      map[string]*Group // by the name that it has
	Keys       []Raw             // role, slice, adopt, from_unit, each: scalars and flows of the group itself
	Match      []Raw
	Owner      []Raw
	Settings   []setting
	index      map[target]int // of settings, by what they limit; made anew when others were put there
	last       int            // the setting that was set last
	Shares     *Share         // of the CPU, on v1's scale
	Asked      bool           // it was described, not only made to hold others
	described  policy.Pos
}

// setting is one limit.
type setting struct {
	key      policy.Key
	on, text string
	from     string
	Even     bool // io: devices share it evenly
}

// target is what a setting limits.
type target struct {
	key policy.Key
	on  string
}

// NewDraft begins a policy; what is wrong with its sources goes to r.
func NewDraft(r *Report) *Draft { return &Draft{Report: r} }

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

// isReserved says whether a name means something to the kernel or to others. No such name has a digit, but behind a dot
// or a dash.
func isReserved(name string) bool {
	return (!strings.ContainsAny(name, "0123456789") || strings.ContainsAny(name, ".-")) &&
		policy.ReservedName(name) != ""
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

// Group finds or makes a group by the path that it had, "a/b". nil when a policy cannot have it; the report says why.
func (d *Draft) Group(name string, at policy.Pos) *Group {
	elements := strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
	switch {
	case len(elements) == 0:
		return nil
	case slices.Contains(elements, "..") || slices.Contains(elements, "."):
		d.Fail(at, "write the path from the top of the hierarchy", "%q is not the path of a group", Clean(name))
		return nil
	case len(elements) > deepest:
		d.Leave(at, "move it up, or merge it with the group above", "group "+name,
			"groups nest at most %d deep in a policy", deepest)
		return nil
	}
	g := &d.Root
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
func (d *Draft) child(parent *Group, name string, at policy.Pos) *Group {
	c := &Group{name: name, pos: at}
	if !isGroupName(name) || isReserved(name) {
		c.name = fitName(name)
		why := fmt.Sprintf("is called %s: a name of a policy has letters, digits, _ . and - only", c.name)
		if policy.ReservedName(name) != "" {
			why = fmt.Sprintf("is called %s: %s", c.name, policy.ReservedName(name))
		}
		d.Change(at, "group "+name, "%s", why)
	}
	if parent.byName == nil {
		parent.byName, parent.taken = map[string]*Group{}, map[string]*Group{}
	}
	if other := parent.taken[c.name]; other != nil {
		d.FailWith(at, other.pos, "rename one of them", "groups %q and %q would both be called %s", Clean(name),
			Clean(other.name), c.name)
		return nil
	}
	c.Path = strings.TrimPrefix(parent.Path+"/"+c.name, "/")
	parent.byName[name], parent.taken[c.name] = c, c
	parent.Children = append(parent.Children, c)
	return c
}

// Describe marks a group as described, once.
func (d *Draft) Describe(g *Group, at policy.Pos, from string) bool {
	if g.Asked {
		d.FailWith(at, g.described, "put both into one, or rename one", "group %q is described twice", g.Path)
		return false
	}
	g.Asked, g.described, g.From, g.pos = true, at, from, at
	return true
}

// Set adds a limit after the policy's own parser has read it. what is the line that it comes from.
func (d *Draft) Set(g *Group, key policy.Key, on, text string, at policy.Pos, what string) bool {
	_, s, err := parse.Assignment("g:"+string(key)+"="+text, on)
	if err != nil {
		var problems policy.Problems
		if errors.As(err, &problems) {
			d.Fail(at, problems[0].Hint, "%s: %s", Clean(what), problems[0].Msg)
		} else {
			d.Fail(at, "", "%v", err)
		}
		return false
	}
	if g.index == nil || len(g.index) != len(g.Settings) {
		g.index = map[target]int{}
		for i, o := range g.Settings {
			g.index[target{o.key, o.on}] = i
		}
	}
	set := setting{key: key, on: s.On, text: cmp.Or(s.Raw, s.Value.String()), from: From(at, what)}
	i, there := g.index[target{key, s.On}]
	if !there {
		i, g.Settings = len(g.Settings), append(g.Settings, set)
		g.index[target{key, s.On}] = i
	}
	g.Settings[i], g.last = set, i
	return true
}

// Join adds what another group limits and g does not.
func (g *Group) Join(other *Group) {
	for _, s := range other.Settings {
		if !slices.ContainsFunc(g.Settings, func(o setting) bool { return o.key == s.key && o.on == s.on }) {
			g.Settings = append(g.Settings, s)
		}
	}
}

// ShareEvenly has devices share evenly what was set last.
func (g *Group) ShareEvenly() { g.Settings[g.last].Even = true }

// Limits are the limits of a group in words.
func (g *Group) Limits() (all []string) {
	if g.Shares != nil {
		all = append(all, g.Shares.What)
	}
	for _, s := range g.Settings {
		all = append(all, string(s.key)+" "+s.text)
	}
	return all
}

// supported says whether a policy can hold a limit already.
func supported(key policy.Key, text string) bool {
	_, _, err := parse.Assignment("g:"+string(key)+"="+text, "")
	return err == nil
}

// From is the comment behind a line: where it comes from, and what it was.
func From(at policy.Pos, what string) string {
	if at.Line == 0 { // a file of the kernel, or a unit: what begins with its name
		if name := filepath.Base(at.File); strings.HasPrefix(what, name+" = ") {
			what = strings.TrimPrefix(what, name+" ")
		}
		return Clean(at.File + " " + what)
	}
	return Clean(fmt.Sprintf("%s:%d %s", filepath.Base(at.File), at.Line, what))
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
func (d *Draft) text(sources []policy.Source) string {
	var w writer
	size := 0
	for _, s := range sources {
		size += len(s.Text)
	}
	w.b.Grow(size)
	for _, line := range d.Head {
		w.line(0, "# "+Clean(line), "")
	}
	w.line(0, "version: 1", "")
	for _, r := range d.top {
		w.line(0, r.Key+": "+r.Text, r.From)
	}
	if len(d.Root.Children) > 0 {
		w.line(0, "groups:", "")
	}
	for _, g := range d.Root.Children {
		w.group(g, 1)
	}
	return w.b.String()
}

// group writes a group and those inside it.
func (w *writer) group(g *Group, depth int) {
	name := yamlform.Quote(g.name)
	if len(g.Keys)+len(g.Match)+len(g.Owner)+len(g.Settings)+len(g.Children) == 0 {
		w.line(depth, name+": {}", g.From)
		return
	}
	w.line(depth, name+":", g.From)
	for _, r := range g.Keys {
		w.line(depth+1, r.Key+": "+r.Text, r.From)
	}
	w.list("match", g.Match, depth+1)
	w.list("owner", g.Owner, depth+1)
	w.settings(g.Settings, depth+1)
	if len(g.Children) > 0 {
		w.line(depth+1, "groups:", "")
	}
	for _, c := range g.Children {
		w.group(c, depth+2)
	}
}

func (w *writer) list(key string, all []Raw, depth int) {
	if len(all) > 0 {
		w.line(depth, key+":", "")
	}
	for _, r := range all {
		w.line(depth+1, "- "+r.Text, r.From)
	}
}

// settings writes limits: those of one block together, in the order of the table.
func (w *writer) settings(all []setting, depth int) {
	order := policy.FileKeys()
	rank := func(s setting) int { return slices.Index(order, s.key) }
	all = slices.Clone(all)
	slices.SortStableFunc(all,
		func(a, b setting) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.on, b.on)) })
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
	of := map[string][]setting{}
	for _, s := range all {
		if of[s.on] == nil {
			targets = append(targets, s.on)
		}
		of[s.on] = append(of[s.on], s)
	}
	for _, on := range targets {
		all := of[on]
		lead := "- "
		line := func(text, comment string) {
			w.line(depth+1, lead+text, comment)
			lead = "  "
		}
		if on != "" {
			line("on: "+yamlform.Quote(on), "")
		}
		if slices.ContainsFunc(all, func(s setting) bool { return s.Even }) {
			line("split: even", "")
		}
		block := ""
		for _, s := range all {
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

// IsDevice says whether text is the number of a block device, "8:16".
func IsDevice(text string) bool {
	major, minor, ok := strings.Cut(text, ":")
	_, err1 := strconv.ParseUint(major, 10, 12)
	_, err2 := strconv.ParseUint(minor, 10, 20)
	return ok && err1 == nil && err2 == nil
}

// CarriedAlong is one thing that an export carried along: `group a/b: {…}`, `host: {…}`.
type CarriedAlong struct {
	Key, Text string
	At        policy.Pos
}

// Share is a weight on a scale that is not the policy's.
type Share struct {
	N    int64
	At   policy.Pos
	What string
}
