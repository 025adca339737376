//go:build root

package metrics

import (
	"errors"
	"slices"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost"
)

// governed makes a test's root group in the hierarchy that has the first of some controllers, which on v2 has to be
// handed down.
func governed(t *testing.T, tree *cgroup.Tree, root string, controllers ...string) cgroup.Dir {
	t.Helper()
	for _, controller := range controllers {
		i := slices.IndexFunc(testhost.Hierarchies(t), func(h host.Hierarchy) bool { return h.Has(controller) })
		if i < 0 {
			continue
		}
		h := testhost.Hierarchies(t)[i]
		group := cgroup.Dir{Hierarchy: h.ID, Path: "/" + root}
		var err error
		if h.Version == 2 {
			err = tree.Enable(group.Parent(), []string{controller})
		}
		if there, _ := tree.Exists(group); !there {
			err = errors.Join(err, tree.Make(group))
		}
		if err != nil {
			t.Fatal(err)
		}
		return group
	}
	t.Fatalf("no hierarchy of this machine holds %v", controllers)
	return cgroup.Dir{}
}

// TestReadOnTheKernel holds what a busy process used against what Read says, over two hierarchies where the
// machine has memory and CPU time apart.
func TestReadOnTheKernel(t *testing.T) {
	tree, root := testhost.Tree(t), testhost.Root(t)
	memory, cpuacct := governed(t, tree, root, "memory"), governed(t, tree, root, "cpuacct", "cpu")
	holder := testhost.HoldMemory(t)
	if err := errors.Join(tree.Move(memory, holder.ID), tree.Move(cpuacct, holder.ID)); err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	if !holder.Touch(size) {
		t.Fatal("the process was killed without a limit")
	}
	u, err := Read(tree, memory)
	if err != nil {
		t.Fatal(err)
	}
	more, err := Read(tree, cpuacct)
	if err != nil {
		t.Fatal(err)
	}
	u.Merge(&more)
	if a := *u.Memory.Anonymous; a < size || a > size+(8<<20) {
		t.Errorf("anonymous memory %d, touched %d", a, size)
	}
	if *u.Memory.Current < *u.Memory.Anonymous || *u.Memory.Peak < *u.Memory.Current || *u.Memory.OOMKills != 0 {
		t.Errorf("memory %+v", u.Memory)
	}
	if us := *u.CPU.Total; us < 1000 || us > 10_000_000 {
		t.Errorf("touching %d bytes took %d µs of CPU", size, us)
	}
}
