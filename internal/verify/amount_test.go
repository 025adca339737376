package verify

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

// Limits are numbers in base units, as asked and as the kernel holds them.
func TestAmounts(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		m := newMachine(t, hierarchies, limits)
		want := map[policy.Key]float64{
			policy.KeyCPULimit: 0.5, policy.KeyCPUWeight: 500, policy.KeyMemoryMax: 64 << 20, policy.KeyTasks: 60,
			policy.KeyIOReadBandwidth: 20 << 20, policy.KeyIOReadIOPS: 600,
		}
		for _, a := range m.Amounts("g") {
			n, number := want[a.Key]
			if (a.Asked != nil) != number || number && (*a.Asked != n || a.Held == nil || *a.Held != n) || !a.OK {
				t.Errorf("%s: asked %v, held %v, %v", a.Key, a.Asked, a.Held, a.OK)
			}
			if strings.HasPrefix(string(a.Key), "io.") != (a.Device == "sdb") {
				t.Errorf("%s is on %q", a.Key, a.Device)
			}
			delete(want, a.Key)
		}
		if len(want) > 0 {
			t.Errorf("missing: %v", want)
		}
		m.write(map[string]string{"cpu.cfs_quota_us": "150000", "cpu.max": "150000 100000", "pids.max": "max",
			"memory.limit_in_bytes": "-1", "memory.max": "max"}, "")
		m.write(map[string]string{"blkio.throttle.read_bps_device": "1048576", "io.max": "rbps=1048576"}, "8:16")
		for _, a := range m.Amounts("g") {
			switch a.Key {
			case policy.KeyCPULimit:
				if a.OK || a.Held == nil || *a.Held != 1.5 || *a.Asked != 0.5 {
					t.Errorf("a changed CPU limit: %v, held %v", a.OK, a.Held)
				}
			case policy.KeyTasks, policy.KeyMemoryMax:
				if a.OK || a.Held != nil {
					t.Errorf("%s that was lifted: %v, held %v", a.Key, a.OK, a.Held)
				}
			case policy.KeyIOReadBandwidth:
				if a.OK || a.Held == nil || *a.Held != 1<<20 {
					t.Errorf("a changed limit of a disk: %v, held %v", a.OK, a.Held)
				}
			}
		}
	})
}

// Of huge pages of two sizes each has its own limit, in its own files.
func TestAmountsOfHugePages(t *testing.T) {
	both(t, func(t *testing.T, hierarchies []host.Hierarchy) {
		if hierarchies = slices.Clone(hierarchies); hierarchies[0].Version == 1 {
			hierarchies = append(hierarchies, v1("hugetlb"))
		} else {
			hierarchies[0].Controllers = append(slices.Clone(hierarchies[0].Controllers), "hugetlb")
		}
		m := newMachine(t, hierarchies,
			"  g: {match: [{exe: /usr/sbin/db}], memory: {huge: {2MiB: 64MiB, 1GiB: 2GiB}}}\n")
		held := func(small, large float64) {
			t.Helper()
			want := map[string]float64{"2MB": small, "1GB": large}
			for _, a := range m.Amounts("g") {
				if a.Held == nil || *a.Held != want[a.Device] || a.OK != (*a.Held == *a.Asked) {
					t.Errorf("%s on %s: asked %v, held %v, %v: %s", a.Key, a.Device, a.Asked, a.Held, a.OK, a.File)
				}
			}
		}
		held(64<<20, 2<<30)
		m.write(map[string]string{"hugetlb.1GB.limit_in_bytes": "1073741824", "hugetlb.1GB.max": "1073741824",
			"hugetlb.1GB.rsvd.limit_in_bytes": "1073741824", "hugetlb.1GB.rsvd.max": "1073741824"}, "")
		held(64<<20, 1<<30)
	})
}
