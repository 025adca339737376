package knob

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

// row finds a row of the table by its file; where both versions have one of that name, by "v2:FILE".
func row(t testing.TB, name string) *Row {
	t.Helper()
	version := 0
	if file, ok := strings.CutPrefix(name, "v2:"); ok {
		name, version = file, 2
	}
	for _, r := range table {
		if r.File == name && (version == 0 || r.Version == version) {
			return r
		}
	}
	t.Fatalf("no row %q in the table", name)
	return nil
}

// ask builds settings in the order given.
func ask(pairs ...any) policy.Settings {
	var s policy.Settings
	for i := 0; i < len(pairs); i += 2 {
		s = s.With(policy.Setting{Key: pairs[i].(policy.Key), Value: pairs[i+1].(policy.Value), From: "group"})
	}
	return s
}

// onDevice gives io settings their device.
func onDevice(s policy.Settings, device string) policy.Settings {
	for i := range s {
		s[i].Dev = device
	}
	return s
}

func ids(text string) policy.IDs {
	set, err := idset.Parse(text)
	if err != nil {
		panic(err)
	}
	return policy.IDs{Set: set}
}

func ms(n int) policy.Duration { return policy.Duration(time.Duration(n) * time.Millisecond) }

var lift = policy.Unlimited{}

func kernel(release string) *host.Facts {
	v, err := host.ParseVersion(release)
	if err != nil {
		panic(err)
	}
	return &host.Facts{Kernel: v, PageSize: 4096}
}

