package attribution_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/attribution"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe/top"
)

func some(t *rapid.T, most float64, label string) *float64 {
	if !rapid.Bool().Draw(t, label+" is known") {
		return nil
	}
	return new(rapid.Float64Range(0, most).Draw(t, label))
}

func drawIO(t *rapid.T) attribution.IO {
	return attribution.IO{ReadBytes: rapid.Float64Range(0, 1e9).Draw(t, "read"),
		WrittenBytes: rapid.Float64Range(0, 1e9).Draw(t, "written"),
		Reads:        rapid.Float64Range(0, 1e5).Draw(t, "reads"), Writes: rapid.Float64Range(0, 1e5).Draw(t, "writes")}
}

// holders are limits that held groups back.
type holders map[string][]top.Holder

func (h holders) of(group string) []top.Holder { return h[group] }

// drawWindow is a window in which nothing fits together: every figure may be wrong, or missing.
func drawWindow(t *rapid.T) *attribution.Window {
	held := holders{}
	w := &attribution.Window{Holders: held.of, Host: attribution.Host{CPUs: 4,
		EachCPU: map[int]float64{}, Disks: map[string]attribution.Disk{}, Faults: some(t, 1e6, "faults"),
		Scanned: some(t, 1e6, "scanned")}}
	for id := range 4 {
		w.Host.EachCPU[id] = rapid.Float64Range(0, 1).Draw(t, "busy")
	}
	for _, name := range []string{"sda", "dm-0"} {
		if rapid.Bool().Draw(t, name) {
			w.Host.Disks[name] = attribution.Disk{IO: drawIO(t), Seconds: rapid.Float64Range(0, 20).Draw(t, "seconds")}
		}
	}
	if rapid.Bool().Draw(t, "network") {
		w.Host.Links = map[string]attribution.Link{"eth0": {Bytes: rapid.Float64Range(0, 1e9).Draw(t, "bytes"),
			Queued: rapid.Float64Range(0, 1).Draw(t, "queued")}}
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "outsiders") {
		w.Outsiders = append(w.Outsiders, attribution.Outsider{Name: fmt.Sprintf("o%d", i), IO: drawIO(t),
			CPU: rapid.Float64Range(0, 4).Draw(t, "cpu"), Faults: rapid.Float64Range(0, 1e6).Draw(t, "faults")})
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "groups") {
		g := attribution.Group{Name: fmt.Sprintf("g%d", i), CPU: some(t, 4, "cpu"), Waited: some(t, 20, "waited"),
			Threads:   float64(rapid.IntRange(0, 50).Draw(t, "threads")),
			Throttled: rapid.Float64Range(0, 4).Draw(t, "throttled"), Pressure: map[string]float64{},
			IO: map[string]attribution.IO{}, Faults: some(t, 1e6, "faults"),
			Refaults: some(t, 1e6, "refaults"),
			Memory:   rapid.Float64Range(0, 1e10).Draw(t, "memory")}
		for _, resource := range []string{"cpu", "io", "memory"} {
			if v := some(t, 1, resource); v != nil {
				g.Pressure[resource] = *v
			}
		}
		if g.CPU != nil && rapid.Bool().Draw(t, "each") {
			g.EachCPU = map[int]float64{0: *g.CPU / 3, 2: *g.CPU / 1.5}
		}
		if rapid.Bool().Draw(t, "pinned") {
			g.CPUs = idset.New(0, 2)
		}
		for _, name := range []string{"sda", "dm-0", "loop1"} {
			if rapid.Bool().Draw(t, name) {
				g.IO[name] = drawIO(t)
			}
		}
		if rapid.Bool().Draw(t, "sends") {
			g.Sent = map[string]attribution.Sent{"eth0": {Bytes: rapid.Float64Range(0, 1e9).Draw(t, "bytes"),
				Waited: rapid.Float64Range(0, 1).Draw(t, "waited")}}
		}
		if rapid.Bool().Draw(t, "tasks") {
			g.Tasks = new(drawIO(t))
		}
		if rapid.Bool().Draw(t, "counted") {
			g.Blame = &attribution.Blame{Limited: rapid.Float64Range(0, 4).Draw(t, "limited"),
				Own: rapid.Float64Range(0, 4).Draw(t, "own"), Outside: rapid.Float64Range(0, 4).Draw(t, "outside"),
				Nobody: rapid.Float64Range(0, 4).Draw(t, "nobody"), Groups: map[string]float64{
					"gone": rapid.Float64Range(0, 4).Draw(t, "gone")}}
		}
		if rapid.Bool().Draw(t, "counted at disks") {
			g.DiskBlame = &attribution.DiskBlame{Own: rapid.Float64Range(0, 4).Draw(t, "own"),
				Service:     rapid.Float64Range(0, 4).Draw(t, "service"),
				Outside:     rapid.Float64Range(0, 4).Draw(t, "outside"),
				Nobody:      rapid.Float64Range(0, 4).Draw(t, "nobody"),
				WrittenBack: rapid.Float64Range(0, 4).Draw(t, "written back"), Groups: map[string]float64{
					"gone": rapid.Float64Range(0, 4).Draw(t, "gone"), "g0": rapid.Float64Range(0, 4).Draw(t, "g0")}}
		}
		if rapid.Bool().Draw(t, "counted in reclaim") {
			g.Reclaim = &attribution.Reclaim{Limit: rapid.Float64Range(0, 1).Draw(t, "limit"),
				Host: rapid.Float64Range(0, 1).Draw(t, "host")}
		}
		if key := rapid.SampledFrom([]string{"", "memory.max", "io.read.bandwidth"}).Draw(t, "holder"); key != "" {
			held[g.Name] = []top.Holder{{Group: g.Name, Limit: top.Limit{Key: key, Device: "sda", How: "reached"}}}
		}
		w.Groups = append(w.Groups, g)
	}
	return w
}

