package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// weighing is a weight on a disk.
func weighing(dev, via string, w policy.Weight) policy.Setting {
	return policy.Setting{Key: policy.KeyIOWeight, On: "/dev/x", Dev: dev, Via: via, Value: w, From: "group"}
}

// diskHost has sda with mq-deadline and write-back throttling, and can weigh.
func diskHost(hierarchies ...host.Hierarchy) *host.Facts {
	f := factsWith(hierarchies...)
	f.BFQ, f.IOCost = true, true
	for i := range f.Devices {
		f.Devices[i].Scheduler, f.Devices[i].Schedulers, f.Devices[i].WriteBack = "mq-deadline",
			[]string{"none", "mq-deadline", "bfq"}, "75000"
	}
	return f
}

// diskSteps are the writes of a plan to files of disks, and to weights.
func diskSteps(p plan.Plan) []string {
	var all []string
	for _, s := range p.Steps {
		if knob.DiskRow(s.File().Name) != nil || strings.Contains(s.File().Name, "weight") && s.File().Key != "" {
			all = append(all, fmt.Sprintf("%s %s %s -> %s", s.File().Name, s.File().Key, s.Old, s.New))
		}
	}
	return all
}

func TestDisksAreMadeToWeigh(t *testing.T) {
	model := &policy.Model{
		Read:  policy.ModelRates{Bandwidth: 100, Sequential: 20, Random: 10},
		Write: policy.ModelRates{Bandwidth: 90, Sequential: 19, Random: 9},
	}
	params := "ctrl=user model=linear rbps=100 rseqiops=20 rrandiops=10 wbps=90 wseqiops=19 wrandiops=9"
	unified := func() *host.Facts { return diskHost(v2("blkio", "cpu", "memory")) }
	for name, test := range map[string]struct {
		facts  *host.Facts
		via    string
		change func(*blockdev.Device)
		want   []string
	}{
		"BFQ on v1": {diskHost(v1("blkio"), v1("cpu")), policy.ViaBFQ, nil,
			[]string{"queue.wbt_lat_usec 8:0 75000 -> 0", "queue.scheduler 8:0 mq-deadline -> bfq",
				"blkio.bfq.weight_device 8:0  -> 50"}},
		"BFQ on v2": {unified(), policy.ViaBFQ, nil,
			[]string{"queue.wbt_lat_usec 8:0 75000 -> 0", "queue.scheduler 8:0 mq-deadline -> bfq",
				"io.bfq.weight 8:0  -> 50"}},
		"BFQ is there": {unified(), policy.ViaBFQ, func(d *blockdev.Device) { d.Scheduler, d.WriteBack = "bfq", "0" },
			[]string{"io.bfq.weight 8:0  -> 50"}},
		"iocost": {unified(), policy.ViaIOCost, nil,
			[]string{"queue.wbt_lat_usec 8:0 75000 -> 0", "io.cost.model 8:0 ctrl=auto -> " + params,
				"io.cost.qos 8:0 enable=0 -> enable=1", "io.weight 8:0  -> 500"}},
		"iocost, another model": {unified(), policy.ViaIOCost, func(d *blockdev.Device) {
			d.WriteBack, d.Cost = "0", blockdev.IOCost{QoS: "enable=1 ctrl=auto rpct=0.00",
				Model: "ctrl=user model=linear rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1"}
		}, []string{"io.cost.model 8:0 ctrl=user model=linear rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 " +
			"wrandiops=1 -> " + params, "io.weight 8:0  -> 500"}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.change != nil {
				test.change(&test.facts.Devices[0])
			}
			in := input(test.facts, group("a", policy.Settings{weighing("8:0", test.via, 500)}))
			in.Host.IO = []policy.Ceiling{{On: "/dev/sda", Devices: []string{"8:0"}, Model: model}}
			if got := diskSteps(Make(in)); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// A weight that names no disk takes those that weigh as they are, also with write-back throttling and without a model.
func TestDisksStayAsTheyAre(t *testing.T) {
	for via, file := range map[string]string{
		policy.ViaBFQ: "io.bfq.weight 8:0  -> 50", policy.ViaIOCost: "io.weight 8:0  -> 500",
	} {
		in := input(diskHost(v2("blkio", "cpu", "memory")), group("a", policy.Settings{
			{Key: policy.KeyIOWeight, Dev: "8:0", Via: via, Value: policy.Weight(500), From: "group"}}))
		in.Host.IO = []policy.Ceiling{{On: "/dev/sda", Devices: []string{"8:0"}, Model: &policy.Model{}}}
		if got := diskSteps(Make(in)); !slices.Equal(got, []string{file}) {
			t.Errorf("%s: %q, want %s", via, got, file)
		}
	}
}

// What was changed of a disk goes back when nobody asks any more, with the last weight gone, and with a release of
// everything; while a target cannot be found everything stays.
func TestDisksAreGivenBack(t *testing.T) {
	f := diskHost(v1("blkio"), v1("cpu"))
	f.Devices[0].Scheduler, f.Devices[0].WriteBack = "bfq", "0"
	originals := map[change.Target]string{blockdev.QueueTarget("8:0", blockdev.QueueScheduler): "mq-deadline",
		blockdev.QueueTarget("8:0", blockdev.QueueWriteBack): "75000"}
	weights := map[cgroup.Dir]map[string]string{
		{Hierarchy: "blkio", Path: "/bulkhead"}:   {},
		{Hierarchy: "blkio", Path: "/bulkhead/a"}: {"blkio.bfq.weight_device": "default 100\n8:0 50"},
	}
	given := func(first ...string) []string {
		return append(first, "queue.scheduler 8:0 bfq -> mq-deadline", "queue.wbt_lat_usec 8:0 0 -> 75000")
	}
	lost := policy.Setting{Key: policy.KeyIOWeight, On: "/gone", Lost: "there is no such path", Value: policy.Weight(5)}
	for name, test := range map[string]struct {
		s       policy.Settings
		release []string
		want    []string
	}{
		"still asked":    {policy.Settings{weighing("8:0", policy.ViaBFQ, 500)}, nil, nil},
		"asked no more":  {policy.Settings{}, nil, given()}, // the directory goes
		"cannot be told": {policy.Settings{lost}, nil, nil},
		"release of all": {policy.Settings{weighing("8:0", policy.ViaBFQ, 500)}, []string{""},
			given("blkio.bfq.weight_device 8:0 50 -> default")},
		"release of a group": {policy.Settings{weighing("8:0", policy.ViaBFQ, 500)}, []string{"a"},
			[]string{"blkio.bfq.weight_device 8:0 50 -> default"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(f, group("a", test.s))
			in.Observed.Dirs, in.Observed.Originals.Disks, in.Release = weights, originals, test.release
			if got := diskSteps(Make(in)); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// A limit whose target cannot be found stays as the kernel has it, and so does no other that nobody asks for.
func TestLostTargetKeepsItsLimit(t *testing.T) {
	lost := policy.Setting{Key: policy.KeyIOReadBandwidth, On: "/gone", Lost: "there is no such path",
		Value: policy.Rate(5)}
	kept := func(f *host.Facts, file, text string, s ...policy.Setting) []string {
		h, _ := f.HierarchyOf("blkio")
		in := input(f, group("a", s))
		in.Observed.Dirs = map[cgroup.Dir]map[string]string{{Hierarchy: h.ID, Path: "/bulkhead"}: {},
			{Hierarchy: h.ID, Path: "/bulkhead/a"}: {file: text}}
		in.Observed.Subtree = map[cgroup.Dir]plan.Subtree{}
		for _, at := range []string{"/", "/bulkhead"} {
			in.Observed.Subtree[cgroup.Dir{Hierarchy: h.ID, Path: at}] = plan.Subtree{Available: []string{"blkio",
				"cpu",
				"memory"}, Enabled: []string{"blkio", "cpu", "memory"}}
		}
		var writes []string
		p := Make(in)
		for _, step := range p.Steps {
			switch {
			case step.File().Name == file:
				writes = append(writes, step.File().Key+" "+step.New)
			case step.Dir().Hierarchy == h.ID && step.Removes(), step.File().Name == desired.FileSubtree &&
				strings.Contains(step.New, "-io"):
				writes = append(writes, "takes away")
			}
		}
		if len(s) > 0 && !slices.ContainsFunc(p.Notes,
			func(n plan.Note) bool { return strings.Contains(n.Text, "stays as it is: there is no such path") }) {
			t.Errorf("no note: %+v", p.Notes)
		}
		return writes
	}
	other := policy.Setting{Key: policy.KeyIOReadBandwidth, On: "/dev/sdb", Dev: "8:16", Value: policy.Rate(7)}
	const v1File = "blkio.throttle.read_bps_device"
	if got := kept(legacyHost(), v1File, "8:0 5\n8:16 6", lost, other); !slices.Equal(got, []string{"8:16 7"}) {
		t.Errorf("on v1: %q", got)
	}
	if got := kept(unifiedHost(), "io.max", "8:0 rbps=5 wbps=max riops=max wiops=max", lost, other); !slices.Equal(got,
		[]string{"8:16 rbps=7 wbps=max riops=max wiops=max"}) {
		t.Errorf("on v2: %q", got)
	}
	for _, f := range []*host.Facts{legacyHost(), unifiedHost()} {
		file, text := v1File, "8:0 5"
		if len(f.Hierarchies) == 1 {
			file, text = "io.max", "8:0 rbps=5 wbps=max riops=max wiops=max"
		}
		if got := kept(f, file, text, lost); got != nil {
			t.Errorf("%s alone: %q", file, got)
		}
		if got := kept(f, file, text); !slices.Contains(got, "takes away") {
			t.Errorf("%s, asked no more: %q", file, got)
		}
	}
}

// systemd would put a limit on a volume on the disk below it, so that one is written by file, beside those that go by
// property.
func TestLimitsThatSystemdMovesDown(t *testing.T) {
	f := systemdHosts["unified"]()
	f.Devices = append(f.Devices, blockdev.Device{Number: "253:0", Name: "dm-0", Kind: blockdev.Volume, Disk: "253:0",
		Slaves: []string{"8:0"}},
		blockdev.Device{Number: "9:0", Name: "md0", Kind: blockdev.RAID, Disk: "9:0", Slaves: []string{"8:0", "8:16"}})
	rate := func(dev string) policy.Setting {
		return policy.Setting{Key: policy.KeyIOReadBandwidth, On: "/x" + dev, Dev: dev, Value: policy.Rate(5000)}
	}
	in := input(f, group("a", policy.Settings{rate("253:0"), rate("8:16"), rate("9:0")}))
	answers(&in, 252)
	by := map[string]string{}
	for _, s := range Make(in).Steps {
		if s.File().Name != "io.max" {
			continue
		}
		by[s.File().Key] = s.Unit
		if s.Unit == "" {
			continue
		}
		for _, a := range must(systemd.Assignments(s.Do)) {
			if strings.Contains(a.Text, "253:0") {
				t.Errorf("the step for %s tells systemd of 253:0: %s", s.File().Key, a)
			}
		}
	}
	if by["253:0"] != "" || by["8:16"] == "" || by["9:0"] == "" || len(by) != 3 {
		t.Errorf("steps go by %v", by)
	}
}
