//go:build root

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
)

// stack is a filesystem on some layers, with what the plan is to say of the layer that is limited.
type stack struct {
	name, dir, says string
}

// labStacks are those that a machine of the lab with systemd has (test/lab/guest), and one that is built here.
func labStacks(t *testing.T) []stack {
	t.Helper()
	return []stack{
		{"partition, ext4", "/mnt/vdc1", "the limit is on the whole disk vdc, not on partition vdc1 alone"},
		{"LVM linear, ext4", "/mnt/data", "labvg/data (dm-"},
		{"md RAID 1, ext4", "/mnt/md0", "the top device, which /mnt/md0 has to itself"},
		{"LVM striped, XFS", stripedXFS(t), "the top device"},
	}
}

// do runs a command of the machine's.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// stripedXFS makes an XFS on a volume in stripes over two loop devices in memory.
func stripedXFS(t *testing.T) string {
	t.Helper()
	const size, group = 320 << 20, "bulkheadtest"
	var devices []string
	for range 2 {
		file, err := os.CreateTemp("/dev/shm", "bulkhead-test-stripe-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(file.Name()) })
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
		dev := do(t, "losetup", "--find", "--show", file.Name())
		t.Cleanup(func() { do(t, "losetup", "--detach", dev) })
		do(t, "pvcreate", "-q", dev)
		devices = append(devices, dev)
	}
	do(t, "vgcreate", append([]string{"-q", group}, devices...)...)
	t.Cleanup(func() { do(t, "vgremove", "-q", "-f", group) })
	do(t, "lvcreate", "-q", "-y", "-i", "2", "-l", "100%FREE", "-n", "striped", group)
	do(t, "mkfs.xfs", "-q", "/dev/"+group+"/striped")
	dir := t.TempDir()
	if err := unix.Mount("/dev/"+group+"/striped", dir, "xfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

var ddTook = regexp.MustCompile(`copied, ([0-9.]+) s`)

// dd runs dd, inside a group when it is named, and gives the seconds it took.
func (s *site) dd(group string, args ...string) float64 {
	s.t.Helper()
	cmd := exec.Command("dd", args...)
	if group != "" {
		cmd = s.command(append([]string{"run", group, "--", "dd"}, args...)...)
	}
	out, err := cmd.CombinedOutput()
	took := ddTook.FindStringSubmatch(string(out))
	if err != nil || took == nil {
		s.t.Fatalf("dd %q: %v\n%s", args, err, out)
	}
	seconds, err := strconv.ParseFloat(took[1], 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return seconds
}

// near says whether something measured is within some per cent of what was asked.
func near(t *testing.T, what string, got, want, percent float64) {
	t.Helper()
	t.Logf("%s: %.0f of %.0f", what, got, want)
	if got > want*(1+percent/100) || got < want*(1-percent/100) {
		t.Errorf("%s: %.0f, want %.0f within %.0f %%", what, got, want, percent)
	}
}

// A limit of 10 MiB/s and one of 500 operations a second on a path hold what is read and written there, whatever lies below the filesystem:
// direct within 5 %, and on cgroup v2 through the page cache within 10 % in steady state.
func TestLimitsOnRealStacks(t *testing.T) {
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("it writes to disks and volumes of the lab's machines: make lab MODE=systemd-unified PKG=./test/e2e RUN=TestLimitsOnRealStacks")
	}
	const mib, rate, ops = 1 << 20, 10 << 20, 500
	for _, st := range labStacks(t) {
		t.Run(st.name, func(t *testing.T) {
			s := newSite(t)
			file := filepath.Join(st.dir, "bulkhead-test-file")
			t.Cleanup(func() { _ = os.Remove(file) })
			t.Cleanup(func() { s.run("release", "--all") })
			s.dd("", "if=/dev/zero", "of="+file, "bs=1M", "count=100", "conv=fsync")
			if free := 50 * mib / s.dd("", "if="+file, "of=/dev/null", "bs=1M", "count=50", "iflag=direct"); free < 2*rate {
				t.Fatalf("without a limit %.1f MiB/s are read: too slow a disk, or too busy a host, to tell a limit from", free/mib)
			}
			write := func(limits string) {
				s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    io: [{on: %s, read: {%s}, write: {%[2]s}}]\n", st.dir, limits))
			}
			write("bandwidth: 10MiB/s")
			if said := strings.Join(strings.Fields(s.must("plan")), " "); !strings.Contains(said, st.says) {
				t.Errorf("the plan does not say %q:\n%s", st.says, said)
			}
			s.must("apply")
			near(t, "read, bytes a second", 60*mib/s.dd("load", "if="+file, "of=/dev/null", "bs=1M", "count=60", "iflag=direct"), rate, 5)
			near(t, "written, bytes a second", 60*mib/s.dd("load", "if=/dev/zero", "of="+file, "bs=1M", "count=60", "oflag=direct", "conv=notrunc"), rate, 5)
			if f, err := host.New("/").Facts(); err != nil {
				t.Fatal(err)
			} else if h, ok := f.HierarchyOf("blkio"); ok && h.Version == 2 {
				near(t, "written through the page cache, bytes a second", s.buffered(st.dir, file), rate, 10)
			}
			write("iops: 500")
			s.must("apply")
			near(t, "reads a second", 3000/s.dd("load", "if="+file, "of=/dev/null", "bs=4k", "count=3000", "iflag=direct"), ops, 5)
			near(t, "writes a second", 3000/s.dd("load", "if=/dev/zero", "of="+file, "bs=4k", "count=3000", "oflag=direct", "conv=notrunc"), ops, 5)
			s.must("verify", "load")
		})
	}
}

// buffered writes a file anew through the page cache, again and again, and gives the bytes a second that reach the device of the
// filesystem in 25 seconds, after 5 that are left out.
func (s *site) buffered(dir, file string) float64 {
	s.t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		s.t.Fatal(err)
	}
	name := fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	written := func() float64 {
		text, err := os.ReadFile(name)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 7 {
			s.t.Fatalf("%s: %q, %v", name, text, err)
		}
		sectors, err := strconv.ParseFloat(fields[6], 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return sectors * 512
	}
	load := s.start("run", "load", "--", "sh", "-c", "while :; do dd if=/dev/zero of="+file+" bs=64k count=640 conv=notrunc,fsync 2>/dev/null; done")
	time.Sleep(5 * time.Second)
	before, begun := written(), time.Now()
	time.Sleep(25 * time.Second)
	rate := (written() - before) / time.Since(begun).Seconds()
	_ = load.Process.Kill()
	<-load.done
	return rate
}
