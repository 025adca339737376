package convert

import (
	"slices"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// carriedAlong is one thing that an export carried along: `group a/b: {…}`, `host: {…}`.
type carriedAlong struct {
	key, text string
	at        policy.Pos
}

// top takes over a block at the top of the policy, and says whether it was one.
func (in *input) top(d *draft, c carriedAlong) bool {
	if c.key == "schedules" { // they name groups, and so are held to the whole policy when it is made
		d.schedules = append(d.schedules, c)
		return true
	}
	if c.key != "host" && c.key != "agent" {
		return false
	}
	if in.parseFlow(c.at, "version: 1\n"+c.key+": "+c.text+"\n") != nil {
		d.top = append(d.top, raw{c.key, c.text, from(c.at, "")})
	}
	return true
}

// exactGroup reads a group that was carried along: its path and what the policy said of it.
func (in *input) exactGroup(c carriedAlong) (parent string, g *policy.Group) {
	name, ok := strings.CutPrefix(c.key, "group ")
	if !ok {
		in.fail(c.at, "lines of an export are `group NAME: {…}`, `host: {…}`, `agent: {…}` and `schedules: […]`", "%q is nothing that an export carries along", clean(c.key))
		return "", nil
	}
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		parent, name = name[:i], name[i+1:]
	}
	p := in.parseFlow(c.at, "version: 1\ngroups: {"+yamlform.Quote(name)+": "+c.text+"}\n")
	if p == nil || len(p.Groups) != 1 {
		return "", nil
	}
	return parent, p.Groups[0]
}

// template takes over a group that has a name for each instance only.
func (d *draft) template(parent string, g *policy.Group, at policy.Pos) {
	in := &d.root
	if parent != "" {
		if in = d.group(parent, at); in == nil {
			return
		}
	}
	for _, other := range in.children {
		if other.name == g.Name {
			d.failWith(at, other.pos, "keep one of them", "group %q is described twice", g.Name)
			return
		}
	}
	c := &group{name: g.Name, path: strings.TrimPrefix(in.path+"/"+g.Name, "/"), pos: at, asked: true, described: at}
	in.children = append(in.children, c)
	d.take(c, g, at)
	d.takeChildren(c, g, at)
}

func (d *draft) takeChildren(to *group, g *policy.Group, at policy.Pos) {
	for _, inner := range g.Groups {
		c := &group{name: inner.Name, path: to.path + "/" + inner.Name, pos: at, asked: true, described: at}
		to.children = append(to.children, c)
		d.take(c, inner, at)
		d.takeChildren(c, inner, at)
	}
}

// take makes a group of a draft what a group of a policy is, without those inside it.
func (d *draft) take(to *group, g *policy.Group, at policy.Pos) {
	to.keys, to.match, to.owner, to.settings, to.shares = nil, nil, nil, nil, nil
	for _, pair := range groupKeys(g) {
		if pair.text != "" && !listed(pair.key) {
			to.keys = append(to.keys, pair)
		}
	}
	for _, m := range g.Match {
		to.match = append(to.match, raw{key: "match", text: matchFlow(m)})
	}
	for _, o := range g.Owner {
		to.owner = append(to.owner, raw{key: "owner", text: ownerFlow(o)})
	}
	for _, s := range g.Settings {
		if !strings.HasPrefix(string(s.Key), "io.") && !s.Key.OfNetwork() {
			to.settings = append(to.settings, setting{key: s.Key, on: s.On, text: s.Value.String()})
		}
	}
	for _, targets := range []raw{{key: "io", text: ioFlow(g.Settings)}, {key: "network", text: networkFlow(g.Settings)}} {
		if targets.text != "" {
			to.keys = append(to.keys, targets)
		}
	}
	to.from = from(at, "")
}

// complement gives a group what a file of another format has no words for: the file is the newer of the two.
func (d *draft) complement(to *group, g *policy.Group, at policy.Pos) {
	for _, pair := range groupKeys(g) {
		if pair.text != "" && !listed(pair.key) {
			to.keys = append(to.keys, pair)
		}
	}
	for _, m := range g.Match {
		to.match = append(to.match, raw{key: "match", text: matchFlow(m)})
	}
	d.change(at, "group "+to.path, "its limits differ from those that bulkhead exported, and are taken as they stand in the file; its role and what it matches are taken from the export")
}

// restore takes over what an export carried along in comments.
func (im *cgImport) restore(f *cgFile) {
	rank := map[string]int{}
	defer func() { reorder(&im.root, rank) }()
	for i, e := range f.exact {
		c := carriedAlong{e.name.text, e.value.text, f.at(e.name.offset)}
		rank[strings.TrimPrefix(c.key, "group ")] = i
		if f.top(im.draft, c) {
			continue
		}
		parent, g := f.exactGroup(c)
		switch {
		case g == nil:
		case g.Each != nil:
			im.template(parent, g, c.at)
		default:
			im.restoreGroup(strings.TrimPrefix(parent+"/"+g.Name, "/"), g, c.at)
		}
	}
}

func (im *cgImport) restoreGroup(name string, g *policy.Group, at policy.Pos) {
	to := im.draft.group(name, at)
	if to == nil {
		return
	}
	said, there := im.said[to]
	if sections := cgSections(g, 1); !there && len(sections.files) == 0 || there && (sections.says(said) || cgSections(g, 2).says(said)) {
		im.take(to, g, at)
	} else if there {
		im.complement(to, g, at)
	} else {
		im.change(at, "group "+name, "has no section any more, and so no limits")
		im.complement(to, g, at)
	}
}

// reorder puts the groups that an export carried along into the order in which it did; others stay behind them.
func reorder(g *group, rank map[string]int) {
	place := func(c *group) int {
		if i, known := rank[c.path]; known {
			return i
		}
		return len(rank)
	}
	if len(rank) == 0 {
		return
	}
	slices.SortStableFunc(g.children, func(a, b *group) int { return place(a) - place(b) })
	for _, c := range g.children {
		reorder(c, rank)
	}
}