func TestEncode(t *testing.T) {
	const gib = policy.Bytes(1 << 30)
	nodes := kernel("6.1")
	nodes.Nodes = []host.Node{{ID: 0, CPUs: idset.Set{0, 4, 8}}, {ID: 1, CPUs: idset.Set{1, 5}}, {ID: 2}}
	big := kernel("6.1")
	big.PageSize = 65536

	tests := []struct {
		file  string
		s     policy.Settings
		facts *host.Facts
		on    string
		want  string // "-" when the settings ask nothing of the file
		fails string // part of the error
	}{
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(1)), want: "10"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(7)), want: "72"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(10)), want: "102"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(100)), want: "1024"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(1000)), want: "10240"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(10000)), want: "102400"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(50000)), want: "262144"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle, policy.Flag(false)),
			want: "102"},
		{file: "cpu.shares", s: ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle, policy.Flag(true)),
			want: "3"},
		{file: "cpu.shares", s: ask(policy.KeyCPUIdle, policy.Flag(true)), facts: kernel("3.10.0-1160.el7.x86_64"),
			want: "10"},
		{file: "cpu.shares", s: ask(policy.KeyCPUIdle, policy.Flag(false)), want: "-"},
		{file: "cpu.shares", s: ask(policy.KeyCPULimit, policy.Cores(1)), want: "-"},
		{file: "cpu.weight", s: ask(policy.KeyCPUWeight, policy.Weight(10)), want: "10"},
		{file: "cpu.weight", s: ask(policy.KeyCPUWeight, policy.Weight(10), policy.KeyCPUIdle, policy.Flag(true)),
			want: "1"},
		{file: "cpu.weight", s: ask(policy.KeyCPUIdle, policy.Flag(true)), facts: kernel("5.10"), want: "1"},
		{file: "cpu.idle", s: ask(policy.KeyCPUIdle, policy.Flag(true)), want: "1"},
		{file: "v2:cpu.idle", s: ask(policy.KeyCPUIdle, policy.Flag(false)), want: "0"},
		{file: "cpu.idle", want: "-"},

		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(500_000)), want: "50000"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(333_333)), want: "33333"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(8_000_000), policy.KeyCPUPeriod, ms(10)),
			want: "80000"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, lift), want: "-1"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(3_000)), want: "1000"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPULimit, policy.Cores(3_000)), want: "333334"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPULimit, policy.Cores(1_000)), want: "1000000"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(999)), fails: `cpu.limit "0.000999"`},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(5_000), policy.KeyCPUPeriod, ms(100)),
			fails: "smallest quota"},
		{file: "cpu.cfs_quota_us", s: ask(policy.KeyCPULimit, policy.Cores(0)), fails: "smallest quota"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPULimit, policy.Cores(500_000)), want: "100000"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPULimit, lift, policy.KeyCPUPeriod, ms(20)), want: "20000"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPUPeriod, ms(20)), want: "-"},
		{file: "cpu.cfs_period_us", s: ask(policy.KeyCPULimit, policy.Cores(500_000), policy.KeyCPUPeriod, ms(1001)),
			fails: `cpu.period "1001ms"`},
		{file: "cpu.max", s: ask(policy.KeyCPULimit, policy.Cores(1_500_000)), want: "150000 100000"},
		{file: "cpu.max", s: ask(policy.KeyCPULimit, policy.Cores(1_500_000), policy.KeyCPUPeriod, ms(10)),
			want: "15000 10000"},
		{file: "cpu.max", s: ask(policy.KeyCPULimit, lift), want: "max 100000"},
		{file: "cpu.max", s: ask(policy.KeyCPUPeriod, ms(10)), want: "-"},
		{file: "cpu.cfs_burst_us", s: ask(policy.KeyCPULimit, policy.Cores(500_000), policy.KeyCPUBurst, ms(50)),
			want: "50000"},
		{file: "cpu.cfs_burst_us", s: ask(policy.KeyCPULimit, policy.Cores(500_000), policy.KeyCPUBurst, ms(51)),
			fails: "no more than cpu.limit gives in one period, 50 ms"},
		{file: "cpu.max.burst", s: ask(policy.KeyCPULimit, policy.Cores(500_000), policy.KeyCPUBurst, ms(20)),
			want: "20000"},
		{file: "cpu.max.burst", s: ask(policy.KeyCPUBurst, ms(20)), want: "-"},
		{file: "cpu.max.burst", s: ask(policy.KeyCPULimit, lift, policy.KeyCPUBurst, ms(20)), want: "-"},
		{file: "cpu.rt_runtime_us", s: ask(policy.KeyCPURT, ms(100)), want: "100000"},
		{file: "cpu.rt_runtime_us", s: ask(policy.KeyCPURT, ms(1001)), fails: "more than the second"},

		{file: "cpuset.cpus", s: ask(policy.KeyCPUCPUs, ids("3,0-1")), want: "0-1,3"},
		{file: "cpuset.cpus", s: ask(policy.KeyCPUNUMA, ids("0-1")), facts: nodes, want: "0-1,4-5,8"},
		{file: "v2:cpuset.cpus", s: ask(policy.KeyCPUNUMA, ids("0"), policy.KeyCPUCPUs, ids("8")), facts: nodes,
			want: "8"},
		{file: "cpuset.cpus", s: ask(policy.KeyCPUNUMA, ids("0"), policy.KeyCPUCPUs, lift), facts: nodes,
			want: "0,4,8"},
		{file: "v2:cpuset.cpus", s: ask(policy.KeyCPUCPUs, lift), want: ""},
		{file: "cpuset.cpus", s: ask(policy.KeyCPUNUMA, ids("7")), facts: nodes, fails: "no node 7"},
		{file: "cpuset.cpus", s: ask(policy.KeyCPUNUMA, ids("2")), facts: nodes, fails: "no CPU is online there"},
		{file: "cpuset.cpus", s: ask(policy.KeyMemoryNUMA, ids("0")), facts: nodes, want: "-"},
		{file: "cpuset.mems", s: ask(policy.KeyMemoryNUMA, ids("1,0")), want: "0-1"},

		{file: "memory.limit_in_bytes", s: ask(policy.KeyMemoryMax, gib), want: "1073741824"},
		{file: "memory.limit_in_bytes", s: ask(policy.KeyMemoryMax, policy.Bytes(10_000_000)), want: "9998336"},
		{file: "memory.limit_in_bytes", s: ask(policy.KeyMemoryMax, policy.Bytes(10_000_000)), facts: big,
			want: "9961472"},
		{file: "memory.limit_in_bytes", s: ask(policy.KeyMemoryMax, policy.Bytes(100)),
			fails: `memory.max "100B": less than one page of 4 KiB`},
		{file: "memory.limit_in_bytes", s: ask(policy.KeyMemoryMax, lift), want: "-1"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, gib, policy.KeyMemorySwap, policy.Bytes(0)),
			want: "1073741824"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, gib, policy.KeyMemorySwap, 2*gib),
			want: "3221225472"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, gib, policy.KeyMemorySwap, lift), want: "-1"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, lift, policy.KeyMemorySwap, gib), want: "-1"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, policy.Bytes(4095+4096), policy.KeyMemorySwap,
			policy.Bytes(4095)), want: "4096"},
		{file: "memory.memsw.limit_in_bytes", s: ask(policy.KeyMemoryMax, gib), want: "-"},
		{file: "memory.swappiness", s: ask(policy.KeyMemorySwappiness, policy.Count(10)), want: "10"},
		{file: "memory.swappiness", s: ask(policy.KeyMemorySwappiness, policy.Count(200)), want: "200"},
		{file: "memory.swappiness", s: ask(policy.KeyMemorySwappiness, policy.Count(101)), facts: kernel("5.4"),
			fails: "takes 0 to 100"},
		{file: "memory.oom_control", s: ask(policy.KeyMemoryOOM, policy.OOM("pause")), want: "1"},
		{file: "memory.oom_control", s: ask(policy.KeyMemoryOOM, policy.OOM("kill-group")), want: "0"},
		{file: "memory.oom.group", s: ask(policy.KeyMemoryOOM, policy.OOM("kill-group")), want: "1"},
		{file: "memory.oom.group", s: ask(policy.KeyMemoryOOM, policy.OOM("pause")), want: "0"},
		{file: "memory.oom.group", want: "-"},
		{file: "memory.min", s: ask(policy.KeyMemoryMin, gib), want: "1073741824"},
		{file: "memory.low", s: ask(policy.KeyMemoryLow, policy.Bytes(0)), want: "0"},
		{file: "memory.high", s: ask(policy.KeyMemoryHigh, lift), want: "max"},
		{file: "memory.max", s: ask(policy.KeyMemoryMax, gib+5), want: "1073741824"},
		{file: "memory.swap.max", s: ask(policy.KeyMemorySwap, policy.Bytes(0)), want: "0"},
		{file: "memory.swap.max", s: ask(policy.KeyMemoryMax, gib), want: "-"},

		{file: "pids.max", s: ask(policy.KeyTasks, policy.Count(8192)), want: "8192"},
		{file: "v2:pids.max", s: ask(policy.KeyTasks, lift), want: "max"},
		{file: "pids.max", s: ask(policy.KeyTasks, policy.Count(-1)), fails: "below zero"},
		{file: "hugetlb.%s.limit_in_bytes", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "2MB", Value: gib + 1}},
			on: "2MB", want: "1073741824"},
		{file: "hugetlb.%s.max", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "1GB", Value: 3 * gib / 2}},
			on: "1GB", want: "1073741824"},
		{file: "hugetlb.%s.max", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "1GB", Value: gib / 2}}, on: "1GB",
			fails: "less than one page of 1 GiB"},
		{file: "hugetlb.%s.max", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "1GB", Value: gib}}, on: "2MB",
			want: "-"},
		{file: "hugetlb.%s.max", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "2MB", Value: lift}}, on: "2MB",
			want: "max"},

		{file: "blkio.throttle.read_bps_device", s: onDevice(ask(policy.KeyIOReadBandwidth, policy.Rate(10<<20)),
			"8:16"), on: "8:16", want: "10485760"},
		{file: "blkio.throttle.write_iops_device", s: onDevice(ask(policy.KeyIOWriteIOPS, policy.IOPS(500)), "8:16"),
			on: "8:16", want: "500"},
		{file: "blkio.throttle.write_iops_device", s: onDevice(ask(policy.KeyIOWriteIOPS, policy.IOPS(1<<32)), "8:16"),
			on: "8:16", want: "0"},
		{file: "blkio.throttle.write_iops_device", s: onDevice(ask(policy.KeyIOWriteIOPS, lift), "8:16"), on: "8:16",
			want: "0"},
		{file: "blkio.throttle.read_bps_device", s: onDevice(ask(policy.KeyIOReadBandwidth, policy.Rate(10)), "8:16"),
			on: "8:0", want: "-"},
		{file: "blkio.throttle.read_bps_device", s: onDevice(ask(policy.KeyIOReadBandwidth, policy.Rate(0)), "8:16"),
			on: "8:16", fails: "above zero"},
		{file: "io.max", s: onDevice(ask(policy.KeyIOWriteIOPS, policy.IOPS(500), policy.KeyIOReadBandwidth,
			policy.Rate(1000)), "8:16"), on: "8:16",
			want: "rbps=1000 wbps=max riops=max wiops=500"},
		{file: "io.max", s: onDevice(ask(policy.KeyIOReadIOPS, lift), "8:16"), on: "8:16",
			want: "rbps=max wbps=max riops=max wiops=max"},
		{file: "io.max", s: onDevice(ask(policy.KeyIOReadIOPS, policy.IOPS(5)), "8:16"), on: "8:0", want: "-"},
		{file: "io.max", s: onDevice(ask(policy.KeyIOReadIOPS, policy.IOPS(-5)), "8:16"), on: "8:16",
			fails: "above zero"},
	}
	covered := map[*Row]bool{}
	for _, test := range tests {
		r := row(t, test.file)
		covered[r] = true
		facts := test.facts
		if facts == nil {
			facts = kernel("6.18.44")
		}
		got, ok, err := r.Encode(Input{Settings: test.s, Facts: facts, On: test.on})
		switch {
		case test.fails != "":
			if err == nil || !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%s of %v: error %v, want one with %q", test.file, test.s, err, test.fails)
			}
		case err != nil:
			t.Errorf("%s of %v: %v", test.file, test.s, err)
		case test.want == "-" && ok:
			t.Errorf("%s of %v = %q, want that nothing is asked", test.file, test.s, got)
		case test.want != "-" && (!ok || got != test.want):
			t.Errorf("%s of %v = %q, %v, want %q", test.file, test.s, got, ok, test.want)
		}
	}
	for _, r := range table {
		// both versions share one encoder where they share the name; weights on disks: TestWeightOnADisk
		other := "v2:" + r.File
		if !covered[r] && !covered[row(t, r.File)] && r.Version == 2 && r.via == "" {
			t.Errorf("no case for %s", other)
		}
	}
}

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

