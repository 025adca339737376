//go:build root

package control

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// bench is a test's own host with systemd as PID 1: services with files of their own, and what systemd says of them.
type unitSite struct {
	*site
	systemd *systemd.Manager
	slice   string // of the root group, as a path
}

func newUnitSite(t *testing.T) *unitSite {
	t.Helper()
	if !systemd.Running("") {
		if os.Getenv("BULKHEAD_LAB") == "1" {
			t.Fatal("systemd is not PID 1 of this machine of the lab")
		}
		t.Skip("systemd is not PID 1 here; the lab's machines have it")
	}
	s := &unitSite{site: newSite(t)}
	m, err := systemd.Connect(t.Context(), systemd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.systemd = m
	name, err := unitname.SliceName(s.root, "")
	if err != nil {
		t.Fatal(err)
	}
	s.slice = "/" + name
	t.Cleanup(func() {
		if _, err := s.try(api.Request{Verb: "release", All: true}); err != nil {
			t.Errorf("clean up: %v", err)
		}
		m.Close()
	})
	return s
}

// service writes a unit file of an administrator's, with limits of its own, and starts it.
func (s *unitSite) service(name, program string, lines ...string) string {
	s.t.Helper()
	unit := s.root + "-" + name + ".service"
	file := filepath.Join("/etc/systemd/system", unit)
	text := "[Unit]\nDescription=a service of a test\n[Service]\nExecStart=" + program + "\n" + strings.Join(lines,
		"\n") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.systemd.Stop(ctx, unit); err != nil {
			s.t.Errorf("clean up: %v", err)
		}
		if err := os.Remove(file); err != nil {
			s.t.Errorf("clean up: %v", err)
		}
		if err := s.systemd.Reload(ctx); err != nil {
			s.t.Errorf("clean up: %v", err)
		}
	})
	s.reload(1)
	if err := s.systemd.Start(s.t.Context(), unit); err != nil {
		s.t.Fatal(err)
	}
	return unit
}

