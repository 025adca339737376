package convert

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Cgconfig imports files of libcgroup's cgconfig.conf, and the rules of cgrules.conf for their groups. The error is
// policy.Problems.
func Cgconfig(files, rules []policy.Source) (*Result, error) {
	r := &report{}
	d := newDraft(r)
	d.head = append(d.head, "Made by bulkhead import cgconfig; a comment says which line each setting comes from.")
	im := &cgImport{draft: d, rules: len(rules) > 0, used: map[*cgGroup]bool{}, byName: map[string]policy.Pos{}, said: map[*group]cgSaid{}}
	for _, s := range files {
		if in, ok := r.open(s); ok {
			im.parsed = append(im.parsed, parseCgconfig(in))
		}
	}
	im.place()
	for _, f := range im.parsed {
		im.restore(f)
	}
	d.settleWeights(&d.root)
	sources := slices.Concat(files, rules)
	if len(rules) > 0 {
		d.readRules(rules, im)
		d.settleWeights(&d.root)
	}
	im.unused()
	if len(d.root.children) == 0 && len(r.problems) == 0 {
		r.note("there is no group in what was read")
	}
	return r.result(d, sources)
}

// cgImport turns parsed files into a draft.
type cgImport struct {
	*draft
	parsed   []*cgFile
	defaults *cgPerm
	defIn    *cgFile
	byName   map[string]policy.Pos
	said     map[*group]cgSaid
	rules    bool // are read with it
	used     map[*cgGroup]bool
}

// cgSaid is what a file says of a group.
type cgSaid struct {
	files []param
	perm  *cgPerm
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
		if !slices.Contains(controllers, n.name.text) {
			f.unknownController(n.name)
		}
		im.leave(f.at(n.name.offset), "with systemd: a slice of that name", "namespace "+n.name.text+" = "+n.value.text,
			"groups of this file lie below %s there, and below host.root here", path.Join("/", n.value.text))
	}
	if len(f.names) > 0 && len(f.mounts) > 0 {
		f.bad(f.names[0].name.offset, "take one of them out", "mount and namespace cannot both be in one file: libcgroup refuses it")
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
			im.leave(f.at(u[0].name.offset), "name a slice of yours with slice: NAME in a group", "systemd "+strings.Join(words, " "),
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
				im.leave(f.at(t.name.offset), instead, "template "+t.name.text, "a template makes groups while processes start, and a policy names its groups")
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
		im.leave(f.at(m.name.offset), "", "mount "+m.name.text, "a hierarchy without controllers limits nothing")
	case !slices.Contains(controllers, name):
		f.unknownController(cgWord{name, m.name.offset})
	case twice:
		im.failWith(f.at(m.name.offset), f.at(first.name.offset), "keep one of them", "%s is mounted twice", name)
	}
	seen[name] = m
	im.note("mount sections are not carried over: bulkhead takes controllers where they are mounted, and `bulkhead discover` says which are missing")
}

func (in *input) unknownController(w cgWord) {
	in.bad(w.offset, "controllers are "+strings.Join(controllers, ", "), "there is no controller %q", clean(w.text))
}

// group places one group with its limits and owners.
func (im *cgImport) group(f *cgFile, g *cgGroup) {
	at, name := f.at(g.name.offset), strings.Trim(g.name.text, "/")
	all := im.check(f, g)
	if name == "." || name == "" {
		im.leave(at, "", "group "+g.name.text, "it is the root of the hierarchy, and bulkhead governs its own groups only")
		return
	}
	clean := path.Clean(name)
	if first, twice := im.byName[clean]; twice {
		im.failWith(at, first, "put both into one section, or rename one", "group %q is here twice", name)
		return
	}
	im.byName[clean] = at
	to := im.draft.group(clean, at)
	if to == nil {
		return
	}
	im.describe(to, at, from(at, "group "+name))
	im.owners(f, g, to)
	im.fill(f, g, to, all)
	im.said[to] = cgSaid{all, g.perm}
}

// fill gives a group the limits of its sections.
func (im *cgImport) fill(f *cgFile, g *cgGroup, to *group, all []param) {
	p := params{draft: im.draft, g: to, all: all}
	p.carry()
	for _, s := range g.sections {
		name := s.controller.text
		why, whole := wholeControllers[name]
		switch {
		case strings.HasPrefix(name, "name="):
			im.leave(f.at(s.controller.offset), "", name, "a hierarchy without controllers limits nothing")
		case whole && len(s.pairs) == 0 && name != "cpuacct":
			im.leave(f.at(s.controller.offset), why[1], name+" {}", "%s", why[0])
		}
	}
}

// check holds the sections of a group to what controllers there are and which files they have, and gives the files.
func (im *cgImport) check(f *cgFile, g *cgGroup) (all []param) {
	seen := map[string]cgSection{}
	for _, s := range g.sections {
		name := s.controller.text
		if first, twice := seen[name]; twice {
			im.failWith(f.at(s.controller.offset), f.at(first.controller.offset), "put both into one", "controller %s is here twice", name)
		}
		seen[name] = s
		switch {
		case strings.HasPrefix(name, "name="):
		case !slices.Contains(controllers, name):
			f.unknownController(s.controller)
		default:
			all = append(all, im.files(f, name, s.pairs)...)
		}
	}
	return all
}

