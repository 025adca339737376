package blockdev

import (
	"errors"
	"slices"
	"strings"
)

// volume is a device of LVM: a volume, or an inner part of one.
func (s *Storage) volume(l *Layer, d *Device) {
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
