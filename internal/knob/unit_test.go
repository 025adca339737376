package knob

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/systemd"
)

// rowOf finds a row of the table.
func rowOf(t *testing.T, version int, file string) *Row {
	t.Helper()
	for _, r := range Table() {
		if r.Version == version && r.File == file {
			return r
		}
	}
	t.Fatalf("no row %s on v%d", file, version)
	return nil
}

func TestProperties(t *testing.T) {
	slice := func(version int) Unit { return Unit{"bulkhead-a.slice", systemd.Version{Number: version}} }
	for name, test := range map[string]struct {
		version int
		file    string
		unit    Unit
		values  map[string]string // by file, or by "file device"
		want    []string          // nil: by file
	}{
		"weight": {2, "cpu.weight", slice(252), map[string]string{"cpu.weight": "500"},
			[]string{"CPUWeight=500"}},
		"no weight": {2, "cpu.weight", slice(252), map[string]string{"cpu.weight": "100"},
			[]string{"CPUWeight="}},
		"idle": {2, "cpu.idle", slice(252), map[string]string{"cpu.idle": "1", "cpu.weight": "1"},
			[]string{"CPUWeight=idle"}},
		"idle no more": {2, "cpu.idle", slice(252), map[string]string{"cpu.idle": "0", "cpu.weight": "10"},
			[]string{"CPUWeight=10"}},
		"idle before 252": {2, "cpu.idle", slice(247), map[string]string{"cpu.idle": "1"}, nil},
		"idle on v1":      {1, "cpu.idle", slice(252), map[string]string{"cpu.idle": "1"}, nil},
		"shares": {1, "cpu.shares", slice(252), map[string]string{"cpu.shares": "5120"},
			[]string{"CPUWeight=500"}},
		"odd shares": {1, "cpu.shares", slice(252), map[string]string{"cpu.shares": "102"},
			[]string{"CPUWeight=10"}},
		"shares of CentOS 7": {1, "cpu.shares", slice(219), map[string]string{"cpu.shares": "5120"},
			[]string{"CPUShares=5120"}},
		"limit": {2, "cpu.max", slice(252), map[string]string{"cpu.max": "50000 100000"},
			[]string{"CPUQuotaPerSecUSec=500000", "CPUQuotaPeriodUSec=100000"}},
		"limit in another period": {2, "cpu.max", slice(252), map[string]string{"cpu.max": "30000 20000"},
			[]string{"CPUQuotaPerSecUSec=1500000", "CPUQuotaPeriodUSec=20000"}},
		"no limit": {2, "cpu.max", slice(252), map[string]string{"cpu.max": "max 100000"},
			[]string{"CPUQuotaPerSecUSec=max", "CPUQuotaPeriodUSec=max"}},
		"quota": {1, "cpu.cfs_quota_us", slice(252),
			map[string]string{"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
			[]string{"CPUQuotaPerSecUSec=500000", "CPUQuotaPeriodUSec=100000"}},
		"no quota": {1, "cpu.cfs_quota_us", slice(252),
			map[string]string{"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
			[]string{"CPUQuotaPerSecUSec=max", "CPUQuotaPeriodUSec=max"}},
		"quota before 242": {1, "cpu.cfs_quota_us", slice(219),
			map[string]string{"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"},
			[]string{"CPUQuotaPerSecUSec=500000"}},
		"odd period before 242": {1, "cpu.cfs_quota_us", slice(219),
			map[string]string{"cpu.cfs_quota_us": "5000", "cpu.cfs_period_us": "10000"}, nil},
		"burst": {2, "cpu.max.burst", slice(252), map[string]string{"cpu.max.burst": "1000"}, nil},
		"CPUs": {2, "cpuset.cpus", slice(252), map[string]string{"cpuset.cpus": "0-3"},
			[]string{"AllowedCPUs=0-3"}},
		"CPUs before 244": {2, "cpuset.cpus", slice(240), map[string]string{"cpuset.cpus": "0-3"}, nil},
		"memory": {2, "memory.max", slice(252), map[string]string{"memory.max": "1048576"},
			[]string{"MemoryMax=1048576"}},
		"no memory limit": {2, "memory.max", slice(252), map[string]string{"memory.max": "max"},
			[]string{"MemoryMax=max"}},
		"protection": {2, "memory.low", slice(252), map[string]string{"memory.low": "1048576"},
			[]string{"MemoryLow=1048576"}},
		"no protection": {2, "memory.low", slice(252), map[string]string{"memory.low": "0"},
			[]string{"MemoryLow=0"}},
		"memory on v1": {1, "memory.limit_in_bytes", slice(252),
			map[string]string{"memory.limit_in_bytes": "1048576"}, []string{"MemoryMax=1048576"}},
		"no memory limit on v1": {1, "memory.limit_in_bytes", slice(252),
			map[string]string{"memory.limit_in_bytes": "9223372036854771712"}, []string{"MemoryMax=max"}},
		"memory of CentOS 7": {1, "memory.limit_in_bytes", slice(219),
			map[string]string{"memory.limit_in_bytes": "1048576"}, []string{"MemoryLimit=1048576"}},
		"memory and swap on v1": {1, "memory.memsw.limit_in_bytes", slice(252),
			map[string]string{"memory.memsw.limit_in_bytes": "1048576"}, nil},
		"oom.group": {2, "memory.oom.group", slice(252), map[string]string{"memory.oom.group": "1"}, nil},
		"tasks": {2, "pids.max", slice(252), map[string]string{"pids.max": "50"},
			[]string{"TasksMax=50"}},
		"tasks of CentOS 7": {1, "pids.max", slice(219), map[string]string{"pids.max": "50"}, nil},
		"devices": {2, "io.max", slice(252), map[string]string{"io.max 8:0": "rbps=1048576 wiops=100",
			"io.max 8:16": "wbps=2097152"}, []string{
			"IOReadBandwidthMax=/dev/block/8:0 1048576", "IOWriteBandwidthMax=/dev/block/8:16 2097152",
			"IOReadIOPSMax=", "IOWriteIOPSMax=/dev/block/8:0 100"}},
		"bandwidth on v1": {1, "blkio.throttle.read_bps_device", slice(252),
			map[string]string{"blkio.throttle.read_bps_device 8:0": "1048576"},
			[]string{"IOReadBandwidthMax=/dev/block/8:0 1048576"}},
		"operations on v1": {1, "blkio.throttle.read_iops_device", slice(252),
			map[string]string{"blkio.throttle.read_iops_device 8:0": "100"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var devices []string
			for key := range test.values {
				if _, device, ok := strings.Cut(key, " "); ok {
					devices = append(devices, device)
				}
			}
			slices.Sort(devices)
			got, ok := rowOf(t, test.version, test.file).Properties(test.unit, func(string) []string { return devices },
				func(file, device string) string {
					return test.values[strings.TrimSpace(file+" "+device)]
				})
			var texts []string
			for _, a := range got {
				texts = append(texts, a.String())
			}
			if ok != (test.want != nil) || !slices.Equal(texts, test.want) {
				t.Errorf("%q, %v; want %q", texts, ok, test.want)
			}
			if _, err := systemd.Encode(got); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSettle(t *testing.T) {
	u := Unit{"bulkhead-a.slice", systemd.Version{Number: 252}}
	for _, test := range []struct {
		version             int
		file, value, period string
		want                string
	}{
		{2, "cpu.max", "133333 100000", "", "133000 100000"},
		{2, "cpu.max", "max 100000", "", "max 100000"},
		{2, "cpu.max", "50 100000", "", "1000 100000"}, // 1 % is the least
		{1, "cpu.cfs_quota_us", "12345", "100000", "12000"},
		{1, "cpu.cfs_quota_us", "-1", "100000", "-1"},
		{1, "cpu.cfs_period_us", "100000", "100000", "100000"},
		{1, "cpu.shares", "102", "", "102"},
		{1, "cpu.shares", "338", "", "337"}, // weight 33 rounded up by us, down by systemd
		{1, "cpu.shares", "1024", "", "1024"},
		{2, "memory.max", "1048576", "", "1048576"},
	} {
		if got := rowOf(t, test.version, test.file).Settle(u, test.value, test.period); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.file, test.value, got, test.want)
		}
	}
}
