package knob

import (
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

func TestReadings(t *testing.T) {
	tests := []struct {
		file, got  string
		want       string // Parse and Reset
		human      string
		same, not_ string // what an Encode may want: equal, and not
	}{
		{"cpu.shares", "1024\n", "1024", "weight 100", "1024", "1023"},
		{"cpu.shares", "102", "102", "weight 10", "102", "10"},
		{"cpu.shares", "3", "3", "weight of an idle group", "3", "1024"},
		{"cpu.weight", "100", "100", "weight 100", "100", "1"},
		{"cpu.weight", "0", "1", "weight 1", "1", "100"},
		{"cpu.idle", "1\n", "1", "only when idle", "1", "0"},
		{"cpu.cfs_quota_us", "-1", "-1", "unlimited", "-1", "50000"},
		{"cpu.cfs_quota_us", "50000", "50000", "50 ms in each period", "50000", "-1"},
		{"cpu.cfs_period_us", "100000", "100000", "100 ms", "100000", "10000"},
		{"cpu.cfs_burst_us", "500", "500", "500 µs", "500", "0"},
		{"cpu.max", "max 100000\n", "max 100000", "unlimited", "max", "100000 100000"},
		{"cpu.max", "50000 100000", "50000 100000", "0.5 cores", "50000", "max 100000"},
		{"cpu.max", "5000 10000", "5000 10000", "0.5 cores (in periods of 10 ms)", "5000  10000", "50000 100000"},
		{"cpu.max", "strange", "strange", "strange", "strange", "max 100000"},
		{"cpu.rt_runtime_us", "950000", "950000", "950 ms in each second", "950000", "0"},
		{"cpuset.cpus", "0-1\n", "0-1", "CPUs 0-1", "0,1", "0"},
		{"cpuset.cpus", "\n", "", "none", "", "0"},
		{"v2:cpuset.cpus", "\n", "", "as the parent", "", "0"},
		{"cpuset.cpus", "0,2-3,4", "0,2-4", "CPUs 0,2-4", "2,3,4,0", "0-4"},
		{"v2:cpuset.mems", "1", "1", "node 1", "1", "0-1"},
		{"memory.limit_in_bytes", "9223372036854771712\n", "-1", "unlimited", "-1", "1073741824"},
		{"memory.limit_in_bytes", "9223372036854775807", "-1", "unlimited", "9223372036854771712", "4096"},
		{"memory.limit_in_bytes", "18446744073709551615", "-1", "unlimited", "-1", "0"},
		{"memory.limit_in_bytes", "9223372036854710272", "-1", "unlimited", "-1", "0"}, // 64 KiB pages
		{"memory.limit_in_bytes", "9998336", "9998336", "9.5 MiB", "10000000", "10002432"},
		{"memory.limit_in_bytes", "9961472", "9961472", "9.5 MiB", "10000000", "9965568"}, // 64 KiB pages
		{"memory.memsw.limit_in_bytes", "8589934592", "8589934592", "8 GiB", "8589934592", "-1"},
		{"memory.oom_control", "oom_kill_disable 1\nunder_oom 0\noom_kill 3\n", "1", "pause", "1", "0"},
		{"memory.oom_control", "oom_kill_disable 0\nunder_oom 1\n", "0", "kill", "0", "1"},
		{"memory.swappiness", "60\n", "60", "60", "60", "10"},
		{"memory.max", "max\n", "max", "unlimited", "max", "0"},
		{"memory.high", "1073741824", "1073741824", "1 GiB", "1073741900", "1073737728"},
		{"memory.low", "0", "0", "0 B", "0", "4096"},
		{"memory.oom.group", "1", "1", "kill-group", "1", "0"},
		{"pids.max", "max", "max", "unlimited", "max", "8192"},
		{"pids.max", "8192", "8192", "8192 tasks", "8192", "8191"},
		{"hugetlb.%s.limit_in_bytes", "9223372036852678656", "-1", "unlimited", "-1", "0"},
		{"hugetlb.%s.limit_in_bytes", "9223372035781033984", "-1", "unlimited", "-1", "0"},
		{"hugetlb.%s.rsvd.limit_in_bytes", "9223372036852678656", "-1", "unlimited", "-1", "2097152"},
		{"hugetlb.%s.rsvd.max", "4194304", "4194304", "4 MiB", "4194304", "max"},
		{"hugetlb.%s.max", "max", "max", "unlimited", "max", "0"},
		{"hugetlb.%s.max", "9223372036854771712", "max", "unlimited", "max", "0"},
		{"hugetlb.%s.max", "0", "0", "0 B", "0", "2097152"},
		{"blkio.throttle.read_bps_device", "", "0", "unlimited", "0", "10485760"},
		{"blkio.throttle.read_bps_device", "10485760", "10485760", "10 MiB/s", "10485760", "0"},
		{"blkio.throttle.write_iops_device", "500", "500", "500 IOPS", "500", "0"},
		{"io.max", "", "rbps=max wbps=max riops=max wiops=max", "unlimited", "", "rbps=1"},
		{"io.max", "rbps=max wbps=10485760 riops=max wiops=500", "rbps=max wbps=10485760 riops=max wiops=500",
			"write 10 MiB/s, write 500 IOPS", "wiops=500 wbps=10485760", "wiops=500"},
		{"io.max", "rbps=1024 wbps=1024 riops=5 wiops=max new=7", "rbps=1024 wbps=1024 riops=5 wiops=max",
			"read 1 KiB/s, read 5 IOPS, write 1 KiB/s", "riops=5 rbps=1024 wbps=1024", ""},
	}
	for _, test := range tests {
		r := row(t, test.file)
		if got := r.Parse(test.got); got != test.want {
			t.Errorf("%s: Parse(%q) = %q, want %q", test.file, test.got, got, test.want)
		}
		if got := r.Human(test.got); got != test.human {
			t.Errorf("%s: Human(%q) = %q, want %q", test.file, test.got, got, test.human)
		}
		if !r.Same(test.same, test.got) {
			t.Errorf("%s: %q and the reading %q are not the same, want that they are", test.file, test.same, test.got)
		}
		if read := r.Parse(test.got); !r.Same(test.same, read) || r.Same(test.not_, read) {
			t.Errorf("%s: the reading %q compares otherwise once it is %q", test.file, test.got, read)
		}
		if r.Same(test.not_, test.got) {
			t.Errorf("%s: %q and the reading %q are the same, want that they are not", test.file, test.not_, test.got)
		}
	}
}

func TestHumanIn(t *testing.T) {
	files := map[string]string{"cpu.cfs_period_us": "10000\n"}
	for _, test := range []struct {
		file, value string
		files       map[string]string
		want        string
	}{
		{"cpu.cfs_quota_us", "15000", files, "1.5 cores (in periods of 10 ms)"},
		{"cpu.cfs_quota_us", "15000", map[string]string{"cpu.cfs_period_us": "100000"}, "0.15 cores"},
		{"cpu.cfs_quota_us", "-1", files, "unlimited"},
		{"cpu.cfs_quota_us", "15000", nil, "15 ms in each period"},
		{"cpu.cfs_quota_us", "15000", map[string]string{"cpu.cfs_period_us": "0"}, "15 ms in each period"},
		{"pids.max", "max", files, "unlimited"},
		{"memory.memsw.limit_in_bytes", "1073741824", map[string]string{"memory.limit_in_bytes": "536870912\n"},
			"512 MiB of swap (1 GiB with memory)"},
		{"memory.memsw.limit_in_bytes", "536870912", map[string]string{"memory.limit_in_bytes": "536870912\n"},
			"0 B of swap (512 MiB with memory)"},
		{"memory.memsw.limit_in_bytes", "9223372036854771712",
			map[string]string{"memory.limit_in_bytes": "536870912\n"}, "unlimited"},
	} {
		if got := row(t, test.file).HumanIn(test.value, test.files); got != test.want {
			t.Errorf("%s: HumanIn(%q, %v) = %q, want %q", test.file, test.value, test.files, got, test.want)
		}
	}
}

func TestLoosens(t *testing.T) {
	tests := []struct{ file, less, more string }{
		{"cpu.shares", "102", "1024"},
		{"cpu.idle", "1", "0"},
		{"cpu.cfs_quota_us", "50000", "-1"},
		{"cpu.cfs_quota_us", "50000", "50001"},
		{"cpu.cfs_period_us", "100000", "10000"},
		{"cpu.max", "50000 100000", "51000 100000"},
		{"cpu.max", "50000 100000", "6000 10000"},
		{"cpu.max", "50000 100000", "max 10000"},
		{"cpuset.cpus", "", "0"},
		{"cpuset.cpus", "0-1", "0-2"},
		{"v2:cpuset.cpus", "0-1", ""},
		{"memory.limit_in_bytes", "1073741824", "-1"},
		{"memory.limit_in_bytes", "1073741824", "9223372036854771712"},
		{"memory.oom_control", "oom_kill_disable 1\nunder_oom 0\n", "0"},
		{"memory.max", "0", "4096"},
		{"memory.max", "4096", "max"},
		{"pids.max", "10", "max"},
		{"hugetlb.%s.max", "0", "max"},
		{"blkio.throttle.read_bps_device", "10", "0"},
		{"blkio.throttle.read_bps_device", "10", ""},
		{"io.max", "rbps=10", "rbps=11"},
		{"io.max", "rbps=10 wbps=5", "wbps=5"},
	}
	for _, test := range tests {
		r := row(t, test.file)
		if !r.Loosens(test.less, test.more) {
			t.Errorf("%s: %q to %q does not loosen, want that it does", test.file, test.less, test.more)
		}
		for _, pair := range [][2]string{{test.more, test.less}, {test.less, test.less}, {test.more, test.more}} {
			if r.Loosens(pair[0], pair[1]) {
				t.Errorf("%s: %q to %q loosens, want that it does not", test.file, pair[0], pair[1])
			}
		}
	}
	if r := row(t, "cpuset.cpus"); !r.Loosens("0-1", "2-3") || !r.Loosens("2-3", "0-1") {
		t.Error("cpuset.cpus: to trade CPUs for others must count as loosening, whichever way")
	}
}

// TestEncodeReadsBack: whatever the kernel makes of an encoded value when it shows it again is the
// same value, and parses to what was written.
func TestEncodeReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		page := rapid.SampledFrom([]int64{4096, 16384, 65536}).Draw(t, "page")
		r := table[rapid.IntRange(0, len(table)-1).Draw(t, "row")]
		s := drawSettings(t, r)
		in := Input{Settings: s, Facts: &host.Facts{Kernel: host.Version{Major: 6, Minor: 12},
			Nodes: []host.Node{{ID: 0, CPUs: idset.Set{0, 2}}, {ID: 1, CPUs: idset.Set{1, 3}}}}, PageSize: page,
			Class: 0x7fff0020}
		for _, in.On = range r.Instances(s) {
			value, ok, err := r.Encode(in)
			if err != nil {
				return // refused values are not written
			}
			if !ok {
				t.Fatalf("%s is needed by %v, but has no value", r.File, s)
			}
			shown := shownBy(r, value, page)
			if !r.Same(value, shown) {
				t.Fatalf("%s: wrote %q, reads %q, which is not the same", r.File, value, shown)
			}
			if got := r.Parse(shown); got != value {
				t.Fatalf("%s: wrote %q, reads %q, parsed %q", r.File, value, shown, got)
			}
		}
	})
}

