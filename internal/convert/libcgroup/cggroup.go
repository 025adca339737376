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

// fill gives a group the limits of its sections, and gives the files that it goes by.
func (im *cgImport) fill(to *convert.Group, sections []sectionOf, all []kernelfile.Param) []kernelfile.Param {
	all = im.inForce(to, all)
	p := kernelfile.Params{Draft: im.Draft, G: to, All: all, SayDefaults: true}
	p.Carry()
	for _, s := range sections {
		name, f := s.controller.text, s.file
		why, whole := kernelfile.WholeControllers[name]
		switch {
		case strings.HasPrefix(name, "name="):
			im.Leave(f.At(s.controller.offset), "", name, "a hierarchy without controllers limits nothing")
		case whole && len(s.pairs) == 0 && name != "cpuacct":
			im.Leave(f.At(s.controller.offset), why[1], name+" {}", "%s", why[0])
		}
	}
	return all
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
	index, lines := map[string]int{}, map[int][]string{}
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
		i, twice := index[file]
		switch {
		case !twice:
			index[file] = len(all)
			all = append(all, kernelfile.Param{File: file, Text: pair.value.text, At: at})
		case perLine(file):
			lines[i] = append(lines[i], pair.value.text)
		default:
			im.FailWith(at, all[i].At, "keep one of them", "%s is here twice", file)
		}
	}
	for i, more := range lines {
		all[i].Text += "\n" + strings.Join(more, "\n")
	}
	return all
}

// perLine says whether a file takes a line for each device, one after the other.
func perLine(file string) bool {
	return strings.HasSuffix(file, "_device") || file == "io.max" || file == "io.weight" || file == "io.latency" ||
		strings.HasPrefix(file, "devices.")
}

// owners turns perm into owner: the task files for who may move processes in, the others for who may set limits. What
// a later description of the group says counts.
func (im *cgImport) owners(to *convert.Group, all []permOf) {
	var task, admin ownership
	for _, p := range slices.Backward(all) {
		for _, said := range []struct {
			file *cgFile
			perm *cgPerm
		}{{p.file, p.perm}, {p.defIn, p.defaults}} {
			if said.perm != nil {
				both := im.perm(said.file, said.perm)
				task.under(both[0])
				admin.under(both[1])
			}
		}
	}
	im.owner(to, task, "run, move", "perm task")
	im.owner(to, admin, "set", "perm admin")
}

// perm reads who owns the task files, and who the others; a section once, however many groups it is for.
func (im *cgImport) perm(f *cgFile, perm *cgPerm) [2]ownership {
	both, known := im.owned[perm]
	if !known {
		both = [2]ownership{im.ownership(f, perm.task, false), im.ownership(f, perm.admin, true)}
		for name, pairs := range map[string][]cgPair{"task": perm.task, "admin": perm.admin} {
			if len(pairs) == 0 {
				f.Bad(perm.offset, "libcgroup takes both or none", "perm has no %s", name)
			}
		}
		im.owned[perm] = both
	}
	return both
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
		case name == "dperm":
			im.leavePair(f, pair, "libcgroup takes dperm in admin only, and no notice of it in task")
		default:
			im.leavePair(f, pair, "libcgroup takes uid, gid, fperm and dperm, and no notice of anything else in perm")
		}
	}
	return o
}

// leavePair reports something in perm that has no effect.
func (im *cgImport) leavePair(f *cgFile, pair cgPair, why string) {
	im.Leave(f.At(pair.name.offset), "", pair.name.text+" = "+pair.value.text, "%s", why)
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

// mode reads permissions in octal. libcgroup takes them only as far as the owner of each file has them.
func mode(in *convert.Input, pair cgPair) string {
	n, err := strconv.ParseUint(pair.value.text, 8, 32)
	if err != nil {
		in.Bad(pair.value.offset, "write permissions in octal, such as 664", "%s: %q is not a mode", pair.name.text,
			convert.Clean(pair.value.text))
		return ""
	}
	owner := n >> 6 & 7
	fit := n & (owner<<6 | owner<<3 | owner)
	if at := in.At(pair.name.offset); fit != n {
		in.Change(at, pair.name.text+" = "+pair.value.text, "is %03o: others have at most what the owner has, and "+
			"nothing else", fit)
	}
	return fmt.Sprintf("0%03o", fit)
}
