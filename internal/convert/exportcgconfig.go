package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/resolve"
)

// ExportOptions say how a policy is exported.
type ExportOptions struct {
	// Cgroup is the version of control groups whose files are written; 0 is 1.
	Cgroup int
}

// Export is a policy in another format.
type Export struct {
	Files []policy.Source `json:"files"`
	// Left is what the format has no words for.
	Left []Remark `json:"left"`
}

// ExportCgconfig writes a policy as libcgroup's cgconfig.conf. What that has no words for goes along in comments, so that
// an import gives back the same policy.
func ExportCgconfig(p *policy.Policy, o ExportOptions) *Export {
	x := &cgExport{version: cmp.Or(o.Cgroup, 1)}
	x.line("# Made by bulkhead export cgconfig. Lines that begin with #bulkhead are for its import.")
	for _, top := range topBlocks(p) {
		x.line("%s%s: %s", exactMark, top.key, top.text)
	}
	for _, g := range p.Groups {
		x.group(g)
	}
	x.schedules(p)
	return &Export{Files: []policy.Source{{Path: "cgconfig.conf", Text: x.b.String()}}, Left: x.left}
}

// topBlocks are the blocks of a policy beside its groups.
func topBlocks(p *policy.Policy) (all []raw) {
	if text := hostFlow(p.Host); text != "" {
		all = append(all, raw{key: "host", text: text})
	}
	if text := agentFlow(p.Agent); text != "" {
		all = append(all, raw{key: "agent", text: text})
	}
	if text := listOf(p.Schedules, scheduleFlow); text != "" {
		all = append(all, raw{key: "schedules", text: text})
	}
	return all
}

// schedules says that neither format has anything like a schedule.
func (r *report) schedules(p *policy.Policy) {
	for _, s := range p.Schedules {
		r.leave(s.Pos, "", "schedule "+s.Name, "limits that change with the time have no form there")
	}
}

type cgExport struct {
	report
	version int
	b       strings.Builder
}

func (x *cgExport) line(format string, args ...any) { fmt.Fprintf(&x.b, format+"\n", args...) }

func (x *cgExport) group(g *policy.Group) {
	x.line("")
	x.line("%sgroup %s: %s", exactMark, g.Path, groupFlow(g))
	if g.Each != nil {
		x.leave(g.Pos, "", "group "+g.Path, "it has a name only while an instance runs, and libcgroup has no such groups")
		return
	}
	s := cgSections(g, x.version)
	x.left = append(x.left, s.left...)
	for _, m := range g.Match {
		x.leave(m.Pos, "cgrules.conf places by user and program", "group "+g.Path, "libcgroup keeps in another file which processes belong to it: %s", matchFlow(m))
	}
	if len(s.files) > 0 || len(s.task)+len(s.admin) > 0 {
		x.section(g, s)
	}
	for _, child := range g.Groups {
		x.group(child)
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
		if of, _, _ := strings.Cut(f.file, "."); !slices.Contains(order, of) {
			order = append(order, of)
		}
	}
	if len(order) == 0 {
		order = []string{"cpu"} // a group needs a controller
	}
	for _, controller := range order {
		x.line("\t%s {", controller)
		for _, f := range s.files {
			if strings.HasPrefix(f.file, controller+".") {
				x.line("\t\t%s = \"%s\";", f.file, f.text)
			}
		}
		x.line("\t}")
	}
	x.line("}")
}

func (x *cgExport) perm(who string, pairs []raw) {
	if len(pairs) == 0 {
		pairs = rootPerm
	}
	x.line("\t\t%s {", who)
	for _, p := range pairs {
		x.line("\t\t\t%s = %s;", p.key, cgQuote(p.text))
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
	files       []param
	task, admin []raw
	left        []Remark
}

// cgSections gives the files of a group in the kernel's words, by the table of knobs.
func cgSections(g *policy.Group, version int) (s cgWords) {
	var settings policy.Settings
	for _, set := range withRole(g) {
		_, asked := g.Settings.Get(set.Key, set.On)
		switch set.Value.(type) {
		case policy.MemoryPercent, policy.IOPercent:
			s.leave(g, set, "the kernel's files have no percentages, and what they are of is another thing on each host")
			continue
		}
		if set.Key == policy.KeyIOWeight && !asked {
			continue // libcgroup refuses a whole file over a parameter that the kernel's scheduler lacks
		}
		if isDevice(set.On) {
			set.Dev = set.On
		}
		settings = append(settings, set)
	}
	written := map[policy.Key]bool{}
	for _, row := range knob.Table() {
		if row.Version == version {
			s.row(row, settings, written)
		}
	}
	s.task, s.admin = permsOf(g.Owner)
	for _, o := range g.Owner {
		if o.Bounds != nil || o.Has(policy.MayFreeze) {
			s.left = append(s.left, Remark{Pos: o.Pos, What: "group " + g.Path + ": owner: freeze, and set within bounds", Why: "libcgroup knows owners of files alone"})
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

func (s *cgWords) leave(g *policy.Group, set policy.Setting, why string) {
	s.left = append(s.left, Remark{Pos: set.Pos, What: "group " + g.Path + ": " + set.String(), Why: why})
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

// withRole are the settings of a group with those of its role.
func withRole(g *policy.Group) policy.Settings {
	all := slices.Clone(g.Settings)
	for _, set := range resolve.RoleSettings(g) {
		if _, asked := g.Settings.Get(set.Key, ""); !asked && supported(set.Key, set.Value.String()) {
			all = all.With(set)
		}
	}
	return all
}

// permsOf are the owners of a group as a perm section has them.
func permsOf(owners []policy.Owner) (task, admin []raw) {
	pairs := func(o policy.Owner, directory bool) (all []raw) {
		add := func(key, text string) {
			if text != "" {
				all = append(all, raw{key: key, text: text})
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
		if i := slices.IndexFunc(s.files, func(f param) bool { return f.file == name }); i >= 0 {
			s.files[i].text += "\n" + text
			return
		}
	}
	s.files = append(s.files, param{file: name, text: text})
}

// says whether a file says the same of a group.
func (s cgWords) says(said cgSaid) bool {
	if len(s.files) != len(said.files) || !s.owns(said.perm) {
		return false
	}
	for _, f := range s.files {
		if !slices.ContainsFunc(said.files, func(o param) bool { return o.file == f.file && strings.TrimSpace(o.text) == f.text }) {
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
	same := func(want []raw, got []cgPair) bool {
		if len(want) == 0 {
			want = rootPerm
		}
		return slices.EqualFunc(want, got, func(a raw, b cgPair) bool { return a.key == b.name.text && a.text == b.value.text })
	}
	return same(s.task, perm.task) && same(s.admin, perm.admin)
}

// rootPerm is what a perm section says where nobody but root is meant.
var rootPerm = []raw{{key: "uid", text: "root"}, {key: "gid", text: "root"}}