// shownBy models what the kernel shows after a write, as measured on 6.18 and read in its source.
func shownBy(r *Row, value string, page int64) string {
	switch {
	case r.File == "memory.oom_control":
		return "oom_kill_disable " + value + "\nunder_oom 0\noom_kill 0\n"
	case r.Version == 1 && value == "-1" && r.form.(format.Number).Giant: // on v2 a fresh hugetlb file does so, too
		return format.Decimal((1<<63 - 1) / page * page)
	case r.PerDevice && value == r.Default:
		return "" // the line goes
	}
	return value + "\n"
}

// drawSettings draws settings for the keys of a row, most of them sensible.
func drawSettings(t *rapid.T, r *Row) policy.Settings {
	var s policy.Settings
	for _, key := range r.Keys {
		if len(r.Keys) > 1 && rapid.IntRange(0, 3).Draw(t, "leave out") == 0 {
			continue
		}
		setting := policy.Setting{Key: key, Value: drawValue(t, key)}
		switch {
		case r.PerDevice:
			setting.Dev = "8:16"
		case r.PerSize:
			setting.On = rapid.SampledFrom([]string{"2MB", "1GB"}).Draw(t, "page size")
		}
		s = append(s, setting)
	}
	return s
}

func drawValue(t *rapid.T, key policy.Key) policy.Value {
	n := rapid.Int64Range(0, 1<<40).Draw(t, string(key))
	switch key {
	case policy.KeyCPUWeight:
		return policy.Weight(n%10000 + 1)
	case policy.KeyCPULimit:
		return policy.Cores(n % (512 * policy.One))
	case policy.KeyCPUPeriod, policy.KeyCPUBurst, policy.KeyCPURT:
		return policy.Duration(n % 1_100_000 * 1000)
	case policy.KeyCPUIdle:
		return policy.Flag(n%2 == 0)
	case policy.KeyCPUCPUs, policy.KeyCPUNUMA, policy.KeyMemoryNUMA:
		return policy.IDs{Set: idset.New(int(n%2), int(n/2%4))}
	case policy.KeyMemorySwappiness, policy.KeyTasks:
		return policy.Count(n % 250)
	case policy.KeyMemoryOOM:
		return []policy.OOM{"kill", "kill-group", "pause"}[n%3]
	case policy.KeyIOReadIOPS, policy.KeyIOWriteIOPS:
		return policy.IOPS(n % (1 << 31))
	case policy.KeyIOReadBandwidth, policy.KeyIOWriteBandwidth:
		return policy.Rate(n)
	default:
		return policy.Bytes(n)
	}
}

