package planner

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/knob"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
)

func TestShare(t *testing.T) {
	col := func(now, used int64) column { return column{ask: unlimited, now: now, used: used} }
	for _, test := range []struct {
		name    string
		columns []column
		shift   bool
		want    []int64
	}{
		{"one that has just come", []column{col(500, 0), col(500, 0), col(0, 0)}, true, []int64{334, 333, 333}},
		{"as it is", []column{col(700, 0), col(300, 0)}, false, []int64{700, 300}},
		{"too much", []column{col(701, 0), col(300, 0)}, false, []int64{500, 500}},
		{"one has gone", []column{col(500, 0), col(300, 0)}, false, []int64{500, 500}},
		{"below the floor", []column{col(900, 0), col(100, 0)}, false, []int64{500, 500}},
		{"one is hungry", []column{col(500, 490), col(500, 200)}, true, []int64{770, 230}},
		{"one is hungry, the other idle", []column{col(500, 500), col(500, 0)}, true, []int64{875, 125}},
		{"both are", []column{col(700, 700), col(300, 295)}, true, []int64{500, 500}},
		{"nobody is: evenly again", []column{col(875, 0), col(125, 0)}, true, []int64{500, 500}},
		{"not worth it", []column{col(500, 500), col(500, 430)}, true, []int64{500, 500}},
		{"less is asked", []column{{ask: unlimited, now: 500, used: 100}, {ask: 500, now: 500, used: 500}}, true,
			[]int64{500, 500}},
		{"more is asked than had", []column{{ask: unlimited, now: 700, used: 100}, {ask: 600, now: 300, used: 300}},
			true, []int64{400, 600}},
		{"too little to share", []column{col(5, 5), col(5, 0)}, true, []int64{500, 500}},
	} {
		t.Run(test.name, func(t *testing.T) {
			budget := int64(1000)
			if test.name == "too little to share" {
				budget, test.want = 10, []int64{5, 5}
			}
			if got := share(budget, test.columns, test.shift); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// However it was shared and whatever is used: never more than the budget, all of it as far as it is asked for, nobody
// above his ask or below his floor, and what was shared anew is sound.
func TestShareKeepsTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Int64Range(1, 1<<40).Draw(t, "budget")
		columns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) column {
			return column{
				ask:  rapid.OneOf(rapid.Just(unlimited), rapid.Int64Range(1, 1<<40)).Draw(t, "ask"),
				now:  rapid.Int64Range(0, 1<<40).Draw(t, "now"),
				used: rapid.Int64Range(0, 1<<41).Draw(t, "used"),
			}
		}), 1, 8).Draw(t, "columns")
		shift := rapid.Bool().Draw(t, "shift")
		parts := share(budget, columns, shift)
		var sum, asked int64
		for i, part := range parts {
			sum += part
			asked += min(columns[i].ask, budget)
			if part > columns[i].ask || part < columns[i].floor(budget, len(columns)) {
				t.Fatalf("part %d is %d of %d", i, part, columns[i].ask)
			}
		}
		if whole := min(budget, asked); sum > budget || sum < whole-whole/1000-int64(len(columns)) {
			t.Fatalf("the parts %v add up to %d of %d", parts, sum, budget)
		}
		for i := range columns {
			columns[i].now = parts[i]
		}
		if slices.Min(parts) > 0 && !slices.Equal(share(budget, columns, false), parts) {
			t.Fatalf("%v is not kept", parts)
		}
	})
}

// Disks that are wanted unevenly come to parts that stay, and the load as a whole gets what it can.
func TestShareSettles(t *testing.T) {
	const budget = 50_000_000
	for _, demand := range [][]int64{{40e6, 15e6}, {60e6, 1e6, 1e6, 1e6}, {20e6, 20e6, 20e6, 20e6}, {30e6, 0},
		{0, 0, 0}, {45e6, 4e6, 0, 100e6}} {
		columns := make([]column, len(demand))
		for i, part := range fill(budget, slices.Repeat([]int64{unlimited}, len(demand))) {
			columns[i] = column{ask: unlimited, now: part}
		}
		changed := 0
		for round := range 10 {
			for i := range columns {
				columns[i].used = min(demand[i], columns[i].now)
			}
			parts := share(budget, columns, true)
			for i := range columns {
				if columns[i].now != parts[i] {
					changed = round + 1
				}
				columns[i].now = parts[i]
			}
		}
		var got, wanted int64
		for i, c := range columns {
			got += min(demand[i], c.now)
			wanted += demand[i]
		}
		if best := min(wanted, budget); changed > 3 || got < best*85/100 {
			t.Errorf("%v: still changing in round %d, %d of %d", demand, changed, got, best)
		}
	}
}