// reload has systemd read its files again, once only in a short run: each takes some seconds in emulation.
func (s *unitSite) reload(times int) {
	s.t.Helper()
	if testing.Short() {
		times = 1
	}
	for range times {
		if err := s.systemd.Reload(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *unitSite) restart(unit string) {
	s.t.Helper()
	if err := s.systemd.Stop(s.t.Context(), unit); err != nil {
		s.t.Fatal(err)
	}
	if err := s.systemd.Start(s.t.Context(), unit); err != nil {
		s.t.Fatal(err)
	}
}

func (s *unitSite) unit(name string) *systemd.Unit {
	s.t.Helper()
	u, err := s.systemd.Unit(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

// reads waits until the kernel holds a value in a directory of whichever hierarchy has the controller.
func (s *unitSite) reads(when, dir string, v1, v2 string, want string) {
	s.t.Helper()
	file, controller := v2, strings.Split(v1, ".")[0]
	h := s.of(controller)
	if h.Version == 1 {
		file = v1
	}
	var got string
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		got, err = testhost.Tree(s.t).Read(cgroup.Dir{Hierarchy: h.ID, Path: dir}.File(file))
		if err == nil && (strings.TrimSpace(got) == want || h.Version == 1 && want == "max" && len(got) > 15) {
			return
		}
	}
	s.t.Errorf("%s: %s of %s holds %q, %v; want %q", when, file, dir, strings.TrimSpace(got), err, want)
}

// sleeper gives a program of a service with arguments of its own, and the rule that matches it alone.
func (s *unitSite) sleeper(n int) (program, rule string) {
	mark := fmt.Sprintf("%d.%d", n, os.Getpid())
	return "/bin/sleep " + mark, "^/bin/sleep " + strings.ReplaceAll(mark, ".", `\.`) + "$"
}

// full is a full look, as the agent takes it.
func (s *unitSite) full() reconcile.LookResult {
	s.t.Helper()
	s.Agent = s.Self
	procs, err := s.Host.Proc.Processes(procfs.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	done, err := s.Look(context.Background(), reconcile.LookOptions{Processes: procs, Changed: true, Full: true})
	if err != nil {
		s.t.Errorf("look: %v", err)
	}
	return done
}

// state is all that systemd and the kernel hold of a unit, as text.
func (s *unitSite) stateOf(unit string) string {
	s.t.Helper()
	u := s.unit(unit)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s in %s, drop-ins %v\n", u.Name, u.ActiveState, u.ControlGroup, u.DropInPaths)
	for _, row := range systemd.Table() {
		if v, ok := u.Properties[row.Name]; ok && row.Form != systemd.FormFlag {
			fmt.Fprintf(&b, "%s=%v\n", row.Name, v)
		}
	}
	overrides, err := s.systemd.Overrides(unit)
	if err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintf(&b, "%d overrides\n", len(overrides))
	b.WriteString(testhost.Snapshot(s.t, testhost.Tree(s.t), strings.TrimPrefix(u.ControlGroup, "/")))
	return b.String()
}

// ourUnits lists what systemd has loaded of our root.
func (s *unitSite) ourUnits() []string {
	s.t.Helper()
	all, err := s.systemd.Units(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var ours []string
	for _, u := range all {
		if _, ok := unitname.GroupOf(s.root, u.Name); ok && u.ActiveState == "active" {
			ours = append(ours, u.Name)
		}
	}
	return ours
}

// A unit that a group claims whole carries the group's limits by its own properties: they outlive reloads and its
// restart, and release gives everything back without touching it.
func TestUnitIsGovernedByItsProperties(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81001)
	unit := s.service("db", program, "TasksMax=321", "MemoryMax=300M")
	before, pid := s.stateOf(unit), s.unit(unit).MainPID
	dir := s.unit(unit).ControlGroup
	text := fmt.Sprintf("groups:\n  app: {role: database, match: [{cmdline: '%s'}], cpu: {limit: 0.5, weight: 500}, "+
		"memory: {max: 128MiB}}\n", rule)
	s.apply(text)
	check := func(when string) {
		t.Helper()
		s.reads(when, dir, "memory.limit_in_bytes", "memory.max", "134217728")
		if s.of("cpu").Version == 2 {
			s.reads(when, dir, "cpu.shares", "cpu.weight", "500")
			s.reads(when, dir, "cpu.cfs_quota_us", "cpu.max", "50000 100000")
		} else {
			s.reads(when, dir, "cpu.shares", "", "5120")
			s.reads(when, dir, "cpu.cfs_quota_us", "", "50000")
		}
		s.reads(when, dir, "pids.max", "pids.max", "321") // its own, which the group does not ask about
	}
	check("after apply")
	if again := s.apply(text); again.Changed {
		t.Errorf("a second apply changes something: %+v", again.Plan.Steps)
	}
	s.reload(3)
	check("after reloads")
	if got := s.unit(unit); got.MainPID != pid || got.ControlGroup != dir {
		t.Errorf("it is process %d in %s, was %d in %s", got.MainPID, got.ControlGroup, pid, dir)
	}
	s.restart(unit)
	check("after its restart")
	s.reopen()
	s.full()
	check("after a look of the agent")
	pid = s.unit(unit).MainPID
	s.must(api.Request{Verb: "set", Assign: []string{"app:memory.max=64MiB"}})
	s.reads("after set", dir, "memory.limit_in_bytes", "memory.max", "67108864")
	s.must(api.Request{Verb: "release", All: true})
	if after := s.stateOf(unit); after != before {
		t.Errorf("after release:\n%s\nbefore:\n%s", after, before)
	}
	if got := s.unit(unit); got.MainPID != pid || got.ControlGroup != dir || !got.Active() {
		t.Errorf("release touched the service: process %d in %s", got.MainPID, got.ControlGroup)
	}
	if ours := s.ourUnits(); len(ours) > 0 {
		t.Errorf("left behind: %v", ours)
	}
}

// What is asked for no more goes back to what the unit's own file says.
func TestUnitGetsItsOwnLimitBack(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81002)
	unit := s.service("db", program, "TasksMax=321")
	dir := s.unit(unit).ControlGroup
	group := func(limits string) string {
		return fmt.Sprintf("groups:\n  app: {role: database, match: [{cmdline: '%s'}], %s}\n", rule, limits)
	}
	s.apply(group("tasks: 50, memory: {max: 64MiB}"))
	s.reads("after apply", dir, "pids.max", "pids.max", "50")
	s.apply(group("memory: {max: 96MiB}"))
	s.reads("asked no more", dir, "pids.max", "pids.max", "321")
	s.reads("still asked", dir, "memory.limit_in_bytes", "memory.max", "100663296")
	// What somebody else sets of it meanwhile is theirs.
	theirs := systemd.Property{Name: "MemoryHigh", Value: uint64(80 << 20)}
	if err := s.systemd.SetProperties(t.Context(), unit, systemd.Persistent, theirs); err != nil {
		t.Fatal(err)
	}
	s.full()
	if overrides, err := s.systemd.Overrides(unit); err != nil ||
		!slices.ContainsFunc(overrides, func(o systemd.Override) bool { return o.Setting() == theirs.Name }) {
		t.Errorf("their property is gone: %v, %v", overrides, err)
	}
	s.apply("groups:\n  other: {match: [{exe: /nowhere}], tasks: 9}\n")
	s.reads("claimed by nobody", dir, "memory.limit_in_bytes", "memory.max", "max")
	if overrides, err := s.systemd.Overrides(unit); err != nil || len(overrides) != 1 ||
		overrides[0].Setting() != theirs.Name {
		t.Errorf("overrides %v, %v; only theirs is to stay", overrides, err)
	}
	if err := s.systemd.RestoreOverrides(t.Context(), unit, nil); err != nil {
		t.Error(err)
	}
}

// Loose processes sit in a sub-group of their group's keeper. A keeper that is killed costs none of them its life.
func TestLooseProcessesSitWithTheKeeper(t *testing.T) {
	s := newUnitSite(t)
	p, rule := marked(t, 81003)
	loose(t, s, p)
	// Before kernel 6.2 a process forgets its CPU affinity when the cpuset controller comes to where it is.
	stranger := testhost.Spawn(t, "sleep", "600")
	loose(t, s, stranger)
	var pinned, now unix.CPUSet
	pinned.Set(1)
	if err := unix.SchedSetaffinity(stranger.PID, &pinned); err != nil {
		t.Fatal(err)
	}
	text := "groups:\n  jobs: {match: [{cmdline: '" + rule +
		"'}], cpu: {limit: 0.5}, memory: {max: 64MiB}, tasks: 40}\n"
	s.apply(text)
	slice, keeper := s.unitsOf("jobs")
	dir := path.Join(s.slice, slice)
	members := path.Join(dir, keeper, layout.Members)
	check := func(when string) {
		t.Helper()
		s.reads(when, dir, "pids.max", "pids.max", "40")
		s.reads(when, dir, "memory.limit_in_bytes", "memory.max", "67108864")
		for _, c := range []string{"cpu", "memory", "pids"} {
			if at := s.where(c, p); at != members {
				t.Errorf("%s: the process is in %s of %s, want %s", when, at, c, members)
			}
		}
	}
	check("after apply")
	if err := unix.SchedGetaffinity(stranger.PID, &now); err != nil || now != pinned {
		t.Errorf("a process of no group has lost its CPU affinity: %v, %v, was %v", now, err, pinned)
	}
	s.reload(3)
	check("after reloads")
	if again := s.apply(text); again.Changed {
		t.Errorf("a second apply changes something: %+v", again.Plan.Steps)
	}
	main := s.unit(keeper).MainPID
	if err := kill(main); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); s.unit(keeper).Active() &&
		time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		continue
	}
	check("its keeper killed")
	s.full()
	if !s.unit(keeper).Active() || s.unit(keeper).MainPID == main {
		t.Errorf("the keeper is %s", s.unit(keeper).ActiveState)
	}
	check("after the repair")
	s.must(api.Request{Verb: "release", All: true})
	if !s.Host.Proc.Alive(p) {
		t.Error("release ended the process")
	}
	if ours := s.ourUnits(); len(ours) > 0 {
		t.Errorf("left behind: %v", ours)
	}
}

// A unit that is adopted moves at its next start, not before, and the group's limits hold it then in the group's slice.
func TestAdoptedUnitMovesAtItsNextStart(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81004)
	unit := s.service("db", program)
	home := s.unit(unit).ControlGroup
	reply := s.apply(fmt.Sprintf("groups:\n  app: {role: database, adopt: next-start, match: [{cmdline: '%s'}], "+
		"memory: {max: 128MiB}}\n", rule))
	if got := s.unit(unit).ControlGroup; got != home {
		t.Errorf("it moved to %s while it ran", got)
	}
	s.reads("before its restart", home, "memory.limit_in_bytes", "memory.max", "134217728")
	if !slices.ContainsFunc(reply.Plan.Steps, func(st plan.Step) bool { return st.Op == plan.OpDropIn }) {
		t.Errorf("no drop-in: %+v", reply.Plan.Steps)
	}
	s.reload(2)
	s.reads("reloaded before its restart", home, "memory.limit_in_bytes", "memory.max", "134217728")
	if s.of("cpu").Version == 2 {
		s.reads("reloaded before its restart", home, "cpu.shares", "cpu.weight", "1000") // its role's
	}
	s.restart(unit)
	slice, _ := unitname.SliceName(s.root, "app")
	inside := path.Join(s.slice, slice)
	if got := s.unit(unit).ControlGroup; got != path.Join(inside, unit) {
		t.Errorf("after its restart it is in %s", got)
	}
	s.full()
	s.reads("after its restart", inside, "memory.limit_in_bytes", "memory.max", "134217728")
	s.reload(2)
	s.reads("after reloads", inside, "memory.limit_in_bytes", "memory.max", "134217728")
	s.must(api.Request{Verb: "release", All: true})
	s.reads("after release", inside, "memory.limit_in_bytes", "memory.max", "max")
	if drops, err := s.systemd.DropIns(); err != nil || len(drops) > 0 {
		t.Errorf("drop-ins %v, %v", drops, err)
	}
	if !s.unit(unit).Active() {
		t.Error("release stopped the unit")
	}
	s.restart(unit)
	if got := s.unit(unit).ControlGroup; got != home {
		t.Errorf("after release and restart it is in %s", got)
	}
}

