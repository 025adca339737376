//go:build root

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/testhost"
)

// order makes a copy of the test binary run or recover on the real kernel and kill itself on the way.
type order struct {
	State string    // directory of the journal
	Plan  plan.Plan // what to run; nothing to run: recover
	Kill  int       // after this step, or after undoing this many changes
}

// orderVariable names the file that holds the order of a child.
const orderVariable = "BULKHEAD_TEST_APPLY_ORDER"

func TestMain(m *testing.M) {
	if name := os.Getenv(orderVariable); name != "" {
		fmt.Fprintln(os.Stderr, obey(name))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// obey does what the parent ordered; it is to die of it.
func obey(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	r, err := newRunner(o.State)
	if err != nil {
		return err
	}
	if len(o.Plan.Steps) > 0 {
		r.AfterStep = func(i int, _ plan.Step) {
			if i == o.Kill {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		_, err = r.Run(context.Background(), o.Plan, Options{Verb: "apply", By: "test"})
	} else {
		r.AfterUndo = func(journal.Change) {
			if o.Kill--; o.Kill <= 0 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
		_, _, err = r.Recover(context.Background())
	}
	return fmt.Errorf("not killed: %w", err)
}

// newRunner is a runner on the real kernel.
func newRunner(state string) (*Runner, error) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		return nil, err
	}
	s, err := journal.Open(state, journal.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := s.Lock("test", "root"); err != nil {
		return nil, err
	}
	tree := cgroup.New(facts.Hierarchies)
	return &Runner{
		Files: tree, Dirs: tree, Members: tree, Processes: h.Proc, Journal: s, Boot: facts.BootID,
		Actuators: change.Actuators{
			cgroup.KindFile: knob.Files{Tree: tree}, cgroup.KindOwner: cgroup.Owners{Tree: tree},
			procfs.KindScore: procfs.Scores{Processes: h.Proc}, cgroup.KindControllers: cgroup.Controllers{Tree: tree},
		},
	}, nil
}

// site is a test's place on the real kernel: a root of its own with a home for its processes, in each
// hierarchy that the test uses.
type site struct {
	tree  *cgroup.Tree
	root  string // "/bulkhead-test-4711-1"
	state string
	procs []procfs.ID
	ids   []string // of the hierarchies
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{tree: testhost.Tree(t), root: "/" + testhost.Root(t), state: t.TempDir()}
	wanted := []string{"cpu", "cpuset", "memory", "unified"}
	for _, h := range s.tree.Hierarchies() {
		if !slices.Contains(wanted, h.ID) {
			continue
		}
		s.ids = append(s.ids, h.ID)
		for _, path := range []string{s.root, s.root + "/home"} {
			d := cgroup.Dir{Hierarchy: h.ID, Path: path}
			s.must(t, s.tree.Make(d))
			if h.Version == 1 && h.Has("cpuset") {
				for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
					value, err := s.tree.Read(d.Parent().File(file))
					s.must(t, err)
					s.must(t, s.tree.Write(d.File(file), value))
				}
			}
		}
	}
	if !slices.Contains(s.ids, "cpu") || !slices.Contains(s.ids, "cpuset") || !slices.Contains(s.ids, "memory") {
		t.Fatalf("this test is for a machine with cpu, cpuset and memory in v1 hierarchies of their own; it has %v",
			s.ids)
	}
	if s.has("unified") {
		s.must(t, s.tree.Enable(cgroup.Dir{Hierarchy: "unified", Path: "/"}, []string{"hugetlb"}))
	}
	for range 3 {
		id := testhost.Spawn(t, "sleep", "86400")
		s.procs = append(s.procs, id)
		for _, h := range s.ids {
			s.must(t, s.tree.Move(cgroup.Dir{Hierarchy: h, Path: s.root + "/home"}, id))
		}
	}
	return s
}

func (s *site) has(hierarchy string) bool { return slices.Contains(s.ids, hierarchy) }

func (s *site) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// build starts a plan.
func (s *site) build(t *testing.T) *builder {
	return &builder{procs: s.procs, where: func(pid int) map[string]string {
		procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{pid}})
		if err != nil || len(procs) != 1 {
			t.Fatalf("look at process %d: %v, %v", pid, procs, err)
		}
		return procs[0].Cgroups
	}}
}

// first makes groups a and a/x with limits and moves two processes in.
func (s *site) first(t *testing.T) plan.Plan {
	b, top := s.build(t), s.root+"/b"
	for _, h := range s.ids {
		for _, path := range []string{top, top + "/a", top + "/a/db", top + "/a/x"} {
			b.mkdir(h, path)
			if h == "cpuset" {
				b.write(h, path, "cpuset.cpus", "0")
				b.write(h, path, "cpuset.mems", "0")
			}
		}
	}
	b.write("cpu", top, "cpu.shares", "10240")
	b.write("cpu", top+"/a", "cpu.cfs_quota_us", "150000")
	b.write("cpu", top+"/a/x", "cpu.shares", "2048")
	b.write("memory", top+"/a", "memory.limit_in_bytes", "1073741824")
	b.write("memory", top+"/a/x", "memory.swappiness", "7")
	if s.has("unified") {
		b.write("unified", s.root, cgroup.SubtreeControl, "+hugetlb")
		b.write("unified", top, cgroup.SubtreeControl, "+hugetlb")
		b.write("unified", top+"/a", "hugetlb.2MB.max", "4194304")
	}
	for i, path := range []string{top + "/a/db", top + "/a/x"} {
		for _, h := range s.ids {
			b.move(i, h, path)
		}
		b.score(i, 300+i)
	}
	return b.plan()
}

// second changes limits, in order and with side effects, and moves processes on.
func (s *site) second(t *testing.T) plan.Plan {
	b, top := s.build(t), s.root+"/b"
	b.mkdir("cpu", top+"/c")
	b.write("cpu", top+"/c", "cpu.shares", "50")
	b.write("cpu", top+"/a/x", "cpu.idle", "1") // resets cpu.shares, 2048 until now
	b.write("cpu", top+"/a", "cpu.cfs_quota_us", "50000")
	b.write("memory", top+"/a", "memory.limit_in_bytes", "536870912")
	if s.has("unified") {
		b.write("unified", top+"/a", "hugetlb.2MB.max", "2097152")
	}
	for _, h := range s.ids {
		b.move(0, h, top+"/a/x")
		b.move(2, h, top+"/a/db")
	}
	b.move(1, "cpu", top+"/c")
	b.score(0, 0)
	return b.plan()
}

// release gives everything back.
func (s *site) release(t *testing.T) plan.Plan {
	b, top := s.build(t), s.root+"/b"
	b.write("memory", top+"/a", "memory.limit_in_bytes", "-1")
	b.write("cpu", top+"/a", "cpu.cfs_quota_us", "-1")
	for i := range 2 {
		for _, h := range s.ids {
			b.move(i, h, s.root+"/home")
		}
		b.score(i, 0)
	}
	for _, h := range s.ids {
		for _, path := range []string{top + "/a/x", top + "/a/db", top + "/a", top} {
			b.rmdir(h, path)
		}
	}
	if s.has("unified") {
		b.write("unified", s.root, cgroup.SubtreeControl, "-hugetlb")
	}
	return b.plan()
}

// snapshot is everything below the test's root, where its processes are, and their oom_score_adj.
func (s *site) snapshot(t *testing.T) string {
	t.Helper()
	text := testhost.Snapshot(t, s.tree, s.root)
	where := s.build(t).where
	for _, id := range s.procs {
		score, err := host.New("/").Proc.ReadOOMScoreAdj(id)
		s.must(t, err)
		text += fmt.Sprintf("process %d oom_score_adj %d in %v\n", id.PID, score, where(id.PID))
	}
	return text
}

// child runs an order in a copy of the test binary, which must end by SIGKILL.
func (s *site) child(t *testing.T, o order) {
	t.Helper()
	text, err := json.Marshal(o)
	s.must(t, err)
	name := filepath.Join(t.TempDir(), "order.json")
	s.must(t, os.WriteFile(name, text, 0o600))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orderVariable+"="+name)
	out, err := cmd.CombinedOutput()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the child was to be killed after %d: %v\n%s", o.Kill, err, out)
	}
}

