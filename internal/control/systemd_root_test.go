//go:build root

package control

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/testhost"
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

// kill -9 after every step of an apply on units (every seventh, in short), then rollback: everything is as before.
func TestUnitsKillAfterEveryStep(t *testing.T) {
	s := newUnitSite(t)
	program, rule := s.sleeper(81008)
	unit := s.service("db", program, "TasksMax=321")
	p, looseRule := marked(t, 81009)
	loose(t, s, p)
	before := s.stateOf(unit)
	text := fmt.Sprintf(`groups:
  app:
    {role: database, adopt: next-start, match: [{cmdline: '%s'}], cpu: {limit: 0.5}, memory: {max: 128MiB}, tasks: 50}
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
	if err := s.systemd.StartTransient(t.Context(),
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