// Processes that are a part of a unit are taken out of it only when the group says so, and its main process never.
func TestPartOfAUnitNeedsAsking(t *testing.T) {
	s := newUnitSite(t)
	mark := fmt.Sprintf("81005.%d", os.Getpid())
	unit := s.service("cron", fmt.Sprintf("/bin/sh -c 'sleep %s & exec sleep 81006'", mark))
	rule := "^sleep " + strings.ReplaceAll(mark, ".", `\.`) + "$"
	dir := s.unit(unit).ControlGroup
	child := s.findProcess(rule, mark)
	group := func(more string) string {
		return fmt.Sprintf("groups:\n  jobs: {%s match: [{cmdline: '%s'}], cpu: {limit: 0.5}}\n", more, rule)
	}
	reply := s.apply(group(""))
	if at := s.where("cpu", child); at != dir && at != "/" && at != path.Dir(dir) {
		t.Errorf("it was taken out, to %s", at)
	}
	if !slices.ContainsFunc(reply.Plan.Notes,
		func(n plan.Note) bool { return n.NotEnforced && strings.Contains(n.Text, "from_unit") }) {
		t.Errorf("nothing says that it is not held: %+v", reply.Plan.Notes)
	}
	s.apply(group("from_unit: true,"))
	if at := s.where("cpu", child); !strings.HasPrefix(at, s.slice+"/") {
		t.Errorf("it is in %s", at)
	}
	s.must(api.Request{Verb: "release", All: true})
	if at := s.where("cpu", child); strings.HasPrefix(at, s.slice) || !s.Host.Proc.Alive(child) {
		t.Errorf("after release it is in %s", at)
	}
}

