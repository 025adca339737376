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
	im := &cgImport{Draft: d, rules: len(rules) > 0, used: map[*cgGroup]bool{}, byName: map[string]policy.Pos{},
		said: map[*convert.Group]cgSaid{}}
	for _, s := range files {
		if in, ok := r.Open(s); ok {
			im.parsed = append(im.parsed, parseCgconfig(in))
		}
	}
	im.place()
	for _, f := range im.parsed {
		im.restore(f)
	}
	d.SettleWeights(&d.Root)
	sources := slices.Concat(files, rules)
	if len(rules) > 0 {
		readRules(d, rules, im)
		d.SettleWeights(&d.Root)
	}
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
			im.group(f, g)
		}
	}
}

// sections reports the sections that describe no group.
func (im *cgImport) sections(f *cgFile) {
	mounted := map[string]cgPair{}
	for _, m := range f.mounts {
		for name := range strings.SplitSeq(m.name.text, ",") {
			im.mount(f, m, name, mounted)
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
var mountOptions = []string{"nodev", "nosuid", "noexec"}

func (im *cgImport) mount(f *cgFile, m cgPair, name string, seen map[string]cgPair) {
	first, twice := seen[name]
	switch {
	case slices.Contains(mountOptions, name):
		return
	case strings.HasPrefix(name, "name="):
		im.Leave(f.At(m.name.offset), "", "mount "+m.name.text, "a hierarchy without controllers limits nothing")
	case !slices.Contains(kernelfile.Controllers, name):
		kernelfile.UnknownController(f.Input, name, m.name.offset)
	case twice:
		im.FailWith(f.At(m.name.offset), f.At(first.name.offset), "keep one of them", "%s is mounted twice", name)
	}
	seen[name] = m
	im.Note("mount sections are not carried over: bulkhead takes controllers where they are mounted, and `bulkhead " +
		"discover` says which are missing")
}

// group places one group with its limits and owners.
func (im *cgImport) group(f *cgFile, g *cgGroup) {
	at, name := f.At(g.name.offset), strings.Trim(g.name.text, "/")
	all := im.check(f, g)
	if name == "." || name == "" {
		im.Leave(at, "", "group "+g.name.text,
			"it is the root of the hierarchy, and bulkhead governs its own groups only")
		return
	}
	clean := path.Clean(name)
	if first, twice := im.byName[clean]; twice {
		im.FailWith(at, first, "put both into one section, or rename one", "group %q is here twice", name)
		return
	}
	im.byName[clean] = at
	to := im.Draft.Group(clean, at)
	if to == nil {
		return
	}
	im.Describe(to, at, convert.From(at, "group "+name))
	im.owners(f, g, to)
	im.fill(f, g, to, all)
	im.said[to] = cgSaid{all, g.perm}
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
	if sections := cgSections(g, 1); !there && len(sections.files) == 0 || there && (sections.says(said) ||
		cgSections(g, 2).says(said)) {
		im.Take(to, g, at)
	} else if there {
		im.Complement(to, g, at)
	} else {
		im.Change(at, "group "+name, "has no section any more, and so no limits")
		im.Complement(to, g, at)
	}
}
