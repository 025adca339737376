//go:build root

package conformance_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/cgroup/conformance"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// real is a process of this machine.
type real struct {
	t testing.TB
	*testhost.MemoryHolder
}

func (p real) ID() procfs.ID { return p.MemoryHolder.ID }
func (p real) Exit()         { testhost.Kill(p.t, p.ID()) }

func (p real) Realtime() error {
	tid := p.ID().PID
	testhost.WaitFor(p.t, "a second thread", func() bool {
		tasks, err := host.New("/").Proc.Tasks(p.ID().PID)
		if err == nil && len(tasks) > 1 {
			tid = tasks[len(tasks)-1].TID
		}
		return tid != p.ID().PID
	})
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

func facts(t *testing.T) *host.Facts {
	t.Helper()
	testhost.RequireRoot(t)
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// absentDevice is a number that no driver can have (major numbers end at 511). Of a major number in use
// kernel 6.1 makes the device when a limit names it: loop does.
const absentDevice = "4000:0"

// TestKernel runs the cases on this machine's kernel. What its hierarchies do not hold is named, and has
// to be exactly what the hierarchies say: nothing is left out in silence.
func TestKernel(t *testing.T) {
	f := facts(t)
	_, number := testhost.LoopDevice(t, 1<<20)
	uncovered := conformance.Run(t, func(t *testing.T) conformance.Subject {
		tree := cgroup.NewWith(f.Hierarchies,
			cgroup.Options{FreezeWait: 300 * time.Millisecond, RemoveWait: 100 * time.Millisecond})
		t.Cleanup(func() { tree.Close() })
		return conformance.Subject{
			Tree: tree, Root: testhost.Root(t), CPUs: f.CPUs, Nodes: nodes(f),
			Device: number, Absent: absentDevice,
			Spawn: func(t testing.TB) conformance.Process { return real{t, testhost.HoldMemory(t)} },
		}
	})
	var missing []string
	for _, version := range []int{1, 2} {
		for _, controller := range append([]string{"core", "freezer"}, everything...) {
			if version == 2 && controller == "freezer" {
				continue // part of the core there
			}
			has := func(h host.Hierarchy) bool {
				return h.Version == version && (controller == "core" || h.Has(controller))
			}
			if !slices.ContainsFunc(f.Hierarchies, has) {
				missing = append(missing, fmt.Sprintf("v%d/%s/", version, controller))
			}
		}
	}
	expectUncovered(t, uncovered, missing...)
	fmt.Fprintf(os.Stderr, "conformance: kernel %s has no hierarchy for these, which ran on the model only: %q\n",
		f.Kernel.Text, uncovered)
}

func nodes(f *host.Facts) idset.Set {
	var ids []int
	for _, node := range f.Nodes {
		ids = append(ids, node.ID)
	}
	return idset.New(ids...)
}

// TestModelHasTheKernelsFiles holds the model of this very machine against it: every file that the model
// has is there, and a fresh group's files hold the same.
func TestModelHasTheKernelsFiles(t *testing.T) {
	f := facts(t)
	tree, root := testhost.Tree(t), testhost.Root(t)
	model := cgroupfake.New(f.Hierarchies, cgroupfake.Options{
		Without: without(f), CPUs: f.CPUs, Nodes: nodes(f), PageSize: f.PageSize, HugePageSizes: f.HugePageSizes,
		Kernel: f.Kernel,
	})
	for _, h := range f.Hierarchies {
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		group := top.Child(root)
		for _, on := range []*cgroup.Tree{tree, model.Tree} {
			if err := on.Enable(top, h.Controllers); err != nil {
				t.Fatal(err)
			}
			if err := on.Make(group); err != nil {
				t.Fatal(err)
			}
		}
		sameFiles(t, tree, model.Tree, top)
		for name := range sameFiles(t, tree, model.Tree, group) {
			want, err := tree.Read(group.File(name))
			got, modelErr := model.Read(group.File(name))
			if (err == nil) != (modelErr == nil) {
				t.Errorf("%s: the kernel says %v, the model %v", group.File(name), err, modelErr)
			}
			if err == nil && got != want && !grows[name] &&
				!(strings.HasPrefix(name, "hugetlb.") && noLimit(got) && noLimit(want)) {
				t.Errorf("%s holds %q, in the model %q", group.File(name), want, got)
			}
		}
	}
}

// without names the files that this kernel was built without.
func without(f *host.Facts) (files []string) {
	for _, h := range f.Hierarchies {
		for _, file := range h.Lacks {
			if files = append(files, file); file == "cpu.rt_runtime_us" {
				files = append(files, "cpu.rt_period_us")
			}
		}
	}
	return files
}

// noLimit says whether a huge page limit is one of the forms that no limit has, which differ with the kernel:
// "max", or the largest number, rounded down to the page size or not.
func noLimit(text string) bool {
	return text == "max" || len(text) == len("9223372036854771712") && strings.HasPrefix(text, "92233720")
}

// grows are the files whose content in a fresh group is longer on some machines, or counts already.
var grows = map[string]bool{
	"memory.stat": true, "cpu.stat": true, "cgroup.stat": true, "cpuacct.usage_percpu": true,
	"memory.usage_in_bytes": true, "memory.max_usage_in_bytes": true, "memory.kmem.usage_in_bytes": true,
	"memory.memsw.usage_in_bytes": true, "memory.memsw.max_usage_in_bytes": true,
	"net_prio.ifpriomap": true, "net_prio.prioidx": true, // a line for each interface; a running number
}

// sameFiles reports files that the model has and the kernel lacks, and gives those that both have.
func sameFiles(t *testing.T, tree, model *cgroup.Tree, d cgroup.Dir) map[string]bool {
	t.Helper()
	real, err1 := tree.Files(d)
	modelled, err2 := model.Files(d)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	both := make(map[string]bool)
	for _, name := range modelled {
		if !slices.Contains(real, name) {
			t.Errorf("%s has no %s, the model has", d, name)
			continue
		}
		both[name] = true
	}
	return both
}