// An administrator's slice gets a group's limits, takes a command in, and is itself again after release (the case of
// the ScyllaDB documents).
func TestSliceOfAnAdministrator(t *testing.T) {
	s := newUnitSite(t)
	name := strings.ReplaceAll(s.root, "-", "") + "-helper.slice"
	file := filepath.Join("/etc/systemd/system", name)
	if err := os.WriteFile(file, []byte("[Slice]\nMemoryMax=900M\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.systemd.Stop(context.Background(), name)
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
		_ = s.systemd.Reload(context.Background())
	})
	s.reload(1)
	if err := s.systemd.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	before := s.stateOf(name)
	dir, err := unitname.SliceDir(name)
	if err != nil {
		t.Fatal(err)
	}
	p, rule := marked(t, 81007)
	loose(t, s, p)
	s.apply(fmt.Sprintf("groups:\n  helper: {role: helper, slice: '%s', match: [{cmdline: '%s'}], memory: {max: "+
		"5%%}, tasks: 99}\n", name, rule))
	s.reads("after apply", dir, "pids.max", "pids.max", "99")
	if at := s.where("memory", p); !strings.HasPrefix(at, dir+"/") {
		t.Errorf("the command is in %s", at)
	}
	s.reload(3)
	s.reads("after reloads", dir, "pids.max", "pids.max", "99")
	s.must(api.Request{Verb: "release", All: true})
	if after := s.stateOf(name); after != before {
		t.Errorf("after release:\n%s\nbefore:\n%s", after, before)
	}
	if !s.Host.Proc.Alive(p) {
		t.Error("release ended the process")
	}
}