// spread is a limit shared by these devices.
func spread(s policy.Settings, key policy.Key, split policy.Split, whole policy.Value,
	devices ...string) policy.Settings {
	n, _ := amountOf(whole)
	for _, dev := range devices {
		s = s.With(policy.Setting{
			Key: key, On: "/data", Dev: dev, Split: split, Whole: whole, Parts: len(devices), From: "group",
			Value: ioValue(key, n/int64(len(devices))), Raw: fmt.Sprintf("1/%d of %s, on disk", len(devices), whole),
		})
	}
	return s
}

// wants are the values of one file of a directory, by device.
func wants(p plan.Plan, dir, file string) map[string]string {
	got := map[string]string{}
	for _, w := range p.Want {
		if w.Dir.Path == dir && w.File == file {
			got[w.Key] = w.Value
		}
	}
	return got
}

const readFile = "blkio.throttle.read_bps_device"

// Even is 50 MB/s over four devices as 12,500,000 each and over five as 10,000,000; by use keeps what it finds.
func TestDevicesShare(t *testing.T) {
	four, five := []string{"8:0", "8:16", "8:32", "8:48"}, []string{"8:0", "8:16", "8:32", "8:48", "8:64"}
	dir := cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}
	const uneven = "8:0 20000000\n8:16 20000000\n8:32 5000000\n8:48 5000000\n"
	for _, test := range []struct {
		name     string
		split    policy.Split
		devices  []string
		observed string
		want     string
	}{
		{"even, four", policy.SplitEven, four, "", "12500000 12500000 12500000 12500000"},
		{"even, five", policy.SplitEven, five, uneven, "10000000 10000000 10000000 10000000 10000000"},
		{"even, whatever is there", policy.SplitEven, four, uneven, "12500000 12500000 12500000 12500000"},
		{"by use begins evenly", "", four, "", "12500000 12500000 12500000 12500000"},
		{"by use keeps it", policy.SplitByUse, four, uneven, "20000000 20000000 5000000 5000000"},
		{"one joins", "", five, uneven, "10000000 10000000 10000000 10000000 10000000"},
		{"one leaves", "", four[:3], uneven, "16666666 16666666 16666666"},
		{"somebody wrote", "", four, strings.Replace(uneven, "5000000", "6000000", 1),
			"12500000 12500000 12500000 12500000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input(factsWith(v1("blkio")), group("a",
				spread(nil, policy.KeyIOReadBandwidth, test.split, policy.Rate(50e6), test.devices...)))
			in.Observed.Dirs[dir] = map[string]string{readFile: test.observed}
			got := wants(Make(in), dir.Path, readFile)
			var values []string
			for _, dev := range test.devices {
				values = append(values, got[dev])
			}
			if text := strings.Join(values, " "); text != test.want {
				t.Errorf("got %s, want %s", text, test.want)
			}
		})
	}
}

// A limit of its own for one of the devices leaves the others the parts that were written.
func TestSharedLimitThatAnotherCutsInto(t *testing.T) {
	s := spread(nil, policy.KeyIOReadBandwidth, "", policy.Rate(40e6), "8:0", "8:16")
	s = s.With(policy.Setting{Key: policy.KeyIOReadBandwidth, On: "/dev/sda", Dev: "8:0", Value: policy.Rate(7e6),
		From: "override 1"})
	in := input(factsWith(v1("blkio")), group("a", s))
	dir := cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}
	in.Use = map[cgroup.Dir]map[string]plan.IOUse{dir: {"8:16": {ReadBytes: 20e6}}}
	if got := wants(Make(in), dir.Path, readFile); got["8:0"] != "7000000" || got["8:16"] != "20000000" {
		t.Errorf("got %v", got)
	}
}