// kill -9 after every step of three plans, kill -9 during some of the recoveries, and then recovery, on
// the real kernel: each time the host is as it was before the plan.
func TestKilledAtEveryStepOnTheKernel(t *testing.T) {
	s := newSite(t)
	original := s.snapshot(t)
	for _, sc := range []struct {
		name string
		plan func(*testing.T) plan.Plan
	}{{"first", s.first}, {"second", s.second}, {"release", s.release}} {
		t.Run(sc.name, func(t *testing.T) {
			if sc.name == "release" {
				s.backToFirst(t)
			}
			p := sc.plan(t)
			before := s.snapshot(t)
			for n := range p.Steps {
				s.child(t, order{State: s.state, Plan: p, Kill: n})
				if after := s.snapshot(t); after == before && n > 0 {
					t.Fatalf("step %d: the child changed nothing", n)
				}
				if n%3 == 0 {
					s.child(t, order{State: s.state, Kill: n%5 + 1})
				}
				r, err := newRunner(s.state)
				s.must(t, err)
				if _, done, err := r.Recover(context.Background()); !done || err != nil {
					t.Fatalf("step %d: %v, %v", n, done, err)
				}
				s.must(t, r.Journal.Close())
				if after := s.snapshot(t); after != before {
					t.Fatalf("step %d: the host changed:\n%s", n, difference(before, after))
				}
			}
			s.run(t, p)
			if after := s.snapshot(t); after == before {
				t.Fatal("the plan changed nothing")
			}
		})
	}
	if after := s.snapshot(t); after != original {
		t.Errorf("after release the host differs:\n%s", difference(original, after))
	}
}