// kill -9 after every step of an apply on units (every seventh, in short), then rollback: everything is as before.
func TestUnitsKillAfterEveryStep(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81008)
	unit := s.service("db", program, "TasksMax=321")
	p, looseRule := marked(t, 81009)
	loose(t, s, p)
	before := s.stateOf(unit)
	text := fmt.Sprintf(`groups:
  app: {role: database, adopt: next-start, match: [{cmdline: '%s'}], cpu: {limit: 0.5}, memory: {max: 128MiB}, tasks: 50}
  jobs: {match: [{cmdline: '%s'}], cpu: {limit: 0.5}}
`, rule, looseRule)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nhost: {root: "+s.root+"}\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	step, stride := 0, 1
	if testing.Short() { // each step takes some reloads of systemd
		stride = 7
	}
	for ; applyAndDie(t, s.state, file, step); step += stride {
		s.reopen()
		s.must(api.Request{Verb: "rollback"})
		if after := s.stateOf(unit); after != before {
			t.Fatalf("killed after step %d, and rolled back:\n%s\nbefore:\n%s", step, after, before)
		}
		if ours := s.ourUnits(); len(ours) > 0 {
			t.Fatalf("killed after step %d: left behind: %v", step, ours)
		}
		if drops, err := s.systemd.DropIns(); err != nil || len(drops) > 0 {
			t.Fatalf("killed after step %d: drop-ins %v, %v", step, drops, err)
		}
	}
	if step < 10 {
		t.Errorf("the walk had only %d steps", step)
	}
}

// loose takes a process out of the unit of the tests, as a login session's are in none.
func loose(t *testing.T, s *unitSite, p procfs.ID) {
	t.Helper()
	scope := fmt.Sprintf("%s-session%d.scope", strings.ReplaceAll(s.root, "-", ""), p.PID)
	if err := s.systemd.StartScope(t.Context(),
		systemd.Transient{Name: scope, Slice: "user.slice", PIDs: []int{p.PID}}); err != nil {
		t.Fatal(err)
	}
}

// unitsOf names the slice of a group, and the keeper of its loose processes.
func (s *unitSite) unitsOf(group string) (slice, keeper string) {
	s.t.Helper()
	slice, err := unitname.SliceName(s.root, group)
	if err != nil {
		s.t.Fatal(err)
	}
	if keeper, err = unitname.KeeperName(s.root, group); err != nil {
		s.t.Fatal(err)
	}
	return slice, keeper
}

