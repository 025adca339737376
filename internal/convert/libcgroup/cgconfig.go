// Package libcgroup reads and writes the files of libcgroup: the groups of cgconfig.conf(5) and the rules of
// cgrules.conf(5).
//
// Import makes a policy of groups and rules, ImportRules of rules alone, and Export writes a policy as cgconfig.conf.
// What that has no words for goes along in comments, so that an import of an export is the same policy.
package libcgroup

import (
	"path"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// Import imports files of libcgroup's cgconfig.conf, and the rules of cgrules.conf for their groups. The error is
// policy.Problems.
func Import(files, rules []policy.Source) (*convert.Result, error) {
	r := &convert.Report{}
	d := convert.NewDraft(r)
	d.Head = append(d.Head, "Made by bulkhead import cgconfig; a comment says which line each setting comes from.")
	im := &cgImport{Draft: d, rules: len(rules) > 0, used: map[*cgGroup]bool{}, byName: map[string]*described{},
		owned: map[*cgPerm][2]ownership{},
		said:  map[*convert.Group]cgSaid{}}
	for _, s := range files {
		if in, ok := r.Open(s, convert.LineComments("#*")); ok {
			im.parsed = append(im.parsed, parseCgconfig(in))
		}
	}
	if len(rules) > 0 {
		im.readLed(rules)
	}
	im.place()
	for _, f := range im.parsed {
		im.restore(f)
	}
	sources := slices.Concat(files, rules)
	if len(rules) > 0 {
		readRules(d, rules, im)
	}
	d.SettleWeights(&d.Root) // when all are there: a rule makes groups of templates
	im.unused()
	if len(d.Root.Children) == 0 && len(r.Problems) == 0 {
		r.Note("there is no group in what was read")
	}
	return r.Result(d, sources)
}

func (im *cgImport) place() {
	for _, f := range im.parsed {
		if f.defaults != nil { // of this file and those after it, as cgconfigparser(8) has it
			im.defaults, im.defIn = f.defaults, f
		}
		im.sections(f)
		for _, g := range f.groups {
			im.describe(f, g)
		}
	}
	for _, g := range im.groups {
		im.group(g)
	}
	if i := slices.IndexFunc(im.groups, func(g *described) bool { return g.to != nil }); i >= 0 {
		im.Note("a group lies at another path than before, as /bulkhead.%[2]s for /%[1]s: what writes into its files, "+
			"cgexec and cgclassify need the new one, or `bulkhead run`, `move` and `set`", top(im.groups[i].name),
			top(im.groups[i].to.Path))
	}
}

// sections reports the sections that describe no group.
func (im *cgImport) sections(f *cgFile) {
	for _, m := range f.mounts {
		for name := range strings.SplitSeq(m.name.text, ",") {
			im.mount(f, m, name)
		}
	}
	for _, n := range f.names {
		if !slices.Contains(kernelfile.Controllers, n.name.text) {
			kernelfile.UnknownController(f.Input, n.name.text, n.name.offset)
		}
		im.Leave(f.At(n.name.offset), "with systemd: a slice of that name", "namespace "+n.name.text+" = "+n.value.text,
			"groups of this file lie below %s there, and below host.root here", path.Join("/", n.value.text))
	}
	if len(f.names) > 0 && len(f.mounts) > 0 {
		f.Bad(f.names[0].name.offset, "take one of them out",
			"mount and namespace cannot both be in one file: libcgroup refuses it")
	}
	for _, t := range f.templates {
		im.check(f, t)
	}
	for _, u := range f.units {
		var words []string
		for _, pair := range u {
			words = append(words, pair.name.text+"="+pair.value.text)
		}
		if len(u) > 0 {
			im.Leave(f.At(u[0].name.offset), "name a slice of yours with slice: NAME in a group",
				"systemd "+strings.Join(words, " "),
				"bulkhead makes a slice for each group by itself where systemd is PID 1")
		}
	}
}

// unused reports the templates that no rule has made a group of.
func (im *cgImport) unused() {
	for _, f := range im.parsed {
		for _, t := range f.templates {
			instead := "write a group for each"
			if !im.rules {
				instead = "import the rules with it (--rules cgrules.conf), or " + instead
			}
			if !im.used[t] {
				im.Leave(f.At(t.name.offset), instead, "template "+t.name.text,
					"a template makes groups while processes start, and a policy names its groups")
			}
		}
	}
}

// mountOptions are what may stand beside a controller in a mount section.
var mountOptions = []string{"nodev", "nosuid", "noexec", "all", "none", "xattr", "noprefix", "clone_children",
	"cpuset_v2_mode"}

func (im *cgImport) mount(f *cgFile, m cgPair, name string) {
	im.Note("mount sections are not carried over: bulkhead takes controllers where they are mounted, and `bulkhead " +
		"discover` says which are missing")
	switch {
	case slices.Contains(mountOptions, name):
	case strings.HasPrefix(name, "name="):
		im.Leave(f.At(m.name.offset), "", "mount "+m.name.text, "a hierarchy without controllers limits nothing")
	case !slices.Contains(kernelfile.Controllers, name):
		kernelfile.UnknownController(f.Input, name, m.name.offset)
	}
}

// describe takes in one description of a group.
func (im *cgImport) describe(f *cgFile, g *cgGroup) {
	at, name := f.At(g.name.offset), strings.Trim(g.name.text, "/")
	all := im.check(f, g)
	if name == "." || name == "" {
		im.Leave(at, "", "group "+g.name.text,
			"it is the root of the hierarchy, and bulkhead governs its own groups only")
		return
	}
	clean := path.Clean(name)
	to := im.byName[clean]
	if to == nil {
		to = &described{name: clean, at: at, what: name, index: map[string]int{}}
		im.byName[clean] = to
		im.groups = append(im.groups, to)
	} else {
		im.Change(at, "group "+name, "is one with that of %s, as libcgroup makes it", to.at)
	}
	for _, file := range all {
		i, twice := to.index[file.File]
		if !twice {
			to.index[file.File] = len(to.files)
			to.files = append(to.files, file)
			continue
		}
		if to.files[i].Text != file.Text {
			im.Change(to.files[i].At, to.files[i].What(), "gives way to %s of %s, which is written later", file.What(),
				file.At)
		}
		to.files[i] = file
	}
	for _, s := range g.sections {
		to.sections = append(to.sections, sectionOf{f, s})
	}
	to.perms = append(to.perms, permOf{f, g.perm, im.defaults, im.defIn})
}

// group places one group with its limits and owners.
func (im *cgImport) group(g *described) {
	to := im.Draft.Group(g.name, g.at)
	if g.to = to; to == nil {
		return
	}
	im.Describe(to, g.at, convert.From(g.at, "group "+g.what))
	im.owners(to, g.perms)
	said := cgSaid{files: im.fill(to, g.sections, g.files)}
	for _, p := range g.perms {
		if p.perm != nil {
			said.perm = p.perm
		}
	}
	im.said[to] = said
}

// top is the first element of a path.
func top(name string) string {
	name, _, _ = strings.Cut(name, "/")
	return name
}

// restore takes over what an export carried along in comments.
func (im *cgImport) restore(f *cgFile) {
	rank := map[string]int{}
	defer func() { convert.Reorder(&im.Root, rank) }()
	for i, e := range f.exact {
		c := convert.CarriedAlong{Key: e.name.text, Text: e.value.text, At: f.At(e.name.offset)}
		rank[strings.TrimPrefix(c.Key, "group ")] = i
		if f.Top(im.Draft, c) {
			continue
		}
		parent, g := f.ExactGroup(c)
		switch {
		case g == nil:
		case g.Each != nil:
			im.Template(parent, g, c.At)
		default:
			im.restoreGroup(strings.TrimPrefix(parent+"/"+g.Name, "/"), g, c.At)
		}
	}
}

func (im *cgImport) restoreGroup(name string, g *policy.Group, at policy.Pos) {
	to := im.Draft.Group(name, at)
	if to == nil {
		return
	}
	said, there := im.said[to]
	same := !there && len(cgSections(g, 1, true).files) == 0
	for _, version := range []int{1, 2} {
		same = same || there && (cgSections(g, version, true).says(said) || cgSections(g, version, false).says(said))
	}
	if same {
		im.Take(to, g, at)
	} else if there {
		im.Complement(to, g, at)
	} else {
		im.Change(at, "group "+name, "has no section any more, and so no limits")
		im.Complement(to, g, at)
	}
}
