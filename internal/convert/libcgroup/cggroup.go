package libcgroup

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// fill gives a group the limits of its sections.
func (im *cgImport) fill(f *cgFile, g *cgGroup, to *convert.Group, all []kernelfile.Param) {
	p := kernelfile.Params{Draft: im.Draft, G: to, All: all}
	p.Carry()
	for _, s := range g.sections {
		name := s.controller.text
		why, whole := kernelfile.WholeControllers[name]
		switch {
		case strings.HasPrefix(name, "name="):
			im.Leave(f.At(s.controller.offset), "", name, "a hierarchy without controllers limits nothing")
		case whole && len(s.pairs) == 0 && name != "cpuacct":
			im.Leave(f.At(s.controller.offset), why[1], name+" {}", "%s", why[0])
		}
	}
}

// check holds the sections of a group to what controllers there are and which files they have, and gives the files.
func (im *cgImport) check(f *cgFile, g *cgGroup) (all []kernelfile.Param) {
	seen := map[string]cgSection{}
	for _, s := range g.sections {
		name := s.controller.text
		if first, twice := seen[name]; twice {
			im.FailWith(f.At(s.controller.offset), f.At(first.controller.offset), "put both into one",
				"controller %s is here twice", name)
		}
		seen[name] = s
		switch {
		case strings.HasPrefix(name, "name="):
		case !slices.Contains(kernelfile.Controllers, name):
			kernelfile.UnknownController(f.Input, s.controller.text, s.controller.offset)
		default:
			all = append(all, im.files(f, name, s.pairs)...)
		}
	}
	return all
}

// files gives the parameters of one controller, those with several lines as one.
func (im *cgImport) files(f *cgFile, controller string, pairs []cgPair) (all []kernelfile.Param) {
	for _, pair := range pairs {
		at := f.At(pair.name.offset)
		file := pair.name.text
		of, _, _ := strings.Cut(file, ".")
		switch {
		case !kernelfile.Known(file):
			f.Bad(pair.name.offset, kernelfile.ParametersOf(controller), "controller %s has no parameter %q",
				controller, convert.Clean(file))
			continue
		case of != controller && of != "cgroup" && strings.Contains(file, "."):
			f.Bad(pair.name.offset, fmt.Sprintf("write it below `%s {`", of), "%s is a parameter of %s, not of %s",
				file, of, controller)
			continue
		}
		i := slices.IndexFunc(all, func(p kernelfile.Param) bool { return p.File == file })
		switch {
		case i < 0:
			all = append(all, kernelfile.Param{File: file, Text: pair.value.text, At: at})
		case perLine(file):
			all[i].Text += "\n" + pair.value.text
		default:
			im.FailWith(at, all[i].At, "keep one of them", "%s is here twice", file)
		}
	}
	return all
}

// perLine says whether a file takes a line for each device, one after the other.
func perLine(file string) bool {
	return strings.HasSuffix(file, "_device") || file == "io.max" || file == "io.weight" || file == "io.latency" ||
		strings.HasPrefix(file, "devices.")
}

// owners turns perm into owner: the task files for who may move processes in, the others for who may set limits.
func (im *cgImport) owners(f *cgFile, g *cgGroup, to *convert.Group) {
	var task, admin ownership
	if g.perm != nil {
		task, admin = im.ownership(f, g.perm.task, false), im.ownership(f, g.perm.admin, true)
		for name, pairs := range map[string][]cgPair{"task": g.perm.task, "admin": g.perm.admin} {
			if len(pairs) == 0 {
				f.Bad(g.perm.offset, "libcgroup takes both or none", "perm has no %s", name)
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
	for _, field := range []struct{ mine, theirs *string }{{&o.user, &other.user}, {&o.group, &other.group},
		{&o.mode, &other.mode}, {&o.dir, &other.dir}} {
		if *field.mine == "" {
			*field.mine = *field.theirs
		}
	}
	if o.at == (policy.Pos{}) {
		o.at = other.at
	}
}

// owner writes an entry of owner:, unless it is what every group has anyway.
func (im *cgImport) owner(to *convert.Group, o ownership, may, what string) {
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
	to.Owner = append(to.Owner, convert.Raw{Key: "owner", Text: "{" + strings.Join(parts, ", ") + "}",
		From: convert.From(o.at, what)})
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
			o.at = f.At(pair.name.offset)
		}
		if first, twice := seen[pair.name.text]; twice {
			im.FailWith(f.At(pair.name.offset), f.At(first.name.offset), "keep one of them", "%s is here twice",
				pair.name.text)
		}
		seen[pair.name.text] = pair
		switch name := pair.name.text; {
		case name == "uid":
			o.user = account(f.Input, pair)
		case name == "gid":
			o.group = account(f.Input, pair)
		case name == "fperm":
			o.mode = mode(f.Input, pair)
		case name == "dperm" && directory:
			o.dir = mode(f.Input, pair)
		default:
			f.Bad(pair.name.offset, "known here: uid, gid, fperm, and dperm in admin", "there is no %q in perm",
				convert.Clean(name))
		}
	}
	return o
}

func account(in *convert.Input, pair cgPair) string {
	name := pair.value.text
	if name == "" || strings.TrimSpace(name) == "" || strings.ContainsAny(name, " \t:/,{") || strings.HasPrefix(name,
		"-") {
		in.Bad(pair.value.offset, "write one name or number", "%s: %q is not a user or group", pair.name.text,
			convert.Clean(name))
	}
	return name
}

// mode reads permissions in octal.
func mode(in *convert.Input, pair cgPair) string {
	n, err := strconv.ParseUint(pair.value.text, 8, 32)
	owner := n >> 6 & 7
	switch {
	case err != nil || n > 0o777:
		in.Bad(pair.value.offset, "write permissions in octal, such as 664", "%s: %q is not a mode", pair.name.text,
			convert.Clean(pair.value.text))
		return ""
	case (n>>3&7|n&7)&^owner != 0:
		in.Bad(pair.value.offset, "libcgroup takes the owner's permissions for the most that the others can have",
			"%s: %s gives others more than the owner", pair.name.text, pair.value.text)
		return ""
	}
	return fmt.Sprintf("0%03o", n)
}