// TestTable holds each row against what the rest of the program takes for granted.
func TestTable(t *testing.T) {
	keys := policy.KnownKeys()
	served := map[policy.Key]bool{policy.KeyOOMScoreAdj: true, policy.KeyIOWeight: true}
	names := map[string]bool{}
	for _, r := range Table() {
		name := r.File
		id := strings.Join([]string{name, "of version", string(rune('0' + r.Version))}, " ")
		if names[id] {
			t.Errorf("%s is in the table twice", id)
		}
		names[id] = true
		if r.Controller == "" || r.Unit == "" || r.Up == 0 || r.Down == 0 || len(r.Keys) == 0 || r.Version != 1 &&
			r.Version != 2 {
			t.Errorf("%s is incomplete: %+v", id, r)
		}
		if r.PerSize != strings.Contains(name, "%s") {
			t.Errorf("%s: PerSize is %v", id, r.PerSize)
		}
		if got := r.Parse(r.Default); got != r.Default {
			t.Errorf("%s: Parse of the default %q is %q", id, r.Default, got)
		}
		if r.Late && r.Since == "" || r.OptionUntil != "" && r.Option == "" {
			t.Errorf("%s: Late without Since, or OptionUntil without Option", id)
		}
		for _, version := range []string{r.Since, r.Nested, r.OptionUntil} {
			atLeast(host.Version{Major: 1}, version) // panics when it is no version
		}
		for _, file := range r.Resets {
			if !slices.ContainsFunc(table, func(o *Row) bool { return o.File == file && o.Version == r.Version }) {
				t.Errorf("%s resets %s, which is no row", id, file)
			}
		}
		for _, key := range append(slices.Clone(r.Keys), r.serves...) {
			if !slices.Contains(keys, key) && !key.OfNetwork() {
				t.Errorf("%s: %q is no key", id, key)
			}
		}
		for _, key := range r.serves {
			served[key] = true
		}
		if value, ok, err := r.Encode(Input{}); ok || err != nil {
			t.Errorf("%s: Encode of no settings is %q, %v, %v; want that nothing is asked", id, value, ok, err)
		}
		if r.Instances(nil) != nil {
			t.Errorf("%s: needed by no settings", id)
		}
	}
	for _, key := range keys {
		if !served[key] {
			t.Errorf("no row decides %s", key)
		}
	}
	first := Table()
	first[0] = nil
	if Table()[0] == nil {
		t.Error("a change to what Table gave changed the table")
	}
}

