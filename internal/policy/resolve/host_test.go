package resolve

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/policy"
)

// testHost is a made-up machine with one of everything that Resolve tells apart.
func testHost() *host.Facts {
	return &host.Facts{
		Kernel: host.Version{Major: 6, Minor: 1}, MemTotal: 16 << 30, SwapTotal: 2 << 30, PageSize: 4096,
		CPUs: idset.New(0, 1, 2, 3),
		Nodes: []host.Node{
			{ID: 0, CPUs: idset.New(0, 2), MemTotal: 8 << 30},
			{ID: 1, CPUs: idset.New(1, 3), MemTotal: 8 << 30},
		},
		HugePageSizes: []int64{2 << 20},
		PIDMax:        32768, ThreadsMax: 60000,
		Devices: []blockdev.Device{
			{Number: "7:0", Name: "loop0", Kind: blockdev.Loop, Disk: "7:0", Backing: "/img", Size: 1 << 30},
			{Number: "7:1", Name: "loop1", Kind: blockdev.Loop, Disk: "7:1"},
			{Number: "8:0", Name: "sda", Kind: blockdev.Disk, Disk: "8:0", Size: 1 << 40},
			{Number: "8:1", Name: "sda1", Kind: blockdev.Partition, Disk: "8:0", Size: 1 << 39},
			{Number: "8:2", Name: "sda2", Kind: blockdev.Partition, Disk: "8:0", Size: 1 << 39},
			{Number: "8:16", Name: "sdb", Kind: blockdev.Disk, Disk: "8:16", Size: 1 << 40},
			{Number: "9:0", Name: "md0", Kind: blockdev.RAID, Disk: "9:0", Slaves: []string{"8:2", "8:16"}},
			{Number: "11:0", Name: "sr0", Kind: blockdev.Other, Disk: "11:0"},
			{Number: "104:0", Name: "cciss!c0d0", Kind: blockdev.Disk, Disk: "104:0", Size: 1 << 30},
			{Number: "253:0", Name: "dm-0", Kind: blockdev.Volume, Disk: "253:0", Slaves: []string{"9:0"}},
		},
		Mounts: []mountinfo.Mount{
			{Dev: "0:1", Point: "/", Type: "rootfs", Source: "rootfs"},
			{Dev: "8:1", Point: "/", Type: "ext4", Source: "/dev/sda1"}, // over the one before
			{Dev: "0:5", Point: "/dev", Type: "devtmpfs", Source: "udev"},
			{Dev: "0:20", Point: "/proc", Type: "proc", Source: "proc"},
			{Dev: "0:21", Point: "/run", Type: "tmpfs", Source: "tmpfs"},
			{Dev: "8:16", Point: "/data", Type: "xfs", Source: "/dev/sdb"},
			{Dev: "253:0", Point: "/var/lib/mysql", Type: "xfs", Source: "/dev/mapper/vg-mysql"},
			{Dev: "0:40", Point: "/tank", Type: "zfs", Source: "tank"},
			{Dev: "0:41", Point: "/mnt/nfs", Type: "nfs4", Source: "nas:/x"},
			{Dev: "0:42", Point: "/merged", Type: "overlay", Source: "overlay"},
			{Dev: "0:43", Point: "/fuse", Type: "fuse.sshfs", Source: "x:"},
			{Dev: "0:44", Point: "/btrfs", Type: "btrfs", Source: "/dev/sdb"},
		},
	}
}

// testResolver knows the links and the paths of testHost.
func testResolver() Resolver {
	links := map[string]string{"/dev/disk/by-id/wwn-2": "/dev/sdb", "/link": "/data/elsewhere",
		"/dev/mapper/vg-mysql": "/dev/dm-0"}
	return Resolver{EvalSymlinks: func(p string) (string, error) {
		if to, ok := links[p]; ok {
			return to, nil
		}
		if strings.HasPrefix(p, "/nowhere") {
			return "", &fs.PathError{Op: "lstat", Path: "/nowhere", Err: fs.ErrNotExist}
		}
		return path.Clean(p), nil
	}, Interface: testInterface, Names: func(dir string) ([]string, error) {
		if dir != "/" {
			return nil, fs.ErrNotExist
		}
		return []string{"data", "proc", "run", "tank"}, nil
	}}
}

// testInterface finds the interfaces of testHost.
func testInterface(on string) (policy.Interface, error) {
	all := map[string]policy.Interface{
		"eth0":  {Name: "eth0", Rate: 10_000_000_000, Up: true},
		"eth1":  {Name: "eth1", Rate: 25_000_000_000, Up: true},
		"veth0": {Name: "veth0", Up: true},
		"down0": {Name: "down0"},
		"mgmt0": {Name: "mgmt0", Rate: 1_000_000_000, Up: true, Control: "sshd's connection from 192.0.2.7"},
	}
	name := on
	switch on {
	case "default":
		name = "eth0"
	case "10.1.0.0/16":
		name = "eth1"
	}
	if i, ok := all[name]; ok {
		return i, nil
	}
	return policy.Interface{}, &policy.ErrNoInterface{Err: errors.New("no such interface"),
		Others: slices.Sorted(maps.Keys(all))}
}
