package conformance

import (
	"fmt"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/metrics"
)

// noLimit is what v1 prints for no limit on a machine with 4 KiB pages.
const noLimit = "9223372036854771712"

var v1Cases = []testCase{
	{"shares and idle", 1, "cpu", sharesAndIdle},
	{"quota, period and burst", 1, "cpu", quotaV1},
	{"a child's quota fits its parent's", 1, "cpu", childQuotaV1},
	{"real-time threads", 1, "cpu", realtimeV1},
	{"parent and child sets", 1, "cpuset", nestedSets},
	{"seeding and emptying", 1, "cpuset", seedingSets},
	{"clone_children", 1, "cpuset", cloneChildren},
	{"number forms", 1, "memory", memoryNumbers},
	{"memsw around limit", 1, "memory", memswOrder},
	{"a limit below use", 1, "memory", limitBelowUse},
	{"OOM kill", 1, "memory", oomKillV1},
	{"swappiness and OOM control are inherited", 1, "memory", inheritedV1},
	{"throttle lines", 1, "blkio", throttleLines},
	{"tasks limit", 1, "pids", pidsMax},
	{"freezing", 1, "freezer", freezing},
	{"huge page limits", 1, "hugetlb", func(b *bench) { hugePages(b, "limit_in_bytes", "-1") }},
}

func sharesAndIdle(b *bench) {
	top := b.groups("a")
	b.holds(top, "cpu.shares", "1024")
	b.writes(top,
		write{"cpu.shares", "0", 0, "2"},
		write{"cpu.shares", "262145", 0, "262144"},
		write{"cpu.shares", "5000", 0, "5000"},
		write{"cpu.shares", "-1", syscall.EINVAL, "5000"},
		write{"cpu.shares", "12x", syscall.EINVAL, "5000"},
		write{"cpu.shares", " 77", syscall.EINVAL, "5000"},
		write{"cpu.shares", "010", 0, "8"}, // octal
		write{"cpu.shares", "5000", 0, "5000"},
	)
	if b.absent(top, "cpu.idle") { // 5.15
		return
	}
	b.writes(top,
		write{"cpu.idle", "2", syscall.EINVAL, "0"},
		write{"cpu.idle", "0", 0, "0"}, // changes nothing
	)
	b.holds(top, "cpu.shares", "5000")
	b.writes(top,
		write{"cpu.idle", "1", 0, "1"},
		write{"cpu.shares", "5000", syscall.EINVAL, "3"},
		write{"cpu.idle", "0", 0, "0"},
	)
	b.holds(top, "cpu.shares", "1024")
	b.holds(top.Child("a"), "cpu.shares", "1024")
}

func quotaV1(b *bench) {
	top := b.groups()
	b.holds(top, "cpu.cfs_period_us", "100000")
	b.writes(top,
		write{"cpu.cfs_quota_us", "999", syscall.EINVAL, "-1"},
		write{"cpu.cfs_quota_us", "0", syscall.EINVAL, "-1"},
		write{"cpu.cfs_quota_us", "99999999999999999", syscall.EINVAL, "-1"},
		write{"cpu.cfs_quota_us", "max", syscall.EINVAL, "-1"},
		write{"cpu.cfs_quota_us", "1000", 0, "1000"},
		write{"cpu.cfs_quota_us", "-2", 0, "-1"},
		write{"cpu.cfs_period_us", "999", syscall.EINVAL, "100000"},
		write{"cpu.cfs_period_us", "1000001", syscall.EINVAL, "100000"},
		write{"cpu.cfs_period_us", "1000000", 0, "1000000"},
		write{"cpu.cfs_period_us", "1000", 0, "1000"},
		write{"cpu.cfs_quota_us", "50000", 0, "50000"},
	)
	if b.absent(top, "cpu.cfs_burst_us") { // 5.14
		return
	}
	b.writes(top,
		write{"cpu.cfs_burst_us", "50001", syscall.EINVAL, "0"},
		write{"cpu.cfs_burst_us", "50000", 0, "50000"},
		write{"cpu.cfs_quota_us", "40000", syscall.EINVAL, "50000"}, // below the burst
		write{"cpu.cfs_quota_us", "-1", 0, "-1"},                    // keeps the burst
		write{"cpu.cfs_burst_us", "60000", 0, "60000"},              // any, without a quota
		write{"cpu.cfs_quota_us", "50000", syscall.EINVAL, "-1"},
		write{"cpu.cfs_burst_us", "0", 0, "0"},
	)
}

