package blockdev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
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

// The kinds of layers that are no block devices.
const (
	Filesystem LayerKind = "filesystem"
	File       LayerKind = "file" // behind a loop device
	Pool       LayerKind = "pool" // of ZFS
	Path       LayerKind = "path" // one of several to an NVMe disk
	Missing    LayerKind = "missing"
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

// MountsOf are those that a process sees, with the ones that lie below others. The error matches ErrExited when the
// process is gone.
func (s *Storage) MountsOf(pid int) (mountinfo.Mounts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.table(pid)
	if err != nil {
		return nil, err
	}
	return slices.Clone(table.mounts), nil
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
		d, f := &s.Devices[at], deviceFinder{s}
		l.Device, l.Kind, l.Name = d, d.Kind, cmp.Or(d.Mapper, d.Name)
		switch d.Kind {
		case Partition:
			l.below("", s.device(d.Disk))
		case Loop:
			f.loop(l, d)
		case Disk:
			f.disk(l, d)
		case Volume:
			f.volume(l, d)
		case RAID:
			f.raid(l, d)
		case Bcache:
			f.bcache(l, d)
		case Crypt:
			l.Detail = cryptFormat(d.UUID)
			f.slaves(l, d, "")
		case Multipath:
			l.WWID = strings.TrimPrefix(d.UUID, "mpath-")
			f.slaves(l, d, RolePath)
		case Mapper:
			if number, _, is := strings.Cut(d.UUID, "-"); is && strings.HasPrefix(number, "part") { // kpartx(8)
				l.Detail = "partition " + strings.TrimPrefix(number, "part")
			}
			f.slaves(l, d, "")
		default:
			f.slaves(l, d, "")
			if len(d.Slaves) == 0 {
				l.Detail = otherDevice(d.Name)
			}
		}
		if s.isSwap(number) {
			l.Detail = strings.TrimPrefix(l.Detail+", swap", ", ")
		}
	})
}

// deviceFinder finds what a block device says of itself and lies on, by its kind. Its methods fill in a layer.
type deviceFinder struct{ *Storage }

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

// numberOf finds a device by its path below /dev.
func (s *Storage) numberOf(name string) (number string, found bool) {
	short, below := strings.CutPrefix(path.Clean(name), "/dev/")
	if !below {
		return "", false
	}
	if number, found = s.byName[short]; found {
		return number, true
	}
	if mapper, is := strings.CutPrefix(short, "mapper/"); is && mapper != "" {
		for _, d := range s.Devices {
			if d.Mapper == mapper {
				return d.Number, true
			}
		}
	}
	if s.h.root == nil {
		return "", false
	}
	real, err := s.h.root.EvalSymlinks(name)
	if err != nil {
		return "", false
	}
	number, found = s.byName[strings.TrimPrefix(real, "/dev/")]
	return number, found
}
