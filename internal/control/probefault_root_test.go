//go:build root

package control

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/testhost"
	"bulkhead/internal/verify"
)

// planted is one fault: a policy, what somebody does after it was applied, and what a probe has to say.
type planted struct {
	name   string
	policy func(t *testing.T, s *site) string
	plant  func(t *testing.T, s *site)
	key    policy.Key
	how    string
	reason string
}

func TestProbeFindsPlantedFaults(t *testing.T) {
	var firstNumber, secondNumber string // of devices
	var mark string
	var member procfs.ID
	oneDisk := func(t *testing.T, _ *site) string {
		first, number := testhost.LoopDevice(t, 64<<20)
		firstNumber = number
		_, secondNumber = testhost.LoopDevice(t, 64<<20)
		return fmt.Sprintf("groups:\n  g: {match: [{cmdline: '%s'}], io: [{on: %s, read: {bandwidth: 10MiB/s}}]}\n",
			mark, first)
	}
	simple := func(limits string) func(*testing.T, *site) string {
		return func(*testing.T, *site) string {
			return "groups:\n  g: {match: [{cmdline: '" + mark + "'}], " + limits + "}\n"
		}
	}
	for _, f := range []planted{
		{
			"a limit on the wrong device", oneDisk,
			func(t *testing.T, s *site) {
				s.writeIO(secondNumber, "10485760")
				s.writeIO(firstNumber, "")
			}, policy.KeyIOReadBandwidth, "direct", "the wrong device",
		},
		{
			"a v1 io limit on a parent whose processes sit in a child", oneDisk,
			func(t *testing.T, s *site) {
				if s.of("blkio").Version != 1 {
					t.Skip("on cgroup v2 limits hold what is below")
				}
				below := s.at(s.of("blkio").ID, "g").Child("below")
				tree := testhost.Tree(t)
				if err := errors.Join(tree.Make(below), tree.Move(below, member)); err != nil {
					t.Fatal(err)
				}
			}, policy.KeyIOReadBandwidth, "direct", "its processes sit in",
		},
		{
			// What a daemon-reload leaves of a limit that was written to a unit's file by hand; a real one is for the
			// lab.
			"a limit undone", simple("cpu: {limit: 0.3}"),
			func(_ *testing.T, s *site) { s.tamper("cpu", "cpu.cfs_quota_us", "-1", "cpu.max", "max") },
			policy.KeyCPULimit, "alone", "the kernel holds unlimited",
		},
		{
			"a CPU set wider than asked", simple(`cpu: {cpus: "0"}`),
			func(_ *testing.T, s *site) { s.tamper("cpuset", "cpuset.cpus", "0-1", "cpuset.cpus", "0-1") },
			policy.KeyCPUCPUs, "alone", "CPU 1 is open to it, too",
		},
		{
			"a process outside its group", simple("tasks: 50"),
			func(t *testing.T, s *site) {
				if err := testhost.Tree(t).Move(cgroup.Dir{Hierarchy: s.of("pids").ID, Path: "/"}, member); err != nil {
					t.Fatal(err)
				}
			}, verify.KeyMembers, "read back", "outside: process",
		},
		{
			"a memory limit lifted", simple("memory: {max: 48MiB}"),
			func(_ *testing.T, s *site) { s.tamper("memory", "memory.limit_in_bytes", "-1", "memory.max", "max") },
			policy.KeyMemoryMax, "to the limit", "the kernel holds unlimited",
		},
		{
			"a limit on tasks lifted", simple("tasks: 50"),
			func(_ *testing.T, s *site) { s.tamper("pids", "pids.max", "max", "pids.max", "max") },
			policy.KeyTasks, "to the limit", "the kernel holds unlimited",
		},
		{
			"a limit on tasks raised a little", simple("tasks: 50"),
			func(_ *testing.T, s *site) { s.tamper("pids", "pids.max", "56", "pids.max", "56") },
			policy.KeyTasks, "to the limit", "the kernel holds 56",
		},
		{
			"a weight that was reset", simple("cpu: {weight: 5000}"),
			func(_ *testing.T, s *site) { s.tamper("cpu", "cpu.shares", "1024", "cpu.weight", "100") },
			policy.KeyCPUWeight, "contended", "the kernel holds",
		},
		{
			"a group that was made idle", simple("cpu: {weight: 5000}"),
			func(t *testing.T, s *site) {
				idle := s.at(s.of("cpu").ID, "g").File("cpu.idle")
				if _, err := testhost.Tree(t).Read(idle); err != nil {
					t.Skipf("this kernel has no idle groups: %v", err)
				}
				if err := testhost.Tree(t).Write(idle, "1"); err != nil {
					t.Fatal(err)
				}
			}, policy.KeyCPUWeight, "contended", "cpu.idle is 1, which takes the place of the weight",
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			s := probeSite(t)
			member, mark = marked(t, 70203)
			text := f.policy(t, s)
			s.apply(text)
			f.plant(t, s)
			s.faulty(s.probed(verify.Options{}), f.key, f.how, f.reason)
			s.apply(text) // as the reason says
			back, err := inspect.Verify(t.Context(), s.Reconciler.Controller, []string{"g"})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range back {
				if r.Fault() {
					t.Errorf("after an apply: %s is %s: %s", r.Key, r.InForce, r.Reason)
				}
			}
		})
	}
}

