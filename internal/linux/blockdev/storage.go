package blockdev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// Storage is one look at what files lie on: mounts, the filesystems behind them, and the layers of devices down to
// the disks. Layers are found when they are asked for, and each is found once. It is safe for concurrent use; layers
// are not to be changed.
//
// What cannot be read does not stop a look: the layer says so in Trouble.
type Storage struct {
	Devices []Device // by number

	mu      sync.Mutex // guards all that follows, while layers are found
	h       FS         // without a root: nothing more is read
	own     *mountTable
	tables  map[string]*mountTable // by mount namespace and root directory
	layers  map[string]*Layer
	pending []string // IDs of the layers that are being found, from the top down: a ring ends there
	btrfs   []btrfsVolume
	pools   []string // of ZFS
	swaps   []string // paths of devices and files
	byName  map[string]string
}

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

// The kinds of layers that are no block devices.
const (
	Filesystem LayerKind = "filesystem"
	File       LayerKind = "file" // behind a loop device
	Pool       LayerKind = "pool" // of ZFS
	Path       LayerKind = "path" // one of several to an NVMe disk
	Missing    LayerKind = "missing"
)

// The roles of links to what does not hold the files themselves.
const (
	RoleMetadata = "metadata"
	RoleCache    = "cache"
	RoleLog      = "log"
	RolePath     = "path"
	RoleLower    = "lower"    // of an overlay: read, never written
	RoleSnapshot = "snapshot" // keeps what changed since
)

// Storage looks at the mounts and devices of the host.
func (h FS) Storage() (*Storage, error) {
	devices, err := h.Devices()
	if err != nil {
		return nil, fmt.Errorf("read block devices: %w", err)
	}
	mounts, err := mountinfo.Read(h.root)
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	s := newStorage(h, devices, mounts)
	if s.btrfs, err = h.btrfsVolumes(); err != nil {
		return nil, fmt.Errorf("read btrfs volumes: %w", err)
	}
	if s.pools, err = h.zfsPools(); err != nil {
		return nil, fmt.Errorf("read ZFS pools: %w", err)
	}
	if s.swaps, err = h.swaps(); err != nil {
		return nil, fmt.Errorf("read swap areas: %w", err)
	}
	return s, nil
}

// NewStorage gives what devices and mounts alone tell of storage: the kinds of devices and what lies on what, of
// which nothing more is read. BlockFS.Storage knows more.
func NewStorage(devices []Device, mounts mountinfo.Mounts) *Storage {
	return newStorage(FS{}, devices, mounts)
}

func newStorage(h FS, devices []Device, mounts mountinfo.Mounts) *Storage {
	s := &Storage{
		Devices: devices, h: h, own: newMountTable(mounts, false),
		tables: make(map[string]*mountTable), layers: make(map[string]*Layer), byName: make(map[string]string),
	}
	for _, d := range devices {
		s.byName[d.Name] = d.Number
	}
	return s
}

// Mounts are those that the caller sees, without the ones that lie below others.
func (s *Storage) Mounts() []mountinfo.Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounts()
}

func (s *Storage) mounts() []mountinfo.Mount {
	var seen []mountinfo.Mount
	for _, m := range s.own.mounts {
		if top, ok := s.own.of(m.Point); ok && top.ID == m.ID {
			seen = append(seen, m)
		}
	}
	return seen
}

// layer finds a layer once. One that is being found already lies, at last, on itself.
func (s *Storage) layer(id string, find func(l *Layer)) *Layer {
	if at := slices.Index(s.pending, id); at >= 0 {
		ring := strings.Join(append(slices.Clone(s.pending[at:]), id), " on ")
		return &Layer{ID: "ring " + id, Kind: Missing, Name: id, Trouble: "it lies on itself: " + ring}
	}
	if l, found := s.layers[id]; found {
		return l
	}
	l := &Layer{ID: id}
	s.pending = append(s.pending, id)
	find(l)
	s.pending = s.pending[:len(s.pending)-1]
	s.layers[id] = l
	return l
}