// Whatever was measured, rows add up to what was waited, none is below zero, and what nobody is blamed for is one of
// them.
func TestRowsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		r, err := attribution.Of(w, "g0")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range r.Resources {
			if !one.Known {
				if len(one.Rows) > 0 || one.Source == "" {
					t.Fatalf("it is not known, and %+v", one)
				}
				continue
			}
			sum, share := 0.0, 0.0
			for _, row := range one.Rows {
				if row.Seconds < 0 || math.IsNaN(row.Seconds) || row.Who == attribution.Other && row.Group == "g0" {
					t.Fatalf("%s: %+v", one.Name, row)
				}
				sum, share = sum+row.Seconds, share+row.Share
			}
			if math.Abs(sum-one.Waited) > 1e-8*one.Waited {
				t.Fatalf("%s: rows add up to %v, waited was %v", one.Name, sum, one.Waited)
			}
			if one.Waited > 0 && math.Abs(share-1) > 1e-8 {
				t.Fatalf("%s: shares add up to %v", one.Name, share)
			}
			if last := one.Rows[len(one.Rows)-1]; last.Who != attribution.Unexplained {
				t.Fatalf("the last row is %+v", last)
			}
		}
	})
}

// A group whose waiting is no longer than its limit held it back has nobody else to blame for it, however much others
// used of its CPUs.
func TestOwnQuotaIsBlamedOnNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		v := &w.Groups[0]
		v.CPU, v.Throttled = new(rapid.Float64Range(0, 2).Draw(t, "ran")), rapid.Float64Range(0.01, 2).Draw(t, "held")
		v.Waited, v.Blame = new(v.Throttled*rapid.Float64Range(0, 1).Draw(t, "part")), nil
		r, err := attribution.Of(w, v.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range r.Resources[0].Rows {
			if row.Who == attribution.Other || row.Who == attribution.Outside {
				t.Fatalf("blamed is %+v", row)
			}
		}
	})
}

// A group that is idle, or below one that is, makes nobody wait for a CPU beside whom it is so: it has what others
// leave. One that is idle only among its siblings has its part of what the group above them gets.
func TestIdleGroupsAreNotBlamedForCPUs(t *testing.T) {
	of := func(idle ...string) map[string]float64 {
		w := &attribution.Window{Host: attribution.Host{CPUs: 2, EachCPU: map[int]float64{0: 1, 1: 1}}}
		for _, g := range []struct {
			name string
			cpu  float64
		}{{"db", 0.5}, {"jobs", 0}, {"jobs/a", 0.7}, {"jobs/b", 0.5}, {"web", 0.3}} {
			w.Groups = append(w.Groups, attribution.Group{Name: g.name, CPU: new(g.cpu), Waited: new(0.4), Threads: 2,
				Idle: slices.Contains(idle, g.name)})
		}
		all := map[string]float64{}
		for _, victim := range []string{"db", "jobs/a"} {
			r, err := attribution.Of(w, victim)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Resources[0].Rows {
				if row.Who == attribution.Other {
					all[victim+" for "+row.Group] = row.Seconds
				}
			}
		}
		return all
	}
	for _, tt := range []struct{ idle, blamed []string }{
		{nil, []string{"db for jobs/a", "db for jobs/b", "db for web", "jobs/a for db", "jobs/a for jobs/b",
			"jobs/a for web"}},
		{[]string{"jobs"}, []string{"db for web", "jobs/a for db", "jobs/a for jobs/b", "jobs/a for web"}},
		{[]string{"jobs/b"}, []string{"db for jobs/a", "db for jobs/b", "db for web", "jobs/a for db",
			"jobs/a for web"}},
		{[]string{"jobs", "db"}, []string{"db for jobs/a", "db for jobs/b", "db for web", "jobs/a for db",
			"jobs/a for jobs/b", "jobs/a for web"}},
	} {
		if got := slices.Sorted(maps.Keys(of(tt.idle...))); !slices.Equal(got, tt.blamed) {
			t.Errorf("idle are %v: waits are %v", tt.idle, got)
		}
	}
}

