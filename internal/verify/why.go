package verify

import (
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/policy"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// whyUnknown is the reason of what is not enforced while everything looks as it should.
const whyUnknown = "no reason could be found: the kernel's files hold what was asked, " +
	"and it was measured more than once"

// daemonReload is what to say of a file of a unit's directory that does not hold what was written to it.
const daemonReload = "; systemd owns this directory, and a daemon-reload takes back what is written to it " +
	"by hand: a limit has to be a property of the unit"

// why looks for the reason why a limit is not held as asked: what differs in the kernel's files, a limit on another
// device, members below the directory that carries it.
func (v *Snapshot) why(group string, s policy.Setting, buffered bool) string {
	var found []string
	l := v.Limit(group, s)
	if !l.OK {
		found = append(found, cmp.Or(l.Reason, v.whyDiffers(Reading{group, l})))
	}
	for _, w := range v.wanted(group, s) {
		f := w.File()
		if w.Row == nil {
			continue
		}
		if others := v.strayLimits(f.Dir, w.Row); len(others) > 0 {
			on := strings.Join(others, ", ")
			found = append(found, f.Name+" has a limit on "+on+", which the policy does not ask for: the wrong device")
		}
		if below := v.residence(group, f.Dir); below != f.Dir && !w.Row.Descends {
			found = append(found, fmt.Sprintf("its processes sit in %s, below %s which carries the limit, "+
				"and %s of cgroup v1 holds only those of the very directory",
				v.Tree.Abs(below), v.Tree.Abs(f.Dir), f.Name))
		}
		if w.Row.Reach != "" && buffered && len(found) == 0 {
			found = append(found, f.Name+": "+w.Row.Reach)
		}
	}
	if len(found) == 0 {
		return whyUnknown
	}
	return strings.Join(slices.Compact(found), "; ")
}

// idle names the file that makes a group one that gets only what nobody else wants of the CPU; "" where none does.
func (v *Snapshot) idle(group string) string {
	h, _ := v.Facts.HierarchyOf("cpu")
	own, ok := v.Layout.Own(group)[h.ID]
	if !ok || !v.holdsIdle(own) {
		return ""
	}
	return v.Tree.Abs(own) + "/cpu.idle"
}

// idleAbove names the file that does so for the nearest directory above that of a group.
func (v *Snapshot) idleAbove(group string) string {
	h, _ := v.Facts.HierarchyOf("cpu")
	for d, ok := v.Layout.Own(group)[h.ID]; ok && d.Path != "/"; {
		if d = d.Parent(); v.holdsIdle(d) {
			return v.Tree.Abs(d) + "/cpu.idle"
		}
	}
	return ""
}

func (v *Snapshot) holdsIdle(d cgroup.Dir) bool {
	text, err := v.Tree.Read(d.File("cpu.idle"))
	return err == nil && strings.TrimSpace(text) == "1"
}

// whyDiffers explains a limit that the kernel's file does not hold.
func (v *Snapshot) whyDiffers(b Reading) string {
	if file := v.idle(b.Group); file != "" && b.Key == policy.KeyCPUWeight {
		return file + " is 1, which takes the place of the weight: somebody has changed it since; " +
			"the agent, or `bulkhead apply`, puts it right"
	}
	text := fmt.Sprintf("the kernel holds %s", cmp.Or(b.InForce, "nothing"))
	if b.File != "" {
		text += " (" + b.File + ")"
	}
	text += ": somebody has changed it since"
	if v.ofUnit(b.Group) {
		text += daemonReload
	}
	return text + "; the agent, or `bulkhead apply`, puts it right"
}

// ofUnit says whether the directory that carries a group's limits is a unit's.
func (v *Snapshot) ofUnit(group string) bool {
	for _, d := range v.Layout.Own(group) {
		if v.Layout.Unit(d) != "" {
			return true
		}
	}
	return slices.ContainsFunc(v.Facts.Hierarchies, func(h host.Hierarchy) bool {
		return len(v.Layout.Outside(group, h.ID)) > 0
	})
}

// strayLimits names the devices that a directory has a limit for and the group has none on.
func (v *Snapshot) strayLimits(d cgroup.Dir, row *knob.Row) (names []string) {
	if !row.PerDevice {
		return nil
	}
	text, err := v.Tree.Read(d.File(row.File))
	if err != nil {
		return nil
	}
	wants := v.Plan.Wants()
	for _, number := range cgroup.Devices(text) {
		if _, asked := wants[(cgroup.File{Dir: d, Name: row.File, Key: number}).Target()]; asked {
			continue
		}
		name := number
		if device, ok := v.Facts.Device(number); ok {
			name += " (" + device.Name + ")"
		}
		names = append(names, name)
	}
	return names
}

// inForce sums up what the kernel's files hold of settings that share a limit; 0 is not known.
func (v *Snapshot) inForce(group string, all policy.Settings) (sum float64) {
	for _, s := range all {
		for _, w := range v.wanted(group, s) {
			f := w.File()
			text, err := v.Tree.Read(f.Dir.File(f.Name))
			if err != nil || w.Setting.Key != s.Key && !w.Row.PerDevice {
				continue
			}
			n := w.Row.Number(s.Key, w.Row.Line(text, f.Key))
			if n == 0 {
				return 0
			}
			sum += n
			break
		}
	}
	return sum
}

// asked sums up what the kernel's files ought to hold of settings that share a limit.
func (v *Snapshot) asked(group string, all policy.Settings) (sum float64) {
	for _, s := range all {
		for _, w := range v.wanted(group, s) {
			sum += w.Row.Number(s.Key, w.Value)
			break
		}
	}
	return sum
}

// coresInForce is the CPU limit that the kernel's files hold; 0 is not known.
func (v *Snapshot) coresInForce(group string) float64 {
	h, ok := v.Facts.HierarchyOf("cpu")
	own, ok2 := v.Layout.Own(group)[h.ID]
	if !ok || !ok2 {
		return 0
	}
	files, err := v.Tree.ReadMany(own, []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"})
	if err != nil {
		return 0
	}
	quota, period := files["cpu.cfs_quota_us"], files["cpu.cfs_period_us"]
	if h.Version == 2 {
		quota, period, _ = strings.Cut(files["cpu.max"], " ")
	}
	each := knob.ParseNumber(period)
	if each <= 0 || math.IsInf(each, 1) {
		return 0
	}
	return knob.ParseNumber(quota) / each
}
