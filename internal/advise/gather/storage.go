package gather

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// users are the instances with files on a device, by the device's number and what the files are for.
type users map[string]map[datafiles.Kind][]string

// usersOf finds which instances keep what on which devices, at every layer.
func usersOf(d *disks.Disks) users {
	u := users{}
	for _, db := range d.Databases {
		for _, f := range db.Files {
			if f.Place.Layer == nil {
				continue
			}
			for _, number := range devicesBelow(f.Place.Layer) {
				if u[number] == nil {
					u[number] = map[datafiles.Kind][]string{}
				}
				if name := db.Instance.Name(); !slices.Contains(u[number][f.Kind], name) {
					u[number][f.Kind] = append(u[number][f.Kind], name)
				}
			}
		}
	}
	return u
}

// all are the instances with anything on a device.
func (u users) all(number string) []string {
	list := []string{}
	for _, names := range u[number] {
		list = append(list, names...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// devicesBelow are the numbers of the whole devices that a layer lies on, at every level.
func devicesBelow(l *blockdev.Layer) []string {
	var numbers []string
	seen := map[*blockdev.Layer]bool{}
	var walk func(l *blockdev.Layer)
	walk = func(l *blockdev.Layer) {
		if seen[l] {
			return
		}
		seen[l] = true
		if l.Device != nil {
			numbers = append(numbers, l.Device.Disk)
		}
		for _, below := range l.Below {
			walk(below.Layer)
		}
	}
	walk(l)
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// placed is which instances keep files where.
type placed struct {
	disks     map[string]fact.Values // by name
	mounts    map[string]fact.Value  // the instances on a mount, by its point
	instances map[string]fact.Values // what its data lies on, by name of the instance
}

// places finds where the instances keep their files. It asks each file system that holds some.
func places(h *host.Host) (*placed, error) {
	d, err := disks.Find(h)
	if err != nil {
		return nil, err
	}
	used := usersOf(d)
	p := &placed{map[string]fact.Values{}, map[string]fact.Value{}, map[string]fact.Values{}}
	for _, dev := range d.Storage.Devices {
		both := []string{}
		for _, name := range used[dev.Number][datafiles.Data] {
			if slices.Contains(used[dev.Number][datafiles.Redo], name) {
				both = append(both, name)
			}
		}
		p.disks[dev.Name] = fact.Values{"disk.databases": fact.Known(used.all(dev.Number), "files of the instances"),
			"disk.wal_and_data": fact.Known(both, "files of the instances")}
	}
	var root *blockdev.Layer
	for _, m := range d.Storage.Mounts() {
		l := d.Storage.On(m)
		if m.Point == "/" {
			root = l
		}
		held := []string{}
		for _, db := range d.Databases {
			if slices.ContainsFunc(db.Files, func(f disks.PlacedFiles) bool { return f.Place.Layer == l }) {
				held = append(held, db.Instance.Name())
			}
		}
		p.mounts[m.Point] = fact.Known(held, "files of the instances")
	}
	for _, db := range d.Databases {
		v := fact.Values{}
		placeFacts(h, db, root, v)
		p.instances[db.Instance.Name()] = v
	}
	return p, nil
}

// place adds to disks, mounts and instances which files are where; without p it is unknown for a reason.
func (p *placed) place(set *fact.Set, reason fact.Value) {
	lacking := func(name string) fact.Values {
		v := fact.Values{}
		for _, row := range fact.Table {
			if string(row.Scope()) == name {
				v[row.Name] = reason
			}
		}
		return v
	}
	for _, o := range set.Disks {
		v := lacking("disk")
		if p != nil && p.disks[o.Name] != nil {
			v = p.disks[o.Name]
		}
		addTo(o.Values, v)
	}
	for _, o := range set.Mounts {
		v := lacking("mount")
		if p != nil {
			held, known := p.mounts[o.Name]
			if !known {
				held = fact.Known([]string{}, "files of the instances")
			}
			v = fact.Values{"mount.databases": held}
		}
		addTo(o.Values, v)
	}
	for _, o := range set.Instances {
		v := lacking("instance")
		if p != nil && p.instances[o.Name] != nil {
			v = p.instances[o.Name]
		}
		addTo(o.Values, v)
	}
}

// addTo adds facts that are not there yet.
func addTo(into, from fact.Values) {
	for name, v := range from {
		if _, there := into[name]; !there {
			into[name] = v
		}
	}
}

func diskFacts(h *host.Host, storage *blockdev.Storage) []fact.Object {
	var list []fact.Object
	for _, dev := range storage.Devices {
		switch dev.Kind {
		case blockdev.Disk, blockdev.RAID, blockdev.Multipath:
		default:
			continue
		}
		name := strings.ReplaceAll(dev.Name, "/", "!")
		dir := "/sys/block/" + name
		v := fact.Values{
			"disk.kind":       fact.Known(kindOf(dev), "name of the device"),
			"disk.scheduler":  fact.Known(dev.Scheduler, dir+"/queue/scheduler"),
			"disk.rotational": fact.Known(dev.Rotational, dir+"/queue/rotational"),
			"disk.managed":    fact.Known(managed(dev.Model), dir+"/device/model"),
		}
		v["disk.raid_level"] = fact.Known("", "no md device")
		v["disk.raid_missing"] = fact.Known(int64(0), "no md device")
		if dev.Kind == blockdev.RAID {
			v["disk.raid_level"] = files.Text(h, dir+"/md/level")
			v["disk.raid_missing"] = fact.Known(int64(0), dir+"/md/degraded is not there")
			if n, err := h.Root.ReadInt(dir + "/md/degraded"); err == nil {
				v["disk.raid_missing"] = fact.Known(n, dir+"/md/degraded")
			} else if !errors.Is(err, fs.ErrNotExist) {
				v["disk.raid_missing"] = files.Because(err)
			}
		}
		v["disk.cache"] = files.Text(h, dir+"/queue/write_cache")
		v["disk.own_cache"] = ownCache(h, dir)
		v["disk.misaligned"] = misaligned(h, dir, name)
		v["disk.paths"] = paths(h, dev, dir)
		queueFacts(h, dir+"/queue/", v)
		list = append(list, fact.Object{Name: dev.Name, Values: v})
	}
	return list
}

// managed is what a cloud calls the disk of a model; "" for others.
func managed(model string) string {
	for part, name := range map[string]string{
		"Amazon Elastic Block Store": "EBS", "Amazon EC2 NVMe Instance Storage": "instance storage",
		"nvme_card-pd": "Persistent Disk", "PersistentDisk": "Persistent Disk", "nvme_card": "local SSD",
		"EphemeralDisk": "local SSD", "MSFT NVMe Accelerator": "Azure disk", "Microsoft NVMe Direct Disk": "local SSD",
	} {
		if strings.TrimSpace(model) == part {
			return name
		}
	}
	return ""
}

// ownCache is what a SCSI disk itself says of its cache.
func ownCache(h *host.Host, dir string) fact.Value {
	names, err := h.Root.ReadDir(dir + "/device/scsi_disk")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fact.Known("", "no SCSI disk")
	case err != nil:
		return files.Because(err)
	case len(names) == 0:
		return fact.Known("", "no SCSI disk")
	}
	return files.Text(h, path.Join(dir, "device/scsi_disk", names[0], "cache_type"))
}

// misaligned are the partitions that do not begin at a multiple of 4 KiB, or begin inside a block of the disk.
func misaligned(h *host.Host, dir, disk string) fact.Value {
	return files.List(h, dir, dir+"/"+disk+"*/start, alignment_offset", func(entry string) string {
		start, err := h.Root.ReadInt(path.Join(dir, entry, "start"))
		if err != nil || !strings.HasPrefix(entry, disk) {
			return ""
		}
		// An extended partition holds others, and shows the two sectors of its table alone.
		if size, err := h.Root.ReadInt(path.Join(dir, entry, "size")); err == nil && size <= 2 {
			return ""
		}
		offset, _ := h.Root.ReadInt(path.Join(dir, entry, "alignment_offset"))
		const sectors = 8 // of 512 bytes
		if start%sectors == 0 && offset == 0 {
			return ""
		}
		return entry
	})
}

// paths are the ways to a multipath disk that are there.
func paths(h *host.Host, dev blockdev.Device, dir string) fact.Value {
	if dev.Kind != blockdev.Multipath {
		return fact.Known(int64(1), "no multipath device")
	}
	names, err := h.Root.ReadDir(dir + "/slaves")
	if err != nil {
		return files.Because(err)
	}
	running := int64(0)
	for _, n := range names {
		state, err := h.Root.ReadText(path.Join(dir, "slaves", n, "device/state"))
		if err != nil || state == "running" || state == "live" {
			running++
		}
	}
	return fact.Known(running, dir+"/slaves/*/device/state")
}

// kindOf tells by its name who drives a disk.
func kindOf(d blockdev.Device) string {
	switch {
	case d.Kind == blockdev.RAID:
		return "raid"
	case d.Kind == blockdev.Multipath:
		return "mapper"
	case strings.HasPrefix(d.Name, "nvme"):
		return "nvme"
	case strings.HasPrefix(d.Name, "vd"), strings.HasPrefix(d.Name, "xvd"):
		return "virtual"
	case strings.HasPrefix(d.Name, "sd"):
		return "scsi"
	}
	return "other"
}

func mountFacts(h *host.Host, storage *blockdev.Storage) []fact.Object {
	table, err := h.Root.ReadText("/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		table, err = "", nil
	}
	var list []fact.Object
	for _, m := range storage.Mounts() {
		l := storage.On(m)
		listed := slices.Contains([]blockdev.FilesystemKind{blockdev.OnDevice, blockdev.OnNetwork, blockdev.OnPool},
			l.Filesystem)
		if !listed || m.Type == "squashfs" || slices.ContainsFunc(list, func(o fact.Object) bool {
			return o.Name == m.Point
		}) {
			continue
		}
		options := append(slices.Clone(m.Options), m.Super...)
		slices.Sort(options)
		v := fact.Values{
			"mount.type":    fact.Known(m.Type, "/proc/self/mountinfo"),
			"mount.options": fact.Known(slices.Compact(options), "/proc/self/mountinfo"),
		}
		v["mount.listed_source"], v["mount.listed_options"] = files.Because(err), files.Because(err)
		if err == nil {
			source, opts, from := listedMount(table, m.Point)
			v["mount.listed_source"], v["mount.listed_options"] = fact.Known(source, from), fact.Known(opts, from)
		}
		v["mount.pool_state"] = fact.Known("", "no ZFS")
		if pool, _, _ := strings.Cut(m.Source, "/"); m.Type == "zfs" {
			v["mount.pool_state"] = files.Text(h, path.Join("/proc/spl/kstat/zfs", pool, "state"))
		}
		own := layoutFacts(h, storage, m, v)
		space(h, m.Point, own, v)
		list = append(list, fact.Object{Name: m.Point, Values: v})
	}
	return list
}

// space is what is free of a mounted file system; own is how many free blocks it keeps for itself. One that does not
// answer costs its time alone.
func space(h *host.Host, point string, own uint64, v fact.Values) {
	free, inodes, reserved := "mount.free_percent", "mount.inodes_percent", "mount.reserved_percent"
	all := func(reason fact.Value) { v[free], v[inodes], v[reserved] = reason, reason, reason }
	if !h.Root.Live() {
		all(fact.Unknown("the host is a copy"))
		return
	}
	s, err := sysroot.WithTimeout(h.Root, "the space of "+point, func() (s syscall.Statfs_t, err error) {
		return s, syscall.Statfs(point, &s)
	})
	// What is kept for root is neither free nor used, as df(1) has it.
	usable := s.Blocks - s.Bfree + s.Bavail
	switch {
	case err != nil:
		all(files.Because(err))
		return
	case usable == 0:
		all(fact.Unknown("it tells no size"))
	default:
		v[free] = fact.Known(int64(s.Bavail*100/usable), "statfs of "+point)
		kept := s.Bfree - s.Bavail
		v[reserved] = fact.Known(int64((kept-min(kept, own))*100/s.Blocks), "statfs of "+point)
	}
	v[inodes] = fact.Known(int64(100), "statfs of "+point+": it has no fixed number of inodes")
	if s.Files > 0 {
		v[inodes] = fact.Known(int64(s.Ffree*100/s.Files), "statfs of "+point)
	}
}

// queueFacts are those of how requests wait for a disk.
func queueFacts(h *host.Host, queue string, v fact.Values) {
	for name, file := range map[string]string{"disk.requests": "nr_requests", "disk.nomerges": "nomerges",
		"disk.rq_affinity": "rq_affinity", "disk.request_size": "max_sectors_kb",
		"disk.request_most": "max_hw_sectors_kb"} {
		v[name] = files.Number(h, queue+file)
	}
	for name, file := range map[string]string{"disk.iostats": "iostats", "disk.add_random": "add_random"} {
		v[name] = files.Number(h, queue+file)
		if n, known := v[name].Is.(int64); known {
			v[name] = fact.Known(n != 0, queue+file)
		}
	}
	v["disk.wbt"] = files.Number(h, queue+"wbt_lat_usec")
	if v["disk.wbt"].Unknown != "" { // it cannot be read where the kernel, or the scheduler, has none
		v["disk.wbt"] = fact.Known(int64(0), queue+"wbt_lat_usec tells nothing")
	}
}

// listedMount is the line of fstab(5) for a mount point: its source, its options, and where it stands.
func listedMount(table, point string) (source string, options []string, from string) {
	number := 0
	for line := range strings.Lines(table) {
		number++
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") || mountinfo.Unescape(fields[1]) != point {
			continue
		}
		return mountinfo.Unescape(fields[0]), strings.Split(fields[3], ","), "/etc/fstab:" + strconv.Itoa(number)
	}
	return "", []string{}, "/etc/fstab does not list it"
}

// placeNames are the facts of an instance that its storage tells; placeFacts fills them in.
var placeNames = []string{"instance.data_type", "instance.data_read_ahead", "instance.data_on_root",
	"instance.data_disk", "instance.data_nocow"}

// readAhead is that of the device right below a filesystem: the one that the kernel reads ahead from.
func readAhead(h *host.Host, l *blockdev.Layer) (ahead, disk fact.Value) {
	for _, below := range l.Below {
		if below.Device != nil && below.Role == "" {
			dir := path.Join("/sys/dev/block", below.Device.Disk)
			ahead, disk = files.Number(h, dir+"/queue/read_ahead_kb"), fact.Unknown("its name cannot be read")
			if link, err := h.Root.Readlink(dir); err == nil {
				disk = fact.Known(path.Base(link), dir)
			}
			return ahead, disk
		}
	}
	none := fact.Unknown("no block device lies right below its file system")
	return none, none
}

// placeFacts are those of what its data lies on.
func placeFacts(h *host.Host, db disks.DatabaseFiles, root *blockdev.Layer, v fact.Values) {
	none := fact.Unknown("where its data lies was not found")
	for _, name := range placeNames {
		v[name] = none
	}
	i := slices.IndexFunc(db.Files, func(f disks.PlacedFiles) bool {
		return f.Kind == datafiles.Data && f.Place.Layer != nil
	})
	if i < 0 {
		return
	}
	data := db.Files[i].Place
	v["instance.data_type"] = fact.Known(data.Layer.Type, "the mount of "+data.Path)
	v["instance.data_read_ahead"], v["instance.data_disk"] = readAhead(h, data.Layer)
	v["instance.data_nocow"] = fact.Known(false, "no btrfs")
	if data.Layer.Type == "btrfs" {
		v["instance.data_nocow"] = nocow(h, data.Real)
	}
	if root == nil {
		return
	}
	shared := false
	for _, disk := range data.Layer.Drives() {
		shared = shared || slices.Contains(root.Drives(), disk)
	}
	v["instance.data_on_root"] = fact.Known(shared, "disks below "+data.Path+" and /")
}