func childQuotaV1(b *bench) {
	top := b.groups("a", "a/x")
	child, grandchild := top.Child("a"), top.Child("a").Child("x")
	b.writes(top, write{"cpu.cfs_quota_us", "50000", 0, "50000"})
	b.writes(child, write{"cpu.cfs_quota_us", "60000", syscall.EINVAL, "-1"})
	b.writes(grandchild, // through a group without a quota
		write{"cpu.cfs_quota_us", "60000", syscall.EINVAL, "-1"},
		write{"cpu.cfs_quota_us", "50000", 0, "50000"},
		write{"cpu.cfs_period_us", "50000", syscall.EINVAL, "100000"}, // the ratio counts
		write{"cpu.cfs_period_us", "200000", 0, "200000"},
		write{"cpu.cfs_quota_us", "100000", 0, "100000"},
	)
	b.writes(top,
		write{"cpu.cfs_quota_us", "40000", syscall.EINVAL, "50000"}, // lower the child first
		write{"cpu.cfs_period_us", "200000", syscall.EINVAL, "100000"},
		write{"cpu.cfs_quota_us", "-1", 0, "-1"},
	)
}

func realtimeV1(b *bench) {
	top := b.groups()
	if _, err := b.Tree.Read(top.File("cpu.rt_runtime_us")); err != nil {
		b.Logf("not covered here: this kernel has no RT_GROUP_SCHED: %v", err)
		return
	}
	b.holds(top, "cpu.rt_runtime_us", "0")
	p := b.Spawn(b.T)
	b.must(p.Realtime())
	err := b.Tree.Move(top, p.ID())
	b.fails(err, cgroup.ErrRealtime, syscall.EINVAL)
	if cgroup.Hint(err) == "" {
		b.Error("no hint")
	}
	if tasks, err := b.Tree.Tasks(top); err != nil || len(tasks) > 0 {
		b.Errorf("threads %v were moved (%v)", tasks, err)
	}
	b.writes(top,
		write{"cpu.rt_runtime_us", "-1", syscall.EINVAL, "0"},
		write{"cpu.rt_runtime_us", "10000", 0, "10000"},
	)
	b.must(b.Tree.Move(top, p.ID()))
	b.writes(top, write{"cpu.rt_runtime_us", "0", syscall.EBUSY, "10000"})
	p.Exit()
	q := b.spawn(top)
	b.writes(top, write{"cpu.rt_runtime_us", "0", 0, "0"})
	if err := q.Realtime(); err == nil {
		b.Error("a thread became real-time in a group without a real-time budget")
	}
}

func nestedSets(b *bench) {
	top := b.groups("a")
	child := top.Child("a")
	first, all := fmt.Sprint(b.CPUs[0]), b.CPUs.String()
	beyond := fmt.Sprint(b.CPUs[len(b.CPUs)-1] + 4096)
	b.holds(top, "cpuset.cpus", "")
	b.writes(child, write{"cpuset.cpus", first, syscall.EACCES, ""}) // the parent has none
	b.fails(b.Tree.Write(child.File("cpuset.cpus"), first), cgroup.ErrInvalid, syscall.EACCES)
	b.writes(top,
		write{"cpuset.cpus", "abc", syscall.EINVAL, ""},
		write{"cpuset.cpus", beyond, syscall.ERANGE, ""},
		write{"cpuset.cpus", first, 0, first},
		write{"cpuset.mems", "1000", syscall.EINVAL, ""},
		write{"cpuset.mems", b.Nodes.String(), 0, b.Nodes.String()},
		write{"cpuset.effective_cpus", first, syscall.EINVAL, first},
	)
	b.writes(child,
		write{"cpuset.cpus", all, syscall.EACCES, ""}, // outside the parent
		write{"cpuset.cpus", first, 0, first},
	)
	b.writes(top,
		write{"cpuset.cpus", fmt.Sprint(b.CPUs[1]), syscall.EBUSY, first}, // below the child
		write{"cpuset.cpus", "", syscall.EBUSY, first},
		write{"cpuset.cpus", all, 0, all},
	)
	b.writes(child, write{"cpuset.cpus", all, 0, all}, write{"cpuset.cpus", "", 0, ""})
	b.writes(top, write{"cpuset.cpus", "", 0, ""})
}

