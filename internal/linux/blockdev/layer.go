package blockdev

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/mountinfo"
)

// Layer is one layer of storage. What it lies on is in Below; there is no ring.
type Layer struct {
	// ID is the number of a block device ("8:16"); of others a word and a name: "fs 0:45", "file /srv/disk.img".
	ID         string
	Kind       LayerKind
	Name       string         // "sda1", "vg/lv" of LVM, the name below /dev/mapper, the path of a file, a pool
	Device     *Device        // of a block device, else nil
	Filesystem FilesystemKind // of a filesystem
	Type       string         // of a filesystem: "ext4"
	Point      string         // of a filesystem: where it was found mounted first
	Source     string         // of a filesystem: its source, "server:/export"
	Detail     string         // "thin pool", "raid1, clean", "LUKS2", the state of a path
	Model      string
	Serial     string
	WWID       string
	Below      []Link
	// Trouble says what could not be found out; with nothing below, that the way ends here.
	Trouble string
}

// Link is the way from a layer to one below it.
type Link struct {
	*Layer
	Role string // "" for what holds the files; else "metadata", "cache", "log", "path", "lower", …
}

// LayerKind says what a layer is: a DeviceKind for a block device, else one of these.
type LayerKind = DeviceKind

// The roles of links to what does not hold the files themselves.
const (
	RoleMetadata = "metadata"
	RoleCache    = "cache"
	RoleLog      = "log"
	RolePath     = "path"
	RoleLower    = "lower"    // of an overlay: read, never written
	RoleSnapshot = "snapshot" // keeps what changed since
)

// InMemory says whether what is written there is in memory, and gone after a boot: a RAM disk, zram, a file system in
// memory, or what lies on one. A pool of ZFS is where all its devices are: which of them only cache is not known here.
// So is a mirror of md, of which one disk keeps all.
func (l *Layer) InMemory() bool {
	if l == nil {
		return false
	}
	if l.Filesystem == InMemory || l.Kind == Other && strings.HasSuffix(otherDevice(l.Name), "memory") {
		return true
	}
	in := func(b Link) bool { return b.Role == "" && b.InMemory() }
	if l.Kind == Pool || l.Kind == RAID && strings.HasPrefix(l.Detail, "raid1,") {
		return len(l.Below) > 0 && !slices.ContainsFunc(l.Below, func(b Link) bool { return !in(b) })
	}
	return slices.ContainsFunc(l.Below, in)
}

func (l *Layer) below(role string, lower *Layer) { l.Below = append(l.Below, Link{lower, role}) }

// trouble adds to what could not be found out.
func (l *Layer) trouble(format string, args ...any) {
	if l.Trouble != "" {
		l.Trouble += "; "
	}
	l.Trouble += fmt.Sprintf(format, args...)
}

// Drives are the disks that the files of a layer are spread over in the end, each once, in the order of the ways to
// them: whole disks, multipath devices as one disk each, and what stands in for a disk because the way to one ends
// there, such as a loop device on a file in memory. Links with one of the roles left out are not followed.
func (l *Layer) Drives(without ...string) []*Layer {
	var drives []*Layer
	known := map[*Layer]bool{} // whether a way from there leads to a disk
	var walk func(*Layer) (found bool)
	walk = func(l *Layer) bool {
		found, done := known[l]
		if done {
			return found
		}
		if l.Kind != Disk && l.Kind != Multipath {
			for _, b := range l.Below {
				if !slices.Contains(without, b.Role) && walk(b.Layer) {
					found = true
				}
			}
		}
		if !found && (l.Device != nil || l.Kind == Missing) {
			drives = append(drives, l)
			found = true
		}
		known[l] = found
		return found
	}
	walk(l)
	return drives
}

// String names a layer in a few words: "LVM volume vg/data (253:3)".
func (l *Layer) String() string {
	switch {
	case l.Kind == Filesystem:
		return fmt.Sprintf("%s (%s)", l.Point, l.Type)
	case l.Kind == VolumeGroup, l.Kind == DiskGroup:
		return fmt.Sprintf("the %s %s", l.Kind, l.Name)
	case l.Device != nil && l.Name != l.Device.Name:
		return fmt.Sprintf("%s (%s, %s)", l.Name, l.Device.Name, l.Device.Number)
	case l.Device != nil:
		return fmt.Sprintf("%s (%s)", l.Name, l.Device.Number)
	}
	return l.Name
}

// The kinds of layers that stand for several devices at once.
const (
	VolumeGroup LayerKind = "volume group"   // of LVM
	DiskGroup   LayerKind = "ASM disk group" // of Oracle
)

// mountTable answers which mount holds a path, for many paths.
type mountTable struct {
	mounts  mountinfo.Mounts
	foreign bool            // it is not the caller's
	points  map[string]bool // mount points
	known   map[string]int  // index of the mount of a directory, -1 for none
}

// btrfsVolume is a filesystem that may have several devices.
type btrfsVolume struct {
	uuid     string
	devices  []string // names, by number of the device inside the volume where the kernel tells
	missing  int
	profiles []string // how data is laid out: "single", "raid1"
}

// otherDevice says what devices of the kind Other are.
func otherDevice(name string) string {
	for prefix, what := range map[string]string{"ram": "memory", "zram": "compressed memory", "fd": "floppy",
		"sr": "optical"} {
		if digits, found := strings.CutPrefix(name, prefix); found && strings.Trim(digits, "0123456789") == "" {
			return what
		}
	}
	return ""
}