// Who waits for next to nothing gets no suspects, and who never used a resource is no suspect of it.
func TestNobodyIsGuilty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		v := &w.Groups[0]
		v.CPU, v.Waited, v.Blame = new(1.0), new(rapid.Float64Range(0, 0.02).Draw(t, "waited")), nil
		v.Pressure = map[string]float64{"io": rapid.Float64Range(0, 0.019).Draw(t, "io"), "memory": 0.01}
		v.Sent = nil
		r, err := attribution.Of(w, v.Name)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Nothing || len(r.Suspects) > 0 || !strings.HasPrefix(r.Verdict, "Nothing to explain") {
			t.Fatalf("%+v", r)
		}
	})
	w := window()
	w.Groups[2].CPU, w.Groups[2].EachCPU, w.Groups[2].Tasks, w.Groups[2].Faults = new(0.0), nil, nil, new(0.0)
	r, err := attribution.Of(w, "victim")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Suspects {
		if s.Group == "quiet" {
			t.Errorf("who did nothing is a suspect: %+v", s)
		}
	}
	if _, err := attribution.Of(w, "no-such"); err == nil {
		t.Error("a group that is not there has a report")
	}
}

// window is a victim on CPU 0 with a neighbour that takes half of it and writes to its disk.
func window() *attribution.Window {
	return &attribution.Window{
		Host: attribution.Host{CPUs: 2, EachCPU: map[int]float64{0: 1, 1: 0.3}, Disks: map[string]attribution.Disk{
			"sda": {IO: attribution.IO{ReadBytes: 4e6, WrittenBytes: 210e6, Reads: 1000, Writes: 420}, Seconds: 2}},
			Faults: new(12_000.0), Scanned: new(50_000.0)},
		Groups: []attribution.Group{
			{Name: "victim", Role: "database", CPU: new(0.5), EachCPU: map[int]float64{0: 0.5}, Waited: new(0.5),
				Threads: 1, Pressure: map[string]float64{"cpu": 0.5, "io": 0.4, "memory": 0.1},
				Tasks: &attribution.IO{ReadBytes: 4e6, Reads: 1000}, Faults: new(1000.0), Memory: 1 << 30},
			{Name: "reports", Role: "batch", CPU: new(0.5), EachCPU: map[int]float64{0: 0.48, 1: 0.02}, Threads: 8,
				Tasks: &attribution.IO{WrittenBytes: 200e6, Writes: 200}, Faults: new(9000.0), Memory: 2 << 30,
				HasHigh: true},
			{Name: "quiet", CPU: new(0.28), EachCPU: map[int]float64{1: 0.28}, Faults: new(1.0)},
		},
	}
}

// What a person would say of a plain case comes out.
func TestOf(t *testing.T) {
	r, err := attribution.Of(window(), "victim")
	if err != nil {
		t.Fatal(err)
	}
	holds := func(resource, group string, least, most float64, command string) {
		t.Helper()
		for _, one := range r.Resources {
			for _, row := range one.Rows {
				if one.Name == resource && row.Group == group {
					if row.Share < least || row.Share > most || row.Command != command || row.Did == "" {
						t.Errorf("%s: %+v", resource, row)
					}
					return
				}
			}
		}
		t.Errorf("%s is not blamed for %s: %+v", group, resource, r.Resources)
	}
	holds("cpu", "reports", 0.9, 1, "bulkhead set reports:cpu.limit=0.3 --for 1h")
	holds("disk", "reports", 0.5, 0.8, "bulkhead set reports:io.write.bandwidth=100MB/s --for 1h --on /dev/sda")
	holds("memory", "reports", 0.6, 0.7, "bulkhead set reports:memory.high=2048MiB --for 1h")
	if r.Suspects[0].Group != "reports" || r.Nothing ||
		!strings.HasPrefix(r.Verdict, "reports is the first suspect: because of it victim waits for CPUs 48 % of its "+
			"time, disks 25 %, memory 6.9 %.") {
		t.Errorf("%s %+v", r.Verdict, r.Suspects)
	}
	for _, row := range r.Resources[0].Rows {
		if row.Group == "quiet" {
			t.Errorf("who runs on another CPU is blamed: %+v", row)
		}
	}
}

