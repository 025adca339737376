package blockdev_test

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/terminal"
)

var update = flag.Bool("update", false, "write the golden files anew")

// stacks are the fixtures of testdata/storage, each with its expected tree beside it.
func stacks(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/storage/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	var names []string
	for _, f := range files {
		names = append(names, "storage/"+strings.TrimSuffix(filepath.Base(f), ".txtar"))
	}
	return names
}

func storage(t testing.TB, name string) *blockdev.Storage {
	t.Helper()
	s, err := hosttest.Load(t, name).Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// drawn is every mount with files on it, and every device on which nothing lies, down to the disks.
func drawn(s *blockdev.Storage) string {
	var b strings.Builder
	used := map[*blockdev.Layer]bool{}
	for _, m := range s.Mounts() {
		if m.Type == "devtmpfs" || blockdev.KindOfFilesystem(m.Type) == blockdev.OfKernel {
			continue
		}
		fmt.Fprintf(&b, "%q", m.Point)
		draw(&b, s.On(m), "", "", used)
	}
	for _, l := range s.Unused() {
		b.WriteString("unused")
		draw(&b, l, "", "", used)
	}
	return b.String()
}

func draw(b *strings.Builder, l *blockdev.Layer, indent, role string, seen map[*blockdev.Layer]bool) {
	words := []string{string(l.Kind)}
	if l.Device != nil {
		d := l.Device
		words = append(words, d.Number, fmt.Sprintf("%dM", d.Size>>20), fmt.Sprintf("rotates=%t", d.Rotational),
			d.Scheduler)
	}
	for _, w := range []string{l.Type, l.Source, l.Detail, l.Model, l.Serial, l.WWID} {
		if w != "" {
			words = append(words, w)
		}
	}
	if l.Kind == blockdev.Filesystem {
		words = append(words, string(l.Filesystem))
	}
	if role != "" {
		role = " [" + role + "]"
	}
	fmt.Fprintf(b, "%s%s %s: %s", indent, role, terminal.Printable(l.Name), strings.Join(words, ", "))
	if l.Trouble != "" {
		fmt.Fprintf(b, " !! %s", terminal.Printable(l.Trouble))
	}
	if seen[l] && len(l.Below) > 0 {
		b.WriteString(" (as above)\n")
		return
	}
	seen[l] = true
	if drives := l.Drives(blockdev.RolePath); l.Kind == blockdev.Filesystem && len(drives) > 0 {
		b.WriteString(" on")
		for _, d := range drives {
			b.WriteString(" " + d.Name)
		}
	}
	b.WriteString("\n")
	for _, below := range l.Below {
		draw(b, below.Layer, indent+"  ", below.Role, seen)
	}
}

func TestStorageOfFixtures(t *testing.T) {
	for _, name := range stacks(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			got := drawn(storage(t, name))
			file := "testdata/" + name + ".tree"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("differs from %s (go test -update writes it anew):\n%s", file,
					linuxtest.FirstDifference(got, string(want)))
			}
		})
	}
}

// The trees hold everything; what the fixtures are there for is asserted here by hand.
func TestDrives(t *testing.T) {
	tests := []struct {
		fixture, mount string
		want           []string
	}{
		{"partitions", "/var/lib/mysql", []string{"sdb"}},
		{"virtio", "/data", []string{"vdb"}},
		{"lvm-linear", "/var/lib/mysql", []string{"sdb", "sdc"}},
		{"lvm-linear", "/var/lib/mysql/binlog", []string{"sdc"}},
		{"lvm-striped", "/pgdata", []string{"sdb", "sdc", "sdd", "sde"}},
		{"lvm-thin", "/db/2", []string{"sdb", "sdc"}}, // not sda, which holds metadata
		{"lvm-cache", "/data", []string{"sda"}},
		{"lvm-raid", "/db", []string{"sda", "sdb"}},
		{"lvm-snapshot", "/db", []string{"sdb"}},
		{"crypt-on-lvm", "/var/lib/mysql", []string{"sda", "sdb"}},
		{"lvm-on-crypt", "/srv/db", []string{"nvme0n1"}},
		{"raid-partitioned", "/", []string{"sda", "sdb", "sdc"}},
		{"raid0", "/data", []string{"nvme0n1", "nvme1n1"}},
		{"multipath", "/u01", []string{"mpatha"}}, // one disk, however many paths lead to it
		{"multipath", "/u02", []string{"mpathb"}},
		{"nvme-multipath", "/data", []string{"nvme1n1"}},
		{"bcache", "/data", []string{"sdb"}},
		{"bcache", "/archive", []string{"sdc"}},
		{"loop-on-lvm", "/srv/db", []string{"sdb"}},
		{"loop-on-lvm", "/srv/two\nlines", []string{"sdb"}},
		{"btrfs", "/home", []string{"sda"}},
		{"btrfs", "/db", []string{"sdb", "sdc"}},
		{"btrfs-degraded", "/lost", nil},
		{"bcachefs", "/mnt/test", []string{"sdc"}},
		{"zfs", "/tank/mysql", []string{"sdb", "sdc"}},
		{"zfs", "/vol1", []string{"sdb", "sdc"}},
		{"zfs-unknown", "/tank", nil},
		{"zfs-unknown", "/vol", []string{"zd16"}}, // the way to its disks ends there
		{"network", "/nfs", nil},
		{"network", "/dev/shm", nil},
		{"overlay", "/var/lib/docker/overlay2/aa/merged", []string{"sdb"}},
		{"external-log", "/db", []string{"sdb", "sdc"}},
		{"nested", "/srv/db", []string{"sda", "sdb"}},
		{"vanished", "/db", []string{"sdc", "/dev/sdb"}},
		{"old-names", "/two", []string{"dasda", "cciss/c0d0"}},
	}
	without := []string{blockdev.RoleMetadata, blockdev.RoleCache, blockdev.RoleLog, blockdev.RoleLower,
		blockdev.RoleSnapshot, blockdev.RolePath}
	known := map[string]*blockdev.Storage{}
	for _, test := range tests {
		s := known[test.fixture]
		if s == nil {
			s = storage(t, "storage/"+test.fixture)
			known[test.fixture] = s
		}
		var got []string
		found := false
		for _, m := range s.Mounts() {
			if m.Point == test.mount {
				found = true
				for _, d := range s.On(m).Drives(without...) {
					got = append(got, d.Name)
				}
			}
		}
		if !found || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q (found %t) is on %v, want %v", test.fixture, test.mount, found, got, test.want)
		}
	}
}

