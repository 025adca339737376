package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Storage is one look at what files lie on: mounts, the filesystems behind them, and the layers of devices down to the
// disks. Layers are found when they are asked for, and each is found once. It is safe for concurrent use; layers are not to be
// changed.
//
// What cannot be read does not stop a look: the layer says so in Trouble.
type Storage struct {
	Devices []Device // by number

	mu      sync.Mutex // guards all that follows, while layers are found
	h       *Host      // nil: nothing more is read
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
func (h *Host) Storage() (*Storage, error) {
	var f Facts
	if err := h.deviceFacts(&f); err != nil {
		return nil, fmt.Errorf("read block devices: %w", err)
	}
	mounts, err := h.mounts()
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	s := newStorage(h, f.Devices, mounts)
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

// Storage gives what the facts alone tell of storage: the kinds of devices and what lies on what, of which nothing more is
// read. Host.Storage knows more.
func (f *Facts) Storage() *Storage { return newStorage(nil, f.Devices, f.Mounts) }

func newStorage(h *Host, devices []Device, mounts []Mount) *Storage {
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
func (s *Storage) Mounts() []Mount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounts()
}

func (s *Storage) mounts() []Mount {
	var seen []Mount
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
		at, found := slices.BinarySearchFunc(s.Devices, number, func(d Device, n string) int { return compareNumbers(d.Number, n) })
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
func (h *Host) swaps() ([]string, error) {
	text, err := h.readFile("/proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // built without
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name, _, found := strings.Cut(line, " "); found && strings.HasPrefix(name, "/") {
			names = append(names, unescape(name))
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
	if s.h == nil {
		return ""
	}
	text, err := s.h.readText(name)
	if err != nil && !deviceGone(err) {
		l.trouble("read %s: %v", name, cause(err))
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

// otherDevice says what devices of the kind Other are.
func otherDevice(name string) string {
	for prefix, what := range map[string]string{"ram": "memory", "zram": "compressed memory", "fd": "floppy", "sr": "optical"} {
		if digits, found := strings.CutPrefix(name, prefix); found && strings.Trim(digits, "0123456789") == "" {
			return what
		}
	}
	return ""
}

// disk reads what a disk calls itself. Serial numbers are in different places: virtio-blk has a file of its own, NVMe
// and MMC one of the controller or card, SCSI a page of product data (since 3.15, binary).
func (s *Storage) disk(l *Layer, d *Device) {
	l.Model = d.Model
	l.WWID = firstText(s.attribute(l, d.dir+"/wwid"), s.attribute(l, d.dir+"/device/wwid"))
	l.Serial = firstText(s.attribute(l, d.dir+"/serial"), s.attribute(l, d.dir+"/device/serial"), serialPage(s.attribute(l, d.dir+"/device/vpd_pg80")))
	if state := s.attribute(l, d.dir+"/device/state"); state != "running" && state != "live" { // SCSI, NVMe
		l.Detail = state
	}
	for prefix, what := range map[string]string{"nbd": "on another host (nbd)", "rbd": "on a Ceph cluster (rbd)", "drbd": "mirrored to another host (DRBD)", "zd": "a ZFS volume"} {
		if strings.HasPrefix(d.Name, prefix) {
			l.Detail = what
		}
	}
	if s.h != nil && strings.HasPrefix(path.Base(path.Dir(d.dir)), "nvme-subsys") {
		s.nvmePaths(l, d)
	}
	if strings.HasPrefix(d.Name, "zd") {
		s.zvol(l, d)
	}
}

func firstText(texts ...string) string {
	for _, t := range texts {
		if t = strings.Join(strings.Fields(strings.ReplaceAll(t, "\x00", " ")), " "); t != "" {
			return t
		}
	}
	return ""
}

// serialPage takes the serial number out of vital product data page 80h (SPC-3, 7.6.10).
func serialPage(page string) string {
	if len(page) < 4 || page[1] != 0x80 {
		return ""
	}
	length := int(page[2])<<8 | int(page[3])
	return page[4:min(4+length, len(page))]
}

// nvmePath is a path's name: "nvme0c1n1" leads to nvme0n1 by the controller nvme1.
var nvmePath = regexp.MustCompile(`^(nvme\d+)c\d+(n\d+)$`)

// nvmePaths finds the paths of a disk with native multipath (since 4.15). Each is a hidden disk without a number, below
// its controller; the directory of the subsystem links to the controllers (since 4.16).
func (s *Storage) nvmePaths(l *Layer, d *Device) {
	subsystem := path.Dir(d.dir)
	l.Model = firstText(l.Model, s.attribute(l, subsystem+"/model"))
	l.Serial = firstText(l.Serial, s.attribute(l, subsystem+"/serial"))
	names, err := s.h.readDir(subsystem)
	if err != nil {
		l.trouble("read paths: %v", err)
	}
	slices.Sort(names)
	for _, controller := range names {
		if digits, is := strings.CutPrefix(controller, "nvme"); !is || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		dir := subsystem + "/" + controller
		spaces, err := s.h.readDir(dir)
		if err != nil && !deviceGone(err) {
			l.trouble("read paths: %v", err)
		}
		slices.Sort(spaces)
		for _, space := range spaces {
			if m := nvmePath.FindStringSubmatch(space); m != nil && m[1]+m[2] == d.Name {
				l.below(RolePath, s.nvmePath(controller, dir, space))
			}
		}
	}
}

func (s *Storage) nvmePath(controller, dir, name string) *Layer {
	return s.layer("path "+name, func(l *Layer) {
		l.Kind, l.Name = Path, name
		words := []string{controller, s.attribute(l, dir+"/transport"), s.attribute(l, dir+"/address"), s.attribute(l, dir+"/state"), s.attribute(l, dir+"/"+name+"/ana_state")}
		l.Detail = strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
		l.Serial, l.Model = firstText(s.attribute(l, dir+"/serial")), firstText(s.attribute(l, dir+"/model"))
	})
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
	if s.h != nil {
		if target, err := s.h.readLink(d.dir + "/bcache"); err == nil {
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

// splitVolume takes "vg" and "my-lv" out of "vg-my--lv": the first lone dash parts them (dm_build_dm_name of libdevmapper).
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
		{"_tmeta", RoleMetadata}, {"_cmeta", RoleMetadata}, {"_rmeta_", RoleMetadata}, {"_pmspare", RoleMetadata}, {"_imeta", RoleMetadata},
		{"_cdata", RoleCache}, {"_cvol", RoleCache}, {"_cpool", RoleCache}, {"-cow", RoleSnapshot},
	} {
		if strings.Contains(name, r.mark) {
			return r.role
		}
	}
	return ""
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
// them: whole disks, multipath devices as one disk each, and what stands in for a disk because the way to one ends there, such as a
// loop device on a file in memory. Links with one of the roles left out are not followed.
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

// zfsPools lists the imported pools: the kernel module shows no more of them than name and state.
func (h *Host) zfsPools() ([]string, error) {
	names, err := h.readDir("/proc/spl/kstat/zfs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pools := slices.DeleteFunc(names, func(name string) bool { return !h.exists("/proc/spl/kstat/zfs/" + name + "/state") })
	slices.Sort(pools)
	return pools, nil
}

// pool is a pool of ZFS. What its vdevs are is in labels on the disks, which only zpool(8) reads; udev has seen which
// pool a partition is for, if its rules are in use.
func (s *Storage) pool(name string) *Layer {
	return s.layer("pool "+name, func(l *Layer) {
		l.Kind, l.Name = Pool, name
		l.Detail = strings.ToLower(s.attribute(l, "/proc/spl/kstat/zfs/"+name+"/state"))
		for i := range s.Devices {
			d := &s.Devices[i]
			facts := s.udev(l, d.Number)
			if facts.properties["ID_FS_TYPE"] == "zfs_member" && facts.properties["ID_FS_LABEL"] == name {
				l.below("", s.device(d.Number))
			}
		}
		if len(l.Below) == 0 {
			l.trouble("its devices cannot be read without ZFS's tools: zpool status -LP %s", name)
		} else {
			l.trouble("devices by udev's labels; mirror or raidz, log and cache are shown by zpool status -LP %s alone", name)
		}
	})
}

// zvol finds the pool of a ZFS volume by the link that udev made for it: /dev/zvol/POOL/NAME.
func (s *Storage) zvol(l *Layer, d *Device) {
	for _, link := range s.udev(l, d.Number).links {
		if name, is := strings.CutPrefix(link, "zvol/"); is {
			pool, _, _ := strings.Cut(name, "/")
			l.Name, l.Kind = name, Stacked
			l.below("", s.pool(pool))
			return
		}
	}
	l.trouble("nothing here tells which pool holds it")
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

// Unused are the layers of devices on which nothing seen here lies: no mount, no other device. Call it when all that counts
// was found: what no mount led to is looked at now.
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