func seedingSets(b *bench) {
	top := b.groups()
	cpus, nodes := b.CPUs.String(), b.Nodes.String()
	p := b.Spawn(b.T)
	b.fails(b.Tree.Move(top, p.ID()), cgroup.ErrInvalid, syscall.ENOSPC)
	b.writes(top, write{"cpuset.cpus", cpus, 0, cpus})
	b.fails(b.Tree.Move(top, p.ID()), cgroup.ErrInvalid, syscall.ENOSPC) // nodes are needed too
	b.writes(top, write{"cpuset.mems", nodes, 0, nodes})
	b.must(b.Tree.Move(top, p.ID()))
	b.writes(top,
		write{"cpuset.cpus", "", syscall.ENOSPC, cpus},
		write{"cpuset.mems", "", syscall.ENOSPC, nodes},
		write{"cpuset.cpus", fmt.Sprint(b.CPUs[0]), 0, fmt.Sprint(b.CPUs[0])},
		write{"cpuset.memory_migrate", "1", 0, "1"},
	)
	p.Exit()
}

func cloneChildren(b *bench) {
	top := b.groups()
	first := fmt.Sprint(b.CPUs[0])
	b.writes(top,
		write{"cpuset.cpus", first, 0, first},
		write{"cpuset.mems", b.Nodes.String(), 0, b.Nodes.String()},
		write{"cgroup.clone_children", "1", 0, "1"},
	)
	child := b.group(top.Child("a"))
	b.holds(child, "cpuset.cpus", first)
	b.holds(child, "cpuset.mems", b.Nodes.String())
	b.holds(child, "cgroup.clone_children", "1")
}

func memoryNumbers(b *bench) {
	const limit = "memory.limit_in_bytes"
	top := b.groups()
	b.holds(top, limit, noLimit)
	b.writes(top,
		write{limit, "67108865", 0, "67108864"}, // rounded down to pages
		write{limit, "64M", 0, "67108864"},
		write{limit, "1g", 0, "1073741824"},
		write{limit, " 32M ", 0, "33554432"},
		write{limit, "0x4000000", 0, "67108864"},
		write{limit, "10 M", syscall.EINVAL, "67108864"},
		write{limit, "max", syscall.EINVAL, "67108864"},
		write{limit, "-2", syscall.EINVAL, "67108864"},
		write{limit, "-1", 0, noLimit},
		write{limit, "9223372036854775807", 0, noLimit},
	)
	b.fails(b.Tree.Write(top.File(limit), ""), cgroup.ErrInvalid, 0) // the kernel would take it for 0
	b.holds(top, limit, noLimit)
	b.writes(top,
		write{"memory.soft_limit_in_bytes", "1M", 0, "1048576"},
		write{"memory.soft_limit_in_bytes", "-1", 0, noLimit},
	)
	child := b.group(top.Child("a")) // a child's limit may be above its parent's
	b.writes(top, write{limit, "64M", 0, "67108864"})
	b.writes(child, write{limit, "128M", 0, "134217728"})
}

func memswOrder(b *bench) {
	const limit, memsw = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	top := b.groups()
	if _, err := b.Tree.Read(top.File(memsw)); err != nil {
		b.Logf("not covered here: this kernel does not count swap: %v", err)
		return
	}
	b.writes(top,
		write{memsw, "64M", syscall.EINVAL, noLimit}, // below the limit, which is none
		write{limit, "64M", 0, "67108864"},
		write{memsw, "64M", 0, "67108864"},
		write{limit, "128M", syscall.EINVAL, "67108864"}, // above memsw
		write{memsw, "32M", syscall.EINVAL, "67108864"},
		write{memsw, "128M", 0, "134217728"},
		write{limit, "128M", 0, "134217728"},
		write{limit, "-1", syscall.EINVAL, "134217728"},
		write{memsw, "-1", 0, noLimit},
		write{limit, "-1", 0, noLimit},
	)
}