// findProcess waits for a process of a service.
func (s *unitSite) findProcess(rule, mark string) procfs.ID {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		procs, err := s.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, p := range procs {
			if slices.Equal(p.Args, []string{"sleep", mark}) {
				return p.ID
			}
		}
	}
	s.t.Fatalf("no process %s", rule)
	return procfs.ID{}
}

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// envEnter has a copy of the test binary become a command inside the group that it names.
const envEnter = "BULKHEAD_TEST_ENTER"

// TestEnterInACopy is the other end of command; on its own it has nothing to run.
func TestEnterInACopy(t *testing.T) {
	group := os.Getenv(envEnter)
	if group == "" {
		return
	}
	c, err := transaction.Open(transaction.Options{State: os.Getenv(envState)})
	if err != nil {
		t.Fatal(err)
	}
	if err := Enter(t.Context(), c, Entry{Group: group, By: "test", Command: "sh"}); err != nil {
		t.Fatal(err)
	}
	t.Fatal(syscall.Exec("/bin/sh", []string{"sh", "-c", os.Getenv(envText)}, os.Environ()))
}

// ran is a command that was started by `run`.
type ran struct {
	*os.Process
	id    procfs.ID
	born  []string // lines of /proc/self/cgroup, as its first instruction saw them
	stdin *os.File
}

// command has `run` start a script in a group. It says first where it is, and reads its standard input to the end.
func (s *unitSite) command(group, script string) *ran {
	s.t.Helper()
	in, stdin, err1 := os.Pipe()
	stdout, out, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		s.t.Fatal(err1, err2)
	}
	p, err := os.StartProcess("/proc/self/exe", []string{"run", "-test.run=^TestEnterInACopy$"}, &os.ProcAttr{
		Env: append(os.Environ(), envEnter+"="+group, envState+"="+s.state,
			envText+"=cat /proc/self/cgroup; echo; "+script),
		Files: []*os.File{in, out, os.Stderr},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	in.Close()
	out.Close()
	s.t.Cleanup(func() { stdin.Close(); stdout.Close(); _ = p.Kill(); _, _ = p.Wait() })
	r := &ran{Process: p, stdin: stdin}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && lines.Text() != "" {
		r.born = append(r.born, lines.Text())
	}
	procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{p.Pid}})
	if err != nil || len(procs) != 1 {
		s.t.Fatalf("the command did not start: %v, %v", r.born, err)
	}
	r.id = procs[0].ID
	return r
}

// gone waits until systemd knows nothing of a unit any more.
func (s *unitSite) gone(when, unit string) {
	s.t.Helper()
	var u *systemd.Unit
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if u = s.unit(unit); u.LoadState == systemd.LoadNotFound {
			return
		}
	}
	s.t.Errorf("%s: %s is still %s, %s", when, unit, u.LoadState, u.ActiveState)
}

