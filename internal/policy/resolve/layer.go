package resolve

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// limited chooses the devices on which the kernel is to hold a limit for a layer of storage, and splits the limit when
// they are several: the parts come to no more than what was asked for.
//
// A limit holds what is submitted to the device it is on, and partitions have none of their own (io.max: ENODEV,
// measured). Both the device below a filesystem and the disks at the bottom hold direct IO within 5 % (measured on XFS
// on LUKS on LVM on md RAID 1, kernel 6.12). The top is better: one number for one filesystem, which neither a skew
// between disks nor another disk in the volume changes.
func (r diskLimits) limited(s policy.Setting, l *blockdev.Layer, group string) policy.Settings {
	tops, ok := r.tops(s, l)
	if !ok {
		return nil
	}
	r.noteBuffered(s, l, group)
	leaf := s.Layer == policy.LayerLeaf
	switch {
	case s.Layer == policy.LayerTop && len(tops) > 1:
		r.Fail(s.TargetPos(), "`layer: leaf` shares the limit over the disks",
			"io.on %s: %s is on %s: there is no one device at the top", s.On, l, names(tops))
		return nil
	case s.Layer == policy.LayerAuto || s.Layer == "":
		leaf = len(tops) > 1
	}
	if !leaf {
		return r.onTop(s, l, tops[0], group)
	}
	return r.onLeaves(s, l, len(tops), group)
}

// tops are the devices right below a filesystem, or a device itself; false after a problem.
func (r diskLimits) tops(s policy.Setting, l *blockdev.Layer) ([]*blockdev.Layer, bool) {
	if l.Kind != blockdev.Filesystem && !isGroup(l) {
		return []*blockdev.Layer{l}, true
	}
	var tops []*blockdev.Layer
	for _, b := range l.Below {
		if b.Role == "" && (b.Device != nil || b.Kind == blockdev.Missing) {
			tops = append(tops, b.Layer)
		}
	}
	if len(tops) > 0 && (isGroup(l) || l.Filesystem == blockdev.OnDevice || l.Filesystem == blockdev.OnUnknown) {
		return tops, true
	}
	why := withoutDisk(l)
	if l.Filesystem == blockdev.OnDevice && l.Trouble != "" {
		why = l.Trouble
	}
	r.Fail(s.TargetPos(), instead(l), "io.on %s: a limit here holds nothing: %s", s.On, why)
	return nil, false
}

// isGroup says whether a layer stands for several devices that no device joins.
func isGroup(l *blockdev.Layer) bool {
	return l.Kind == blockdev.VolumeGroup || l.Kind == blockdev.DiskGroup
}

// title names what a target is, for messages.
func title(l *blockdev.Layer) string {
	if l.Kind == blockdev.Filesystem {
		return l.Point
	}
	return l.String()
}

// withoutDisk says why no disk can be limited for a filesystem.
func withoutDisk(l *blockdev.Layer) string {
	switch l.Filesystem {
	case blockdev.InMemory:
		return l.Type + " lives in memory"
	case blockdev.OfKernel:
		return l.Type + " holds no files, the kernel makes them up"
	case blockdev.OnNetwork:
		return l.Type + " is on the network, its input and output pass no disk of this host"
	case blockdev.OnPool:
		return l.Type + " reads and writes from threads of its own, which are in no group"
	case blockdev.OnOthers:
		return l.Type + " lies on other file systems"
	case blockdev.OfProcess:
		return l.Type + " is served by another process"
	}
	return fmt.Sprintf("%s (%s) has no block device", l.Type, strings.TrimPrefix(l.ID, "fs "))
}

// onTop puts a limit on one device, or on the whole disk of a partition.
func (r diskLimits) onTop(s policy.Setting, l, top *blockdev.Layer, group string) policy.Settings {
	device := r.whole(s, top)
	switch {
	case device == nil:
		return nil
	case device != top:
		s.Why = fmt.Sprintf("at %s, the whole disk of %s: the kernel limits no partition alone", device, top.Name)
		r.note(s.TargetPos(), group, "io.on %s: the limit is on the whole disk %s, not on partition %s alone", s.On,
			device.Name, top.Name)
	case l != top && (device.Kind.Layered() || device.Kind == blockdev.Loop):
		s.Why = fmt.Sprintf("at %s, the top device: %s has it to itself", device, title(l))
		r.note(s.TargetPos(), group, "io.on %s: the limit is on %s, the top device, which %s has to itself", s.On,
			device, title(l))
	}
	s.Dev = device.Device.Number
	return policy.Settings{s}
}

