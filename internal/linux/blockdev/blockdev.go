// Package blockdev reads block devices (/sys/dev/block, Documentation/ABI/stable/sysfs-block) and what lies on what:
// from a file through its mount, its file system and the layers of LVM, md, dm-crypt, multipath, loop, bcache, btrfs
// and ZFS down to the disks. It also measures what a disk does, and writes the two queue files that weights need.
//
// An FS is a value over a root directory; it and a Storage are safe for concurrent use. Layers are found when they are
// asked for and are not to be changed. What cannot be read does not stop a look: the layer says so in Trouble.
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
	"syscall"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Device is a block device.
type Device struct {
	Number     string // "8:16"
	Name       string // "sdb", as below /dev
	Kind       DeviceKind
	Disk       string // for a partition: the number of its whole disk; else Number
	Size       int64  // bytes
	Rotational bool
	Scheduler  string // the active one, "" if none is shown; a partition has its disk's
	// Schedulers are those that it can have now, the active one included; none for a device that has no requests
	// (dm, md).
	Schedulers []string `json:",omitempty"`
	// WriteBack is the aim of the kernel's own write-back throttling in µs (queue/wbt_lat_usec, 4.10); "0" is off, ""
	// none.
	WriteBack string   `json:",omitempty"`
	Cost      IOCost   `json:",omitzero"`
	Backing   string   // for a loop device: its file
	Slaves    []string // numbers of the devices below it (dm, md)
	Model     string
	Mapper    string // for a device-mapper device: its name below /dev/mapper
	UUID      string `json:",omitempty"` // for a device-mapper device: who made it, and of what (dm/uuid)

	dir  string   // below /sys/devices
	lost []string // names of slaves that are not there
}

// IOCost is what iocost (kernel 5.4) has been told of a device, in the words of io.cost.qos and io.cost.model; ""
// when nothing.
type IOCost struct{ QoS, Model string }

// On says whether iocost weighs the requests to the device.
func (c IOCost) On() bool { return slices.Contains(strings.Fields(c.QoS), "enable=1") }

// DeviceKind says what a block device is.
type DeviceKind string

// The kinds of block device told apart here.
const (
	Disk      DeviceKind = "disk"
	Partition DeviceKind = "partition"
	Loop      DeviceKind = "loop"
	Volume    DeviceKind = "lvm"       // of LVM, its inner parts included
	Crypt     DeviceKind = "crypt"     // dm-crypt
	Multipath DeviceKind = "multipath" // dm-multipath: one disk over several paths
	Mapper    DeviceKind = "mapper"    // any other of the device mapper
	RAID      DeviceKind = "raid"      // md
	Bcache    DeviceKind = "bcache"
	Stacked   DeviceKind = "stacked" // anything else that lies on others
	Other     DeviceKind = "other"   // ram, zram, nbd without a medium, optical, …
)

// Layered says whether devices of this kind lie on other devices, partitions aside.
func (k DeviceKind) Layered() bool {
	switch k {
	case Volume, Crypt, Multipath, Mapper, RAID, Bcache, Stacked:
		return true
	}
	return false
}

const (
	blockDevices = "/sys/dev/block" // one link per device, named by its number
	sectorSize   = 512              // of the size file, whatever the disk's own is
)

// FS reads block devices.
type FS struct {
	root *sysroot.FS
	proc procfs.FS
}

// New reads the /sys/block below root.
func New(root *sysroot.FS) FS { return FS{root, procfs.New(root)} }

// Devices returns the block devices by number, without loop devices that nobody uses. There are none where /sys is
// hidden.
func (h FS) Devices() ([]Device, error) {
	numbers, err := h.root.ReadDir(blockDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // some containers hide it
	}
	if err != nil {
		return nil, err
	}
	var devices []Device
	slices.SortFunc(numbers, compareNumbers)
	dirs := map[string]string{}   // number → its directory below /sys/devices
	byName := map[string]string{} // name in sysfs → number
	for _, number := range numbers {
		target, err := h.root.Readlink(path.Join(blockDevices, number))
		if errors.Is(err, fs.ErrNotExist) {
			continue // taken out in this moment
		}
		if err != nil {
			return nil, err
		}
		dirs[number] = path.Join(blockDevices, target)
		byName[path.Base(target)] = number
	}
	for _, number := range numbers {
		dir, found := dirs[number]
		if !found {
			continue
		}
		d, err := h.device(number, dir, byName)
		if deviceGone(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read block device %s: %w", path.Base(dir), err)
		}
		if d.Kind != Loop || d.Backing != "" { // a free loop device is not there for anybody
			devices = append(devices, d)
		}
	}
	return devices, nil
}

