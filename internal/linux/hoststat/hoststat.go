// Package hoststat reads what the host as a whole does, beside CPU time and memory: block devices, interfaces, TCP,
// virtual memory, open files, file systems, nodes. Most of it is parsed by github.com/prometheus/procfs.
//
// Each function reads once and tells figures by name, with the values of their labels: counters since boot, in seconds
// and bytes. An FS is safe for concurrent use. Statfs waits for as long as a dead disk lets it.
package hoststat

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// FS reads below a root directory.
type FS struct{ root *sysroot.FS }

// New reads below root.
func New(root *sysroot.FS) FS { return FS{root} }

// Tell takes one figure.
type Tell func(name string, value float64, labels ...string)

// notDisks are devices whose figures say nothing that those of others do not: partitions, and empty slots. They are
// those that node_exporter leaves out.
var notDisks = regexp.MustCompile(`^(z?ram|loop|fd|sr|(h|s|v|xv)d[a-z]+|nvme\d+n\d+p|mmcblk\d+p)\d+$`)

// sector is what /proc/diskstats counts in (Documentation/admin-guide/iostats.rst).
const sector = 512

// Disks tells what block devices did.
func (f FS) Disks(tell Tell) error {
	stats, err := blockdevice.NewFS(f.root.Path("/proc"), f.root.Path("/sys"))
	if err != nil {
		return fmt.Errorf("read block devices: %w", err)
	}
	all, err := stats.ProcDiskstats()
	if err != nil {
		return fmt.Errorf("read block devices: %w", err)
	}
	for _, d := range all {
		name := d.DeviceName
		if notDisks.MatchString(name) {
			continue
		}
		both := func(figure string, read, write float64) {
			tell(figure, read, name, "read")
			tell(figure, write, name, "write")
		}
		both("disk_bytes", float64(d.ReadSectors*sector), float64(d.WriteSectors*sector))
		both("disk_operations", float64(d.ReadIOs), float64(d.WriteIOs))
		both("disk_operation_seconds", float64(d.ReadTicks)/1000, float64(d.WriteTicks)/1000)
		tell("disk_busy_seconds", float64(d.IOsTotalTicks)/1000, name)
		tell("disk_requests", float64(d.IOsInProgress), name)
	}
	return nil
}

// Interfaces tells what network interfaces did, the ends of containers aside.
func (f FS) Interfaces(tell Tell) error {
	proc, err := procfs.NewFS(f.root.Path("/proc"))
	if err != nil {
		return fmt.Errorf("read interfaces: %w", err)
	}
	all, err := proc.NetDev()
	if err != nil {
		return fmt.Errorf("read interfaces: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := all[name]
		if strings.HasPrefix(name, "veth") {
			continue
		}
		both := func(figure string, in, out uint64) {
			tell(figure, float64(in), name, "ingress")
			tell(figure, float64(out), name, "egress")
		}
		both("network_bytes", i.RxBytes, i.TxBytes)
		both("network_packets", i.RxPackets, i.TxPackets)
		both("network_errors", i.RxErrors, i.TxErrors)
		both("network_dropped", i.RxDropped, i.TxDropped)
	}
	return nil
}

// TCP tells of connections.
func (f FS) TCP(tell Tell) error {
	proc, err := procfs.NewFS(f.root.Path("/proc"))
	if err != nil {
		return fmt.Errorf("read TCP: %w", err)
	}
	self, err := proc.Self()
	if err != nil {
		return fmt.Errorf("read TCP: %w", err)
	}
	snmp, err := self.Snmp()
	if err != nil {
		return fmt.Errorf("read TCP: %w", err)
	}
	more, err := self.Netstat()
	if err != nil {
		return fmt.Errorf("read TCP: %w", err)
	}
	for _, e := range []struct {
		name  string
		value *float64
	}{
		{"retransmitted", snmp.RetransSegs}, {"resets_sent", snmp.OutRsts}, {"accepted", snmp.PassiveOpens},
		{"connected", snmp.ActiveOpens}, {"failed", snmp.AttemptFails}, {"listen_overflows", more.ListenOverflows},
		{"listen_drops", more.ListenDrops}, {"timeouts", more.TCPTimeouts},
	} {
		if e.value != nil {
			tell("tcp_events", *e.value, e.name)
		}
	}
	if snmp.CurrEstab != nil {
		tell("tcp_connections", *snmp.CurrEstab)
	}
	return nil
}

// vmEvents are the lines of /proc/vmstat that are told. A kernel that has counters by zone (allocstall_normal, …) has
// them added up.
var vmEvents = []string{"pgfault", "pgmajfault", "pgpgin", "pgpgout", "pswpin", "pswpout", "oom_kill", "allocstall",
	"pgscan_kswapd", "pgscan_direct", "pgsteal_kswapd", "pgsteal_direct", "workingset_refault_anon",
	"workingset_refault_file", "compact_stall", "thp_fault_alloc", "thp_split_page", "numa_pages_migrated"}

// VirtualMemory tells what memory management did.
func (f FS) VirtualMemory(tell Tell) error {
	const file = "/proc/vmstat"
	text, err := f.root.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read what memory management did: %w", err)
	}
	sums := map[string]float64{}
	err = sysroot.Lines(file, text, func(line string) error {
		name, value, _ := strings.Cut(line, " ")
		if strings.HasPrefix(name, "allocstall_") {
			name = "allocstall"
		}
		if !slices.Contains(vmEvents, name) {
			return nil
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a count", value)
		}
		sums[name] += float64(n)
		return nil
	})
	for _, name := range vmEvents {
		if n, there := sums[name]; there {
			tell("vm_events", n, name)
		}
	}
	return err
}

