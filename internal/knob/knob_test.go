package knob

import (
	"slices"
	"strings"
	"testing"
	"time"

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
		{file: "hugetlb.%s.rsvd.limit_in_bytes", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "2MB",
			Value: lift}}, on: "2MB", want: "-1"},
		{file: "hugetlb.%s.rsvd.max", s: policy.Settings{{Key: policy.KeyMemoryHuge, On: "2MB", Value: gib}},
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

// TestTable holds each row against what the rest of the program takes for granted.
func TestTable(t *testing.T) {
	keys := policy.FileKeys()
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
			host.Version{Major: 1}.Since(version) // panics when it is no version
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
		{"hugetlb.%s.rsvd.max", huge, []string{"1GB", "2MB"}},
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