// device reads one device from its directory below /sys/devices.
func (h FS) device(number, dir string, byName map[string]string) (Device, error) {
	d := Device{
		Number: number,
		Name:   strings.ReplaceAll(path.Base(dir), "!", "/"), // sysfs has "cciss!c0d0" for /dev/cciss/c0d0
		Disk:   number,
		dir:    dir,
	}
	sectors, err := h.root.ReadInt(dir + "/size")
	if err != nil {
		return Device{}, err
	}
	d.Size = sectors * sectorSize
	whole := dir
	if h.root.Exists(dir + "/partition") {
		whole = path.Dir(dir)
		if d.Disk, err = h.root.ReadText(whole + "/dev"); err != nil {
			return Device{}, err
		}
	}
	if d.Slaves, d.lost, err = h.slaves(dir, byName); err != nil {
		return Device{}, err
	}
	rotational, err := h.root.ReadOptional(whole + "/queue/rotational")
	if err != nil {
		return Device{}, err
	}
	d.Rotational = rotational == "1"
	schedulers, err := h.root.ReadOptional(whole + "/queue/scheduler")
	if err != nil {
		return Device{}, err
	}
	d.Scheduler = activeScheduler(schedulers)
	if strings.Contains(schedulers,
		"[") { // a device without requests shows a bare "none" (elv_iosched_show of block/elevator.c)
		d.Schedulers = strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(schedulers))
	}
	if d.WriteBack, err = h.root.ReadOptional(whole + "/queue/wbt_lat_usec"); err != nil &&
		!errors.Is(err, syscall.EINVAL) {
		return Device{}, err
	}
	if d.Backing, err = h.root.ReadOptional(dir + "/loop/backing_file"); err != nil {
		return Device{}, err
	}
	if d.Model, err = h.root.ReadOptional(whole + "/device/model"); err != nil {
		return Device{}, err
	}
	if d.Mapper, err = h.root.ReadOptional(dir + "/dm/name"); err != nil {
		return Device{}, err
	}
	if d.UUID, err = h.root.ReadOptional(dir + "/dm/uuid"); err != nil {
		return Device{}, err
	}
	d.Kind = h.deviceKind(dir, d)
	return d, nil
}

// deviceGone says whether err means that a device is not there (any more): its file is not there, or was opened
// before and reads as no such device (kernfs_seq_start, dev_attr_show).
func deviceGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO)
}

// slaves gives the numbers of the devices that a device lies on, and the names of those that are not there (any more).
func (h FS) slaves(dir string, byName map[string]string) (numbers, lost []string, err error) {
	names, err := h.root.ReadDir(dir + "/slaves")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // a partition has none
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		if number, found := byName[name]; found {
			numbers = append(numbers, number)
		} else {
			lost = append(lost, strings.ReplaceAll(name, "!", "/"))
		}
	}
	slices.SortFunc(numbers, compareNumbers)
	slices.Sort(lost)
	return numbers, lost, nil
}

// Names of disks that have no device link, because they hang on no bus; they are disks all the same.
var virtualDisks = []string{"nbd", "nullb", "rbd", "xvd", "drbd", "pmem", "ublkb", "zd"}

func (h FS) deviceKind(dir string, d Device) DeviceKind {
	major, _, _ := strings.Cut(d.Number, ":")
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(d.Name, prefix) }
	switch {
	case d.Disk != d.Number:
		return Partition
	case major == "7":
		return Loop
	case d.Mapper != "", h.root.Exists(dir + "/dm"):
		return mapperKind(d.UUID)
	case h.root.Exists(dir + "/md"):
		return RAID
	// A device that backs bcache or is its cache has such a directory too.
	case hasPrefix("bcache") && h.root.Exists(dir+"/bcache"):
		return Bcache
	case len(d.Slaves) > 0:
		return Stacked
	case d.Size == 0, major == "1", major == "2", major == "11": // no medium; ram, floppy, optical (devices.txt)
		return Other
	case h.root.Exists(dir + "/device"), slices.ContainsFunc(virtualDisks, hasPrefix):
		return Disk
	}
	return Other
}

// mapperKind tells by whom a device of the device mapper was made: its UUID begins with that (libdevmapper.h, "UUID
// prefix"). "part1-mpath-…" is kpartx's partition of one. A device made by hand has no UUID.
func mapperKind(uuid string) DeviceKind {
	switch prefix, _, _ := strings.Cut(uuid, "-"); prefix {
	case "LVM":
		return Volume
	case "CRYPT":
		return Crypt
	case "mpath":
		return Multipath
	}
	return Mapper
}

// activeScheduler takes "mq-deadline" from "none [mq-deadline] kyber"; a lone word is the only choice.
func activeScheduler(text string) string {
	if _, rest, found := strings.Cut(text, "["); found {
		active, _, _ := strings.Cut(rest, "]")
		return active
	}
	if strings.ContainsAny(text, " \t") {
		return ""
	}
	return text
}

// compareNumbers orders "8:2" before "8:16".
func compareNumbers(a, b string) int {
	aMajor, aMinor := splitNumber(a)
	bMajor, bMinor := splitNumber(b)
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor), strings.Compare(a, b))
}

func splitNumber(number string) (major, minor int) {
	left, right, _ := strings.Cut(number, ":")
	major, _ = strconv.Atoi(left)
	minor, _ = strconv.Atoi(right)
	return major, minor
}
