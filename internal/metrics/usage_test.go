package metrics

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
)

func TestUsageAdd(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	u := Usage{Memory: Memory{Current: n(5), Peak: n(9)}, CPU: CPU{Total: n(1)}, IO: []IO{{Device: "8:16", Reads: 1}}}
	first := u.IO
	u.Add(&Usage{Memory: Memory{Current: n(7), Swap: n(2), Peak: n(8)}, Tasks: Tasks{Current: n(3)},
		IO: []IO{{Device: "8:0", Writes: 4}, {Device: "8:16", Reads: 2}}})
	if *u.Memory.Current != 12 || *u.Memory.Swap != 2 || u.Memory.Peak != nil || *u.CPU.Total != 1 ||
		*u.Tasks.Current != 3 {
		t.Errorf("%+v", u)
	}
	if want := []IO{{Device: "8:0", Writes: 4}, {Device: "8:16", Reads: 3}}; !slices.Equal(u.IO, want) ||
		first[0].Reads != 1 {
		t.Errorf("io %+v, want %+v", u.IO, want)
	}
}

func TestParseIO(t *testing.T) {
	// Captured on kernel 6.18 (v1) and written after Documentation/admin-guide/cgroup-v2.rst.
	v1 := parseIO(1,
		map[string]string{blkioBytes: "254:0 Read 1094393856\n254:0 Write 5458374656\n254:0 Sync 9694760960\n254:0 " +
			"Total 10759397376\n7:1 Read 0\n7:1 Write 0\nTotal 10759397376",
			blkioOps: "254:0 Read 8\n254:0 Write 9\nTotal 17"})
	if want := []IO{{"254:0", 1094393856, 5458374656, 8, 9}}; !slices.Equal(v1, want) {
		t.Errorf("v1: parseIO = %+v, want %+v", v1, want)
	}
	v2 := parseIO(2,
		map[string]string{"io.stat": "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n8:0 " +
			"rbytes=90430464 rios=8950 cost.usage=12\n253:0 \nUnknown rbytes=1"})
	if want := []IO{{"8:0", 90430464, 0, 8950, 0}, {"8:16", 1459200, 314773504, 192, 353}}; !slices.Equal(v2, want) {
		t.Errorf("v2: parseIO = %+v, want %+v", v2, want)
	}
}

func TestParsePressure(t *testing.T) {
	got := ParsePressure("some avg10=0.28 avg60=0.58 avg300=1.15 total=19388847\nfull avg10=0.00 avg60=0.07 " +
		"avg300=0.61 total=12832905\nnew avg10=1.00")
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
			parse(1, map[string]string{
				"memory.stat": "cache 5\nrss 6\nshmem 1\ntotal_cache 500\ntotal_rss " +
					"600\ntotal_rss_huge 200\ntotal_shmem 100\ntotal_swap 7\ntotal_unevictable " +
					"8\nworkingset_refault 5\ntotal_workingset_refault 9",
				"memory.usage_in_bytes":     "1200",
				"memory.max_usage_in_bytes": "1300", "memory.kmem.usage_in_bytes": "100", "memory.failcnt": "3",
				"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
			}),
			Usage{Memory: Memory{Current: n(1200), Peak: n(1300), Swap: n(7), Anonymous: n(600), File: n(400),
				Shared:      n(100),
				Unevictable: n(8), Transparent: n(200), Kernel: n(100), OOMKills: n(2), LimitHits: n(3),
				Refaults: n(9)}},
		},
		"v1 memory of kernel 3.10: no oom_kill, no shmem": {
			parse(1, map[string]string{"memory.stat": "cache 5\nrss 6",
				"memory.oom_control": "oom_kill_disable 0\nunder_oom 0"}),
			Usage{Memory: Memory{Anonymous: n(6), File: n(5)}},
		},
		"v1 cpu,cpuacct": {
			parse(1, map[string]string{
				"cpu.stat":     "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000",
				"cpuacct.stat": "user 150\nsystem 50", "cpuacct.usage": "2001999000",
			}),
			Usage{CPU: CPU{Total: n(2001999), User: n(1500000), System: n(500000), Periods: n(10),
				ThrottledPeriods: n(4), Throttled: n(1500)}},
		},
		"v1 pids and blkio: recursive counters first": {
			parse(1, map[string]string{
				"pids.current": "12", "pids.events": "max 5",
				"blkio.throttle.io_service_bytes": "8:0 Read 1", "blkio.throttle.io_serviced": "8:0 Read 1",
				"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096",
				"blkio.throttle.io_serviced_recursive":      "8:0 Read 2",
			}),
			Usage{Tasks: Tasks{Current: n(12), LimitHits: n(5)}, IO: []IO{{Device: "8:0", ReadBytes: 4096, Reads: 2}}},
		},
		"v2": {
			parse(2, map[string]string{
				"memory.stat": "anon 600\nfile 500\nkernel_stack 10\npagetables 20\nslab 30\nshmem " +
					"100\nunevictable 8\nanon_thp 200\nworkingset_refault_anon 3\nworkingset_refault_file 4",
				"memory.current": "1200", "memory.peak": "1300", "memory.swap.current": "7",
				"memory.events": "low 0\nhigh 1\nmax 3\noom 2\noom_kill 2",
				"cpu.stat": "usage_usec 2000\nuser_usec 1500\nsystem_usec 500\nnr_periods 10\nnr_throttled " +
					"4\nthrottled_usec 1500",
				"pids.current": "12", "pids.peak": "20", "pids.events": "max 5",
				"hugetlb.2MB.current": "4194304", "hugetlb.1GB.current": "1073741824", "hugetlb.2MB.rsvd.current": "99",
				"io.stat": "8:0 rbytes=4096 rios=2", "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=9",
			}),
			Usage{
				Memory: Memory{Current: n(1200), Peak: n(1300), Swap: n(7), Anonymous: n(600), File: n(400),
					Shared: n(100), Unevictable: n(8),
					Transparent: n(200), Kernel: n(60), Huge: n(1077936128), OOMKills: n(2), LimitHits: n(3),
					HighHits: n(1), Refaults: n(7)},
				CPU: CPU{Total: n(2000), User: n(1500), System: n(500), Periods: n(10), ThrottledPeriods: n(4),
					Throttled: n(1500)},
				Tasks: Tasks{Current: n(12), Peak: n(20),
					LimitHits: n(5)}, IO: []IO{{Device: "8:0", ReadBytes: 4096, Reads: 2}},
				Pressure: map[string]Pressure{"cpu": {Some: &Stall{Avg10: 1.5, Total: 9}}},
			},
		},
		"nothing": {parse(2, nil), Usage{}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s:\n got %s\nwant %s", name, show(c.got), show(c.want))
		}
	}
}

