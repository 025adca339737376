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

// resolveIO finds the devices of an io limit. Without a target it becomes one limit for each disk and
// loop device. A target that has no device, after a problem, leaves a setting that says so.
func (r *resolution) resolveIO(s Setting, group string) Settings {
	if s.On != "" {
		var found Settings
		if l := r.layer(s); l != nil {
			if s, ok := r.ofCeiling(s, l); ok {
				found = r.limited(s, l, group)
			}
		}
		if found == nil {
			s.Dev, s.Lost = "", r.Last()
			found = Settings{s}
		}
		return found
	}
	var all Settings
	for _, d := range r.facts.Devices {
		if (d.Kind == host.Disk && d.Size > 0) || (d.Kind == host.Loop && d.Backing != "") {
			one := s
			if _, share := s.Value.(IOPercent); share {
				disks := r.storage(s)
				if disks == nil {
					return nil
				}
				var ok bool
				if one, ok = r.ofCeiling(s, disks.Of(d.Number)); !ok {
					return nil
				}
			}
			one.Dev = d.Number
			all = append(all, one)
		}
	}
	if len(all) == 0 {
		r.note(s.Pos, group, "io limits for all devices: this host has no disk and no loop device")
	}
	return all
}

// storage is what files lie on. nil after a problem.
func (r *resolution) storage(s Setting) *host.Storage {
	switch {
	case r.disks != nil:
	case r.Storage == nil:
		r.disks = r.facts.Storage()
	default:
		disks, err := r.Storage()
		if err != nil {
			r.Fail(s.target(), "", "io.on %s: %v", s.On, err)
			return nil
		}
		r.disks = disks
	}
	return r.disks
}

// layer finds the layer of storage that a target means: a device, or the filesystem that holds a path. nil after a problem.
func (r *resolution) layer(s Setting) *host.Layer {
	disks := r.storage(s)
	if disks == nil {
		return nil
	}
	if l, is := r.diskGroup(s, disks); is {
		return l
	}
	if !strings.HasPrefix(s.On, "/") {
		if r.byNumber(s.On) != nil {
			return disks.Of(s.On)
		}
		r.Fail(s.target(), r.disksHint(), "there is no block device %s on this host", s.On)
		return nil
	}
	real := s.On
	if r.EvalSymlinks != nil {
		var err error
		if real, err = r.EvalSymlinks(s.On); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				r.Fail(s.target(), "write an existing path, or the device", "io.on %s: there is no such path on this host", s.On)
			} else {
				r.Fail(s.target(), "", "io.on %s: %v", s.On, bare(err))
			}
			return nil
		}
	}
	if d := r.byPath(real); d != nil {
		return disks.Of(d.Number)
	}
	m := r.mountOf(real)
	switch {
	case m == nil:
		r.Fail(s.target(), "name the device", "io.on %s: no mount holds it", s.On)
		return nil
	case m.Point == "/dev":
		r.Fail(s.target(), r.disksHint(), "there is no block device %s on this host", s.On)
		return nil
	}
	return disks.On(*m)
}

// diskGroup finds the layer of a target that stands for several devices; is says whether it is one.
func (r *resolution) diskGroup(s Setting, disks *host.Storage) (l *host.Layer, is bool) {
	var err error
	if name, asm := strings.CutPrefix(s.On, asmTarget); asm {
		l, err = disks.ASM(name, r.Host.members(name))
	} else if name, vg := strings.CutPrefix(s.On, vgTarget); vg {
		l, err = disks.Volumes(name)
	} else {
		return nil, false
	}
	var wrong *host.GroupError
	if !errors.As(err, &wrong) {
		return l, true
	}
	hint := ""
	switch {
	case len(wrong.Known) > 0:
		hint = "here there are " + joinWords(wrong.Known)
	case wrong.Kind == host.VolumeGroup:
		hint = "`vgs` lists the volume groups, `vgchange -ay` makes their volumes active"
	}
	if wrong.Kind == host.DiskGroup {
		how := fmt.Sprintf("name its disks: `host: {asm: [{group: %s, disks: [/dev/mapper/…]}]}`, or with `list: FILE` a file that holds what `asmcmd lsdsk -G %s --suppressheader` prints", wrong.Name, wrong.Name)
		hint = strings.TrimPrefix(hint+"; "+how, "; ")
	}
	r.Fail(s.target(), hint, "io.on %s: %v", s.On, err)
	return nil, true
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
