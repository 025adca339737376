package convert

import (
	"slices"
	"strings"

	"bulkhead/internal/policy/yamlform"

	"bulkhead/internal/policy"
)

// topBlocks are the blocks beside the groups that are carried along; those that name groups are true.
var topBlocks = map[string]bool{"host": false, "agent": false, "snapshots": false, "schedules": true, "guard": true,
	"slo": true}

// Top takes over a block at the top of the policy, and says whether it was one.
func (in *Input) Top(d *Draft, c CarriedAlong) bool {
	namesGroups, known := topBlocks[c.Key]
	if !known {
		return false
	}
	twice := slices.ContainsFunc(d.naming, func(o CarriedAlong) bool { return o.Key == c.Key }) ||
		slices.ContainsFunc(d.top, func(r Raw) bool { return r.Key == c.Key })
	switch {
	case twice:
		in.Fail(c.At, "keep one of them", "%s is carried along twice", c.Key)
	case namesGroups:
		d.naming = append(d.naming, c)
	case in.parseFlow(c.At, "version: 1\n"+c.Key+": "+c.Text+"\n") != nil:
		d.top = append(d.top, Raw{c.Key, c.Text, From(c.At, "")})
	}
	return true
}

// ExactGroup reads a group that was carried along: its path and what the policy said of it.
func (in *Input) ExactGroup(c CarriedAlong) (parent string, g *policy.Group) {
	name, ok := strings.CutPrefix(c.Key, "group ")
	if !ok {
		in.Fail(c.At, "lines of an export are `group NAME: {…}`, `host: {…}`, `agent: {…}`, `schedules: […]`, "+
			"`guard: {…}`, `slo: {…}` and `snapshots: {…}`",
			"%q is nothing that an export carries along", Clean(c.Key))
		return "", nil
	}
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		parent, name = name[:i], name[i+1:]
	}
	p := in.parseFlow(c.At, "version: 1\ngroups: {"+yamlform.Quote(name)+": "+c.Text+"}\n")
	if p == nil || len(p.Groups) != 1 {
		return "", nil
	}
	return parent, p.Groups[0]
}

// Template takes over a group that has a name for each instance only.
func (d *Draft) Template(parent string, g *policy.Group, at policy.Pos) {
	in := &d.Root
	if parent != "" {
		if in = d.Group(parent, at); in == nil {
			return
		}
	}
	for _, other := range in.Children {
		if other.name == g.Name {
			d.FailWith(at, other.pos, "keep one of them", "group %q is described twice", g.Name)
			return
		}
	}
	c := &Group{name: g.Name, Path: strings.TrimPrefix(in.Path+"/"+g.Name, "/"), pos: at, Asked: true, described: at}
	in.Children = append(in.Children, c)
	d.Take(c, g, at)
	d.takeChildren(c, g, at)
}

func (d *Draft) takeChildren(to *Group, g *policy.Group, at policy.Pos) {
	for _, inner := range g.Groups {
		c := &Group{name: inner.Name, Path: to.Path + "/" + inner.Name, pos: at, Asked: true, described: at}
		to.Children = append(to.Children, c)
		d.Take(c, inner, at)
		d.takeChildren(c, inner, at)
	}
}

// Take makes a group of a draft what a group of a policy is, without those inside it.
func (d *Draft) Take(to *Group, g *policy.Group, at policy.Pos) {
	to.Keys, to.Match, to.Owner, to.Settings, to.Shares, to.index = nil, nil, nil, nil, nil, nil
	to.describe(g)
	for _, o := range g.Owner {
		to.Owner = append(to.Owner, Raw{Key: "owner", Text: OwnerFlow(o)})
	}
	for _, s := range g.Settings {
		if !strings.HasPrefix(string(s.Key), "io.") && !s.Key.OfNetwork() {
			to.Settings = append(to.Settings, setting{key: s.Key, on: s.On, text: s.Value.String()})
		}
	}
	for _, targets := range []Raw{{Key: "io", Text: ioFlow(g.Settings)},
		{Key: "network", Text: networkFlow(g.Settings)}} {
		if targets.Text != "" {
			to.Keys = append(to.Keys, targets)
		}
	}
	to.From = From(at, "")
}

// describe gives a group the keys and the rules of one of a policy.
func (g *Group) describe(of *policy.Group) {
	for _, pair := range groupKeys(of) {
		if pair.Text != "" && !listed(pair.Key) {
			g.Keys = append(g.Keys, pair)
		}
	}
	for _, m := range of.Match {
		g.Match = append(g.Match, Raw{Key: "match", Text: MatchFlow(m)})
	}
}

// Complement gives a group what a file of another format has no words for: the file is the newer of the two.
func (d *Draft) Complement(to *Group, g *policy.Group, at policy.Pos) {
	to.describe(g)
	d.Change(at, "group "+to.Path, "its limits differ from those that bulkhead exported, and are taken as they stand "+
		"in the file; its role and what it matches are taken from the export")
}

// Reorder puts the groups that an export carried along into the order in which it did; others stay behind them.
func Reorder(g *Group, rank map[string]int) {
	place := func(c *Group) int {
		if i, known := rank[c.Path]; known {
			return i
		}
		return len(rank)
	}
	if len(rank) == 0 {
		return
	}
	slices.SortStableFunc(g.Children, func(a, b *Group) int { return place(a) - place(b) })
	for _, c := range g.Children {
		Reorder(c, rank)
	}
}
