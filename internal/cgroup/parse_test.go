package cgroup

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParsePIDs(t *testing.T) {
	for text, want := range map[string][]int{
		"":              nil,
		"1\n":           {1},
		"30\n2\n30\n1":  {1, 2, 30},
		"0\n7\n":        {7}, // a process outside our pid namespace
		"4194304\n\n7":  nil,
		"12 13\n":       nil,
		"-1\n":          nil,
		"process 12\n2": nil,
	} {
		got, err := parsePIDs(text)
		if want == nil && text != "" {
			if err == nil {
				t.Errorf("parsePIDs(%q) = %v, want an error", text, got)
			}
			continue
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("parsePIDs(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestParseNumber(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "42\n": 42, "-1": -1, "9223372036854771712": 9223372036854771712,
		"18446744073709551615": math.MaxInt64, // v1's idea of no limit on old kernels
	} {
		if got := parseNumber(text); got == nil || *got != want {
			t.Errorf("parseNumber(%q) = %v, want %d", text, got, want)
		}
	}
	for _, text := range []string{"", "max", "12 13", "0x10", "1e3"} {
		if got := parseNumber(text); got != nil {
			t.Errorf("parseNumber(%q) = %d, want none", text, *got)
		}
	}
}

func TestLine(t *testing.T) {
	const text = "8:16 rbps=1048576 wbps=max\n8:1 rbps=1\n7:0 10\noom_kill 3\nalone"
	for key, want := range map[string]string{
		"8:16": "rbps=1048576 wbps=max", "8:1": "rbps=1", "7:0": "10", "oom_kill": "3", "8": "", "oom": "", "alone": "", "absent": "",
	} {
		if got := Line(text, key); got != want {
			t.Errorf("Line(%q) = %q, want %q", key, got, want)
		}
	}
	if got, want := Devices(text), []string{"7:0", "8:1", "8:16"}; !slices.Equal(got, want) {
		t.Errorf("Devices = %q, want %q", got, want)
	}
	if got := Devices("254:0 5\n7:10 1\n7:9 1\nTotal 6\n7: 1\n:1 1\n7:x 1"); !slices.Equal(got, []string{"7:9", "7:10", "254:0"}) {
		t.Errorf("Devices = %q", got)
	}
}

func TestParseIO(t *testing.T) {
	// Captured on kernel 6.18 (v1) and written after Documentation/admin-guide/cgroup-v2.rst.
	v1 := parseBlkio("254:0 Read 1094393856\n254:0 Write 5458374656\n254:0 Sync 9694760960\n254:0 Total 10759397376\n7:1 Read 0\n7:1 Write 0\nTotal 10759397376",
		"254:0 Read 8\n254:0 Write 9\nTotal 17")
	if want := []IOUsage{{"254:0", 1094393856, 5458374656, 8, 9}}; !slices.Equal(v1, want) {
		t.Errorf("parseBlkio = %+v, want %+v", v1, want)
	}
	v2 := parseIOStat("8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n8:0 rbytes=90430464 rios=8950 cost.usage=12\n253:0 \nUnknown rbytes=1")
	if want := []IOUsage{{"8:0", 90430464, 0, 8950, 0}, {"8:16", 1459200, 314773504, 192, 353}}; !slices.Equal(v2, want) {
		t.Errorf("parseIOStat = %+v, want %+v", v2, want)
	}
}

func TestParsePressure(t *testing.T) {
	got := ParsePressure("some avg10=0.28 avg60=0.58 avg300=1.15 total=19388847\nfull avg10=0.00 avg60=0.07 avg300=0.61 total=12832905\nnew avg10=1.00")
	want := Pressure{Some: &Stall{0.28, 0.58, 1.15, 19388847}, Full: &Stall{0, 0.07, 0.61, 12832905}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("ParsePressure = %+v, want %+v", got, want)
	}
	if got := ParsePressure("some avg10=0.00 avg60=0.00 avg300=0.00 total=0"); got.Some == nil || got.Full != nil {
		t.Errorf("cpu.pressure of an old kernel: %+v", got)
	}
	if got := ParsePressure(""); got != (Pressure{}) {
		t.Errorf("ParsePressure(\"\") = %+v", got)
	}
}

// TestUsage reads whole directories of text.
func TestUsage(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	for name, c := range map[string]struct {
		got, want Usage
	}{
		"v1 memory": {
			usageV1(map[string]string{
				"memory.stat":               "cache 5\nrss 6\nshmem 1\ntotal_cache 500\ntotal_rss 600\ntotal_rss_huge 200\ntotal_shmem 100\ntotal_swap 7\ntotal_unevictable 8",
				"memory.usage_in_bytes":     "1200",
				"memory.max_usage_in_bytes": "1300", "memory.kmem.usage_in_bytes": "100", "memory.failcnt": "3",
				"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
			}),
			Usage{Memory: MemoryUsage{Current: n(1200), Peak: n(1300), Swap: n(7), Anonymous: n(600), File: n(400), Shared: n(100),
				Unevictable: n(8), Transparent: n(200), Kernel: n(100), OOMKills: n(2), LimitHits: n(3)}},
		},
		"v1 memory of kernel 3.10: no oom_kill, no shmem": {
			usageV1(map[string]string{"memory.stat": "cache 5\nrss 6", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0"}),
			Usage{Memory: MemoryUsage{Anonymous: n(6), File: n(5)}},
		},
		"v1 cpu,cpuacct": {
			usageV1(map[string]string{
				"cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000", "cpuacct.stat": "user 150\nsystem 50", "cpuacct.usage": "2001999000",
			}),
			Usage{CPU: CPUUsage{Total: n(2001999), User: n(1500000), System: n(500000), Periods: n(10), ThrottledPeriods: n(4), Throttled: n(1500)}},
		},
		"v1 pids and blkio: recursive counters first": {
			usageV1(map[string]string{
				"pids.current": "12", "pids.events": "max 5",
				"blkio.throttle.io_service_bytes": "8:0 Read 1", "blkio.throttle.io_serviced": "8:0 Read 1",
				"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096", "blkio.throttle.io_serviced_recursive": "8:0 Read 2",
			}),
			Usage{Tasks: TaskUsage{Current: n(12), LimitHits: n(5)}, IO: []IOUsage{{Device: "8:0", ReadBytes: 4096, Reads: 2}}},
		},
		"v2": {
			usageV2(map[string]string{
				"memory.stat":    "anon 600\nfile 500\nkernel_stack 10\npagetables 20\nslab 30\nshmem 100\nunevictable 8\nanon_thp 200",
				"memory.current": "1200", "memory.peak": "1300", "memory.swap.current": "7", "memory.events": "low 0\nhigh 1\nmax 3\noom 2\noom_kill 2",
				"cpu.stat":     "usage_usec 2000\nuser_usec 1500\nsystem_usec 500\nnr_periods 10\nnr_throttled 4\nthrottled_usec 1500",
				"pids.current": "12", "pids.peak": "20", "pids.events": "max 5",
				"hugetlb.2MB.current": "4194304", "hugetlb.1GB.current": "1073741824", "hugetlb.2MB.rsvd.current": "99",
				"io.stat": "8:0 rbytes=4096 rios=2", "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=9",
			}),
			Usage{
				Memory: MemoryUsage{Current: n(1200), Peak: n(1300), Swap: n(7), Anonymous: n(600), File: n(400), Shared: n(100), Unevictable: n(8),
					Transparent: n(200), Kernel: n(60), Huge: n(1077936128), OOMKills: n(2), LimitHits: n(3), HighHits: n(1)},
				CPU:   CPUUsage{Total: n(2000), User: n(1500), System: n(500), Periods: n(10), ThrottledPeriods: n(4), Throttled: n(1500)},
				Tasks: TaskUsage{Current: n(12), Peak: n(20), LimitHits: n(5)}, IO: []IOUsage{{Device: "8:0", ReadBytes: 4096, Reads: 2}},
				Pressure: map[string]Pressure{"cpu": {Some: &Stall{Avg10: 1.5, Total: 9}}},
			},
		},
		"nothing": {usageV2(nil), Usage{}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", name, show(c.got), show(c.want))
		}
	}
}

// show prints a Usage with its numbers.
func show(u Usage) string {
	var b strings.Builder
	for _, fields := range [][]**int64{u.Memory.fields(), u.CPU.fields(), u.Tasks.fields()} {
		for _, f := range fields {
			if *f == nil {
				b.WriteString("- ")
			} else {
				fmt.Fprintf(&b, "%d ", **f)
			}
		}
	}
	return fmt.Sprintf("%s%+v %+v", b.String(), u.IO, u.Pressure)
}

func TestMergeFillsWhatIsAbsent(t *testing.T) {
	memory := usageV1(map[string]string{"memory.usage_in_bytes": "5"})
	cpu := usageV1(map[string]string{"cpuacct.usage": "7000", "memory.usage_in_bytes": "99"})
	huge := usageV2(map[string]string{"hugetlb.2MB.current": "2097152", "io.stat": "8:0 rbytes=1", "io.pressure": "some avg10=1 total=1"})
	u := memory
	u.Merge(cpu)
	u.Merge(huge)
	if *u.Memory.Current != 5 || *u.CPU.Total != 7 || *u.Memory.Huge != 2097152 || len(u.IO) != 1 || u.Pressure["io"].Some == nil {
		t.Errorf("merged: %s", show(u))
	}
	if memory.CPU.Total != nil {
		t.Error("the merged-from value changed")
	}
}

func TestPinned(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	for _, c := range []struct {
		memory MemoryUsage
		want   *int64
	}{
		{MemoryUsage{}, nil},
		{MemoryUsage{Anonymous: n(5), Shared: n(3), Unevictable: n(4)}, n(8)}, // locked memory is anonymous or shared too
		{MemoryUsage{Anonymous: n(5), Shared: n(3), Unevictable: n(20)}, n(20)},
		{MemoryUsage{Anonymous: n(5)}, n(5)},
	} {
		if got := c.memory.Pinned(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("Pinned of %s = %v", show(Usage{Memory: c.memory}), got)
		}
	}
}

// TestFlatRoundTrip: what the kernel prints is what comes out.
func TestFlatRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`[a-z_]{1,12}`), rapid.Int64()).Draw(t, "stat")
		var b strings.Builder
		for name, n := range want {
			fmt.Fprintf(&b, "%s %d\n", name, n)
		}
		if got := parseFlat(b.String()); !reflect.DeepEqual(got, want) {
			t.Fatalf("parseFlat(%q) = %v", b.String(), got)
		}
		for name, n := range want {
			if got := Line(b.String(), name); got != fmt.Sprint(n) {
				t.Fatalf("Line(%q) = %q, want %d", name, got, n)
			}
		}
	})
}

