package sampling

import (
	"testing"

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