// A command of `run` is a unit of its own in the group's slice from its first instruction on: the group's limits hold
// it, the agent leaves it there, reloads do, it ends with the command, and release sends the command back.
func TestRunIsAUnitOfItsOwn(t *testing.T) {
	s := newUnitSite(t)
	p, rule := marked(t, 81010)
	loose(t, s, p)
	text := "groups:\n  jobs: {match: [{cmdline: '" + rule +
		"'}], cpu: {limit: 0.5}, memory: {max: 256MiB}, tasks: 60, io: [{read: {bandwidth: 50MB/s}}]}\n"
	s.apply(text)
	slice, keeper := s.unitsOf("jobs")
	group := path.Join(s.slice, slice)
	check := func(when string, r *ran) string {
		t.Helper()
		unit, err := unitname.RunName(s.root, "jobs", r.id.PID, r.id.Start)
		if err != nil {
			t.Fatal(err)
		}
		scope := path.Join(group, unit)
		if u, err := s.systemd.UnitOf(t.Context(), r.Pid); err != nil || u.Name != unit || !u.Active() ||
			u.ControlGroup != scope || u.Slice != slice {
			t.Errorf("%s: systemd has it in %+v, %v; want %s", when, u, err, unit)
		}
		for _, c := range []string{"cpu", "memory", "pids"} {
			if at := s.where(c, r.id); at != scope && at != group {
				t.Errorf("%s: it is in %s of %s, want %s", when, at, c, scope)
			}
		}
		if at, want := s.where("blkio", r.id), path.Join(group, keeper, layout.Members); s.of("blkio").Version == 1 &&
			at != want {
			t.Errorf("%s: it is in %s of blkio, where a limit holds only the very directory; want %s", when, at, want)
		}
		return unit
	}
	r := s.command("jobs", "read x; exit 7")
	unit := check("started", r)
	for _, line := range r.born {
		if h, ok := s.hierarchyOf(line); ok && !strings.HasPrefix(strings.SplitN(line, ":", 3)[2], group) {
			t.Errorf("its first instruction was outside in %s: %s", h, line)
		}
	}
	check("after a look", r)
	if done := s.full(); len(done.Moved) > 0 || done.Repaired > 0 {
		t.Errorf("the agent moved %v and repaired %d", done.Moved, done.Repaired)
	}
	check("after a look", r)
	s.reload(3)
	check("after three reloads", r)
	if done := s.full(); len(done.Moved) > 0 {
		t.Errorf("after reloads the agent moved %v", done.Moved)
	}
	if again := s.apply(text); again.Changed {
		t.Errorf("a second apply changes something: %+v", again.Plan.Steps)
	}
	r.stdin.Close()
	if state, err := r.Wait(); err != nil || state.ExitCode() != 7 {
		t.Errorf("it ended with %v, %v; its own status is 7", state, err)
	}
	s.gone("the command has ended", unit)

	r = s.command("jobs", "sleep 81011 & read x")
	unit = check("started again", r)
	if err := r.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if state, err := r.Wait(); err != nil || state.String() != "signal: terminated" {
		t.Errorf("it ended with %v, %v", state, err)
	}
	child := s.findProcess("", "81011")
	if !s.unit(unit).Active() {
		t.Error("what the command started lost its unit")
	}
	home := s.ownCgroups()
	last := s.command("jobs", "read x")
	lastUnit := check("before release", last)
	s.must(api.Request{Verb: "release", All: true})
	now := s.ownCgroups()
	for _, id := range []procfs.ID{child, last.id} {
		if !s.Host.Proc.Alive(id) {
			t.Errorf("release ended process %d", id.PID)
		}
		for hierarchy, want := range home {
			at := s.whereIn(hierarchy, id)
			if id == last.id && at != want && at != now[hierarchy] &&
				at != "/" { // systemd may have taken a directory away meanwhile
				t.Errorf("after release it is in %s of %s, was called from %s", at, hierarchy, want)
			}
			if strings.HasPrefix(at, s.slice) {
				t.Errorf("after release process %d is in %s of %s", id.PID, at, hierarchy)
			}
		}
	}
	s.gone("after release", unit)
	s.gone("after release", lastUnit)
	if ours := s.ourUnits(); len(ours) > 0 {
		t.Errorf("left behind: %v", ours)
	}
	if err := kill(child.PID); err != nil {
		t.Error(err)
	}
}

// hierarchyOf tells, for a line of /proc/PID/cgroup, in which hierarchy of systemd's with a limit of the group's it is.
func (s *unitSite) hierarchyOf(line string) (string, bool) {
	fields := strings.SplitN(line, ":", 3)
	for _, c := range []string{"cpu", "memory", "pids", "blkio"} {
		h := s.of(c)
		controllers := strings.Join(h.Controllers, ",")
		if h.Version == 2 {
			controllers = ""
		}
		listed := strings.Split(fields[1], ",")
		slices.Sort(listed)
		if strings.Join(listed, ",") == controllers {
			return h.ID, true
		}
	}
	return "", fields[1] == "name=systemd"
}

// ownCgroups is where this process is.
func (s *unitSite) ownCgroups() map[string]string {
	s.t.Helper()
	procs, err := s.Host.Proc.Processes(procfs.Options{PIDs: []int{os.Getpid()}})
	if err != nil || len(procs) != 1 {
		s.t.Fatal(err)
	}
	return procs[0].Cgroups
}