// device is the layer of a block device.
func (s *Storage) device(number string) *Layer {
	return s.layer(number, func(l *Layer) {
		at, found := slices.BinarySearchFunc(s.Devices, number,
			func(d Device, n string) int { return compareNumbers(d.Number, n) })
		if !found {
			l.Kind, l.Name = Missing, number
			l.Trouble = fmt.Sprintf("/sys shows no block device %s", number)
			return
		}
		d := &s.Devices[at]
		l.Device, l.Kind, l.Name = d, d.Kind, cmp.Or(d.Mapper, d.Name)
		switch d.Kind {
		case Partition:
			l.below("", s.device(d.Disk))
		case Loop:
			s.loop(l, d)
		case Disk:
			s.disk(l, d)
		case Volume:
			s.volume(l, d)
		case RAID:
			s.raid(l, d)
		case Bcache:
			s.bcache(l, d)
		case Crypt:
			l.Detail = cryptFormat(d.UUID)
			s.slaves(l, d, "")
		case Multipath:
			l.WWID = strings.TrimPrefix(d.UUID, "mpath-")
			s.slaves(l, d, RolePath)
		case Mapper:
			if number, _, is := strings.Cut(d.UUID, "-"); is && strings.HasPrefix(number, "part") { // kpartx(8)
				l.Detail = "partition " + strings.TrimPrefix(number, "part")
			}
			s.slaves(l, d, "")
		default:
			s.slaves(l, d, "")
			if len(d.Slaves) == 0 {
				l.Detail = otherDevice(d.Name)
			}
		}
		if s.isSwap(number) {
			l.Detail = strings.TrimPrefix(l.Detail+", swap", ", ")
		}
	})
}

// isSwap says whether the system swaps to a device.
func (s *Storage) isSwap(number string) bool {
	return slices.ContainsFunc(s.swaps, func(name string) bool {
		n, found := s.numberOf(name)
		return found && n == number
	})
}

// swaps lists the swap areas (proc(5)).
func (h FS) swaps() ([]string, error) {
	text, err := h.root.ReadFile("/proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // built without
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, _, found := strings.Cut(line, " "); found && strings.HasPrefix(name, "/") {
			names = append(names, mountinfo.Unescape(name))
		}
	}
	return names, err
}

func (l *Layer) below(role string, lower *Layer) { l.Below = append(l.Below, Link{lower, role}) }

// trouble adds to what could not be found out.
func (l *Layer) trouble(format string, args ...any) {
	if l.Trouble != "" {
		l.Trouble += "; "
	}
	l.Trouble += fmt.Sprintf(format, args...)
}

// attribute reads a file of a layer that not every kernel or device has.
func (s *Storage) attribute(l *Layer, name string) string {
	if s.h.root == nil {
		return ""
	}
	text, err := s.h.root.ReadText(name)
	if err != nil && !deviceGone(err) {
		l.trouble("read %s: %v", name, sysroot.Cause(err))
	}
	return text
}

func (s *Storage) slaves(l *Layer, d *Device, role string) {
	for _, number := range d.Slaves {
		l.below(role, s.device(number))
	}
	s.lost(l, d)
}

// lost adds what a device lies on and what is not there, and says so when nothing is there at all.
func (s *Storage) lost(l *Layer, d *Device) {
	for _, name := range d.lost {
		s.named(l, "", "/dev/"+name)
	}
	if len(l.Below) == 0 && d.Kind.Layered() {
		l.trouble("/sys does not say what it lies on")
	}
}

// raid is an md device.
func (s *Storage) raid(l *Layer, d *Device) {
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
func (s *Storage) bcache(l *Layer, d *Device) {
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
func (s *Storage) loop(l *Layer, d *Device) {
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

// udevFacts is what udev has noted of a device.
type udevFacts struct {
	links      []string // below /dev
	properties map[string]string
}

// udev reads /run/udev/data/bMAJ:MIN, the database of systemd-udevd(8); it is not there without udev.
func (s *Storage) udev(l *Layer, number string) udevFacts {
	return parseUdev(s.attribute(l, "/run/udev/data/b"+number))
}

func parseUdev(text string) udevFacts {
	f := udevFacts{properties: map[string]string{}}
	for line := range strings.Lines(text) {
		tag, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch {
		case found && tag == "S":
			f.links = append(f.links, value)
		case found && tag == "E":
			name, value, _ := strings.Cut(value, "=")
			f.properties[name] = value
		}
	}
	return f
}

// Unused are the layers of devices on which nothing seen here lies: no mount, no other device. Call it when all that
// counts was found: what no mount led to is looked at now.
func (s *Storage) Unused() []*Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	above := map[string]bool{}
	var mark func(l *Layer)
	mark = func(l *Layer) {
		for _, b := range l.Below {
			if !above[b.ID] {
				above[b.ID] = true
				mark(b.Layer)
			}
		}
	}
	for _, m := range s.mounts() {
		mark(s.filesystem(m))
	}
	for _, d := range s.Devices {
		mark(s.device(d.Number))
	}
	var unused []*Layer
	for _, d := range s.Devices {
		if !above[d.Number] {
			unused = append(unused, s.device(d.Number))
		}
	}
	return unused
}
