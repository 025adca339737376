package resolve

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// resolveIO finds the devices of an io limit. Without a target it becomes one limit for each disk that requests go to
// and each loop device. A target that has no device, after a problem, leaves a setting that says so.
func (r diskLimits) resolveIO(s policy.Setting, group string) policy.Settings {
	if s.On != "" {
		var found policy.Settings
		if l := r.layer(s); l != nil {
			if s, ok := r.ofCeiling(s, l); ok {
				found = r.limited(s, l, group)
			}
		}
		if found == nil {
			s.Dev, s.Lost = "", r.Last()
			found = policy.Settings{s}
		}
		return found
	}
	var all policy.Settings
	targets := r.targets()
	for _, d := range r.facts.Devices {
		if targets[d.Number] || d.Kind == blockdev.Loop && d.Backing != "" {
			one := s
			if _, share := s.Value.(policy.IOPercent); share {
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

// targets are all disks that requests go to: of a disk over several paths the multipath device.
func (r *resolution) targets() map[string]bool {
	disks, paths := map[string]bool{}, []string(nil)
	for _, d := range r.facts.Devices {
		if d.Size > 0 && (d.Kind == blockdev.Disk || d.Kind == blockdev.Multipath) {
			disks[d.Number] = true
		}
		if d.Kind == blockdev.Multipath {
			paths = append(paths, d.Slaves...)
		}
	}
	for _, p := range paths {
		delete(disks, p)
	}
	return disks
}

// storage is what files lie on. nil after a problem.
func (r diskLimits) storage(s policy.Setting) *blockdev.Storage {
	switch {
	case r.disks != nil:
	case r.Storage == nil:
		r.disks = r.facts.Storage()
	default:
		disks, err := r.Storage()
		if err != nil {
			r.Fail(s.TargetPos(), "", "io.on %s: %v", s.On, err)
			return nil
		}
		r.disks = disks
	}
	return r.disks
}

// layer finds the layer of storage that a target means: a device, or the filesystem that holds a path. nil after a
// problem.
func (r diskLimits) layer(s policy.Setting) *blockdev.Layer {
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
		r.Fail(s.TargetPos(), r.disksHint(), "there is no block device %s on this host", s.On)
		return nil
	}
	real := s.On
	if r.EvalSymlinks != nil {
		var err error
		if real, err = r.EvalSymlinks(s.On); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				r.Fail(s.TargetPos(), r.nearPath(s.On),
					"io.on %s: there is no such path on this host", s.On)
			} else {
				r.Fail(s.TargetPos(), "", "io.on %s: %v", s.On, yamlform.Cause(err))
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
		r.Fail(s.TargetPos(), "name the device", "io.on %s: no mount holds it", s.On)
		return nil
	case m.Point == "/dev":
		r.Fail(s.TargetPos(), r.disksHint(), "there is no block device %s on this host", s.On)
		return nil
	}
	return disks.On(*m)
}

// nearPath is the hint for a path that is not there: what is there in its place.
func (r diskLimits) nearPath(name string) string {
	const or, many = "write an existing path, or the device", 1000
	for name = path.Clean(name); r.Names != nil && name != "/"; name = path.Dir(name) {
		dir := path.Dir(name)
		names, err := r.Names(dir)
		switch {
		case err != nil:
			continue // it is not there, either
		case len(names) > many:
			return or
		}
		if near := yamlform.Nearest(path.Base(name), names); near != "" {
			return fmt.Sprintf("did you mean %s?", path.Join(dir, near))
		}
		return fmt.Sprintf("%s is there and has no %q; %s", dir, path.Base(name), or)
	}
	return or
}

// diskGroup finds the layer of a target that stands for several devices; is says whether it is one.
func (r diskLimits) diskGroup(s policy.Setting, disks *blockdev.Storage) (l *blockdev.Layer, is bool) {
	var err error
	if name, asm := strings.CutPrefix(s.On, policy.ASMPrefix); asm {
		l, err = disks.ASM(name, r.Host.Members(name))
	} else if name, vg := strings.CutPrefix(s.On, policy.VGPrefix); vg {
		l, err = disks.Volumes(name)
	} else {
		return nil, false
	}
	var wrong *blockdev.GroupError
	if !errors.As(err, &wrong) {
		return l, true
	}
	hint := ""
	switch {
	case len(wrong.Known) > 0:
		hint = "here there are " + yamlform.JoinWords(wrong.Known)
	case wrong.Kind == blockdev.VolumeGroup:
		hint = "`vgs` lists the volume groups, `vgchange -ay` makes their volumes active"
	}
	if wrong.Kind == blockdev.DiskGroup {
		how := fmt.Sprintf("name its disks: `host: {asm: [{group: %s, disks: [/dev/mapper/…]}]}`, or with `list: "+
			"FILE` a file that holds what `asmcmd lsdsk -G %s --suppressheader` prints", wrong.Name, wrong.Name)
		hint = strings.TrimPrefix(hint+"; "+how, "; ")
	}
	r.Fail(s.TargetPos(), hint, "io.on %s: %v", s.On, err)
	return nil, true
}

func (r *resolution) byNumber(number string) *blockdev.Device {
	if i := slices.IndexFunc(r.facts.Devices, func(d blockdev.Device) bool { return d.Number == number }); i >= 0 {
		return &r.facts.Devices[i]
	}
	return nil
}

// byPath finds the block device of a path below /dev. The kernel writes "!" for a "/" in a name.
func (r diskLimits) byPath(p string) *blockdev.Device {
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
func (r diskLimits) mountOf(p string) *mountinfo.Mount {
	var best *mountinfo.Mount
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
func (r diskLimits) disksHint() string {
	var names []string
	for _, d := range r.facts.Devices {
		if d.Kind == blockdev.Disk || (d.Kind == blockdev.Loop && d.Backing != "") {
			names = append(names, path.Join("/dev", strings.ReplaceAll(d.Name, "!", "/")))
		}
	}
	if len(names) == 0 {
		return "this host has no disk and no loop device"
	}
	return "disks here are " + yamlform.JoinSome(names)
}