// whole gives the device on which the kernel takes a limit for a device: the whole disk of a partition, else itself.
// nil after a problem.
func (r diskLimits) whole(s policy.Setting, l *blockdev.Layer) *blockdev.Layer {
	device := l
	if l.Kind == blockdev.Partition {
		device = l.Below[0].Layer
	}
	switch {
	case device.Device == nil && device != l:
		r.Fail(s.TargetPos(), r.disksHint(), "io.on %s: the disk %s of partition %s is not there", s.On, device.Name,
			l.Name)
	case device.Device == nil:
		r.Fail(s.TargetPos(), r.disksHint(), "io.on %s: %s is not there: %s", s.On, device.Name, device.Trouble)
	case device.Kind == blockdev.Disk, device.Kind == blockdev.Loop, device.Kind.Layered():
		return device
	default:
		r.Fail(s.TargetPos(), r.disksHint(),
			"io.on %s: the kernel does not limit %s (neither a disk nor a loop device)", s.On, device.Name)
	}
	return nil
}

// auxiliary are the links that the disks of a limit are not found by.
var auxiliary = []string{blockdev.RolePath, blockdev.RoleCache, blockdev.RoleLog, blockdev.RoleMetadata,
	blockdev.RoleLower,
	blockdev.RoleSnapshot}

// onLeaves shares a limit over the disks that a layer is on in the end: evenly, which is where a split by use begins.
func (r diskLimits) onLeaves(s policy.Setting, l *blockdev.Layer, tops int, group string) policy.Settings {
	leaves := l.Drives(auxiliary...)
	if len(leaves) == 0 {
		r.Fail(s.TargetPos(), r.disksHint(), "io.on %s: the disks below %s cannot be told", s.On, l)
		return nil
	}
	for _, leaf := range leaves {
		if r.whole(s, leaf) == nil {
			return nil
		}
	}
	why := "the disks below it, as the policy asks"
	if tops > 1 {
		why = fmt.Sprintf("%s is on %d devices, so its disks share the limit", title(l), tops)
	}
	text := fmt.Sprintf("io.on %s: the limit is on %s: %s", s.On, names(leaves), why)
	if mirrored(l) {
		text += "; a mirror writes everything more than once, and each time counts"
	}
	n := int64(len(leaves))
	part, left := share(s.Value, n)
	if !left {
		r.Fail(s.Pos, "ask for more, or name one of the disks", "%s: %s over %d disks is less than one for each", s.Key,
			s.Value, n)
		return nil
	}
	r.note(s.TargetPos(), group, "%s", text)
	if l.Kind == blockdev.DiskGroup && l.Trouble != "" {
		r.note(s.TargetPos(), group, "io.on %s: %s", s.On, l.Trouble)
	}
	var all policy.Settings
	for _, leaf := range leaves {
		one := s
		one.Dev, one.Why = leaf.Device.Number, fmt.Sprintf("at %s: %s", leaf, why)
		if n > 1 {
			one.Value, one.Whole, one.Parts = part, s.Value, int(n)
			if _, lifted := s.Value.(policy.Unlimited); !lifted {
				whole := s.Value.String()
				if s.Raw != "" {
					whole += " (" + s.Raw + ")"
				}
				one.Raw = fmt.Sprintf("1/%d of %s, on %s", n, whole, leaf.Name)
			}
		}
		all = append(all, one)
	}
	return all
}

// share is the nth part of a limit, rounded down so that the parts are never more than the whole; false when nothing is
// left of it, which the kernel would take for no limit.
func share(v policy.Value, n int64) (policy.Value, bool) {
	switch v := v.(type) {
	case policy.Rate:
		return v / policy.Rate(n), int64(v) >= n
	case policy.IOPS:
		return v / policy.IOPS(n), int64(v) >= n
	}
	return v, true
}

// mirrored says whether what is written to a layer goes to several disks each time.
func mirrored(l *blockdev.Layer) bool {
	several := l.Kind == blockdev.RAID && !strings.HasPrefix(l.Detail, "raid0") &&
		!strings.HasPrefix(l.Detail, "linear") ||
		l.Kind == blockdev.Volume && l.Detail == "RAID" || l.Type == "btrfs" &&
		(strings.Contains(l.Detail, "raid1") || strings.Contains(l.Detail, "raid5") || strings.Contains(l.Detail,
			"raid6"))
	return several || slices.ContainsFunc(l.Below, func(b blockdev.Link) bool { return mirrored(b.Layer) })
}

// names lists layers: "sda, sdb and sdc".
func names(layers []*blockdev.Layer) string {
	var all []string
	for _, l := range layers {
		all = append(all, l.Name)
	}
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " and " + all[last]
}