// TestLoosensIsOneWay: of two values that differ, at most one way loosens — but for a cpuset that
// trades members, and an io.max that raises one limit and lowers another.
func TestLoosensIsOneWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := table[rapid.IntRange(0, len(table)-1).Draw(t, "row")]
		in := Input{Facts: kernel("6.12"), On: "8:16"}
		if r.PerSize {
			in.On = "2MB"
		}
		var values [2]string
		for i := range values {
			in.Settings = drawSettings(t, r)
			value, ok, err := r.Encode(in)
			if err != nil || !ok {
				value = r.Default
			}
			values[i] = value
		}
		both := r.Loosens(values[0], values[1]) && r.Loosens(values[1], values[0])
		if _, list := r.form.(format.IDList); both && !list && r.File != "io.max" {
			t.Fatalf("%s: %q and %q loosen each other", r.File, values[0], values[1])
		}
		if r.Same(values[0], values[1]) && (r.Loosens(values[0], values[1]) || r.Loosens(values[1], values[0])) {
			t.Fatalf("%s: %q and %q are the same, yet one loosens the other", r.File, values[0], values[1])
		}
	})
}

// FuzzParse feeds every row what a kernel, or a torn read, may show.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "max\n", "max 100000\n", "50000 100000", "-1", "9223372036854771712", "18446744073709551615",
		"0-3,8\n", "0-",
		"oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", "oom_kill_disable", "rbps=1 wbps=max riops=max wiops=max",
		"rbps", "8:16 1", "1 2 3", "a-b",
	} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, got, other string) {
		for _, r := range table {
			parsed := r.Parse(got)
			if again := r.Parse(parsed); again != parsed {
				t.Errorf("%s: Parse(%q) = %q, parsed again %q", r.File, got, parsed, again)
			}
			if !r.Same(parsed, got) {
				t.Errorf("%s: %q does not equal its own reading %q", r.File, parsed, got)
			}
			if r.Same(got, other) && r.Loosens(parsed, r.Parse(other)) {
				t.Errorf("%s: %q to %q loosens, though they are the same", r.File, got, other)
			}
			r.Human(got)
			r.Line(got, "8:16")
			r.Devices(got)
		}
	})
}
