package libcgroup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
)

// Options say how a policy is exported.
type Options struct {
	// Cgroup is the version of control groups whose files are written; 0 is 1.
	Cgroup int
}

// Export writes a policy as libcgroup's cgconfig.conf. What that has no words for goes along in comments, so that
// an import gives back the same policy.
func Export(p *policy.Policy, o Options) *convert.Export {
	x := &cgExport{version: cmp.Or(o.Cgroup, 1)}
	x.line("# Made by bulkhead export cgconfig. Lines that begin with #bulkhead are for its import.")
	blocks := convert.TopBlocks(p)
	for _, top := range blocks {
		x.line("%s%s: %s", exactMark, top.Key, top.Text)
	}
	for _, g := range p.Groups {
		x.group(g, true)
	}
	x.Beside(p, blocks)
	return &convert.Export{Files: []policy.Source{{Path: "cgconfig.conf", Text: x.b.String()}}, Left: x.Left}
}

type cgExport struct {
	convert.Report
	version int
	b       strings.Builder
}

func (x *cgExport) line(format string, args ...any) { fmt.Fprintf(&x.b, format+"\n", args...) }

// group writes a group and those inside it. cpuset says that the group above has CPUs and nodes, or is that of the
// host.
func (x *cgExport) group(g *policy.Group, cpuset bool) {
	x.line("")
	x.line("%sgroup %s: %s", exactMark, g.Path, convert.GroupFlow(g))
	if g.Each != nil {
		x.Leave(g.Pos, "", "group "+g.Path,
			"it has a name only while an instance runs, and libcgroup has no such groups")
		return
	}
	s := cgSections(g, x.version, cpuset)
	x.Left = append(x.Left, s.left...)
	for _, m := range g.Match {
		x.Leave(m.Pos, "cgrules.conf places by user and program", "group "+g.Path,
			"libcgroup keeps in another file which processes belong to it: %s", convert.MatchFlow(m))
	}
	x.section(g, s)
	for _, child := range g.Groups {
		x.group(child, s.has("cpuset.cpus") && s.has("cpuset.mems"))
	}
}

// section writes the group as libcgroup reads it.
func (x *cgExport) section(g *policy.Group, s cgWords) {
	x.line("group %s {", cgQuote(g.Path))
	if len(s.task)+len(s.admin) > 0 {
		x.line("\tperm {")
		x.perm("task", s.task)
		x.perm("admin", s.admin)
		x.line("\t}")
	}
	var order []string
	for _, f := range s.files {
		if of, _, _ := strings.Cut(f.File, "."); !slices.Contains(order, of) {
			order = append(order, of)
		}
	}
	if len(order) == 0 {
		order = []string{"cpu"} // a group needs a controller
	}
	for _, controller := range order {
		x.line("\t%s {", controller)
		for _, f := range s.files {
			if strings.HasPrefix(f.File, controller+".") {
				x.line("\t\t%s = \"%s\";", f.File, f.Text)
			}
		}
		x.line("\t}")
	}
	x.line("}")
}

func (x *cgExport) perm(who string, pairs []convert.Raw) {
	if len(pairs) == 0 {
		pairs = rootPerm
	}
	x.line("\t\t%s {", who)
	for _, p := range pairs {
		x.line("\t\t\t%s = %s;", p.Key, cgQuote(p.Text))
	}
	x.line("\t\t}")
}

// cgQuote puts a word in quotes where the grammar asks for them.
func cgQuote(text string) string {
	plain := text != "" && !cgKeywords[text]
	for i := range len(text) {
		plain = plain && isWordByte(text[i])
	}
	if plain {
		return text
	}
	return `"` + text + `"`
}

// cgWords is what libcgroup can say of a group.
type cgWords struct {
	files       []kernelfile.Param
	task, admin []convert.Raw
	left        []convert.Remark
}

// has says whether a file is written.
func (s cgWords) has(file string) bool {
	return slices.ContainsFunc(s.files, func(f kernelfile.Param) bool { return f.File == file })
}

// cgSections gives the files of a group in the kernel's words, by the table of knobs. Without cpuset it has no CPUs and
// nodes: the kernel takes none that the group above lacks.
func cgSections(g *policy.Group, version int, cpuset bool) (s cgWords) {
	settings := s.settings(g, cpuset)
	written := map[policy.Key]bool{}
	for _, row := range knob.Table() {
		if row.Version == version {
			s.row(row, settings, written)
		}
	}
	slices.SortStableFunc(s.files,
		func(a, b kernelfile.Param) int { return slices.Index(late, a.File) - slices.Index(late, b.File) })
	s.halfCpuset(g, version)
	s.task, s.admin = permsOf(g.Owner)
	for _, o := range g.Owner {
		if o.Bounds != nil || o.Has(policy.MayFreeze) {
			s.left = append(s.left, convert.Remark{Pos: o.Pos,
				What: "group " + g.Path + ": owner: freeze, and set within bounds",
				Why:  "libcgroup knows owners of files alone"})
		}
	}
	for _, set := range settings {
		_, lifted := set.Value.(policy.Unlimited)
		switch isIO := strings.HasPrefix(string(set.Key), "io."); {
		case lifted:
		case set.Key.OfNetwork():
			s.leave(g, set, "libcgroup does not limit networks")
		case isIO && set.Dev == "":
			s.leave(g, set, "it is for a path or a group of disks, and the kernel's files take a device's number")
		case !written[set.Key]:
			s.leave(g, set, fmt.Sprintf("cgroup v%d has no file for it", version))
		}
	}
	return s
}

