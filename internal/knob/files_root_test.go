//go:build root

package knob

import (
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/testhost"
)

// TestFilesOfTheKernel runs the rows that this machine's kernel has on its files.
func TestFilesOfTheKernel(t *testing.T) {
	testhost.RequireRoot(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	_, device := testhost.LoopDevice(t, 1<<20)
	s := subject{tree: testhost.Tree(t), facts: facts, root: testhost.Root(t), device: device}
	s.run(t)
	for _, r := range RowsFor(facts) {
		t.Logf("ran %s of v%d", r.File, r.Version)
	}
}

// TestSplitOnTheKernel leads a tree of v1 cpu directories from one drawn state to the next: the kernel
// takes each write, and ends where the model of TestSplitIsAccepted says. On a machine with cpu on v2 the
// rules that it is about do not exist.
func TestSplitOnTheKernel(t *testing.T) {
	testhost.RequireRoot(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	var rows []*Row
	for _, r := range RowsFor(facts) {
		if r.Version == 1 && r.bundle != bundleNone {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		t.Fatal("this machine has no v1 cpu controller to test with")
	}
	tree := testhost.Tree(t)
	top := cgroup.Dir{Hierarchy: rows[0].HierarchyID(facts), Path: "/" + testhost.Root(t)}
	dirs := []cgroup.Dir{top, top.Child("a"), top.Child("a").Child("b"), top.Child("a").Child("c"), top.Child("d")}
	for _, d := range dirs {
		if err := tree.Make(d); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		root := newModel(1, nil)
		a := newModel(1, root)
		newModel(1, a)
		newModel(1, a)
		newModel(1, root)
		drawTree(t, root, map[*model]format.Bandwidth{}, map[*model]idset.Set{})
		targets := root.each()
		write := func(dir cgroup.Dir, changes []Change) {
			for _, c := range changes {
				if err := tree.Write(dir.File(c.Row.File), c.To); err != nil {
					t.Fatalf("%v; steps %q", err, texts(changes))
				}
			}
		}
		lowers := make([][]Change, len(dirs))
		for i, dir := range dirs {
			own := drawState(t, 1)
			targets[i].files["cpu.idle"], targets[i].files["cpu.shares"] = own["cpu.idle"], own["cpu.shares"]
			if quota := targets[i].number("cpu.cfs_quota_us"); quota > 0 {
				targets[i].files["cpu.cfs_burst_us"] = format.Decimal(quota / 2)
			}
			var changes []Change
			for _, r := range rows {
				text, err := tree.Read(dir.File(r.File))
				if err != nil {
					t.Fatal(err)
				}
				changes = append(changes, Change{Row: r, From: r.Parse(text), To: targets[i].files[r.File]})
			}
			var raise []Change
			raise, lowers[i] = Split(changes)
			write(dir, raise)
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			write(dirs[i], lowers[i])
		}
		for i, dir := range dirs {
			for _, r := range rows {
				if text, err := tree.Read(dir.File(r.File)); err != nil || !r.Same(targets[i].files[r.File], text) {
					t.Fatalf("%s holds %q, %v; want %q", dir.File(r.File), text, err, targets[i].files[r.File])
				}
			}
		}
	})
}
