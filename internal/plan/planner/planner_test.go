package planner

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change/flat"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/policy"
)

// member adds a placement of a process to an input.
func member(in *plan.Input, p procfs.Process, group string) {
	in.Observed.Processes = append(in.Observed.Processes, p)
	in.Classified.Placements = append(in.Classified.Placements,
		classify.Placement{Process: p, Group: group, By: classify.ByRule, Rule: "exe: " + p.Comm})
}

// proc is a process outside every group of ours.
func proc(pid, ppid int, comm string, f *host.Facts) procfs.Process {
	p := procfs.Process{ID: procfs.ID{PID: pid, Start: uint64(pid)}, PPID: ppid, Comm: comm, State: 'S', Threads: 1,
		Cgroups: map[string]string{}}
	for _, h := range f.Hierarchies {
		p.Cgroups[h.ID] = "/"
	}
	return p
}

// input has a root group of the largest weight; flat tests and TestAnyStateToAnyState do without one.
func input(f *host.Facts, groups ...classify.Group) plan.Input {
	return plan.Input{Facts: f, Host: nested, Classified: groupsOf(groups...),
		Observed: plan.Observation{Dirs: map[cgroup.Dir]map[string]string{}}}
}

var nested = policy.HostPart{Root: "bulkhead", Weight: 10000}

// inPlace fills the observation with a host on which everything is as wanted.
func inPlace(in *plan.Input) {
	d := desired.New(in)
	for _, dir := range d.Layout.Dirs() {
		in.Observed.Dirs[dir] = map[string]string{}
	}
	for _, w := range d.Wanted() {
		text := w.Value
		if w.File().Key != "" {
			text = strings.TrimPrefix(in.Observed.Dirs[w.File().Dir][w.File().Name]+"\n"+w.File().Key+" "+w.Value, "\n")
		}
		in.Observed.Dirs[w.File().Dir][w.File().Name] = text
	}
	in.Observed.Subtree = map[cgroup.Dir]plan.Subtree{}
	for dir, enabled := range d.Enabled {
		in.Observed.Subtree[dir] = plan.Subtree{Enabled: enabled}
	}
	for _, ps := range []*[]procfs.Process{&in.Observed.Processes} {
		for i := range *ps {
			enter(in, d, &(*ps)[i])
		}
	}
	for i := range in.Classified.Placements {
		enter(in, d, &in.Classified.Placements[i].Process)
	}
}

func enter(in *plan.Input, d *desired.State, p *procfs.Process) {
	for _, pl := range in.Classified.Placements {
		if pl.Process.ID == p.ID {
			for h, dir := range d.Layout.Member(pl.Group) {
				p.Cgroups[h] = dir.Path
			}
		}
	}
}

// brief prints steps on one line each, for tables.
func brief(p plan.Plan) []string {
	var lines []string
	for _, s := range p.Steps {
		line := s.Dir().String()
		switch f, is := cgroup.FileOf(s.Target); {
		case is:
			line += "/" + f.Name + " " + strings.TrimSpace(f.Key+" "+s.New)
		case s.Moves():
			line += " " + s.Name
		case s.Kind == procfs.KindScore:
			line = s.Name + " " + s.New
		case s.Kind != cgroup.KindDir:
			line = s.Addr
		}
		lines = append(lines, flat.Op(s.Change)+" "+line)
	}
	return lines
}