// What is used decides, on v1 over devices and the directories that share the limit at once, on v2 over devices.
func TestShareByUse(t *testing.T) {
	s := spread(nil, policy.KeyIOReadBandwidth, "", policy.Rate(40e6), "8:0", "8:16")
	in := input(factsWith(v1("blkio")), group("a", s),
		group("a/x", settings("group", "io.read.bandwidth@8:0", policy.Rate(30e6))))
	a, x := cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}, cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a/x"}
	inPlace(&in)
	in.Use = map[cgroup.Dir]map[string]plan.IOUse{
		a: {"8:0": {ReadBytes: 1e6}, "8:16": {ReadBytes: 1e6}},
		x: {"8:0": {ReadBytes: 10e6, WriteBytes: 5}},
	}
	p := Make(in)
	total := map[string]int64{}
	for _, dir := range []string{a.Path, x.Path} {
		for dev, v := range wants(p, dir, readFile) {
			total[dev] += number(v)
		}
	}
	got := wants(p, x.Path, readFile)["8:0"]
	if total["8:0"]+total["8:16"] > 40e6 || total["8:0"] <= 20e6 || number(got) <= 10e6 || number(got) > 30e6 {
		t.Errorf("%v in all, a/x has %s of 8:0", total, got)
	}

	in = input(unifiedHost(), group("a", spread(s, policy.KeyIOWriteIOPS, "", policy.IOPS(1000), "8:0", "8:16")))
	dir := cgroup.Dir{Hierarchy: "unified", Path: "/bulkhead/a"}
	in.Observed.Dirs[dir] = map[string]string{"io.max": "8:0 rbps=20000000 wbps=max riops=max wiops=500\n8:16 " +
		"rbps=20000000 wbps=max riops=max wiops=500\n"}
	in.Use = map[cgroup.Dir]map[string]plan.IOUse{dir: {"8:0": {ReadBytes: 19e6},
		"8:16": {ReadBytes: 2e6, WriteOps: 490}}}
	io := wants(Make(in), dir.Path, "io.max")
	if io["8:0"] != "rbps=35000000 wbps=max riops=max wiops=125" ||
		io["8:16"] != "rbps=5000000 wbps=max riops=max wiops=875" {
		t.Errorf("on v2: %v", io)
	}
}

// While a limit is shared anew no step makes the sum greater than before and after: devices that come, that go, that
// are used otherwise, and both directions at once on v2.
func TestSharesNeverExceedOnTheWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := []string{"8:0", "8:16", "8:32", "8:48", "8:64"}
		f := factsWith(v1("blkio"))
		if rapid.Bool().Draw(t, "v2") {
			f = unifiedHost()
		}
		const budget = 50_000_000
		pick := func(label string) []string {
			return devices[:rapid.IntRange(2, 5).Draw(t, label)]
		}
		planned := func(devices []string) plan.Input {
			s := spread(nil, policy.KeyIOReadBandwidth, "", policy.Rate(budget), devices...)
			return input(f, group("a", spread(s, policy.KeyIOWriteBandwidth, "", policy.Rate(budget), devices...)))
		}
		before, after := pick("before"), pick("after")
		in := planned(before)
		inPlace(&in)
		for range rapid.IntRange(0, 2).Draw(t, "rounds") { // uneven parts
			in.Use = drawUse(t, &in, before)
			d := newDesired(&in)
			setAll(&in, d)
		}
		next := planned(after)
		next.Observed.Dirs = in.Observed.Dirs
		if rapid.Bool().Draw(t, "use") {
			next.Use = drawUse(t, &next, after)
		}
		check := func(when string) {
			for _, key := range []policy.Key{policy.KeyIOReadBandwidth, policy.KeyIOWriteBandwidth} {
				var sum int64
				for dir, files := range next.Observed.Dirs {
					for _, row := range knob.RowsFor(f) {
						for _, dev := range devices {
							if n, limited := row.Amount(key, files[row.File], dev); limited &&
								row.HierarchyID(f) == dir.Hierarchy {
								sum += n
							}
						}
					}
				}
				if sum > budget {
					t.Fatalf("%s: %s adds up to %d", when, key, sum)
				}
			}
		}
		check("before")
		for i, step := range Make(next).Steps {
			if step.Op == plan.OpWrite && step.Key != "" {
				setLine(&next, step.Dir, step.File, step.Key, step.New)
				check(fmt.Sprintf("step %d, %s %s %s", i, step.File, step.Key, step.New))
			}
		}
		next.Use = nil
		for _, step := range Make(next).Steps {
			if step.Key != "" {
				t.Fatalf("not settled: %+v", step)
			}
		}
	})
}

