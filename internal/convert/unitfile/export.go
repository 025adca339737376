package unitfile

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Export writes a policy as unit files and drop-ins of systemd, for a host without bulkhead. What systemd has no
// setting for goes along in a section that it does not read, so that an import gives back the same policy.
func Export(p *policy.Policy) *convert.Export {
	x := &sliceExport{policy: p, root: p.Host.Root, dropIns: map[string]policy.Pos{}}
	blocks := convert.TopBlocks(p)
	x.top(p, blocks)
	for _, g := range p.Groups {
		x.group(g)
	}
	x.Beside(p, blocks)
	return &convert.Export{Files: x.files, Left: x.Left}
}

type sliceExport struct {
	convert.Report
	policy  *policy.Policy
	root    string
	files   []policy.Source
	dropIns map[string]policy.Pos
}

// exportVersion is the systemd for which properties are chosen. Older ones do not read what they do not know.
var exportVersion = systemd.Version{Number: 257}

// ownSection holds what an export carries along: systemd.unit(5), sections that begin with X- are ignored.
const ownSection = "X-Bulkhead"

func (x *sliceExport) file(name string, lines ...string) {
	x.files = append(x.files, policy.Source{Path: name, Text: strings.Join(lines, "\n") + "\n"})
}

// top writes the slice that holds all others, where the policy has a root group, else one that holds nothing. It
// carries what stands in the policy beside the groups.
func (x *sliceExport) top(p *policy.Policy, blocks []convert.Raw) {
	name, err := unitname.SliceName(cmp.Or(x.root, "bulkhead"), "")
	if err != nil {
		x.Leave(policy.Pos{}, "", "host.root "+x.root, "%v", err)
		return
	}
	own := []string{"[" + ownSection + "]", "Root=" + x.root}
	for _, block := range blocks {
		own = append(own, strings.ToUpper(block.Key[:1])+block.Key[1:]+"="+block.Text)
	}
	for _, g := range p.Groups {
		own = append(own, x.templates(g)...)
	}
	if order := pathsOf(p.Groups); len(order) > 0 {
		own = append(own, "Order="+strings.Join(order, " "))
	}
	lines := []string{"[Unit]", "Description=What the policy that bulkhead exported has beside its groups",
		"Before=slices.target", "", "[Slice]"}
	lines = append(lines, accountingLines()...)
	if p.Host.Weight > 0 {
		lines = append(lines, "CPUWeight="+p.Host.Weight.String())
	}
	if h := p.Host; h.Reserve.CPU > 0 || h.Reserve.Memory != nil {
		x.Leave(h.Reserve.Pos, "limit the slices by hand", "host.reserve",
			"what is left for the groups depends on the host")
	}
	x.file(name, append(append(lines, ""), own...)...)
}

// pathsOf names the groups in their order.
func pathsOf(groups []*policy.Group) (all []string) {
	for _, g := range groups {
		all = append(append(all, g.Path), pathsOf(g.Groups)...)
	}
	return all
}

// templates gives the lines that carry along groups without a name of their own.
func (x *sliceExport) templates(g *policy.Group) (lines []string) {
	if g.Each != nil {
		x.Leave(g.Pos, "", "group "+g.Path, "it has a name only while an instance runs, and so no slice")
		return []string{"Template=group " + g.Path + ": " + convert.GroupFlow(g)}
	}
	for _, inner := range g.Groups {
		lines = append(lines, x.templates(inner)...)
	}
	return lines
}

func accountingLines() (lines []string) {
	for _, name := range systemd.AccountingSettings() {
		lines = append(lines, name+"=yes")
	}
	return lines
}

// group writes the slice of a group and the drop-ins that bring units into it.
func (x *sliceExport) group(g *policy.Group) {
	if g.Each != nil {
		return
	}
	name, err := unitname.SliceName(x.root, g.Path)
	if g.Slice != "" {
		name, err = g.Slice, nil
	}
	if err != nil {
		x.Leave(g.Pos, "give the groups shorter names", "group "+g.Path, "%v", err)
		return
	}
	s := sliceLines(g)
	x.Left = append(x.Left, s.left...)
	lines := []string{"[Slice]"}
	lines = append(append(lines, accountingLines()...), s.lines...)
	lines = append(lines, "", "["+ownSection+"]", "Group=group "+g.Path+": "+convert.GroupFlow(g))
	file := path.Join(name+".d", "50-bulkhead.conf") // an administrator's slice keeps its file, if it has one
	if g.Slice == "" {
		file = name
		lines = append([]string{"[Unit]", "Description=" + description(g), "Before=slices.target", ""}, lines...)
	}
	x.file(file, lines...)
	for _, m := range g.Match {
		x.place(g, m, name)
	}
	for _, inner := range g.Groups {
		x.group(inner)
	}
}

func description(g *policy.Group) string {
	text := "Group " + g.Path
	if g.Role != "" {
		text += " (" + string(g.Role) + ")"
	}
	return text + " of a policy that bulkhead exported"
}