func wantSteps(t *testing.T, p plan.Plan, want ...string) {
	t.Helper()
	if got := brief(p); !slices.Equal(got, want) {
		t.Errorf("steps:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func cpuOnly() *host.Facts { return factsWith(v1("cpu")) }

func TestNothingToDo(t *testing.T) {
	for name, facts := range hosts {
		t.Run(name, func(t *testing.T) {
			in := input(facts(), group("a", settings("group", "cpu.weight", policy.Weight(10), "memory.max",
				policy.Bytes(1<<30))), group("a/x", settings("group", "io.read.iops@8:0", policy.IOPS(9))))
			member(&in, proc(10, 1, "mysqld", in.Facts), "a")
			member(&in, proc(11, 10, "backup", in.Facts), "a/x")
			inPlace(&in)
			wantSteps(t, Make(in))
		})
	}
}

func TestEmptyPolicyHasNoTree(t *testing.T) {
	p := Make(input(legacyHost()))
	wantSteps(t, p)
	if len(p.Want) > 0 || len(p.Shares) > 0 {
		t.Errorf("want %v, shares %v for no groups", p.Want, p.Shares)
	}
}

// A new tree: directories, then values, then members, the parent process first and all hierarchies of one
// process together.
func TestOrderOfANewTree(t *testing.T) {
	f := factsWith(v1("cpu"), v1("cpuset"))
	in := input(f, group("a", settings("group", "cpu.weight", policy.Weight(10), "cpu.cpus",
		policy.IDs{Set: idset.New(0)})))
	member(&in, proc(12, 30, "child", f), "a")
	member(&in, proc(30, 1, "parent", f), "a")
	wantSteps(t, Make(in),
		"mkdir cpu:/bulkhead", "mkdir cpu:/bulkhead/a",
		"mkdir cpuset:/bulkhead", "write cpuset:/bulkhead/cpuset.cpus 0-3", "write cpuset:/bulkhead/cpuset.mems 0-1",
		"mkdir cpuset:/bulkhead/a", "write cpuset:/bulkhead/a/cpuset.cpus 0",
		"write cpuset:/bulkhead/a/cpuset.mems 0-1",
		"write cpu:/bulkhead/cpu.shares 102400", "write cpu:/bulkhead/a/cpu.shares 102",
		"move cpu:/bulkhead/a parent", "move cpuset:/bulkhead/a parent",
		"move cpu:/bulkhead/a child", "move cpuset:/bulkhead/a child",
	)
}

// Two groups swap their CPUs: each has both sets for a moment, neither ever has none.
func TestSwapCPUSets(t *testing.T) {
	ids := func(n ...int) policy.Settings {
		return settings("group", "cpu.cpus", policy.IDs{Set: idset.New(n...)})
	}
	in := input(factsWith(v1("cpuset")), group("a", ids(0, 1)), group("b", ids(2, 3)))
	inPlace(&in)
	in.Classified = groupsOf(group("a", ids(2, 3)), group("b", ids(0, 1)))
	wantSteps(t, Make(in),
		"write cpuset:/bulkhead/a/cpuset.cpus 0-3", "write cpuset:/bulkhead/b/cpuset.cpus 0-3",
		"write cpuset:/bulkhead/b/cpuset.cpus 0-1", "write cpuset:/bulkhead/a/cpuset.cpus 2-3",
	)
}

// Limits of a parent and its child rise from the top and fall from the bottom.
func TestRaiseAndLower(t *testing.T) {
	limits := func(outer, inner policy.Cores) []classify.Group {
		return groupsOf(group("a", settings("group", "cpu.limit", outer)),
			group("a/x", settings("group", "cpu.limit", inner))).Groups
	}
	in := input(cpuOnly(), limits(1e6, 5e5)...)
	inPlace(&in)
	in.Classified.Groups = limits(3e6, 2e6)
	wantSteps(t, Make(in), "write cpu:/bulkhead/a/cpu.cfs_quota_us 300000",
		"write cpu:/bulkhead/a/x/cpu.cfs_quota_us 200000")
	in.Classified.Groups = limits(4e5, 2e5)
	wantSteps(t, Make(in), "write cpu:/bulkhead/a/x/cpu.cfs_quota_us 20000",
		"write cpu:/bulkhead/a/cpu.cfs_quota_us 40000")
}

func TestChildAboveItsParent(t *testing.T) {
	in := input(cpuOnly(), group("a", settings("group", "cpu.limit", policy.Cores(1e6))),
		group("a/x", settings("group", "cpu.limit", policy.Cores(2e6))))
	p := Make(in)
	if slices.ContainsFunc(p.Steps,
		func(s plan.Step) bool { return s.Group == "a/x" && s.File().Name == desired.FileQuota }) {
		t.Error("a quota above the parent's is written; the kernel refuses it")
	}
	wantNote(t, p, plan.Note{Group: "a/x", Key: "cpu.limit",
		Text: "cpu.limit of 2 cores is above the 1 cores of a group above it, which hold it already"})
}

func wantNote(t *testing.T, p plan.Plan, want plan.Note) {
	t.Helper()
	if !slices.ContainsFunc(p.Notes, func(n plan.Note) bool { return reflect.DeepEqual(n, want) }) {
		t.Errorf("notes %+v\nlack %+v", p.Notes, want)
	}
}

// What nobody asks for any more goes back to the kernel's default, a device's line too.
func TestNoLongerAskedFor(t *testing.T) {
	f := factsWith(v1("blkio"), v1("cpu"))
	in := input(f, group("a", settings("group", "cpu.limit", policy.Cores(1e6), "io.read.iops@8:0", policy.IOPS(5),
		"io.read.iops@8:16", policy.IOPS(6))))
	inPlace(&in)
	in.Classified = groupsOf(group("a", settings("group", "io.read.iops@8:0", policy.IOPS(5))))
	p := Make(in)
	wantSteps(t, p,
		"write blkio:/bulkhead/a/blkio.throttle.read_iops_device 8:16 0",
		"write cpu:/bulkhead/a/cpu.cfs_quota_us -1")
	if s := p.Steps[1]; s.Undo != "100000" || s.Reason != "cpu.limit is no longer asked for" {
		t.Errorf("undo %q, reason %q", s.Undo, s.Reason)
	}
}

// cpu.idle taken away puts the kernel's weight back to its default: the weight is written again though the
// policy never changed it.
func TestIdleResetsWeight(t *testing.T) {
	in := input(cpuOnly(), group("a", settings("group", "cpu.weight", policy.Weight(500), "cpu.idle",
		policy.Flag(true))))
	inPlace(&in)
	in.Observed.Dirs[cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}]["cpu.shares"] = "3"
	wantSteps(t, Make(in))
	in.Classified = groupsOf(group("a", settings("group", "cpu.weight", policy.Weight(500))))
	wantSteps(t, Make(in), "write cpu:/bulkhead/a/cpu.idle 0", "write cpu:/bulkhead/a/cpu.shares 5120")
}

// On v2 a group that gets children hands controllers down only after its processes went to its leaf, and a
// group that loses them takes the controllers back before its processes return.
func TestLeafBecomesInnerAndBack(t *testing.T) {
	f := factsWith(v2("pids"))
	alone := groupsOf(group("a", settings("group", "tasks", policy.Count(100))))
	withChild := groupsOf(group("a", settings("group", "tasks", policy.Count(100))),
		group("a/x", settings("group", "tasks", policy.Count(50))))
	in := input(f, alone.Groups...)
	member(&in, proc(10, 1, "mysqld", f), "a")
	inPlace(&in)
	placements := in.Classified.Placements
	in.Classified.Groups = withChild.Groups
	wantSteps(t, Make(in),
		"mkdir unified:/bulkhead/a/db", "mkdir unified:/bulkhead/a/x",
		"move unified:/bulkhead/a/db mysqld", "write unified:/bulkhead/a/cgroup.subtree_control +pids",
		"write unified:/bulkhead/a/x/pids.max 50")

	in = input(f, withChild.Groups...)
	in.Classified.Placements = placements
	in.Observed.Processes = []procfs.Process{placements[0].Process}
	inPlace(&in)
	in.Classified.Groups = alone.Groups
	p := Make(in)
	wantSteps(t, p,
		"write unified:/bulkhead/a/cgroup.subtree_control -pids", "move unified:/bulkhead/a mysqld",
		"rmdir unified:/bulkhead/a/x", "rmdir unified:/bulkhead/a/db")
	if got := p.Steps[0].Restore; len(got) != 1 || got[0].Path != "/bulkhead/a/x" || got[0].Value != "50" {
		t.Errorf("the undo of taking pids away restores %+v", got)
	}
}

func TestRealtimeBudgets(t *testing.T) {
	rt := func(ms int) policy.Settings {
		return settings("group", "cpu.rt", policy.Duration(time.Duration(ms)*time.Millisecond))
	}
	in := input(cpuOnly(), group("a", nil), group("a/x", rt(100)), group("a/y", rt(50)), group("b", rt(300)),
		group("b/x", rt(200)))
	got := map[string]string{}
	for _, w := range Make(in).Want {
		if w.File().Name == desired.FileRTRuntime {
			got[w.File().Dir.Path] = w.Value
		}
	}
	want := map[string]string{
		"/bulkhead": "450000", "/bulkhead/a": "150000", "/bulkhead/a/x": "100000", "/bulkhead/a/y": "50000",
		"/bulkhead/b": "300000", "/bulkhead/b/x": "150000", "/bulkhead/b/db": "150000",
	}
	for path, text := range want {
		if got[path] != text {
			t.Errorf("%s has %q µs of real-time run time, want %q", path, got[path], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("run times %v, want %v", got, want)
	}
}

func TestRefusals(t *testing.T) {
	limited := func(max policy.Bytes, swap ...policy.Bytes) classify.Group {
		s := settings("group", "memory.max", max)
		if len(swap) > 0 {
			s = s.With(policy.Setting{Key: "memory.swap", Value: swap[0]})
		}
		return group("a", s)
	}
	dir := cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/a"}
	for name, test := range map[string]struct {
		prepare func(*plan.Input)
		want    string // part of the reason; "" for none
	}{
		"foreign root": {func(in *plan.Input) {
			in.Observed.Foreign = map[cgroup.Dir]bool{{Hierarchy: "memory", Path: "/bulkhead"}: true}
		}, `there is a group "/bulkhead" in the memory hierarchy that bulkhead did not make`},
		"systemd": {func(in *plan.Input) { in.Facts.Systemd = true },
			"systemd owns the cgroup tree of this host, and could not be asked"},
		"pinned above": {func(in *plan.Input) { inUse(in).pinned = map[cgroup.Dir]int64{dir: 3 << 30} },
			"memory.max 2 GiB is below the 3 GiB in memory:/bulkhead/a that cannot be reclaimed"},
		"pinned but swap": {func(in *plan.Input) {
			inUse(in).pinned = map[cgroup.Dir]int64{dir: 3 << 30}
			in.Classified = groupsOf(limited(2<<30, 1<<30))
		}, ""},
		"more swap than is": {func(in *plan.Input) {
			inUse(in).pinned = map[cgroup.Dir]int64{dir: 7 << 30}
			in.Classified = groupsOf(limited(2<<30, 20<<30))
		}, "memory.max 2 GiB plus 4 GiB of swap is below the 7 GiB"},
		"held above": {func(in *plan.Input) { hold(in, 3<<30, 0) },
			"below the 3 GiB of anonymous and shared memory that the group's processes hold"},
		"shared held once": {func(in *plan.Input) {
			hold(in, 1<<30, 1<<30)
			hold(in, 1<<30, 1<<30)
			hold(in, 1<<30,
				1<<30)
		},
			""},
		"enough": {func(in *plan.Input) {
			hold(in, 1<<30,
				0)
			inUse(in).pinned = map[cgroup.Dir]int64{dir: 1 << 30}
		}, ""},
		"reserve too large": {func(in *plan.Input) { in.Host.Reserve.CPU = 4 * policy.One },
			"host.reserve keeps 4 of the host's 4 cores"},
		"reserve all": {func(in *plan.Input) { in.Host.Reserve.Memory = policy.Bytes(16 << 30) },
			"host.reserve keeps 16 GiB of the host's 16 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(factsWith(v1("memory")), limited(2<<30))
			test.prepare(&in)
			p := Make(in)
			if test.want == "" {
				if len(p.Refusals) > 0 {
					t.Errorf("refused: %+v", p.Refusals)
				}
				return
			}
			if len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, test.want) {
				t.Errorf("refusals %+v, want %q", p.Refusals, test.want)
			}
			if strings.Contains(name, "foreign") || strings.Contains(name, "systemd") {
				wantSteps(t, p)
			}
		})
	}
}

// hold adds a member of group a that holds memory.
func hold(in *plan.Input, bytes, shared int64) {
	p := proc(100+len(in.Observed.Processes), 1, "mysqld", in.Facts)
	member(in, p, "a")
	inUse(in).held[p.ID], inUse(in).heldShared[p.ID] = bytes, shared
}

// A limit that is in force already is no reason to refuse anything, whatever the group holds.
func TestLimitInForceIsNotRefused(t *testing.T) {
	in := input(factsWith(v1("memory")), group("a", settings("group", "memory.max", policy.Bytes(2<<30))))
	hold(&in, 5<<30, 0)
	inPlace(&in)
	inUse(&in).pinned = map[cgroup.Dir]int64{{Hierarchy: "memory", Path: "/bulkhead/a"}: 5 << 30}
	if p := Make(in); len(p.Refusals)+len(p.Steps) > 0 {
		t.Errorf("refusals %+v, steps %v", p.Refusals, brief(p))
	}
}

func TestCaveats(t *testing.T) {
	in := input(factsWith(v1("cpu"), v1("memory"), v1("blkio")),
		group("a", settings("group", "memory.high", policy.Bytes(1<<30), "tasks", policy.Count(10))),
		group("b", settings("role batch", "memory.high", policy.Bytes(1<<30))),
		group("c", settings("group", "io.write.iops@8:0", policy.IOPS(5))))
	p := Make(in)
	lost := map[string]bool{}
	for _, n := range p.Notes {
		if n.NotEnforced {
			lost[n.Group+" "+string(n.Key)] = true
		}
	}
	if !slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
		return n.Partly && !n.NotEnforced &&
			n.About("c", policy.KeyIOWriteIOPS)
	}) {
		t.Errorf("nothing says that buffered writes are not held: %+v", p.Notes)
	}
	if want := map[string]bool{"a memory.high": true, "a tasks": true}; len(lost) != len(want) ||
		!lost["a memory.high"] || !lost["a tasks"] {
		t.Errorf("not enforced: %v, want %v", lost, want)
	}
	text := plan.Render(p, plan.RenderOptions{Facts: in.Facts})
	for _, want := range []string{"the default of its role batch is not held: cgroup v1 has no memory.high"} {
		if !strings.Contains(text, want) {
			t.Errorf("the notes do not say %q:\n%s", want, text)
		}
	}
	_, broken, _ := strings.Cut(text, "\nnot enforced on this host\n")
	broken, _, _ = strings.Cut(broken, "\n\n")
	if !strings.Contains(broken, "not enforced for buffered writes") {
		t.Errorf("what is not enforced lacks buffered writes:\n%s", text)
	}
}

// A directory that goes away must not stand in the way of a limit that falls, at whatever height.
func TestObsoleteChildMakesWay(t *testing.T) {
	limit := func(c policy.Cores) policy.Settings { return settings("group", "cpu.limit", c) }
	in := input(cpuOnly(), group("a", limit(3e6)), group("a/x", nil), group("a/x/p", limit(2e6)))
	inPlace(&in)
	in.Classified = groupsOf(group("a", limit(1e6)), group("a/x", nil))
	wantSteps(t, Make(in),
		"write cpu:/bulkhead/a/x/p/cpu.cfs_quota_us -1", "write cpu:/bulkhead/a/cpu.cfs_quota_us 100000",
		"rmdir cpu:/bulkhead/a/x/p", "rmdir cpu:/bulkhead/a/x/db")
}
