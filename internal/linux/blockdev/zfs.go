package blockdev

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// zfsPools lists the imported pools: the kernel module shows no more of them than name and state.
func (h FS) zfsPools() ([]string, error) {
	names, err := h.root.ReadDir("/proc/spl/kstat/zfs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pools := slices.DeleteFunc(names, func(name string) bool {
		return !h.root.Exists("/proc/spl/kstat/zfs/" + name +
			"/state")
	})
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
			l.trouble("devices by udev's labels; mirror or raidz, log and cache are shown by zpool status -LP %s alone",
				name)
		}
	})
}

// zvol finds the pool of a ZFS volume by the link that udev made for it: /dev/zvol/POOL/NAME.
func (s deviceFinder) zvol(l *Layer, d *Device) {
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