// run does a whole plan in this process.
func (s *site) run(t *testing.T, p plan.Plan) {
	t.Helper()
	r, err := newRunner(s.state)
	s.must(t, err)
	defer r.Journal.Close()
	if result, err := r.Run(context.Background(), p, Options{Verb: "apply", By: "test"}); err != nil ||
		len(result.Skipped) > 0 {
		t.Fatalf("%+v, %v", result, err)
	}
}

// backToFirst takes back what second added to first.
func (s *site) backToFirst(t *testing.T) {
	b, top := s.build(t), s.root+"/b"
	for _, h := range s.ids {
		b.move(2, h, s.root+"/home")
	}
	b.move(1, "cpu", top+"/a/x")
	b.rmdir("cpu", top+"/c")
	s.run(t, b.plan())
}

// A real failure of the kernel in the last step: all the others are undone.
func TestKernelRefusesOnTheKernel(t *testing.T) {
	s := newSite(t)
	before := s.snapshot(t)
	p := s.first(t)
	b := &builder{steps: p.Steps}
	b.write("cpu", s.root+"/b/a/db", "cpu.cfs_quota_us", "400000") // above its parent's: EINVAL
	r, err := newRunner(s.state)
	s.must(t, err)
	defer r.Journal.Close()
	_, err = r.Run(context.Background(), b.plan(), Options{Verb: "apply"})
	if err == nil || !strings.Contains(err.Error(), "everything was undone") || cgroup.Hint(err) == "" {
		t.Errorf("%v (hint %q)", err, cgroup.Hint(err))
	}
	if after := s.snapshot(t); after != before {
		t.Errorf("the host changed:\n%s", difference(before, after))
	}
}
