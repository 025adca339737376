//go:build root

package testhost_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// hierarchy gives the hierarchy of a controller, or fails.
func hierarchy(t *testing.T, controller string) host.Hierarchy {
	t.Helper()
	for _, h := range testhost.Hierarchies(t) {
		if h.Has(controller) {
			return h
		}
	}
	t.Fatalf("no hierarchy of this machine holds %s", controller)
	return host.Hierarchy{}
}

// governed makes a group in the hierarchy of a controller; on v2 those above hand the controller down.
func governed(t *testing.T, tree *cgroup.Tree, controller string, path ...string) cgroup.Dir {
	t.Helper()
	h := hierarchy(t, controller)
	d := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
	for _, name := range path {
		if h.Version == 2 {
			if err := tree.Enable(d, []string{controller}); err != nil {
				t.Fatal(err)
			}
		}
		d = d.Child(name)
		if err := tree.Make(d); err != nil && !errors.Is(err, cgroup.ErrExists) {
			t.Fatal(err)
		}
	}
	return d
}

// freezing gives the ID of the hierarchy in which groups are frozen: v1's freezer, else v2.
func freezing(t *testing.T) string {
	t.Helper()
	for _, h := range testhost.Hierarchies(t) {
		if h.Has("freezer") {
			return h.ID
		}
	}
	return procfs.UnifiedID
}

func TestRootIsRemovedWithEverythingInside(t *testing.T) {
	var root string
	var hog, stray, frozen procfs.ID
	dirs := make(map[string]cgroup.Dir)
	t.Run("use", func(t *testing.T) {
		stray = testhost.Spawn(t, "sleep", "600")
		root = testhost.Root(t)
		tree := testhost.Tree(t)
		for _, h := range testhost.Hierarchies(t) {
			top := cgroup.Dir{Hierarchy: h.ID, Path: "/" + root}
			for _, d := range []cgroup.Dir{top, top.Child("a"), top.Child("a").Child("b")} {
				if err := tree.Make(d); err != nil {
					t.Fatal(err)
				}
			}
			dirs[h.ID] = top
		}
		pids := dirs[hierarchy(t, "pids").ID].Child("a").Child("b")
		hog = testhost.Spin(t)
		frozen = testhost.SpawnAs(t, "pretender", "sleep", "600")
		freezer := dirs[freezing(t)].Child("a")
		for _, err := range []error{
			tree.Move(pids, hog), tree.Move(pids, stray), tree.Move(freezer, frozen), tree.Freeze(freezer, true),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		list, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{frozen.PID}})
		if err != nil || len(list) != 1 || list[0].Args[0] != "pretender" {
			t.Errorf("argv[0] is not pretender: %v %v", list, err)
		}
	})
	tree := testhost.Tree(t)
	for id, d := range dirs {
		if exists, err := tree.Exists(d); exists || err != nil {
			t.Errorf("%s: %s is left (%v)", id, d, err)
		}
	}
	for _, id := range []procfs.ID{hog, stray, frozen} {
		if host.New("/").Proc.Alive(id) {
			t.Errorf("process %d is left", id.PID)
		}
	}
}

func TestRootOfADeadTestIsSwept(t *testing.T) {
	tree := testhost.Tree(t)
	gone := testhost.Spawn(t, "true")
	testhost.WaitFor(t, "true to end", func() bool { return !host.New("/").Proc.Alive(gone) })
	// A zombie keeps its number, so a number that was never used stands for a dead test.
	name := "bulkhead-test-4194303-1"
	if unix.Kill(4194303, 0) != unix.ESRCH {
		t.Fatal("process 4194303 exists")
	}
	d := cgroup.Dir{Hierarchy: hierarchy(t, "pids").ID, Path: "/" + name}
	if err := tree.Make(d); err != nil && !errors.Is(err, cgroup.ErrExists) {
		t.Fatal(err)
	}
	testhost.Root(t)
	if exists, err := tree.Exists(d); exists || err != nil {
		t.Errorf("%s is still there (%v)", d, err)
	}
}

