package conformance

import (
	"fmt"
	"slices"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
)

var v2Cases = []testCase{
	{"subtree control", 2, "hugetlb", subtree},
	{"no processes in inner groups", 2, "hugetlb", innerGroups},
	{"threaded controllers beside processes", 2, "pids", threadedControllers},
	{"freezing", 2, "", freezing},
	{"events", 2, "", eventsV2},
	{"kill", 2, "", killV2},
	{"depth and descendants", 2, "", treeLimits},
	{"huge page limits", 2, "hugetlb", func(b *bench) { hugePages(b, "max", "max") }},
	{"weight and idle", 2, "cpu", weightAndIdle},
	{"max and burst", 2, "cpu", cpuMax},
	{"limits", 2, "memory", memoryV2},
	{"a limit below use kills", 2, "memory", limitBelowUseV2},
	{"sets", 2, "cpuset", setsV2},
	{"io.max", 2, "blkio", ioMax},
	{"tasks limit", 2, "pids", pidsMax},
	{"a disabled controller forgets", 2, "hugetlb", forgets},
}

func subtree(b *bench) {
	top := b.groups("a")
	available, enabled, err := b.Tree.Subtree(top)
	if b.must(err); !slices.Contains(available, b.controller) || !slices.Contains(enabled, b.controller) {
		b.Errorf("available %q, enabled %q: %s is missing", available, enabled, b.controller)
	}
	a := top.Child("a")
	b.must(b.Tree.Enable(a, []string{b.controller}), b.Tree.Enable(a, []string{b.controller}))
	b.fails(b.Tree.Disable(top, []string{b.controller}), cgroup.ErrBusy, syscall.EBUSY) // a hands it on
	b.must(b.Tree.Disable(a, []string{b.controller}), b.Tree.Disable(a, []string{b.controller}))
	b.must(b.Tree.Disable(top, []string{b.controller}))
	b.fails(b.Tree.Enable(a, []string{b.controller}), cgroup.ErrNoKnob, syscall.ENOENT)
	b.fails(b.Tree.Write(top.File("cgroup.subtree_control"), "+bogus"), cgroup.ErrInvalid, syscall.EINVAL)
	b.holds(a, "cgroup.controllers", "")
}

func innerGroups(b *bench) {
	top := b.groups("a", "a/x")
	a, x := top.Child("a"), top.Child("a").Child("x")
	p := b.spawn(x)
	b.fails(b.Tree.Move(a, p.ID()), cgroup.ErrBusy, syscall.EBUSY)
	b.fails(b.Tree.Enable(x, []string{b.controller}), cgroup.ErrBusy, syscall.EBUSY)
	b.must(b.Tree.Disable(a, []string{b.controller}))
	b.must(b.Tree.Move(a, p.ID()))
	b.fails(b.Tree.Enable(a, []string{b.controller}), cgroup.ErrBusy, syscall.EBUSY)
	p.Exit()
	b.must(b.Tree.Enable(a, []string{b.controller}))
}

// threadedControllers: cpu, cpuset and pids may be enabled beside processes, but then the children
// take none.
func threadedControllers(b *bench) {
	top := b.groups("a")
	a := top.Child("a")
	b.spawn(a)
	b.must(b.Tree.Enable(a, []string{b.controller}), b.Tree.Make(a.Child("x")))
	other := b.Spawn(b.T)
	b.fails(b.Tree.Move(a.Child("x"), other.ID()), cgroup.ErrInvalid, syscall.EOPNOTSUPP)
	b.must(b.Tree.Move(a, other.ID()))
}

func eventsV2(b *bench) {
	top := b.groups("a")
	b.counts(top, "cgroup.events", "populated", "0")
	p := b.spawn(top.Child("a"))
	b.counts(top, "cgroup.events", "populated", "1")
	b.counts(top.Child("a"), "cgroup.events", "populated", "1")
	p.Exit()
	b.counts(top, "cgroup.events", "populated", "0")
	b.writes(top,
		write{"cgroup.freeze", "2", syscall.ERANGE, "0"},
		write{"cgroup.freeze", "-1", syscall.ERANGE, "0"},
	)
	b.holds(top, "cgroup.type", "domain")
}

