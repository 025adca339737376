package blockdev

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// volume is a device of LVM: a volume, or an inner part of one.
func (s deviceFinder) volume(l *Layer, d *Device) {
	if group, name := splitVolume(d.Mapper); name != "" {
		l.Name = strings.TrimPrefix(group+"/"+name, "/")
	}
	l.Detail = volumePart(d.UUID)
	s.slaves(l, d, "")
	for i, lower := range l.Below {
		if lower.Device == nil || lower.Kind != Volume {
			continue
		}
		_, part := splitVolume(lower.Device.Mapper)
		l.Below[i].Role = volumeRole(part)
		switch {
		case l.Detail == "" && strings.HasSuffix(lower.Device.UUID, "-tpool"):
			l.Detail = "thin"
		case l.Detail == "" && l.Below[i].Role == RoleCache:
			l.Detail = "cached"
		case l.Detail == "" && strings.HasSuffix(part, "_iorig"):
			l.Detail = "with checksums"
		case l.Detail == "" && strings.Contains(part, "_rimage_"):
			l.Detail = "RAID"
		}
	}
	slices.SortStableFunc(l.Below, func(a, b Link) int { return strings.Compare(a.Role, b.Role) })
}

// splitVolume takes "vg" and "my-lv" out of "vg-my--lv": the first lone dash parts them (dm_build_dm_name of
// libdevmapper).
func splitVolume(mapper string) (group, volume string) {
	for i := 0; i < len(mapper); i++ {
		if mapper[i] != '-' {
			continue
		}
		if i+1 < len(mapper) && mapper[i+1] == '-' {
			i++
			continue
		}
		return strings.ReplaceAll(mapper[:i], "--", "-"), strings.ReplaceAll(mapper[i+1:], "--", "-")
	}
	return "", strings.ReplaceAll(mapper, "--", "-")
}

// volumePart is what the end of a UUID says: behind "LVM-" and the 32 letters each of group and volume an inner device
// has its layer's name.
func volumePart(uuid string) string {
	const plain = len("LVM-") + 2*32
	if len(uuid) <= plain {
		return ""
	}
	part := strings.Trim(uuid[plain:], "-")
	switch part {
	case "tpool", "pool":
		return "thin pool"
	case "tdata":
		return "data of a thin pool"
	case "tmeta":
		return "metadata of a thin pool"
	case "cow":
		return "changes of a snapshot"
	case "real":
		return "origin" // below a snapshot or a cache
	case "cdata", "cvol":
		return "data of a cache"
	case "cmeta":
		return "metadata of a cache"
	case "vpool":
		return "VDO pool"
	case "vdata":
		return "data of a VDO pool"
	}
	return part
}

// volumeRole tells by the name of an inner volume what it is for the one above (lvmraid(7), lvmthin(7), lvmcache(7)).
func volumeRole(name string) string {
	for _, r := range []struct{ mark, role string }{
		{"_tmeta", RoleMetadata}, {"_cmeta", RoleMetadata}, {"_rmeta_", RoleMetadata}, {"_pmspare", RoleMetadata},
		{"_imeta", RoleMetadata},
		{"_cdata", RoleCache}, {"_cvol", RoleCache}, {"_cpool", RoleCache}, {"-cow", RoleSnapshot},
	} {
		if strings.Contains(name, r.mark) {
			return r.role
		}
	}
	return ""
}

// Volumes is the layer of an LVM volume group, with its active volumes below it. /sys tells of a group what its volumes
// tell: a physical volume on which none of them lies is not seen, and nothing is read from or written to it.
func (s *Storage) Volumes(group string) (*Layer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var known, inner []string
	var found []*Layer
	for _, d := range s.Devices {
		name, _ := splitVolume(d.Mapper)
		if d.Kind != Volume || name == "" {
			continue
		}
		if !slices.Contains(known, name) {
			known = append(known, name)
		}
		if name == group {
			l := s.device(d.Number)
			found = append(found, l)
			for _, b := range l.Below {
				inner = append(inner, b.ID)
			}
		}
	}
	if len(found) == 0 {
		slices.Sort(known)
		return nil, &GroupError{Kind: VolumeGroup, Name: group, Known: known,
			Err: errors.New("no volume of it is active")}
	}
	return s.layer("vg "+group, func(l *Layer) {
		l.Kind, l.Name = VolumeGroup, group
		for _, v := range found {
			if !slices.Contains(inner, v.ID) { // not a part of another volume, such as a pool's data
				l.below("", v)
			}
		}
	}), nil
}

