package blockdev

import (
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/mountinfo"
)

// filesystem is the layer of what is mounted. Filesystems are told apart by the number that their files have.
func (s *Storage) filesystem(m mountinfo.Mount) *Layer {
	return s.layer("fs "+m.Dev, func(l *Layer) {
		l.Kind, l.Name, l.Type, l.Point, l.Source = Filesystem, m.Point, m.Type, m.Point, m.Source
		l.Filesystem = KindOfFilesystem(m.Type)
		switch {
		case m.Type == "btrfs":
			s.btrfsDevices(l, m)
		case m.Type == "bcachefs" && strings.Contains(m.Source, ":"): // it has the number of one of its devices
			for _, name := range strings.Split(m.Source, ":") {
				s.named(l, "", name)
			}
		case !strings.HasPrefix(m.Dev, "0:"):
			l.Filesystem = OnDevice
			l.below("", s.device(m.Dev))
			s.furtherDevices(l, m)
		case m.Type == "zfs":
			pool, _, _ := strings.Cut(m.Source, "/")
			l.below("", s.pool(pool))
		case m.Type == "overlay":
			s.overlay(l, m)
		case l.Filesystem == OnDevice, l.Filesystem == OnUnknown:
			l.trouble("%s (%s) has no block device that can be told", m.Type, m.Dev)
		}
	})
}

// furtherDevices finds what a filesystem has beside its own device: a log or a real-time part of XFS, a journal of ext4
// (the options are those that the kernel shows, logdev= and rtdev= with a name below /dev).
func (s *Storage) furtherDevices(l *Layer, m mountinfo.Mount) {
	for _, option := range m.Super {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "logdev", "journal_path":
			s.named(l, RoleLog, value)
		case "rtdev":
			s.named(l, "", value)
		}
	}
}

// named adds the device of a path below /dev.
func (s *Storage) named(l *Layer, role, name string) {
	if number, found := s.numberOf(name); found {
		l.below(role, s.device(number))
		return
	}
	l.below(role, s.layer("missing "+name, func(l *Layer) {
		l.Kind, l.Name = Missing, name
		l.Trouble = "no block device has this name"
	}))
}

// btrfsDevices adds the devices of a btrfs. Its own number is no device's: the source of the mount, which is one of
// its devices, tells which volume it is.
func (s *Storage) btrfsDevices(l *Layer, m mountinfo.Mount) {
	number, known := s.numberOf(m.Source)
	at := -1
	if known {
		at = slices.IndexFunc(s.btrfs, func(v btrfsVolume) bool {
			return slices.ContainsFunc(v.devices, func(name string) bool { return s.byName[name] == number })
		})
	}
	if at < 0 && !known && len(s.btrfs) == 1 {
		at = 0 // its source is named as another mount namespace has it, and there is no other
	}
	switch {
	case at >= 0:
	case known:
		l.below("", s.device(number))
		l.trouble("/sys/fs/btrfs does not say whether it has more devices than %s", m.Source)
		return
	default:
		l.trouble("its source %q is no device here, so its devices cannot be told", m.Source)
		return
	}
	v := s.btrfs[at]
	l.Detail = strings.Join(v.profiles, ", ")
	for _, name := range v.devices {
		s.named(l, "", "/dev/"+name)
	}
	switch {
	case v.missing == 1:
		l.trouble("one of its devices is missing")
	case v.missing > 1:
		l.trouble("%d of its devices are missing", v.missing)
	}
}

// overlay follows the directories of an overlay. They are named as whoever mounted it saw them, which for a container
// is the host.
func (s *Storage) overlay(l *Layer, m mountinfo.Mount) {
	for _, option := range m.Super {
		name, value, _ := strings.Cut(option, "=")
		var dirs []string
		role := ""
		switch name {
		case "upperdir":
			dirs = []string{value}
		case "lowerdir":
			role = RoleLower
			dirs = splitOverlay(value)
		case "lowerdir+", "datadir+": // one option for each, since 6.5
			role = RoleLower
			dirs = []string{value}
		}
		for _, dir := range dirs {
			s.overlayDir(l, role, dir)
		}
	}
	if len(l.Below) == 0 && l.Trouble == "" {
		l.trouble("its options name no directories")
	}
	slices.SortStableFunc(l.Below, func(a, b Link) int { return strings.Compare(a.Role, b.Role) })
}

func (s *Storage) overlayDir(l *Layer, role, dir string) {
	lower, found := s.own.of(path.Clean(dir))
	if !path.IsAbs(dir) || !found {
		l.trouble("no mount seen from here holds its directory %q", dir)
		return
	}
	to := s.filesystem(lower)
	for _, b := range l.Below {
		if b.Layer == to && b.Role == role {
			return
		}
	}
	l.below(role, to)
}

// splitOverlay parts "/a:/b\:c" at colons that have no backslash before them; "::" comes before directories with data
// only (since 6.5).
func splitOverlay(list string) []string {
	var dirs []string
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			dirs = append(dirs, b.String())
		}
		b.Reset()
	}
	for i := 0; i < len(list); i++ {
		switch {
		case list[i] == '\\' && i+1 < len(list):
			i++
			b.WriteByte(list[i])
		case list[i] == ':':
			flush()
		default:
			b.WriteByte(list[i])
		}
	}
	flush()
	return dirs
}

// On is the filesystem of a mount, with what it lies on.
func (s *Storage) On(m mountinfo.Mount) *Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filesystem(m)
}

// Of is the layer of a block device; a number that no device has gives a layer of the kind Missing.
func (s *Storage) Of(number string) *Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.device(number)
}
