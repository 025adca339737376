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
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/policy"
)

// spread is a limit shared by these devices.
func spread(s policy.Settings, key policy.Key, split policy.Split, whole policy.Value,
	devices ...string) policy.Settings {
	part := func() policy.Value {
		if rate, is := whole.(policy.Rate); is {
			return rate / policy.Rate(len(devices))
		}
		return whole.(policy.IOPS) / policy.IOPS(len(devices))
	}
	for _, dev := range devices {
		s = s.With(policy.Setting{
			Key: key, On: "/data", Dev: dev, Split: split, Whole: whole, Parts: len(devices), From: "group",
			Value: part(), Raw: fmt.Sprintf("1/%d of %s, on disk", len(devices), whole),
		})
	}
	return s
}

// wants are the values of one file of a directory, by device.
func wants(p plan.Plan, dir, file string) map[string]string {
	got := map[string]string{}
	for _, w := range p.Want {
		if w.File().Dir.Path == dir && w.File().Name == file {
			got[w.File().Key] = w.Value
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
			total[dev] += desired.Number(v)
		}
	}
	got := wants(p, x.Path, readFile)["8:0"]
	if total["8:0"]+total["8:16"] > 40e6 || total["8:0"] <= 20e6 || desired.Number(got) <= 10e6 ||
		desired.Number(got) > 30e6 {
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
			d := desired.New(&in)
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
			if step.File().Key != "" {
				setLine(&next, step.Dir(), step.File().Name, step.File().Key, step.New)
				check(fmt.Sprintf("step %d, %s %s %s", i, step.File().Name, step.File().Key, step.New))
			}
		}
		next.Use = nil
		for _, step := range Make(next).Steps {
			if step.File().Key != "" {
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
func setAll(in *plan.Input, d *desired.State) {
	for _, w := range d.Wanted() {
		if w.File().Key != "" {
			setLine(in, w.File().Dir, w.File().Name, w.File().Key, w.Value)
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
		if got := desired.SharesByUse(&test.in); got != test.want {
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
	if len(shifts) != 2 || shifts[0].File().Key != "8:16" || shifts[0].New != "5000000" ||
		shifts[1].File().Key != "8:0" || shifts[1].New != "35000000" {
		t.Errorf("got %+v", shifts)
	}
}
