package resolve

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// checkCollisions looks for io limits of several groups that come to one device.
//
// The kernel keeps a line for each group and device, so groups never overwrite each other's limits; within one group
// oneEach sees to it. A child's limit above the one of a group above it never acts.
func (r checks) checkCollisions(groups []Limits) {
	above := make(map[string]Limits, len(groups))
	for _, g := range groups {
		above[g.Group] = g
		var many []vain
		for _, s := range g.Settings {
			if _, limited := amount(s.Value); !limited || s.Dev == "" {
				continue
			}
			v, is := r.checkAbove(g, s, above)
			switch {
			case !is:
			case s.On == "" || strings.HasPrefix(s.From, "class "): // meant for many
				many = append(many, v)
			default:
				r.Fail(s.Pos, "ask for less, or give the group above more", "%s", v.text(g.Group))
				r.Also(v.outer.Pos)
			}
		}
		r.voidAll(g, many)
	}
	r.noteWholeDisks(groups)
}

// vain is an io limit that never acts, with the one of a group above it.
type vain struct {
	policy.Setting
	outer        policy.Setting
	by           string // the group above
	mine, theirs policy.Value
	where        string // a device in words
}

func (v vain) text(group string) string {
	return fmt.Sprintf("%s %s of %s on %s never acts: %s, above it, has %s there", v.Key, v.mine, group, v.where, v.by,
		v.theirs)
}

// checkAbove holds an io limit against those of the groups above it.
func (r checks) checkAbove(g Limits, s policy.Setting, above map[string]Limits) (v vain, is bool) {
	for at, known := above[g.Parent]; known; at, known = above[at.Parent] {
		outer, has := at.Settings.Get(s.Key, s.Dev)
		if _, limited := amount(outer.Value); !has || !limited {
			if at.Group == "" {
				break
			}
			continue
		}
		v = vain{s, outer, at.Group, s.Value, outer.Value, r.deviceName(s.Dev)}
		if s.Parts == outer.Parts && s.Whole != nil && outer.Whole != nil { // shared by the same devices
			v.mine, v.theirs, v.where = s.Whole, outer.Whole, s.On
		}
		n, _ := amount(v.mine)
		m, _ := amount(v.theirs)
		return v, n > m
	}
	return v, false
}

// voidAll notes the limits of a group that never act: in one note where a limit for all devices acts on none.
func (r checks) voidAll(g Limits, many []vain) {
	for len(many) > 0 {
		first := many[0]
		alike := func(v vain) bool { return v.Pos == first.Pos && v.Key == first.Key }
		same := slices.DeleteFunc(slices.Clone(many), func(v vain) bool { return !alike(v) })
		many = slices.DeleteFunc(many, alike)
		whole := !slices.ContainsFunc(same, func(v vain) bool {
			return v.On != "" || v.by != first.by || !policy.SameValue(v.mine, first.mine) ||
				!policy.SameValue(v.theirs, first.theirs)
		})
		others := slices.ContainsFunc(g.Settings, func(s policy.Setting) bool {
			return s.Key == first.Key && !slices.ContainsFunc(same, func(v vain) bool { return v.Dev == s.Dev })
		})
		if whole && !others && len(same) > 1 {
			r.void(first.Setting, g.Group, "%s %s of %s never acts on any device: %s, above it, has %s on each (%s)",
				first.Key, first.mine, g.Group, first.by, first.theirs, origin(first.outer))
			continue
		}
		for _, v := range same {
			r.void(v.Setting, g.Group, "%s (%s)", v.text(g.Group), origin(v.outer))
			r.notes[len(r.notes)-1].Dev = v.Dev
		}
	}
}