// show prints a Usage with its numbers.
func show(u Usage) string {
	var b strings.Builder
	for _, f := range Fields {
		switch {
		case f.value == nil:
		case *f.value(&u) == nil:
			b.WriteString("- ")
		default:
			fmt.Fprintf(&b, "%d ", **f.value(&u))
		}
	}
	return fmt.Sprintf("%s%+v %+v", b.String(), u.IO, u.Pressure)
}

func TestMergeFillsWhatIsAbsent(t *testing.T) {
	memory := parse(1, map[string]string{"memory.usage_in_bytes": "5"})
	cpu := parse(1, map[string]string{"cpuacct.usage": "7000", "memory.usage_in_bytes": "99"})
	huge := parse(2, map[string]string{"hugetlb.2MB.current": "2097152", "io.stat": "8:0 rbytes=1",
		"io.pressure": "some avg10=1 total=1"})
	u := memory
	u.Merge(&cpu)
	u.Merge(&huge)
	if *u.Memory.Current != 5 || *u.CPU.Total != 7 || *u.Memory.Huge != 2097152 || len(u.IO) != 1 ||
		u.Pressure["io"].Some == nil {
		t.Errorf("merged: %s", show(u))
	}
	if memory.CPU.Total != nil {
		t.Error("the merged-from value changed")
	}
}

func TestPinned(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	for _, c := range []struct {
		memory Memory
		want   *int64
	}{
		{Memory{}, nil},
		{Memory{Anonymous: n(5), Shared: n(3), Unevictable: n(4)}, n(8)}, // locked memory is anonymous or shared too
		{Memory{Anonymous: n(5), Shared: n(3), Unevictable: n(20)}, n(20)},
		{Memory{Anonymous: n(5)}, n(5)},
	} {
		if got := c.memory.Pinned(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("Pinned of %s = %v", show(Usage{Memory: c.memory}), got)
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
			if got := cgroup.Line(b.String(), name); got != fmt.Sprint(n) {
				t.Fatalf("Line(%q) = %q, want %d", name, got, n)
			}
		}
	})
}

func FuzzUsage(f *testing.F) {
	f.Add("total_rss 1\ntotal_cache 2\ntotal_shmem 9", "8:0 Read 1\nTotal 1", "8:16 rbytes=1 wbytes=-2",
		"some avg10=0.1 total=x")
	f.Add("rss 18446744073709551615", "254:0 Write 18446744073709551615", ":", "full")
	f.Add("", "\r8:0 Read 1", "\v8:0 rbytes=2", "")
	f.Fuzz(func(t *testing.T, stat, blkio, io, pressure string) {
		files := map[string]string{
			"memory.stat": stat, "cpu.stat": stat, "pids.events": stat, "blkio.throttle.io_service_bytes": blkio,
			"blkio.throttle.io_serviced": blkio,
			"io.stat":                    io, "io.pressure": pressure, "memory.usage_in_bytes": blkio,
			"hugetlb.2MB.current": io,
		}
		for _, u := range []Usage{parse(1, files), parse(2, files)} {
			for i, d := range u.IO {
				if keys := cgroup.Devices(u.IO[max(i-1, 0)].Device + "\n" + d.Device); len(keys) != min(i, 1)+1 ||
					keys[len(keys)-1] != d.Device {
					t.Errorf("devices of %q %q: %+v", blkio, io, u.IO)
				}
			}
		}
		for _, device := range cgroup.Devices(io) {
			if strings.Contains(device, " ") {
				t.Errorf("Devices(%q) gives %q", io, device)
			}
		}
	})
}
