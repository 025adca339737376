package sampling

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
)

// A file system is that of the database whose data directory lies on it, and so are those beside it that `zfs plan`
// makes.
func TestGrouped(t *testing.T) {
	mounts := mountinfo.Mounts{{ID: 1, Point: "/", Type: "ext4", Source: "/dev/sda1"},
		{ID: 2, Parent: 1, Point: "/var/lib/mysql", Type: "zfs", Source: "tank/mysql/data"},
		{ID: 3, Parent: 1, Point: "/srv/pg", Type: "zfs", Source: "tank/pg"}}
	dirs := map[string]string{"mysql3306": "/var/lib/mysql", "pg5432": "/srv/pg/15/main", "redis": "/var/lib/redis"}
	want := map[string]string{"tank": "", "tank/mysql": "", "tank/mysql/data": "mysql3306",
		"tank/mysql/log": "mysql3306", "tank/mysql/home": "", "tank/pg": "pg5432", "tank/other/log": ""}
	var sets []zfs.DatasetUse
	for name := range want {
		sets = append(sets, zfs.DatasetUse{Name: name})
	}
	for _, d := range grouped(sets, mounts, dirs) {
		if d.Group != want[d.Name] {
			t.Errorf("%s is that of %q, want %q", d.Name, d.Group, want[d.Name])
		}
	}
	if all := grouped(sets, mounts, dirs); len(all) != len(sets) {
		t.Errorf("%d of %d are told", len(all), len(sets))
	}
}

// What several databases share is of none of them, and so is what is beside it; a database whose directory is not known
// has none, also where the root of the host is ZFS.
func TestSharedFileSystem(t *testing.T) {
	mounts := mountinfo.Mounts{{ID: 1, Point: "/", Type: "zfs", Source: "rpool"},
		{ID: 2, Parent: 1, Point: "/srv", Type: "zfs", Source: "tank/data"}}
	dirs := map[string]string{"a": "/srv/a", "b": "/srv/b", "c": "/srv/c", "d": ""}
	sets := []zfs.DatasetUse{{Name: "rpool"}, {Name: "tank/data"}, {Name: "tank/log"}}
	for _, d := range grouped(sets, mounts, dirs) {
		if d.Group != "" {
			t.Errorf("%s is that of %q", d.Name, d.Group)
		}
	}
}

// Thousands of file systems without a group fill no record, and leave out none of a database.
func TestManyFileSystems(t *testing.T) {
	var sets []zfs.DatasetUse
	for i := range 5000 {
		sets = append(sets, zfs.DatasetUse{Name: fmt.Sprintf("tank/docker/%d", i)})
	}
	sets = append(sets, zfs.DatasetUse{Name: "tank/pg"})
	mounts := mountinfo.Mounts{{ID: 1, Point: "/srv/pg", Type: "zfs", Source: "tank/pg"}}
	all := grouped(sets, mounts, map[string]string{"pg": "/srv/pg/15/main"})
	if n := len(all); n != mostOthers+1 || all[n-1].Group != "pg" || all[0].Name != sets[0].Name {
		t.Errorf("%d are told of, the last %+v", n, all[n-1])
	}
}

// While a program of an earlier reading hangs with its pool no other one is begun, which would hang, too.
func TestHungPool(t *testing.T) {
	root := linuxtest.Files(t, map[string]string{"sys/module/zfs/version": "2.3.2-1\n", "usr/sbin/zfs": "",
		"usr/sbin/zpool": "", "proc/spl/kstat/zfs/arcstats": "13 1 0x01 123 33456\nname type data\nc_max 4 64\n"},
		0o644)
	k := New(host.New(root))
	k.zfsRuns.Add(1)
	if _, err := k.zfs(t.Context(), nil); !errors.Is(err, zfs.ErrTime) {
		t.Errorf("it asks beside a program that hangs: %v", err)
	}
	if n := k.zfsRuns.Load(); n != 1 {
		t.Errorf("%d programs run", n)
	}
}
