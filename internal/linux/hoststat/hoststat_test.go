package hoststat

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"bulkhead/internal/linux/sysroot"
)

// captured writes the files of an archive below a directory.
func captured(t *testing.T, archive string) FS {
	t.Helper()
	a, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range a.Files {
		name := filepath.Join(root, f.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, f.Data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("4711", filepath.Join(root, "proc/self")); err != nil {
		t.Fatal(err)
	}
	return New(sysroot.New(root))
}

// told are the figures that a function tells, one a line.
func told(t *testing.T, read func(Tell) error) (all []string) {
	t.Helper()
	if err := read(func(name string, value float64, labels ...string) {
		all = append(all, fmt.Sprint(name, labels, " ", int64(value*1000)))
	}); err != nil {
		t.Error(err)
	}
	slices.Sort(all)
	return all
}

// The files have the formats of kernel 6.18 (proc(5)); the figures are worked out by hand.
func TestCaptured(t *testing.T) {
	f := captured(t, "testdata/host.txtar")
	for _, c := range []struct {
		name string
		read func(Tell) error
		want string // values times 1000
	}{
		{"disks", f.Disks, `disk_busy_seconds[vda] 1072268
			disk_bytes[vda read] 5120000
			disk_bytes[vda write] 1024000
			disk_operation_seconds[vda read] 31500
			disk_operation_seconds[vda write] 9000250
			disk_operations[vda read] 300000
			disk_operations[vda write] 40000
			disk_requests[vda] 3000`},
		{"interfaces", f.Interfaces, `network_bytes[eth0 egress] 900000
			network_bytes[eth0 ingress] 500000
			network_dropped[eth0 egress] 12000
			network_dropped[eth0 ingress] 4000
			network_errors[eth0 egress] 11000
			network_errors[eth0 ingress] 3000
			network_packets[eth0 egress] 10000
			network_packets[eth0 ingress] 2000`},
		{"tcp", f.TCP, `tcp_connections[] 9000
			tcp_events[accepted] 6000
			tcp_events[connected] 5000
			tcp_events[failed] 7000
			tcp_events[listen_drops] 3000
			tcp_events[listen_overflows] 2000
			tcp_events[resets_sent] 14000
			tcp_events[retransmitted] 12000
			tcp_events[timeouts] 4000`},
		{"vm", f.VirtualMemory, `vm_events[allocstall] 7000
			vm_events[oom_kill] 2000
			vm_events[pgmajfault] 5000`},
		{"files", f.Files, `files[] 1000000
			files_limit[] 9000000`},
		{"nodes", f.Nodes, `numa_memory_bytes[0 file] 2048000
			numa_memory_bytes[0 total] 1024000
			numa_memory_bytes[1 total] 4096000`},
	} {
		got := strings.Join(told(t, c.read), "\n\t\t\t")
		if got != c.want {
			t.Errorf("%s tell\n\t\t\t%s\nwant\n\t\t\t%s", c.name, got, c.want)
		}
	}
}

// On this machine each tells something, and the root file system is not larger than itself.
func TestThisMachine(t *testing.T) {
	f := New(sysroot.New("/"))
	for name, read := range map[string]func(Tell) error{"disks": f.Disks, "interfaces": f.Interfaces, "tcp": f.TCP,
		"vm": f.VirtualMemory, "files": f.Files, "clock": f.Clock, "kernel": f.Kernel} {
		if len(told(t, read)) == 0 {
			t.Errorf("%s tell nothing", name)
		}
	}
	told(t, f.Nodes)
	size := map[string]float64{}
	if err := f.FileSystems(func(name string, value float64, labels ...string) {
		if name == "filesystem_bytes" {
			if size[labels[0]] = max(size[labels[0]], value); labels[1] != "size" && value > size[labels[0]] {
				t.Errorf("of %s more is %s than there is", labels[0], labels[1])
			}
		}
	}); err != nil {
		t.Error(err)
	}
}

func TestNotDisks(t *testing.T) {
	for name, want := range map[string]bool{"sda": false, "sda1": true, "sdaa": false, "vdb12": true, "nvme0n1": false,
		"nvme0n1p3": true, "dm-3": false, "md127": false, "loop7": true, "mmcblk0p1": true} {
		if notDisks.MatchString(name) != want {
			t.Errorf("%s is left out: %v", name, !want)
		}
	}
}