// place brings a unit into a group's slice where the group matches the whole unit; systemd places nothing else.
func (x *sliceExport) place(g *policy.Group, m policy.Match, slice string) {
	unit := m.Unit
	if unitname.TypeOf(unit) == "" && unit != "" {
		unit += ".service"
	}
	if convert.MatchFlow(m) != convert.MatchFlow(policy.Match{Unit: m.Unit}) || m.Unit == "" ||
		strings.ContainsAny(unit, "*?[\\") || unitname.CheckName(unit) != nil ||
		unitname.TypeOf(unit) != "service" {
		x.Leave(m.Pos, "start it with systemd-run --slice="+slice, "group "+g.Path,
			"systemd places units, and no processes by %s", convert.MatchFlow(m))
		return
	}
	if first, twice := x.dropIns[unit]; twice {
		x.Leave(m.Pos, "", "group "+g.Path, "%s is in the slice of line %d already", unit, first.Line)
		return
	}
	x.dropIns[unit] = m.Pos
	x.file(path.Join(unit+".d", "50-bulkhead.conf"), "[Service]", "Slice="+slice)
}

// unitLines are the limits of a group as a unit file has them.
type unitLines struct {
	lines []string
	left  []convert.Remark
}

// percentSettings are the settings of systemd that take a percentage of the memory.
var percentSettings = map[policy.Key]string{
	policy.KeyMemoryMin: "MemoryMin", policy.KeyMemoryLow: "MemoryLow", policy.KeyMemoryHigh: "MemoryHigh",
	policy.KeyMemoryMax: "MemoryMax", policy.KeyMemorySwap: "MemorySwapMax",
}

// sliceLines gives the limits of a group, by the tables of knobs and of systemd's properties.
func sliceLines(g *policy.Group) (s unitLines) {
	leave := func(set policy.Setting, format string, args ...any) {
		s.left = append(s.left, convert.Remark{Pos: set.Pos, What: "group " + g.Path + ": " + set.String(),
			Why: fmt.Sprintf(format, args...)})
	}
	var files policy.Settings
	for _, set := range convert.WithRole(g) {
		name, percent := percentSettings[set.Key]
		share, isShare := set.Value.(policy.MemoryPercent)
		switch {
		case set.Key == policy.KeyIOWeight && set.On == "":
			s.lines = append(s.lines, "IOWeight="+set.Value.String())
		case strings.HasPrefix(string(set.Key), "io."):
			if line := deviceLine(set); line != "" {
				s.lines = append(s.lines, line)
			} else {
				leave(set, "systemd takes a device or a path, and a number")
			}
		case percent && isShare:
			s.lines = append(s.lines, name+"="+share.String())
		default:
			files = append(files, set)
		}
	}
	held := map[policy.Key]bool{}
	for _, row := range knob.Table() {
		if row.Version == 2 && !row.PerDevice {
			s.row(row, files, held)
		}
	}
	for _, set := range files {
		_, lifted := set.Value.(policy.Unlimited)
		if !held[set.Key] && !lifted && set.Value != policy.Value(policy.Flag(false)) &&
			set.Value != policy.Value(policy.OOM("kill")) {
			leave(set, "a slice of systemd has no setting for it")
		}
	}
	slices.Sort(s.lines)
	s.lines = slices.Compact(s.lines)
	return s
}

// row adds the properties that bring one file to its value.
func (s *unitLines) row(row *knob.Row, settings policy.Settings, held map[policy.Key]bool) {
	if len(row.Instances(settings)) == 0 || row.PerSize {
		return
	}
	text := func(file, _ string) string { return fileText(settings, file) }
	set, ok := row.Properties(knob.Unit{Name: "x.slice", Version: exportVersion}, nil, text)
	if !ok {
		return
	}
	for _, a := range set {
		property, known := systemd.RowOf(a.Name)
		if !known {
			continue
		}
		lines, err := property.Lines(a.Text)
		if err != nil {
			continue
		}
		for _, line := range lines {
			if !strings.HasSuffix(line, "=") && line != "CPUQuotaPeriodSec=100000us" {
				s.lines = append(s.lines, line)
			}
		}
	}
	for _, key := range row.Keys {
		held[key] = true
	}
}

// fileText is what a file of cgroup v2 would hold for a group.
func fileText(settings policy.Settings, file string) string {
	for _, row := range knob.Table() {
		if row.Version != 2 || row.File != file || row.PerDevice || row.PerSize || len(row.Instances(settings)) == 0 {
			continue
		}
		if value, ok, err := row.Encode(knob.Input{Settings: settings}); ok && err == nil {
			return value
		}
	}
	return ""
}

// deviceLine is a limit of a device as a unit file has it; "" when it has none.
func deviceLine(set policy.Setting) string {
	target := set.On
	if convert.IsDevice(target) {
		target = "/dev/block/" + target
	}
	number := ""
	switch v := set.Value.(type) {
	case policy.Rate:
		number = fmt.Sprint(int64(v))
	case policy.IOPS:
		number = fmt.Sprint(int64(v))
	case policy.Weight:
		number = v.String()
	}
	if number == "" || !strings.HasPrefix(target, "/") {
		return ""
	}
	for _, p := range deviceProperties {
		row, known := systemd.RowOf(p.name)
		if p.key != set.Key || !known {
			continue
		}
		if lines, err := row.Lines(target + " " + number); err == nil && len(lines) > 1 {
			return lines[len(lines)-1]
		}
	}
	return ""
}

// says whether a unit's files say the same of a group.
func (s unitLines) says(u *unitFile) bool {
	var lines []string
	for _, a := range u.lines {
		if a.section == "Slice" && !isAccounting(a.name) {
			lines = append(lines, a.what())
		}
	}
	slices.Sort(lines)
	return slices.Equal(slices.Compact(lines), s.lines)
}