// A limit of the group itself that is used up has all of the wait.
func TestOwnLimits(t *testing.T) {
	w := window()
	w.Holders = holders{"victim": {
		{Group: "victim", Limit: top.Limit{Key: "io.read.bandwidth", Device: "sda", Held: "4M",
			How: "all of it is used", Command: "ease io"}},
		{Group: "above", Limit: top.Limit{Key: "memory.max", Held: "1G", How: "reached"}},
		{Group: "victim", Limit: top.Limit{Key: "network.egress.max", Device: "eth0",
			How: "5 packets a second dropped"}}}}.of
	w.Groups[0].Throttled = 0.5
	r, err := attribution.Of(w, "victim")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range r.Resources[:3] {
		if one.Rows[0].Who != attribution.OwnLimit || one.Rows[0].Share < 0.999 {
			t.Errorf("%s: %+v", one.Name, one.Rows)
		}
	}
	did, command := r.Resources[2].Rows[0].Did, r.Resources[1].Rows[0].Command
	if did != "above: memory.max=1G reached" || command != "ease io" {
		t.Errorf("%q, %q", did, command)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "network.egress.max on eth0") {
		t.Errorf("notes are %q", r.Notes)
	}
	if !strings.HasPrefix(r.Verdict, "A limit of its own holds victim back most") {
		t.Error(r.Verdict)
	}
}

// What groups below the victim do is its own load on disks and in memory: its pressure has their waiting.
func TestGroupsBelowAreOwnLoad(t *testing.T) {
	w := window()
	w.Groups[0].Above = true
	w.Groups[1].Name = "victim/dump"
	r, err := attribution.Of(w, "victim")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range r.Resources[1:3] {
		own := false
		for _, row := range one.Rows {
			own = own || row.Who == attribution.OwnLoad && row.Share > 0.5
			if row.Group == "victim/dump" {
				t.Errorf("%s: a group below is blamed: %+v", one.Name, row)
			}
		}
		if !own {
			t.Errorf("%s: it is no load of its own: %+v", one.Name, one.Rows)
		}
	}
}

// A command holds what costs most, on the device below, and none is printed that would hold groups below, too, or
// nothing.
func TestCommands(t *testing.T) {
	for _, c := range []struct {
		io    attribution.IO
		above bool
		want  string
	}{
		{attribution.IO{ReadBytes: 4e5, Reads: 100}, false,
			"bulkhead set reports:io.read.iops=50 --for 1h --on /dev/sda"},
		{attribution.IO{ReadBytes: 4e5}, false,
			"bulkhead set reports:io.read.bandwidth=200kB/s --for 1h --on /dev/sda"},
		{attribution.IO{WrittenBytes: 50e6, Writes: 50}, false,
			"bulkhead set reports:io.write.bandwidth=25MB/s --for 1h --on /dev/sda"},
		{attribution.IO{WrittenBytes: 50e6, Writes: 50}, true, ""},
		{attribution.IO{Reads: 1}, false, ""},
	} {
		w := window()
		w.Host.Disks["dm-0"] = attribution.Disk{IO: c.io, Seconds: 1}
		own := attribution.IO{ReadBytes: 4e6, Reads: 1000}
		w.Groups[0].IO = map[string]attribution.IO{"sda": own, "dm-0": own}
		w.Groups[1].IO, w.Groups[1].Tasks = map[string]attribution.IO{"sda": c.io, "dm-0": c.io}, nil
		w.Groups[1].Above = c.above
		r, err := attribution.Of(w, "victim")
		if err != nil {
			t.Fatal(err)
		}
		got, there := "", false
		for _, row := range r.Resources[1].Rows {
			if row.Group == "reports" {
				got, there = row.Command, true
			}
		}
		if got != c.want || !there {
			t.Errorf("%+v: %q, want %q; %+v", c.io, got, c.want, r.Resources[1].Rows)
		}
	}
}