func limitBelowUse(b *bench) {
	const limit = "memory.limit_in_bytes"
	top := b.groups()
	p := b.spawn(top)
	if !p.Touch(32 << 20) {
		b.Fatal("the process was killed without a limit")
	}
	b.writes(top,
		write{limit, "8M", syscall.EBUSY, noLimit},
		write{limit, "256M", 0, "268435456"},
	)
	usage, err := metrics.Read(b.Tree, top)
	if b.must(err); usage.Memory.Anonymous == nil || *usage.Memory.Anonymous < 32<<20 ||
		*usage.Memory.Current < 32<<20 {
		b.Errorf("32 MiB of anonymous memory do not show: %+v", usage.Memory)
	}
	// What was charged stays behind when the process leaves.
	b.must(b.Tree.Move(top.Parent(), p.ID()))
	b.writes(top, write{limit, "8M", syscall.EBUSY, "268435456"})
	p.Exit()
	b.writes(top, write{limit, "8M", 0, "8388608"})
}

func oomKillV1(b *bench) {
	top := b.groups("a", "b")
	b.writes(top.Child("a"), write{"memory.limit_in_bytes", "64M", 0, "67108864"})
	if err := b.Tree.Write(top.Child("a").File("memory.memsw.limit_in_bytes"), "64M"); err != nil {
		b.Logf("without memsw: %v", err)
	}
	hog, neighbour := b.spawn(top.Child("a")), b.spawn(top.Child("b"))
	if hog.Touch(128 << 20) {
		b.Error("the process took twice its limit")
	}
	if !neighbour.Touch(1 << 20) {
		b.Error("the neighbour was killed")
	}
	b.counts(top.Child("a"), "memory.oom_control", "oom_kill", "1")
	b.counts(top.Child("b"), "memory.oom_control", "oom_kill", "0")
	usage, err := metrics.Read(b.Tree, top.Child("a"))
	if b.must(err); usage.Memory.OOMKills == nil || *usage.Memory.OOMKills != 1 {
		b.Errorf("Stat does not count the kill: %+v", usage.Memory)
	}
}

func inheritedV1(b *bench) {
	top := b.groups("before")
	b.writes(top,
		write{"memory.swappiness", "201", syscall.EINVAL, "60"},
		write{"memory.swappiness", "10", 0, "10"},
	)
	b.fails(b.Tree.Write(top.File("memory.oom_control"), "2"), cgroup.ErrInvalid, syscall.EINVAL)
	b.must(b.Tree.Write(top.File("memory.oom_control"), "1"))
	b.counts(top, "memory.oom_control", "oom_kill_disable", "1")
	after := b.group(top.Child("after"))
	b.holds(top.Child("before"), "memory.swappiness", "60")
	b.holds(after, "memory.swappiness", "10")
	b.counts(top.Child("before"), "memory.oom_control", "oom_kill_disable", "0")
	b.counts(after, "memory.oom_control", "oom_kill_disable", "1")
}

func throttleLines(b *bench) {
	const bps, iops = "blkio.throttle.read_bps_device", "blkio.throttle.write_iops_device"
	top := b.groups("a")
	d := b.Device
	b.holds(top, bps, "")
	b.writes(top,
		write{bps, d + " 1048576", 0, d + " 1048576"},
		write{bps, d + " 10M", 0, d + " 10"}, // no suffixes: what follows the number is ignored
		write{bps, d, syscall.EINVAL, d + " 10"},
		write{bps, d + " -1", syscall.EINVAL, d + " 10"},
		write{bps, d + " abc", syscall.EINVAL, d + " 10"},
		write{bps, b.Absent + " 5", syscall.ENODEV, d + " 10"},
		write{bps, d + " 0", 0, ""},
		write{bps, d + " 18446744073709551615", 0, ""},
		write{iops, d + " 500", 0, d + " 500"},
		write{iops, d + " 4294967296", 0, d + " 0"}, // cut to 32 bits
		write{iops, d + " 4294967295", 0, ""},
	)
	b.fails(b.Tree.Write(cgroup.File{Dir: top, Name: bps, Key: b.Absent}, "5"), cgroup.ErrInvalid, syscall.ENODEV)
	keyed := cgroup.File{Dir: top, Name: bps, Key: d}
	b.must(b.Tree.Write(keyed, "4096"))
	if got, err := b.Tree.Read(keyed); got != "4096" || err != nil {
		b.Errorf("read %s: %q, %v", keyed, got, err)
	}
	b.holds(top.Child("a"), bps, "") // it does not descend
}