// noteWholeDisks says where limits that groups have for different things come to one disk, as the kernel has none for a
// partition: each counts all that its group does there.
func (r checks) noteWholeDisks(groups []Limits) {
	type user struct {
		group, on string
		at        policy.Pos
	}
	users := make(map[string][]user) // by device
	var order []string
	for _, g := range groups {
		for _, s := range g.Settings {
			_, limited := amount(s.Value)
			if !limited || s.On == "" || s.Dev == "" || slices.ContainsFunc(users[s.Dev],
				func(u user) bool { return u.group == g.Group }) {
				continue
			}
			if users[s.Dev] == nil {
				order = append(order, s.Dev)
			}
			users[s.Dev] = append(users[s.Dev], user{g.Group, s.On, s.TargetPos()})
		}
	}
	for _, dev := range order {
		all := users[dev]
		d := r.byNumber(dev)
		differs := slices.ContainsFunc(all, func(u user) bool { return u.on != all[0].on })
		if d == nil || d.Kind != blockdev.Disk && d.Kind != blockdev.RAID || !differs {
			continue
		}
		var words []string
		for _, u := range all {
			words = append(words, fmt.Sprintf("%s for %s (%s)", u.group, u.on, place(u.at)))
		}
		r.note(all[0].at, "",
			"the disk %s has limits of %s: each counts all that its group reads and writes on that disk, not on its "+
				"part of it alone", r.deviceName(dev), strings.Join(words, ", "))
	}
}

// place is where something is written, in short: "policy.yaml:12".
func place(at policy.Pos) string { return fmt.Sprintf("%s:%d", path.Base(at.File), at.Line) }

// origin says where a limit comes from, in short: of an override "override 3".
func origin(s policy.Setting) string {
	if s.Pos.File == "" {
		return s.From
	}
	return place(s.Pos)
}

// Overlaps says what is wrong with an override of an io limit on a device for which the policy has one under another
// name: it would take that one's place.
func Overlaps(group string, have policy.Settings, s policy.Setting) *policy.Problem {
	for _, o := range have {
		if o.Key == s.Key && o.Dev == s.Dev && s.Dev != "" && s.On != "" && o.On != "" && o.On != s.On &&
			!strings.HasPrefix(o.From, "override ") {
			p := policy.Problem{
				Pos: s.Pos, Msg: fmt.Sprintf("%s of %s on %s would take the place of the one on %s: both are on the "+
					"device %s, and the kernel has one limit for it", s.Key, group, s.On, o.On, s.Dev),
				Hint: "address the limit as the policy does: `--on " + o.On + "`",
			}
			if o.Pos != (policy.Pos{}) {
				p.Also = append(p.Also, o.Pos)
			}
			return &p
		}
	}
	return nil
}

// instead says what helps where no disk can be limited for a filesystem.
func instead(l *blockdev.Layer) string {
	const disk = "name the disk below it, if there is one"
	return cmp.Or(map[blockdev.FilesystemKind]string{
		blockdev.InMemory: "memory.max bounds what it may take",
		blockdev.OnNetwork: "its server can limit it: the kernel itself sends and receives for it, so that " +
			"`network:` of " +
			"the group does not see it either",
		blockdev.OnPool: "a file system on a ZFS volume (zvol) can be limited, and cpu.limit bounds what the " +
			"group can ask for",
		blockdev.OnOthers:  "name the path of the file system that its upper directory is on",
		blockdev.OfProcess: "put the process that serves it into the group, and name the disk that it uses",
	}[l.Filesystem], disk)
}

// writesBack are the file systems for which the kernel knows whose buffered writes it writes back (SB_I_CGROUPWB:
// ext4's driver also serves ext2 and ext3).
var writesBack = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"}

// noteBuffered says where on cgroup v2 buffered writes get past a limit, as the file system does not tell whose they
// are. On v1 they always do, which the knob table says.
func (r diskLimits) noteBuffered(s policy.Setting, l *blockdev.Layer, group string) {
	h, ok := r.facts.HierarchyOf("blkio")
	writes := s.Key == policy.KeyIOWriteBandwidth || s.Key == policy.KeyIOWriteIOPS
	if _, limited := amount(s.Value); !ok || h.Version != 2 || !writes || !limited || l.Kind != blockdev.Filesystem ||
		slices.Contains(writesBack, l.Type) {
		return
	}
	r.note(s.TargetPos(), group,
		"io.on %s: a limit on writing holds direct IO alone there: %s does not tell the kernel whose buffered writes "+
			"it writes back; ext4, XFS, btrfs and f2fs do", s.On, l.Type)
}