func (s deviceFinder) slaves(l *Layer, d *Device, role string) {
	for _, number := range d.Slaves {
		l.below(role, s.device(number))
	}
	s.lost(l, d)
}

// lost adds what a device lies on and what is not there, and says so when nothing is there at all.
func (s deviceFinder) lost(l *Layer, d *Device) {
	for _, name := range d.lost {
		s.named(l, "", "/dev/"+name)
	}
	if len(l.Below) == 0 && d.Kind.Layered() {
		l.trouble("/sys does not say what it lies on")
	}
}

// raid is an md device.
func (s deviceFinder) raid(l *Layer, d *Device) {
	level, state := s.attribute(l, d.dir+"/md/level"), s.attribute(l, d.dir+"/md/array_state")
	words := []string{level}
	if n, err := strconv.Atoi(s.attribute(l, d.dir+"/md/raid_disks")); err == nil && n > 0 {
		words = append(words, fmt.Sprintf("%d devices", n))
	}
	if n, err := strconv.Atoi(s.attribute(l, d.dir+"/md/degraded")); err == nil && n > 0 {
		words = append(words, fmt.Sprintf("%d of them missing", n))
	}
	l.Detail = strings.Join(slices.DeleteFunc(append(words, state), func(w string) bool { return w == "" }), ", ")
	s.slaves(l, d, "")
}

// bcache tells the device that holds the data from those that cache it: its directory bcache is a link into the first
// one's (bcache_device_link in drivers/md/bcache/super.c); both are among the slaves.
func (s deviceFinder) bcache(l *Layer, d *Device) {
	backing := ""
	if s.h.root != nil {
		if target, err := s.h.root.Readlink(d.dir + "/bcache"); err == nil {
			backing = strings.ReplaceAll(path.Base(path.Dir(target)), "!", "/")
		}
	}
	l.Detail = activeScheduler(s.attribute(l, d.dir+"/bcache/cache_mode"))
	if state := s.attribute(l, d.dir+"/bcache/state"); state != "" {
		l.Detail = strings.TrimPrefix(l.Detail+", "+state, ", ")
	}
	for _, number := range d.Slaves {
		lower := s.device(number)
		role := RoleCache
		if lower.Device == nil || backing == "" || lower.Device.Name == backing {
			role = ""
		}
		l.below(role, lower)
	}
	s.lost(l, d)
	slices.SortStableFunc(l.Below, func(a, b Link) int { return strings.Compare(a.Role, b.Role) })
}

// cryptFormat takes "LUKS2" out of "CRYPT-LUKS2-5c3d…-name".
func cryptFormat(uuid string) string {
	fields := strings.SplitN(uuid, "-", 3)
	if len(fields) < 3 {
		return ""
	}
	return fields[1]
}

// loop leads from a loop device to its file, and to the filesystem which holds that.
func (s deviceFinder) loop(l *Layer, d *Device) {
	if s.attribute(l, d.dir+"/loop/dio") == "1" {
		l.Detail = "direct IO"
	}
	if d.Backing == "" {
		l.trouble("no file is behind it")
		return
	}
	l.below("", s.layer("file "+d.Backing, func(l *Layer) {
		l.Kind, l.Name = File, d.Backing
		name, deleted := strings.CutSuffix(d.Backing, " (deleted)")
		if deleted {
			l.Detail = "deleted"
		}
		m, found := s.own.of(path.Clean(name))
		dev, known := s.h.loopFile(d)
		switch {
		case found && (!known || dev == m.Dev || strings.HasPrefix(dev, "0:")):
			l.below("", s.filesystem(m))
		case known && !strings.HasPrefix(dev, "0:"):
			// Its path is one of another mount namespace: the kernel still knows the filesystem's device.
			l.Detail = strings.TrimPrefix(l.Detail+", in another mount namespace", ", ")
			l.below("", s.device(dev))
		default:
			l.trouble("no mount holds it")
		}
	}))
}