func pidsMax(b *bench) {
	top := b.groups("a")
	b.holds(top, "pids.max", "max")
	b.writes(top,
		write{"pids.max", "-1", syscall.EINVAL, "max"},
		write{"pids.max", "1k", syscall.EINVAL, "max"},
		write{"pids.max", "4194305", syscall.EINVAL, "max"},
		write{"pids.max", "4194304", 0, "4194304"},
		write{"pids.max", "0", 0, "0"},
	)
	p := b.spawn(top.Child("a")) // a move is never refused
	usage, err := metrics.Read(b.Tree, top)
	if b.must(err); usage.Tasks.Current == nil || *usage.Tasks.Current < 1 {
		b.Errorf("the tasks below do not count: %+v", usage.Tasks)
	}
	p.Exit()
	b.writes(top, write{"pids.max", "max", 0, "max"})
}

// freezing is the same for v1's freezer and for any v2 group.
func freezing(b *bench) {
	top := b.groups("a", "a/x")
	inner, leaf := top.Child("a"), top.Child("a").Child("x")
	frozen := func(d cgroup.Dir, want bool) {
		b.Helper()
		if got, err := b.Tree.Frozen(d); got != want || err != nil {
			b.Errorf("%s frozen: %v, %v", d, got, err)
		}
	}
	p := b.spawn(leaf)
	frozen(inner, false)
	b.must(b.Tree.Freeze(inner, true))
	frozen(inner, true)
	frozen(leaf, true)
	frozen(top, false)
	b.must(b.Tree.Freeze(inner, true)) // again changes nothing
	// Letting a group go whose parent is frozen cannot succeed.
	b.fails(b.Tree.Freeze(leaf, false), cgroup.ErrBusy, 0)
	b.must(b.Tree.Freeze(inner, false))
	frozen(inner, false)
	frozen(leaf, false)
	p.Exit()
	b.must(b.Tree.Freeze(leaf, true)) // an empty group too
	frozen(leaf, true)
	b.must(b.Tree.Freeze(leaf, false))
	b.fails(b.Tree.Freeze(top.Child("absent"), true), cgroup.ErrGone, 0)
}

// noHugeLimit is noLimit rounded down to pages of 2 MiB.
const noHugeLimit = "9223372036852678656"

// freshHuge fails the case when a limit of a new group is not one of the forms of no limit: a number since
// some kernel after 6.1 (measured on 6.18), before that what writing no limit gives.
func (b *bench) freshHuge(d cgroup.Dir, limit string) {
	b.Helper()
	got, err := b.Tree.Read(d.File(limit))
	if b.must(err); got != noLimit && got != noHugeLimit && !(b.hierarchy.Version == 2 && got == "max") {
		b.Errorf("%s holds %q in a new group", d.File(limit), got)
	}
}

// hugePages is the same on both versions but for names and words.
func hugePages(b *bench, file, none string) {
	limit := "hugetlb.2MB." + file
	top := b.groups("a")
	b.freshHuge(top, limit)
	after := none
	if none == "-1" {
		after = noHugeLimit
	}
	b.writes(top,
		write{limit, "3000000", 0, "2097152"},
		write{limit, "5", 0, "0"},
		write{limit, "1G", 0, "1073741824"},
		write{limit, "abc", syscall.EINVAL, "1073741824"},
		write{limit, "-5", syscall.EINVAL, "1073741824"},
		write{limit, none, 0, after},
	)
	b.freshHuge(top.Child("a"), limit)
	usage, err := metrics.Read(b.Tree, top)
	if b.must(err); usage.Memory.Huge == nil || *usage.Memory.Huge != 0 {
		b.Errorf("huge pages in use: %v, want 0", usage.Memory.Huge)
	}
}