// tamper writes a knob file of the group g, as somebody else would.
func (s *site) tamper(controller, v1, v1Value, v2, v2Value string) {
	s.t.Helper()
	h := s.of(controller)
	file, value := v1, v1Value
	if h.Version == 2 {
		file, value = v2, v2Value
	}
	if err := testhost.Tree(s.t).Write(s.at(h.ID, "g").File(file), value); err != nil {
		s.t.Fatal(err)
	}
}

// writeIO gives the group g a limit on reading a device; "" takes it away.
func (s *site) writeIO(device, value string) {
	s.t.Helper()
	h := s.of("blkio")
	file := s.at(h.ID, "g").File("blkio.throttle.read_bps_device")
	if file.Key = device; h.Version == 2 {
		file.Name, value = "io.max", "rbps="+cmp.Or(value, "max")
	}
	if err := testhost.Tree(s.t).Write(file, cmp.Or(value, "0")); err != nil {
		s.t.Fatal(err)
	}
}

// mounted makes a loop device with ext4 and mounts it.
func mounted(t *testing.T) (dir string) {
	t.Helper()
	dev, _ := testhost.LoopDevice(t, 192<<20)
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", dev).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4 %s: %v: %s", dev, err, out)
	}
	dir = filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dev, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("clean up: unmount %s: %v", dir, err)
		}
	})
	return dir
}

// TestProbeOfBufferedWrites: on cgroup v1 what goes through the page cache is held by nothing, and direct IO is; on v2
// both are.
func TestProbeOfBufferedWrites(t *testing.T) {
	s := probeSite(t)
	dir := mounted(t)
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], io: [{on: " + dir +
		", read: {bandwidth: 10MiB/s}, write: {bandwidth: 10MiB/s, iops: 400}}]}\n")
	all := s.probed(verify.Options{})
	v1 := s.of("blkio").Version == 1
	if v1 {
		s.faulty(all, policy.KeyIOWriteBandwidth, "buffered", "not enforced for buffered writes")
	}
	for _, r := range all {
		if (r.How == "direct" || r.How == "buffered" && !(v1 && r.Key == policy.KeyIOWriteBandwidth)) &&
			r.Verdict != probe.Held && r.Verdict != probe.NotReached {
			t.Errorf("%s, %s: %s, asked %s, measured %s: %s", r.Key, r.How, r.Verdict, r.Asked, r.Measured, r.Reason)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 { // lost+found
		t.Errorf("a probe left %v, %v", left, err)
	}
}

// TestProbeOfAHalvedBudget: two disks share a limit by use, and no agent gives it to the one that is used.
func TestProbeOfAHalvedBudget(t *testing.T) {
	if os.Getenv("BULKHEAD_LAB") == "1" {
		t.Skip("the loop devices of an emulated machine are too slow to come up to a limit")
	}
	s := probeSite(t)
	one, _ := testhost.LoopDevice(t, 64<<20)
	two, _ := testhost.LoopDevice(t, 64<<20)
	sources := func(split string) []policy.Source {
		return []policy.Source{{Path: "test.yaml",
			Text: fmt.Sprintf("version: 1\nhost: {root: %s, asm: [{group: DATA, disks: [%s, %s]}]}\n"+
				"groups:\n  g: {match: [{exe: /nonexistent/x}], io: [{on: asm:DATA, split: %s, read: {bandwidth: "+
				"20MiB/s}}]}\n", s.root, one, two, split)}}
	}
	s.must(api.Request{Verb: "apply", Sources: sources("by-use")})
	s.faulty(s.probed(verify.Options{}), policy.KeyIOReadBandwidth, "direct, one device alone", "the limit is halved")
	s.must(api.Request{Verb: "apply", Sources: sources("even")})
	for _, r := range s.probed(verify.Options{}) {
		if r.Verdict.Fault() {
			t.Errorf("shared evenly, as asked: %s, %s: %s: %s", r.Key, r.How, r.Verdict, r.Reason)
		}
	}
	// A script that divides by the number of disks once more: what is in force is read back, and measured.
	for _, dev := range []string{one, two} {
		var stat unix.Stat_t
		if err := unix.Stat(dev, &stat); err != nil {
			t.Fatal(err)
		}
		s.writeIO(fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)), strconv.Itoa(5<<20))
	}
	s.faulty(s.probed(verify.Options{}), policy.KeyIOReadBandwidth, "direct", "")
}

