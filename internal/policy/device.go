package policy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/host"
)

// resolveIO finds the device of an io limit. Without a target it becomes one limit for each disk and
// loop device.
func (r *resolution) resolveIO(s Setting, group string) Settings {
	if s.On != "" {
		dev := r.device(s, group)
		if dev == "" {
			return nil
		}
		s.Dev = dev
		return Settings{s}
	}
	var all Settings
	for _, d := range r.facts.Devices {
		if (d.Kind == host.Disk && d.Size > 0) || (d.Kind == host.Loop && d.Backing != "") {
			s.Dev = d.Number
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		r.note(s.Pos, group, "io limits for all devices: this host has no disk and no loop device")
	}
	return all
}

// device finds the number of the device that a target means; "" after a problem.
func (r *resolution) device(s Setting, group string) string {
	if !strings.HasPrefix(s.On, "/") {
		if d := r.byNumber(s.On); d != nil {
			return r.throttled(s, d, group)
		}
		r.fail(s.target(), r.disksHint(), "there is no block device %s on this host", s.On)
		return ""
	}
	real := s.On
	if r.EvalSymlinks != nil {
		var err error
		if real, err = r.EvalSymlinks(s.On); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				r.fail(s.target(), "write an existing path, or the device", "io.on %s: there is no such path on this host", s.On)
			} else {
				r.fail(s.target(), "", "io.on %s: %v", s.On, bare(err))
			}
			return ""
		}
	}
	if d := r.byPath(real); d != nil {
		return r.throttled(s, d, group)
	}
	return r.mounted(s, real, group)
}

// target is where the target of an io limit is written.
func (s Setting) target() Pos { return cmp.Or(s.onPos, s.Pos) }

func (r *resolution) byNumber(number string) *host.Device {
	if i := slices.IndexFunc(r.facts.Devices, func(d host.Device) bool { return d.Number == number }); i >= 0 {
		return &r.facts.Devices[i]
	}
	return nil
}

// byPath finds the block device of a path below /dev. The kernel writes "!" for a "/" in a name.
func (r *resolution) byPath(p string) *host.Device {
	name, ok := strings.CutPrefix(p, "/dev/")
	if !ok {
		return nil
	}
	for i, d := range r.facts.Devices {
		if strings.ReplaceAll(d.Name, "!", "/") == name {
			return &r.facts.Devices[i]
		}
	}
	return nil
}

// mounted finds the device below the file system that holds a path.
func (r *resolution) mounted(s Setting, real, group string) string {
	m := r.mountOf(real)
	switch {
	case m == nil:
		r.fail(s.target(), "name the device", "io.on %s: no mount holds it", s.On)
		return ""
	case m.Point == "/dev":
		r.fail(s.target(), r.disksHint(), "there is no block device %s on this host", s.On)
		return ""
	}
	d := r.byNumber(m.Dev)
	if d == nil && strings.HasPrefix(m.Dev, "0:") && m.Type == "btrfs" {
		// btrfs shows an anonymous device number of its own (st_dev), and may span several disks.
		if d = r.byPath(m.Source); d != nil {
			r.note(s.target(), group, "io.on %s: btrfs may span several devices; the limit is on %s", s.On, d.Name)
		}
	}
	if d == nil {
		r.fail(s.target(), "name the disk below it, if there is one", "io.on %s: a limit here holds nothing: %s", s.On, withoutDisk(m))
		return ""
	}
	return r.throttled(s, d, group)
}

// mountOf finds the mount that holds a path: the longest mount point, and of those mounted over each
// other the last.
func (r *resolution) mountOf(p string) *host.Mount {
	var best *host.Mount
	for i, m := range r.facts.Mounts {
		inside := m.Point == "/" || p == m.Point || strings.HasPrefix(p, m.Point+"/")
		if inside && (best == nil || len(m.Point) >= len(best.Point)) {
			best = &r.facts.Mounts[i]
		}
	}
	return best
}

// diskless says of file systems without a block device why no disk can be limited for them.
var diskless = []struct {
	types []string
	why   string
}{
	{[]string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}, "%s lives in memory"},
	{[]string{"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "bpf", "devpts", "mqueue", "securityfs", "configfs"}, "%s holds no files, the kernel makes them up"},
	{[]string{"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "virtiofs", "lustre", "gpfs", "ocfs2", "afs"}, "%s is on the network, its input and output pass no disk of this host"},
	{[]string{"zfs"}, "%s reads and writes from threads of its own, which are in no group"},
	{[]string{"overlay", "aufs", "ecryptfs"}, "%s lies on other file systems"},
}

func withoutDisk(m *host.Mount) string {
	for _, d := range diskless {
		if slices.Contains(d.types, m.Type) {
			return fmt.Sprintf(d.why, m.Type)
		}
	}
	if strings.HasPrefix(m.Type, "fuse") {
		return m.Type + " is served by another process"
	}
	return fmt.Sprintf("%s (%s) has no block device", m.Type, m.Dev)
}

// throttled gives the number of the device that the kernel limits for d. It limits whole disks: a
// partition in io.max is ENODEV (measured). v1 takes one, but a policy should mean the same on both.
func (r *resolution) throttled(s Setting, d *host.Device, group string) string {
	switch d.Kind {
	case host.Disk, host.Loop:
		return d.Number
	case host.Partition:
		disk := r.byNumber(d.Disk)
		if disk == nil {
			r.fail(s.target(), r.disksHint(), "io.on %s: the disk %s of partition %s is not there", s.On, d.Disk, d.Name)
			return ""
		}
		r.note(s.target(), group, "io.on %s: the limit is on the whole disk %s, not on partition %s alone", s.On, disk.Name, d.Name)
		return disk.Number
	}
	if d.Kind.Layered() {
		r.fail(s.target(), "name the disk below it", "io.on %s: limits on stacked devices are not yet supported: %s", s.On, strings.Join(r.stack(d, nil), " on "))
		return ""
	}
	r.fail(s.target(), r.disksHint(), "io.on %s: the kernel does not limit %s (neither a disk nor a loop device)", s.On, d.Name)
	return ""
}

// stack names a stacked device and what lies below it: "dm-3", "md0", "sda2 + sdb2".
func (r *resolution) stack(d *host.Device, seen []string) []string {
	layers := []string{d.Name}
	if len(d.Slaves) == 0 || slices.Contains(seen, d.Number) {
		return layers
	}
	var names []string
	var below []string
	for _, number := range d.Slaves {
		slave := r.byNumber(number)
		if slave == nil {
			names = append(names, number)
			continue
		}
		names = append(names, slave.Name)
		if deeper := r.stack(slave, append(seen, d.Number)); below == nil && len(deeper) > 1 {
			below = deeper[1:]
		}
	}
	return append(append(layers, strings.Join(names, " + ")), below...)
}

// deviceName is the name of a device, for messages.
func (r *resolution) deviceName(number string) string {
	if d := r.byNumber(number); d != nil {
		return fmt.Sprintf("%s (%s)", d.Name, number)
	}
	return number
}

// disksHint lists what can be limited here.
func (r *resolution) disksHint() string {
	var names []string
	for _, d := range r.facts.Devices {
		if d.Kind == host.Disk || (d.Kind == host.Loop && d.Backing != "") {
			names = append(names, path.Join("/dev", strings.ReplaceAll(d.Name, "!", "/")))
		}
	}
	if len(names) == 0 {
		return "this host has no disk and no loop device"
	}
	return "disks here are " + joinSome(names)
}