func killV2(b *bench) {
	top := b.groups("a")
	if b.absent(top, "cgroup.kill") { // 5.14
		return
	}
	p := b.spawn(top.Child("a"))
	b.must(b.Tree.Write(top.File("cgroup.kill"), "1"))
	b.must(b.Tree.Remove(top.Child("a"))) // waits until nobody is in it
	p.Exit()                              // waits until the process has ended: one that is about to can be moved
	b.fails(b.Tree.Move(top, p.ID()), cgroup.ErrExited, 0)
	_, err := b.Tree.Read(top.File("cgroup.kill"))
	b.fails(err, cgroup.ErrInvalid, syscall.EINVAL)
}

func treeLimits(b *bench) {
	top := b.groups("a")
	b.writes(top, write{"cgroup.max.descendants", "1", 0, "1"})
	b.fails(b.Tree.Make(top.Child("b")), cgroup.ErrBusy, syscall.EAGAIN)
	b.fails(b.Tree.Make(top.Child("a").Child("x")), cgroup.ErrBusy, syscall.EAGAIN)
	b.writes(top,
		write{"cgroup.max.descendants", "max", 0, "max"},
		write{"cgroup.max.depth", "1", 0, "1"},
	)
	b.must(b.Tree.Make(top.Child("b")))
	b.fails(b.Tree.Make(top.Child("a").Child("x")), cgroup.ErrBusy, syscall.EAGAIN)
	b.counts(top, "cgroup.stat", "nr_descendants", "2")
}

func forgets(b *bench) {
	limit := "hugetlb.2MB.max"
	top := b.groups("a")
	a := top.Child("a")
	b.writes(a, write{limit, "4M", 0, "4194304"})
	b.must(b.Tree.Disable(top, []string{b.controller}))
	b.fails(b.Tree.Write(a.File(limit), "4M"), cgroup.ErrNoKnob, syscall.ENOENT)
	b.must(b.Tree.Enable(top, []string{b.controller}))
	b.freshHuge(a, limit)
}

func weightAndIdle(b *bench) {
	top := b.groups()
	b.holds(top, "cpu.weight", "100")
	b.writes(top,
		write{"cpu.weight", "0", syscall.ERANGE, "100"},
		write{"cpu.weight", "10001", syscall.ERANGE, "100"},
		write{"cpu.weight", "10000", 0, "10000"},
		write{"cpu.weight", "1", 0, "1"},
	)
	if b.absent(top, "cpu.idle") { // 5.15
		return
	}
	b.writes(top, write{"cpu.idle", "1", 0, "1"})
	low, err := b.Tree.Read(top.File("cpu.weight"))
	if b.must(err); low != "0" && low != "1" { // 1 since 6.12
		b.Errorf("cpu.weight of an idle group is %q", low)
	}
	b.writes(top,
		write{"cpu.weight", "500", syscall.EINVAL, low},
		write{"cpu.idle", "0", 0, "0"},
	)
	b.holds(top, "cpu.weight", "100")
}

func cpuMax(b *bench) {
	top := b.groups("a")
	b.holds(top, "cpu.max", "max 100000")
	b.writes(top,
		write{"cpu.max", "50000", 0, "50000 100000"}, // keeps the period
		write{"cpu.max", "50000 200000", 0, "50000 200000"},
		write{"cpu.max", "999", syscall.EINVAL, "50000 200000"},
		write{"cpu.max", "50000 999", syscall.EINVAL, "50000 200000"},
		write{"cpu.max", "50000 1000001", syscall.EINVAL, "50000 200000"},
		write{"cpu.max", "fast", syscall.EINVAL, "50000 200000"},
	)
	if !b.absent(top, "cpu.max.burst") { // 5.14
		b.writes(top,
			write{"cpu.max.burst", "50001", syscall.EINVAL, "0"},
			write{"cpu.max.burst", "50000", 0, "50000"},
			write{"cpu.max", "40000", syscall.EINVAL, "50000 200000"},
			write{"cpu.max.burst", "0", 0, "0"},
		)
	}
	b.writes(top,
		write{"cpu.max", "50000 100000", 0, "50000 100000"},
	)
	b.writes(top.Child("a"), write{"cpu.max", "200000 100000", 0, "200000 100000"}) // above its parent's is allowed
	b.writes(top, write{"cpu.max", "max 100000", 0, "max 100000"})
}