func drawUse(t *rapid.T, in *plan.Input, devices []string) map[cgroup.Dir]map[string]plan.IOUse {
	use := map[cgroup.Dir]map[string]plan.IOUse{}
	for dir := range in.Observed.Dirs {
		use[dir] = map[string]plan.IOUse{}
		for _, dev := range devices {
			use[dir][dev] = plan.IOUse{ReadBytes: rapid.Int64Range(0, 60e6).Draw(t, "read"),
				WriteBytes: rapid.Int64Range(0, 60e6).Draw(t, "written")}
		}
	}
	return use
}

// setAll makes the observation what is wanted.
func setAll(in *plan.Input, d *desired) {
	for _, w := range d.wanted() {
		if w.Key != "" {
			setLine(in, w.Dir, w.File, w.Key, w.Value)
		}
	}
}

// setLine writes one line of a per-device file as the kernel would: no limit is no line.
func setLine(in *plan.Input, dir cgroup.Dir, file, dev, value string) {
	lines := map[string]string{}
	for line := range strings.Lines(in.Observed.Dirs[dir][file]) {
		on, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[on] = rest
	}
	lines[dev] = value
	if value == "0" || value == "rbps=max wbps=max riops=max wiops=max" {
		delete(lines, dev)
	}
	files := maps.Clone(in.Observed.Dirs[dir])
	files[file] = ""
	for _, on := range slices.Sorted(maps.Keys(lines)) {
		files[file] += on + " " + lines[on] + "\n"
	}
	in.Observed.Dirs[dir] = files
}

func TestSharesByUse(t *testing.T) {
	shared := spread(nil, policy.KeyIOReadIOPS, "", policy.IOPS(10), "8:0", "8:16")
	even := spread(nil, policy.KeyIOReadIOPS, policy.SplitEven, policy.IOPS(10), "8:0", "8:16")
	lifted := policy.Settings{{Key: policy.KeyIOReadIOPS, Dev: "8:0", Value: policy.Unlimited{}}}
	alone := settings("group", "io.read.iops@8:0", policy.IOPS(10))
	legacy, unified := factsWith(v1("blkio")), unifiedHost()
	released := input(legacy, group("a", shared))
	released.Released = map[string]bool{"a": true}
	for i, test := range []struct {
		in   plan.Input
		want bool
	}{
		{input(legacy, group("a", even), group("b", lifted)), false},
		{input(legacy, group("a", even), group("b", shared)), true},
		{input(unified, group("b", shared)), true},
		{input(legacy, group("a", alone), group("b", alone)), false},
		{input(legacy, group("a", alone), group("a/x", nil), group("a/x/y", alone)), true},
		{input(unified, group("a", alone), group("a/x", alone)), false},
		{input(factsWith(v1("cpu")), group("b", shared)), false},
		{released, false},
	} {
		if got := SharesByUse(&test.in); got != test.want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

// Only what shares a limit anew is a shift: no first line of a device, nothing of another file.
func TestShifts(t *testing.T) {
	s := spread(nil, policy.KeyIOReadBandwidth, "", policy.Rate(40e6), "8:0", "8:16")
	in := input(factsWith(v1("blkio"), v1("cpu")),
		group("a", s.With(policy.Setting{Key: policy.KeyCPULimit, Value: policy.Cores(1e6)})))
	if shifts := plan.Shifts(Make(in)); len(shifts) > 0 {
		t.Errorf("before anything is there: %+v", shifts)
	}
	inPlace(&in)
	dir := cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}
	in.Use = map[cgroup.Dir]map[string]plan.IOUse{dir: {"8:0": {ReadBytes: 20e6}}}
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}]["cpu.cfs_quota_us"] = "5"
	shifts := plan.Shifts(Make(in))
	if len(shifts) != 2 || shifts[0].Key != "8:16" || shifts[0].New != "5000000" || shifts[1].Key != "8:0" ||
		shifts[1].New != "35000000" {
		t.Errorf("got %+v", shifts)
	}
}