// TestProbeOfADiskWeight: a weight counts as long as the disk has a scheduler that honours it.
func TestProbeOfADiskWeight(t *testing.T) {
	s := probeSite(t)
	facts := s.facts0()
	if !facts.BFQ {
		t.Skip("this kernel has no BFQ")
	}
	dev, number := testhost.LoopDevice(t, 64<<20)
	s.apply("groups:\n  g: {match: [{exe: /nonexistent/x}], io: [{on: " + dev +
		", weight: 1000}]}\n  h: {match: [{exe: /nonexistent/y}], io: [{on: " + dev + ", weight: 50}]}\n")
	for _, r := range s.probed(verify.Options{Groups: []string{"g"}, Span: time.Second}) {
		if r.Verdict.Fault() {
			t.Errorf("with BFQ: %s, %s: asked %s, measured %s: %s: %s", r.Key, r.How, r.Asked, r.Measured, r.Verdict,
				r.Reason)
		}
	}
	if err := (blockdev.Queues{Block: s.Host.Block}).Write(t.Context(), number+"/scheduler", "none"); err != nil {
		t.Fatal(err)
	}
	all := s.probed(verify.Options{Groups: []string{"g"}})
	s.faulty(all, policy.KeyIOWeight, "read back", "")
	if !slices.ContainsFunc(all, func(r verify.Result) bool { return strings.Contains(r.Reason, "none") }) {
		t.Error("nothing says that the scheduler is none")
	}
}

// TestProbeInside: loads in the group itself, and over a limit on memory beside it.
func TestProbeInside(t *testing.T) {
	s := probeSite(t)
	dev, _ := testhost.LoopDevice(t, 64<<20)
	member, mark := marked(t, 70204)
	s.apply(healthy(mark, dev))
	var inside []policy.Key
	for _, r := range s.probed(verify.Options{Groups: []string{"g"}, Inside: true, Destructive: true}) {
		if r.Verdict.Fault() {
			t.Errorf("%s, %s: asked %s, measured %s: %s: %s", r.Key, r.How, r.Asked, r.Measured, r.Verdict, r.Reason)
		}
		if r.Verdict == probe.Held || r.Verdict == probe.NotReached {
			inside = append(inside, r.Key)
		}
		if r.How == "over the limit" && !strings.Contains(r.Reason, "killed the load") {
			t.Errorf("over a limit on memory: %s, %s", r.Verdict, r.Reason)
		}
	}
	for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyIOReadBandwidth, policy.KeyMemoryMax} {
		if !slices.Contains(inside, key) {
			t.Errorf("%s was not measured", key)
		}
	}
	if !s.Host.Proc.Alive(member) {
		t.Error("the group's own process is gone")
	}
}

// TestProbeThatIsKilled: its loads die with it, and what it made in the kernel goes with the next probe, apply or
// release.
func TestProbeThatIsKilled(t *testing.T) {
	t.Parallel()
	for i, next := range []string{"probe", "apply", "release"} {
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			s := probeSite(t)
			_, mark := marked(t, 70210+i)
			text := "groups:\n  g: {match: [{cmdline: '" + mark + "'}], cpu: {limit: 0.3}}\n"
			s.apply(text)
			cmd := exec.Command(procfs.SelfExe, "be-a-prober", s.state)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			var loads []int
			testhost.WaitFor(t, "a load in its place", func() bool {
				for _, d := range s.probeDirs() {
					pids, _ := testhost.Tree(t).Procs(d)
					loads = append(loads, pids...)
				}
				return len(loads) > 0
			})
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			testhost.WaitFor(t, "the loads to end", func() bool {
				return !slices.ContainsFunc(loads, func(pid int) bool { return unix.Kill(pid, 0) == nil })
			})
			if len(s.probeDirs()) == 0 {
				t.Fatal("a probe that was killed left no directory: the test shows nothing")
			}
			switch next {
			case "probe":
				s.probed(verify.Options{})
			case "apply":
				s.apply(text)
			case "release":
				s.must(api.Request{Verb: "release", All: true})
			}
			if left := s.probeDirs(); len(left) > 0 {
				t.Errorf("%s left %v", next, left)
			}
		})
	}
}

// TestReleaseEndsAProbe: the way out does not wait for one that is under way.
func TestReleaseEndsAProbe(t *testing.T) {
	s := probeSite(t)
	_, mark := marked(t, 70206)
	s.apply("groups:\n  g: {match: [{cmdline: '" + mark + "'}], cpu: {limit: 0.3}}\n")
	other := &site{t: t, root: s.root, state: s.state}
	other.reopen()
	ended := make(chan error)
	go func() {
		_, err := inspect.Probe(t.Context(), s.Reconciler.Controller, verify.Options{Span: verify.MostSpan})
		ended <- err
	}()
	testhost.WaitFor(t, "a load in its place", func() bool {
		for _, d := range s.probeDirs() {
			if pids, _ := testhost.Tree(t).Procs(d); len(pids) > 0 {
				return true
			}
		}
		return false
	})
	other.must(api.Request{Verb: "release", All: true})
	<-ended
	tree := testhost.Tree(t)
	for _, h := range tree.Hierarchies() {
		if there, err := tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: "/" + s.root}); err != nil || there {
			t.Errorf("after the release the root group is there in %s: %t, %v", h.ID, there, err)
		}
	}
}