func TestLoopDeviceIsDetached(t *testing.T) {
	var backing string
	t.Run("use", func(t *testing.T) {
		dev, number := testhost.LoopDevice(t, 8<<20)
		file := filepath.Join("/sys/dev/block", number, "loop/backing_file")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%s is no loop device in use: %v", dev, err)
		}
		backing = strings.TrimSpace(string(text))
	})
	testhost.WaitFor(t, "no loop device has "+backing+" behind it",
		func() bool { // udev may have it open for a moment longer
			loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
			return !slices.ContainsFunc(loops, func(file string) bool {
				text, err := os.ReadFile(file)
				return err == nil && strings.HasPrefix(string(text), backing)
			})
		})
}

// TestDirectIOMeasuresALimit holds both directions and both patterns against the kernel's throttle,
// in the group itself: the generator is placed before it starts.
func TestDirectIOMeasuresALimit(t *testing.T) {
	dev, number := testhost.LoopDevice(t, 64<<20)
	root := testhost.Root(t)
	tree := testhost.Tree(t)
	blkio := governed(t, tree, "blkio", root)
	writer, reader := testhost.DirectWriter(t, dev), testhost.DirectReader(t, dev)
	const bytes, ops = 8 << 20, 300 // an emulated disk on a busy host does 30 MB/s
	if free := reader.Sequential(200 * time.Millisecond); free.Bytes < 2*bytes {
		t.Errorf("unlimited: %.0f bytes/s is less than the limit that is to be measured", free.Bytes)
	}
	limits := map[string]string{"blkio.throttle.write_bps_device": fmt.Sprint(bytes),
		"blkio.throttle.read_iops_device": fmt.Sprint(ops)}
	if hierarchy(t, "blkio").Version == 2 {
		limits = map[string]string{"io.max": fmt.Sprintf("wbps=%d riops=%d", bytes, ops)}
	}
	for file, value := range limits {
		if err := tree.Write(cgroup.File{Dir: blkio, Name: file, Key: number}, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []*testhost.DirectIO{writer, reader} {
		if err := tree.Move(blkio, d.ID); err != nil {
			t.Fatal(err)
		}
	}
	near(t, "bytes written", bytes, func() float64 { return writer.Sequential(time.Second).Bytes })
	near(t, "random reads", ops, func() float64 { return reader.Random(time.Second).Ops })
}

// near measures until the figure is within 10 % of the limit. Only one that is too low is measured again: a
// busy machine does that, while nothing but a limit that is not held takes it above.
func near(t *testing.T, what string, limit float64, measure func() float64) {
	t.Helper()
	var got float64
	for range 5 {
		if got = measure(); got >= 0.9*limit {
			break
		}
	}
	if got < 0.9*limit || got > 1.1*limit {
		t.Errorf("%s: %.0f per second, limited to %.0f; less than that in five tries can be a host too busy for the "+
			"load: run the test again on a quiet one", what, got, limit)
	}
}

func TestSnapshotShowsKnobsDirectoriesAndMembership(t *testing.T) {
	root := testhost.Root(t)
	tree := testhost.Tree(t)
	cpu, weight := cgroup.Dir{Hierarchy: hierarchy(t, "cpu").ID, Path: "/" + root}, "cpu.shares"
	if hierarchy(t, "cpu").Version == 2 {
		weight = "cpu.weight"
	}
	process := testhost.Spawn(t, "sleep", "600")
	look := func() string { return testhost.Snapshot(t, tree, root, process) }
	empty := look()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	governed(t, tree, "cpu", root)
	made := look()
	must(tree.Write(cpu.File(weight), "77"))
	limited := look()
	must(tree.Move(cpu, process))
	moved := look()
	seen := map[string]bool{empty: true}
	for _, text := range []string{made, limited, moved} {
		if seen[text] {
			t.Fatalf("a change does not show:\n%s", text)
		}
		seen[text] = true
	}
	for _, line := range []string{"[" + cpu.String() + "]", weight + " = 77", "in " + cpu.Hierarchy + ": /" + root} {
		if !strings.Contains(moved, line) {
			t.Errorf("no %q in\n%s", line, moved)
		}
	}
	// Back to where it came from, which on a host with systemd is a unit's directory.
	_, home, _ := strings.Cut(empty, fmt.Sprintf("process %d in %s: ", process.PID, cpu.Hierarchy))
	home, _, _ = strings.Cut(home, "\n")
	must(tree.Move(cgroup.Dir{Hierarchy: cpu.Hierarchy, Path: home}, process))
	must(tree.Remove(cpu))
	if again := look(); again != empty {
		t.Errorf("after undoing all:\n%s\nbefore:\n%s", again, empty)
	}
}