// TestLift: a setting of "max" gives each row's default, and asks for no file.
func TestLift(t *testing.T) {
	for _, r := range table {
		var s policy.Settings
		for _, key := range r.Keys {
			s = append(s, policy.Setting{Key: key, Value: lift})
		}
		in := Input{Settings: s, Facts: kernel("6.1")}
		switch {
		case r.PerDevice:
			s, in.On = onDevice(s, "8:0"), "8:0"
		case r.PerSize:
			in.On = "2MB"
			s[0].On = "2MB"
		}
		if got, ok, err := r.Encode(in); err != nil || ok && got != r.Default {
			t.Errorf("%s: Encode of max is %q, %v, %v; want the default %q", r.File, got, ok, err, r.Default)
		}
		if on := r.Instances(s); on != nil {
			t.Errorf("%s: needed for %v by settings of max", r.File, on)
		}
	}
}

func TestInstances(t *testing.T) {
	io := onDevice(ask(policy.KeyIOReadIOPS, policy.IOPS(5), policy.KeyIOWriteBandwidth, policy.Rate(7)), "8:16")
	io = append(io, onDevice(ask(policy.KeyIOWriteIOPS, policy.IOPS(5)), "8:0")...)
	io = append(io, policy.Setting{Key: policy.KeyIOReadIOPS, On: "/data", Value: policy.IOPS(9)}) // not resolved
	huge := policy.Settings{
		{Key: policy.KeyMemoryHuge, On: "1GB", Value: policy.Bytes(1 << 30)},
		{Key: policy.KeyMemoryHuge, On: "2MB", Value: policy.Bytes(0)},
	}
	plain := []string{""}
	tests := []struct {
		file string
		s    policy.Settings
		want []string
	}{
		{"io.max", io, []string{"8:16", "8:0"}},
		{"blkio.throttle.read_iops_device", io, []string{"8:16"}},
		{"blkio.throttle.write_iops_device", io, []string{"8:0"}},
		{"blkio.throttle.read_bps_device", io, nil},
		{"hugetlb.%s.max", huge, []string{"1GB", "2MB"}},
		{"cpu.shares", ask(policy.KeyCPUIdle, policy.Flag(true)), plain},
		{"cpu.max.burst", ask(policy.KeyCPUBurst, ms(1)), nil},
		{"cpu.max.burst", ask(policy.KeyCPUBurst, ms(1), policy.KeyCPULimit, policy.Cores(1e6)), plain},
		{"cpu.cfs_period_us", ask(policy.KeyCPULimit, policy.Cores(1e6)), plain},
		{"cpu.cfs_period_us", ask(policy.KeyCPUPeriod, ms(1)), nil},
		{"cpuset.cpus", ask(policy.KeyCPUNUMA, ids("0")), plain},
		{"cpuset.mems", ask(policy.KeyCPUNUMA, ids("0")), nil},
		{"memory.memsw.limit_in_bytes", ask(policy.KeyMemorySwap, policy.Bytes(0)), nil},
		{"memory.memsw.limit_in_bytes", ask(policy.KeyMemorySwap, policy.Bytes(0), policy.KeyMemoryMax,
			policy.Bytes(1<<30)), plain},
		{"memory.swap.max", ask(policy.KeyMemorySwap, policy.Bytes(0)), plain},
	}
	for _, test := range tests {
		if got := row(t, test.file).Instances(test.s); !slices.Equal(got, test.want) {
			t.Errorf("%s: needed for %q by %v, want %q", test.file, got, test.s, test.want)
		}
	}
}

func TestLines(t *testing.T) {
	const text = "8:16 rbps=max wbps=10485760 riops=max wiops=max\n259:0 rbps=1 wbps=max riops=max wiops=max\n"
	r := row(t, "io.max")
	if got := r.Line(text, "259:0"); got != "rbps=1 wbps=max riops=max wiops=max" {
		t.Errorf("Line = %q", got)
	}
	if got := r.Line(text, "8:1"); got != "" {
		t.Errorf("Line of a device without one = %q", got)
	}
	if got := r.Devices(text); !slices.Equal(got, []string{"8:16", "259:0"}) {
		t.Errorf("Devices = %q", got)
	}
	throttle := row(t, "blkio.throttle.read_bps_device")
	if got := throttle.Line("8:16 10485760\n", "8:16"); got != "10485760" {
		t.Errorf("Line of a throttle file = %q", got)
	}
	if got := row(t, "pids.max").Line("max\n", ""); got != "max\n" {
		t.Errorf("Line of a plain file = %q", got)
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
	case r.Version == 1 && value == "-1" && r.form.(number).giant: // on v2 a fresh hugetlb file does so, too
		return plain((1<<63 - 1) / page * page)
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
		if _, list := r.form.(idList); both && !list && r.File != "io.max" {
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