// Files tells how many files are open.
func (f FS) Files(tell Tell) error {
	text, err := f.root.ReadText("/proc/sys/fs/file-nr")
	if err != nil {
		return fmt.Errorf("read how many files are open: %w", err)
	}
	var open, unused, limit float64
	if _, err := fmt.Sscan(text, &open, &unused, &limit); err != nil {
		return fmt.Errorf("read how many files are open: %q: %w", text, err)
	}
	tell("files", open-unused)
	tell("files_limit", limit)
	return nil
}

// nodeMemory are the lines of a node's meminfo that are told.
var nodeMemory = map[string]string{"MemTotal": "total", "MemFree": "free", "FilePages": "file",
	"AnonPages": "anonymous", "Shmem": "shared", "Dirty": "dirty"}

// Nodes tells what memory each NUMA node has.
func (f FS) Nodes(tell Tell) error {
	const dir = "/sys/devices/system/node"
	names, err := f.root.ReadDir(dir)
	if sysroot.IsGone(err) {
		return nil // a kernel without NUMA
	}
	if err != nil {
		return fmt.Errorf("read NUMA nodes: %w", err)
	}
	for _, name := range names {
		node, is := strings.CutPrefix(name, "node")
		if _, err := strconv.Atoi(node); !is || err != nil {
			continue
		}
		file := path.Join(dir, name, "meminfo")
		text, err := f.root.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the memory of a NUMA node: %w", err)
		}
		err = sysroot.Lines(file, text, func(line string) error {
			words := strings.Fields(line) // Node 0 MemTotal: 16303428 kB
			if len(words) != 5 {
				return nil
			}
			if kind := nodeMemory[strings.TrimSuffix(words[2], ":")]; kind != "" {
				n, err := strconv.ParseUint(words[3], 10, 64)
				if err != nil {
					return err
				}
				tell("numa_memory_bytes", float64(n<<10), node, kind)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// FileSystems tells what is free on those that lie on a block device. One that is mounted several times is told once.
func (f FS) FileSystems(tell Tell) error {
	mounts, err := mountinfo.Read(f.root)
	if err != nil {
		return fmt.Errorf("read file systems: %w", err)
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		pool := m.Type == "zfs" || m.Type == "btrfs" // whose parts are mounted
		device := strings.HasPrefix(m.Source, "/dev/") && m.Root == "/" || pool
		if !device || seen[m.Source] || m.Type == "squashfs" || m.Type == "iso9660" || !mounts.Visible(m) {
			continue
		}
		seen[m.Source] = true
		var s unix.Statfs_t
		if err := unix.Statfs(f.root.Path(m.Point), &s); err != nil {
			continue // unmounted meanwhile, or not for us
		}
		size := uint64(s.Bsize)
		tell("filesystem_bytes", float64(s.Blocks*size), m.Point, "size")
		tell("filesystem_bytes", float64(s.Bfree*size), m.Point, "free")
		tell("filesystem_bytes", float64(s.Bavail*size), m.Point, "available")
		tell("filesystem_files", float64(s.Files), m.Point, "size")
		tell("filesystem_files", float64(s.Ffree), m.Point, "free")
	}
	return nil
}

// Clock tells the time.
func (f FS) Clock(tell Tell) error {
	tell("time_seconds", float64(time.Now().UnixMilli())/1000)
	return nil
}

// Kernel tells which one runs.
func (f FS) Kernel(tell Tell) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	tell("info", 1, unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
	return nil
}

// Space is how many bytes the file system of a file has, and how many of them its owner can still use.
func Space(file string) (size, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(file, &s); err != nil {
		return 0, 0, fmt.Errorf("read the space below %q: %w", file, err)
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil
}
