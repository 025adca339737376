package gather

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/gather/files"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/fsinfo"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// layoutFacts are those of how a file system was made, and of the device right below it. It gives how many free blocks
// ext4 keeps for itself.
func layoutFacts(h *host.Host, storage *blockdev.Storage, m mountinfo.Mount, v fact.Values) (own uint64) {
	v["mount.root"] = fact.Known(m.Point == "/", "/proc/self/mountinfo")
	v["mount.errors"] = fact.Known("", "no ext4")
	v["mount.stripe"], v["mount.xfs_v4"] = fact.Known(int64(0), "no XFS"), fact.Known(false, "no XFS")
	v["mount.chunk"] = fact.Known(int64(0), "no software RAID lies right below it")
	v["mount.snapshots"] = fact.Known(false, "no volume of LVM lies right below it")
	i := slices.IndexFunc(storage.On(m).Below, func(l blockdev.Link) bool { return l.Device != nil && l.Role == "" })
	var dev *blockdev.Device
	if i >= 0 {
		dev = storage.On(m).Below[i].Device
	}
	switch m.Type {
	case "ext4":
		v["mount.errors"] = fact.Unknown("its device was not found")
		if dev != nil {
			v["mount.errors"] = ext4Errors(h, dev.Name)
			at := path.Join("/sys/fs/ext4", strings.ReplaceAll(dev.Name, "/", "!"))
			n, _ := h.Root.ReadInt(at + "/reserved_clusters")
			own = uint64(max(n, 0)) //nolint:gosec // not below 0
		}
	case "xfs":
		v["mount.stripe"] = fact.Known(int64(0), "/proc/self/mountinfo has no sunit")
		for _, o := range m.Super {
			if n, err := strconv.ParseInt(strings.TrimPrefix(o, "sunit="), 10, 64); err == nil {
				v["mount.stripe"] = fact.Known(n*512, "/proc/self/mountinfo sunit")
			}
		}
		v["mount.xfs_v4"] = oldXFS(h, m.Point)
	}
	if dev == nil {
		return own
	}
	dir := path.Join("/sys/dev/block", dev.Disk)
	if n, err := h.Root.ReadInt(path.Join(dir, "md/chunk_size")); err == nil {
		v["mount.chunk"] = fact.Known(n, path.Join(dir, "md/chunk_size"))
	}
	v["mount.snapshots"] = snapshots(storage, dev)
	return own
}

// ext4Errors is what ext4 does after an error. The options of the mount have it only where it is not the file system's
// own.
func ext4Errors(h *host.Host, device string) fact.Value {
	file := path.Join("/proc/fs/ext4", strings.ReplaceAll(device, "/", "!"), "options")
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err)
	}
	for line := range strings.Lines(text) {
		if word, is := strings.CutPrefix(strings.TrimSpace(line), "errors="); is {
			return fact.Known(word, file)
		}
	}
	return fact.Unknown("%s does not tell it", file)
}

// snapshots says whether a volume of LVM is the origin of snapshots that are not thin: it lies on a device "-real"
// then, and, other than a snapshot, on no device "-cow".
func snapshots(storage *blockdev.Storage, dev *blockdev.Device) fact.Value {
	origin, copies := false, false
	for _, d := range storage.Devices {
		if slices.Contains(dev.Slaves, d.Number) {
			origin = origin || strings.HasSuffix(d.UUID, "-real")
			copies = copies || strings.HasSuffix(d.UUID, "-cow")
		}
	}
	return fact.Known(origin && !copies, "/sys/block/"+dev.Name+"/slaves, dm/uuid")
}

// oldXFS says whether a file system is XFS of version 4.
func oldXFS(h *host.Host, point string) fact.Value {
	return asked(h, "the geometry of "+point, "XFS_IOC_FSGEOMETRY of "+point, func() (bool, error) {
		return fsinfo.XFSVersion4(point)
	})
}

// nocow says whether what is made in a directory of btrfs is written in place.
func nocow(h *host.Host, dir string) fact.Value {
	return asked(h, "the flags of "+dir, "FS_IOC_GETFLAGS of "+dir, func() (bool, error) { return fsinfo.NoCOW(dir) })
}

// asked is what a file system answers within the time for it.
func asked(h *host.Host, what, source string, ask func() (bool, error)) fact.Value {
	if !h.Root.Live() {
		return fact.Unknown("the host is a copy")
	}
	yes, err := sysroot.WithTimeout(h.Root, what, ask)
	if err != nil {
		return files.Because(err)
	}
	return fact.Known(yes, source)
}

// upgraded says whether unattended-upgrades may upgrade the packages of an engine.
func upgraded(h *host.Host, packages []string) fact.Value {
	const dir = "/etc/apt/apt.conf.d"
	names, err := h.Root.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fact.Known(false, dir+" is not there")
	}
	if err != nil {
		return files.Because(err)
	}
	slices.Sort(names)
	on, from, listed := false, dir, false
	for _, n := range names {
		text, err := h.Root.ReadText(path.Join(dir, n))
		if err != nil {
			continue
		}
		inList := false
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "//")
			if key, value, found := strings.Cut(line, " "); found && key == "APT::Periodic::Unattended-Upgrade" {
				on, from = strings.Trim(value, `"; `) != "0", path.Join(dir, n)
			}
			inList = inList && !strings.HasPrefix(line, "}") || strings.Contains(line, "Package-Blacklist")
			listed = listed || inList && slices.ContainsFunc(packages, func(p string) bool {
				return strings.Contains(line, p)
			})
		}
	}
	if on && listed {
		return fact.Known(false, dir+" Package-Blacklist")
	}
	return fact.Known(on, from)
}

// packagesOf are words of the names of an engine's packages.
var packagesOf = map[string][]string{
	"mysql": {"mysql"}, "mariadb": {"mariadb"}, "percona": {"percona"}, "postgresql": {"postgresql"},
	"redis": {"redis"}, "valkey": {"valkey"}, "mongodb": {"mongo"}, "scylladb": {"scylla"}, "cassandra": {"cassandra"},
	"clickhouse": {"clickhouse"}, "etcd": {"etcd"}, "oracle": {"oracle"}, "sqlserver": {"mssql"},
}

// rseqOff says whether a process was started with the tunable of glibc that leaves restartable sequences to it. Nothing
// else of its environment is kept.
func rseqOff(h *host.Host, pid int) fact.Value {
	file := path.Join("/proc", strconv.Itoa(pid), "environ")
	text, err := h.Root.ReadText(file)
	if err != nil {
		return files.Because(err)
	}
	for one := range strings.SplitSeq(text, "\x00") {
		if value, is := strings.CutPrefix(one, "GLIBC_TUNABLES="); is {
			off := slices.Contains(strings.Split(value, ":"), "glibc.pthread.rseq=0")
			return fact.Known(off, file+" GLIBC_TUNABLES")
		}
	}
	return fact.Known(false, file+" has no GLIBC_TUNABLES")
}