func FuzzParsePIDs(f *testing.F) {
	f.Add("1\n2\n")
	f.Add("0\n0\n4194304")
	f.Fuzz(func(t *testing.T, text string) {
		pids, err := parsePIDs(text)
		if err == nil && (!slices.IsSorted(pids) || len(pids) > 0 && pids[0] <= 0) {
			t.Errorf("parsePIDs(%q) = %v", text, pids)
		}
	})
}

func FuzzUsage(f *testing.F) {
	f.Add("total_rss 1\ntotal_cache 2\ntotal_shmem 9", "8:0 Read 1\nTotal 1", "8:16 rbytes=1 wbytes=-2", "some avg10=0.1 total=x")
	f.Add("rss 18446744073709551615", "254:0 Write 18446744073709551615", ":", "full")
	f.Fuzz(func(t *testing.T, stat, blkio, io, pressure string) {
		files := map[string]string{
			"memory.stat": stat, "cpu.stat": stat, "pids.events": stat, "blkio.throttle.io_service_bytes": blkio, "blkio.throttle.io_serviced": blkio,
			"io.stat": io, "io.pressure": pressure, "memory.usage_in_bytes": blkio, "hugetlb.2MB.current": io,
		}
		for _, u := range []Usage{usageV1(files), usageV2(files)} {
			for i, d := range u.IO {
				if !isDevice(d.Device) || i > 0 && compareDevices(u.IO[i-1].Device, d.Device) > 0 {
					t.Errorf("devices of %q %q: %+v", blkio, io, u.IO)
				}
			}
		}
		for _, device := range Devices(io) {
			if strings.Contains(device, " ") {
				t.Errorf("Devices(%q) gives %q", io, device)
			}
		}
	})
}