func memoryV2(b *bench) {
	top := b.groups()
	for file, initial := range map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max",
		"memory.max": "max"} {
		b.holds(top, file, initial)
		b.writes(top,
			write{file, "67108865", 0, "67108864"},
			write{file, "64M", 0, "67108864"},
			write{file, "-1", syscall.EINVAL, "67108864"},
			write{file, "max", 0, "max"},
			write{file, initial, 0, initial},
		)
	}
	b.writes(top,
		write{"memory.oom.group", "2", syscall.EINVAL, "0"},
		write{"memory.oom.group", "1", 0, "1"},
	)
}

func limitBelowUseV2(b *bench) {
	top := b.groups("a", "b")
	hog, neighbour := b.spawn(top.Child("a")), b.spawn(top.Child("b"))
	if !hog.Touch(64<<20) || !neighbour.Touch(1<<20) {
		b.Fatal("killed without a limit")
	}
	b.writes(top.Child("a"), write{"memory.max", "8M", 0, "8388608"})
	usage, err := metrics.Read(b.Tree, top.Child("a"))
	if b.must(err); usage.Memory.OOMKills == nil || *usage.Memory.OOMKills < 1 {
		b.Errorf("no kill is counted: %+v", usage.Memory)
	}
	if hog.Touch(1) {
		b.Error("the process that is over the limit lives")
	}
	if !neighbour.Touch(1 << 20) {
		b.Error("the neighbour was killed")
	}
}

func setsV2(b *bench) {
	top := b.groups("a")
	child := top.Child("a")
	first, all := fmt.Sprint(b.CPUs[0]), b.CPUs.String()
	b.holds(top, "cpuset.cpus", "")
	b.holds(top, "cpuset.cpus.effective", all)
	p := b.spawn(child) // no seed is needed
	b.writes(top,
		write{"cpuset.cpus", "abc", syscall.EINVAL, ""},
		write{"cpuset.cpus", first, 0, first},
	)
	b.writes(child, write{"cpuset.cpus", all, 0, all}) // may exceed the parent, to no effect
	b.holds(child, "cpuset.cpus.effective", first)
	b.writes(child, write{"cpuset.cpus", "", syscall.ENOSPC, all}) // processes inside
	p.Exit()
	b.writes(child, write{"cpuset.cpus", "", 0, ""})
	b.writes(top, write{"cpuset.cpus", "", 0, ""})
	b.holds(child, "cpuset.cpus.effective", all)
}

func ioMax(b *bench) {
	top := b.groups()
	d := b.Device
	b.holds(top, "io.max", "")
	b.writes(top,
		write{"io.max", d + " rbps=1048576", 0, d + " rbps=1048576 wbps=max riops=max wiops=max"},
		write{"io.max", d + " wiops=500", 0, d + " rbps=1048576 wbps=max riops=max wiops=500"},
		write{"io.max", d + " wiops=0", syscall.ERANGE, d + " rbps=1048576 wbps=max riops=max wiops=500"},
		write{"io.max", d + " wiops=1", syscall.EINVAL,
			d + " rbps=1048576 wbps=max riops=max wiops=500"}, // less than 2 is no limit
		write{"io.max", d + " wiops=2", 0, d + " rbps=1048576 wbps=max riops=max wiops=2"},
		write{"io.max", d + " wiops=500", 0, d + " rbps=1048576 wbps=max riops=max wiops=500"},
		write{"io.max", d + " speed=1", syscall.EINVAL, d + " rbps=1048576 wbps=max riops=max wiops=500"},
		write{"io.max", b.Absent + " rbps=4096", syscall.ENODEV, d + " rbps=1048576 wbps=max riops=max wiops=500"},
		write{"io.max", d + " rbps=max wiops=max", 0, ""},
	)
	keyed := cgroup.File{Dir: top, Name: "io.max", Key: d}
	b.must(b.Tree.Write(keyed, "wbps=4096"))
	if got, err := b.Tree.Read(keyed); got != "rbps=max wbps=4096 riops=max wiops=max" || err != nil {
		b.Errorf("read %s: %q, %v", keyed, got, err)
	}
	_, enabled, err := b.Tree.Subtree(cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"})
	if b.must(err); !slices.Contains(enabled, "blkio") {
		b.Errorf("io is not listed as blkio: %q", enabled)
	}
}
