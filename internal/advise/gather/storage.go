package gather

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
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

func diskFacts(h *host.Host, d *disks.Disks, used users) []fact.Object {
	var list []fact.Object
	for _, dev := range d.Storage.Devices {
		switch dev.Kind {
		case blockdev.Disk, blockdev.RAID, blockdev.Multipath:
		default:
			continue
		}
		dir := "/sys/block/" + strings.ReplaceAll(dev.Name, "/", "!")
		v := fact.Values{
			"disk.kind":       fact.Known(kindOf(dev), "name of the device"),
			"disk.scheduler":  fact.Known(dev.Scheduler, dir+"/queue/scheduler"),
			"disk.rotational": fact.Known(dev.Rotational, dir+"/queue/rotational"),
			"disk.databases":  fact.Known(used.all(dev.Number), "files of the instances"),
		}
		both := []string{}
		for _, name := range used[dev.Number][datafiles.Data] {
			if slices.Contains(used[dev.Number][datafiles.Redo], name) {
				both = append(both, name)
			}
		}
		v["disk.wal_and_data"] = fact.Known(both, "files of the instances")
		v["disk.raid_level"] = fact.Known("", "no md device")
		v["disk.raid_missing"] = fact.Known(int64(0), "no md device")
		if dev.Kind == blockdev.RAID {
			v["disk.raid_level"] = textOf(h, dir+"/md/level")
			v["disk.raid_missing"] = fact.Known(int64(0), dir+"/md/degraded is not there")
			if n, err := h.Root.ReadInt(dir + "/md/degraded"); err == nil {
				v["disk.raid_missing"] = fact.Known(n, dir+"/md/degraded")
			} else if !errors.Is(err, fs.ErrNotExist) {
				v["disk.raid_missing"] = because(err)
			}
		}
		list = append(list, fact.Object{Name: dev.Name, Values: v})
	}
	return list
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

func mountFacts(h *host.Host, d *disks.Disks) []fact.Object {
	table, err := h.Root.ReadText("/etc/fstab")
	if errors.Is(err, fs.ErrNotExist) {
		table, err = "", nil
	}
	var list []fact.Object
	for _, m := range d.Storage.Mounts() {
		l := d.Storage.On(m)
		held := []string{}
		for _, db := range d.Databases {
			if slices.ContainsFunc(db.Files, func(f disks.PlacedFiles) bool { return f.Place.Layer == l }) {
				held = append(held, db.Instance.Name())
			}
		}
		listed := slices.Contains([]blockdev.FilesystemKind{blockdev.OnDevice, blockdev.OnNetwork, blockdev.OnPool},
			l.Filesystem)
		if !listed && len(held) == 0 || m.Type == "squashfs" || slices.ContainsFunc(list, func(o fact.Object) bool {
			return o.Name == m.Point
		}) {
			continue
		}
		options := append(slices.Clone(m.Options), m.Super...)
		slices.Sort(options)
		v := fact.Values{
			"mount.type":      fact.Known(m.Type, "/proc/self/mountinfo"),
			"mount.options":   fact.Known(slices.Compact(options), "/proc/self/mountinfo"),
			"mount.databases": fact.Known(held, "files of the instances"),
		}
		v["mount.listed_source"], v["mount.listed_options"] = because(err), because(err)
		if err == nil {
			source, opts, from := listedMount(table, m.Point)
			v["mount.listed_source"], v["mount.listed_options"] = fact.Known(source, from), fact.Known(opts, from)
		}
		list = append(list, fact.Object{Name: m.Point, Values: v})
	}
	return list
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

// readAhead is that of the device right below a filesystem: the one that the kernel reads ahead from.
func readAhead(h *host.Host, l *blockdev.Layer) fact.Value {
	for _, below := range l.Below {
		if below.Device != nil && below.Role == "" {
			return number(h, path.Join("/sys/dev/block", below.Device.Disk, "queue/read_ahead_kb"))
		}
	}
	return fact.Unknown("no block device lies right below its file system")
}