func TestPlaces(t *testing.T) {
	const more = `
-- srv/big --
symlink: /pgdata/tablespace
-- pgdata/tablespace/16384/x --
x
-- dev/mapper/vgdata-pgdata --
symlink: ../dm-0
-- dev/dm-0 --
x
-- dev/sdc --
x
-- dev/tty --
x
-- proc/77/mountinfo --
40 1 8:1 / / rw,relatime - xfs /dev/sda1 rw
41 40 8:16 / /srv rw,relatime - ext4 /dev/sdb rw
-- proc/77/ns/mnt --
symlink: mnt:[4026532123]
-- proc/77/root --
symlink: /
-- proc/77/stat --
77 (db) S
-- proc/78/mountinfo --
40 1 8:1
-- proc/78/stat --
78 (db) S
`
	h := hosttest.FromArchive(t, linuxtest.Text(t, "storage/lvm-striped")+more)
	s, err := h.Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		pid             int
		name, real, lay string
	}{
		{0, "/srv/big/16384/x", "/pgdata/tablespace/16384/x", "fs 253:0"},
		{0, "/srv", "/srv", "fs 8:1"},
		{0, "/dev/mapper/vgdata-pgdata", "/dev/dm-0", "253:0"},
		{0, "/dev/sdc", "/dev/sdc", "8:32"},
		{0, "/dev/tty", "/dev/tty", "fs 0:6"},
		{77, "/srv", "/srv", "fs 8:16"}, // by the mounts that this process sees
		{77, "/srv/big", "/pgdata/tablespace", "fs 8:1"},
	} {
		p, err := s.Place(test.pid, test.name)
		if err != nil || p.Real != test.real || p.Layer.ID != test.lay || p.Elsewhere != (test.pid == 77) {
			t.Errorf("process %d, %s: %+v, %v, want %s on %s", test.pid, test.name, p, err, test.real, test.lay)
			continue
		}
		if opened, err := s.Open(test.pid, p.Real); err != nil || opened.Layer != p.Layer {
			t.Errorf("process %d, open %s: %+v, %v, want %s", test.pid, p.Real, opened, err, test.lay)
		}
	}
	if _, err := s.Place(0, "/srv/nowhere"); !errors.Is(err, fs.ErrNotExist) ||
		!strings.Contains(err.Error(), `"/srv/nowhere"`) {
		t.Errorf("a path that is not there: %v", err)
	}
	if _, err := s.Place(0, "srv"); err == nil {
		t.Error("a relative path has a place")
	}
	if _, err := s.Place(79, "/srv"); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("a process that is not there: %v", err)
	}
	if _, err := s.Place(78, "/srv"); err == nil || !strings.Contains(err.Error(), "78") {
		t.Errorf("a broken mountinfo: %v", err)
	}
}

// On the machine the tests run on: whatever it is made of, every mount has an answer and the root directory has a
// place.
func TestStorageOfThisMachine(t *testing.T) {
	s, err := host.New("/").Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Mounts() {
		if l := s.On(m); l.Kind != blockdev.Filesystem || l.Type == "" {
			t.Errorf("%s: %+v", m.Point, l)
		}
	}
	p, err := s.Place(0, "/")
	if err != nil || p.Layer == nil || p.Real != "/" || p.Elsewhere {
		t.Errorf("/: %+v, %v", p, err)
	}
	own, err := s.Place(os.Getpid(), "/")
	if err != nil || own.Layer != p.Layer || own.Elsewhere {
		t.Errorf("/ as this process sees it: %+v, %v", own, err)
	}
}