// settings are the limits of a group for which the kernel's files have words.
func (s *cgWords) settings(g *policy.Group, cpuset bool) (settings policy.Settings) {
	for _, set := range convert.WithRole(g) {
		_, asked := g.Settings.Get(set.Key, set.On)
		_, lifted := set.Value.(policy.Unlimited)
		switch set.Value.(type) {
		case policy.MemoryPercent, policy.IOPercent:
			s.leave(g, set, "the kernel's files have no percentages, and what they are of is another "+
				"thing on each host")
			continue
		}
		switch {
		case set.Key == policy.KeyIOWeight && asked:
			s.leave(g, set, "libcgroup refuses a whole file over a parameter that the host lacks, and it has weights "+
				"of disks only where one of them weighs (BFQ, iocost)")
			continue
		case set.Key == policy.KeyIOWeight:
			continue
		case isCpuset(set.Key) && !cpuset && !lifted:
			s.leave(g, set, "the group above has no CPUs and nodes of its own, and the kernel takes none here then")
			continue
		}
		if convert.IsDevice(set.On) {
			set.Dev = set.On
		}
		settings = append(settings, set)
	}
	return settings
}

// halfCpuset says when a group has CPUs without nodes, or nodes without CPUs.
func (s *cgWords) halfCpuset(g *policy.Group, version int) {
	if cpus := s.has("cpuset.cpus"); version == 1 && cpus != s.has("cpuset.mems") {
		lacks := "cpuset.cpus"
		if cpus {
			lacks = "cpuset.mems"
		}
		s.left = append(s.left, convert.Remark{Pos: g.Pos, What: "group " + g.Path + ": " + lacks,
			Why: "no process can enter a group of cpuset without it", Instead: "add what the host has"})
	}
}

// late are the files that are written behind all others, in their order. libcgroup writes them in the order of the
// file, and the kernel refuses a limit on memory and swap below the one on memory, which is none in a new group, a
// burst above the quota, and shares of a group that is idle.
var late = []string{"cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.idle", "memory.memsw.limit_in_bytes"}

func isCpuset(key policy.Key) bool {
	return key == policy.KeyCPUCPUs || key == policy.KeyCPUNUMA || key == policy.KeyMemoryNUMA
}

func (s *cgWords) leave(g *policy.Group, set policy.Setting, why string) {
	s.left = append(s.left, convert.Remark{Pos: set.Pos, What: "group " + g.Path + ": " + set.String(), Why: why})
}

// row adds what one file, or each device's line in it, would hold.
func (s *cgWords) row(row *knob.Row, settings policy.Settings, written map[policy.Key]bool) {
	for _, on := range row.Instances(settings) {
		text, ok, err := row.Encode(knob.Input{Settings: settings, On: on})
		if err != nil || !ok || text == "" {
			continue
		}
		for _, key := range row.Keys {
			written[key] = true
		}
		s.add(row, on, text)
	}
}

// permsOf are the owners of a group as a perm section has them.
func permsOf(owners []policy.Owner) (task, admin []convert.Raw) {
	pairs := func(o policy.Owner, directory bool) (all []convert.Raw) {
		add := func(key, text string) {
			if text != "" {
				all = append(all, convert.Raw{Key: key, Text: text})
			}
		}
		add("uid", cmp.Or(o.User, "root"))
		add("gid", cmp.Or(o.UnixGroup, "root"))
		add("fperm", strings.TrimPrefix(o.Mode, "0"))
		if directory {
			add("dperm", strings.TrimPrefix(o.Directory, "0"))
		}
		return all
	}
	for _, o := range owners {
		if o.Enters() {
			task = pairs(o, false)
		}
		if o.Sets() {
			admin = pairs(o, true)
		}
	}
	return task, admin
}

// add is one file, or a line of one.
func (s *cgWords) add(row *knob.Row, on, text string) {
	name := row.Name(on)
	if row.PerDevice {
		text = on + " " + text
		if i := slices.IndexFunc(s.files, func(f kernelfile.Param) bool { return f.File == name }); i >= 0 {
			s.files[i].Text += "\n" + text
			return
		}
	}
	s.files = append(s.files, kernelfile.Param{File: name, Text: text})
}

// says whether a file says the same of a group.
func (s cgWords) says(said cgSaid) bool {
	if len(s.files) != len(said.files) || !s.owns(said.perm) {
		return false
	}
	for _, f := range s.files {
		if !slices.ContainsFunc(said.files,
			func(o kernelfile.Param) bool { return o.File == f.File && strings.TrimSpace(o.Text) == f.Text }) {
			return false
		}
	}
	return true
}

// owns says whether a perm section is the one that is written for these owners.
func (s cgWords) owns(perm *cgPerm) bool {
	if perm == nil {
		return len(s.task)+len(s.admin) == 0
	}
	same := func(want []convert.Raw, got []cgPair) bool {
		if len(want) == 0 {
			want = rootPerm
		}
		return slices.EqualFunc(want, got,
			func(a convert.Raw, b cgPair) bool { return a.Key == b.name.text && a.Text == b.value.text })
	}
	return same(s.task, perm.task) && same(s.admin, perm.admin)
}

// rootPerm is what a perm section says where nobody but root is meant.
var rootPerm = []convert.Raw{{Key: "uid", Text: "root"}, {Key: "gid", Text: "root"}}