// files gives the parameters of one controller, those with several lines as one.
func (im *cgImport) files(f *cgFile, controller string, pairs []cgPair) (all []param) {
	for _, pair := range pairs {
		at := f.at(pair.name.offset)
		file := pair.name.text
		of, _, _ := strings.Cut(file, ".")
		switch {
		case !known(file):
			f.bad(pair.name.offset, parametersOf(controller), "controller %s has no parameter %q", controller, clean(file))
			continue
		case of != controller && of != "cgroup" && strings.Contains(file, "."):
			f.bad(pair.name.offset, fmt.Sprintf("write it below `%s {`", of), "%s is a parameter of %s, not of %s", file, of, controller)
			continue
		}
		i := slices.IndexFunc(all, func(p param) bool { return p.file == file })
		switch {
		case i < 0:
			all = append(all, param{file, pair.value.text, at})
		case perLine(file):
			all[i].text += "\n" + pair.value.text
		default:
			im.failWith(at, all[i].at, "keep one of them", "%s is here twice", file)
		}
	}
	return all
}

// perLine says whether a file takes a line for each device, one after the other.
func perLine(file string) bool {
	return strings.HasSuffix(file, "_device") || file == "io.max" || file == "io.weight" || file == "io.latency" || strings.HasPrefix(file, "devices.")
}

// parametersOf names the parameters of a controller that can be carried over.
func parametersOf(controller string) string {
	var names []string
	for file := range carried {
		if of, _, _ := strings.Cut(file, "."); of == controller {
			names = append(names, file)
		}
	}
	if len(names) == 0 {
		return "see the kernel's documentation of control groups"
	}
	slices.Sort(names)
	return "of " + controller + " are carried over: " + strings.Join(names, ", ")
}

// ownership is who owns files of a group, and with which mode.
type ownership struct {
	user, group, mode, dir string
	at                     policy.Pos
}

// owners turns perm into owner: the task files for who may move processes in, the others for who may set limits.
func (im *cgImport) owners(f *cgFile, g *cgGroup, to *group) {
	var task, admin ownership
	if g.perm != nil {
		task, admin = im.ownership(f, g.perm.task, false), im.ownership(f, g.perm.admin, true)
		for name, pairs := range map[string][]cgPair{"task": g.perm.task, "admin": g.perm.admin} {
			if len(pairs) == 0 {
				f.bad(g.perm.offset, "libcgroup takes both or none", "perm has no %s", name)
			}
		}
	}
	if im.defaults != nil {
		task.under(im.ownership(im.defIn, im.defaults.task, false))
		admin.under(im.ownership(im.defIn, im.defaults.admin, true))
	}
	im.owner(to, task, "run, move", "perm task")
	im.owner(to, admin, "set", "perm admin")
}

// under takes over what is not said.
func (o *ownership) under(other ownership) {
	for _, field := range []struct{ mine, theirs *string }{{&o.user, &other.user}, {&o.group, &other.group}, {&o.mode, &other.mode}, {&o.dir, &other.dir}} {
		if *field.mine == "" {
			*field.mine = *field.theirs
		}
	}
	if o.at == (policy.Pos{}) {
		o.at = other.at
	}
}

// owner writes an entry of owner:, unless it is what every group has anyway.
func (im *cgImport) owner(to *group, o ownership, may, what string) {
	var parts []string
	add := func(key, text string) {
		if text != "" {
			parts = append(parts, key+": "+text)
		}
	}
	root := func(name string) bool { return name == "" || name == "root" || name == "0" }
	if o.mode == "" && o.dir == "" && root(o.user) && root(o.group) {
		return
	}
	if o.user != "" {
		add("user", yamlform.Quote(o.user))
	}
	if o.group != "" {
		add("unix_group", yamlform.Quote(o.group))
	}
	add("may", "["+may+"]")
	add("mode", quoted(o.mode))
	add("directory", quoted(o.dir))
	to.owner = append(to.owner, raw{"owner", "{" + strings.Join(parts, ", ") + "}", from(o.at, what)})
}

func quoted(mode string) string {
	if mode == "" {
		return ""
	}
	return "'" + mode + "'"
}

// ownership reads task { … } or admin { … }.
func (im *cgImport) ownership(f *cgFile, pairs []cgPair, directory bool) (o ownership) {
	seen := map[string]cgPair{}
	for i, pair := range pairs {
		if i == 0 {
			o.at = f.at(pair.name.offset)
		}
		if first, twice := seen[pair.name.text]; twice {
			im.failWith(f.at(pair.name.offset), f.at(first.name.offset), "keep one of them", "%s is here twice", pair.name.text)
		}
		seen[pair.name.text] = pair
		switch name := pair.name.text; {
		case name == "uid":
			o.user = f.account(pair)
		case name == "gid":
			o.group = f.account(pair)
		case name == "fperm":
			o.mode = f.mode(pair)
		case name == "dperm" && directory:
			o.dir = f.mode(pair)
		default:
			f.bad(pair.name.offset, "known here: uid, gid, fperm, and dperm in admin", "there is no %q in perm", clean(name))
		}
	}
	return o
}

func (in *input) account(pair cgPair) string {
	name := pair.value.text
	if name == "" || strings.TrimSpace(name) == "" || strings.ContainsAny(name, " \t:/,{") || strings.HasPrefix(name, "-") {
		in.bad(pair.value.offset, "write one name or number", "%s: %q is not a user or group", pair.name.text, clean(name))
	}
	return name
}

// mode reads permissions in octal.
func (in *input) mode(pair cgPair) string {
	n, err := strconv.ParseUint(pair.value.text, 8, 32)
	owner := n >> 6 & 7
	switch {
	case err != nil || n > 0o777:
		in.bad(pair.value.offset, "write permissions in octal, such as 664", "%s: %q is not a mode", pair.name.text, clean(pair.value.text))
		return ""
	case (n>>3&7|n&7)&^owner != 0:
		in.bad(pair.value.offset, "libcgroup takes the owner's permissions for the most that the others can have", "%s: %s gives others more than the owner", pair.name.text, pair.value.text)
		return ""
	}
	return fmt.Sprintf("0%03o", n)
}
