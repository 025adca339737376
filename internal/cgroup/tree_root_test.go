//go:build root

package cgroup_test

import (
	"fmt"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost"
)

// ofController gives this machine's hierarchy of a controller, or fails.
func ofController(t testing.TB, controller string) host.Hierarchy {
	t.Helper()
	for _, h := range testhost.Hierarchies(t) {
		if h.Has(controller) {
			return h
		}
	}
	t.Fatalf("no hierarchy of this machine holds %s", controller)
	return host.Hierarchy{}
}

// governed makes a test's root group in the hierarchy of a controller, which on v2 has to be handed down.
func governed(t *testing.T, tree *cgroup.Tree, root, controller string) cgroup.Dir {
	t.Helper()
	h := ofController(t, controller)
	group := dir(h.ID, "/"+root)
	if h.Version == 2 {
		must(t, tree.Enable(group.Parent(), []string{controller}))
	}
	if there, err := tree.Exists(group); err != nil || !there {
		must(t, err, tree.Make(group))
	}
	return group
}

// accounting names the controller that counts CPU time: v2 counts in every group, with or without it.
func accounting(t *testing.T) string {
	t.Helper()
	if ofController(t, "cpu").Version == 2 {
		return "cpu"
	}
	return "cpuacct"
}

// TestManyMembers reads a list of processes that does not fit one buffer.
func TestManyMembers(t *testing.T) {
	tree := testhost.Tree(t)
	group := governed(t, tree, testhost.Root(t), "pids")
	shell := testhost.Spawn(t, "sh", "-c", "while read x; do :; done; sleep 600")
	must(t, tree.Move(group, shell))
	for range 40 {
		id := testhost.Spawn(t, "sleep", "600")
		must(t, tree.Move(group, id))
	}
	pids, err := tree.Procs(group)
	if must(t, err); len(pids) < 41 {
		t.Errorf("%d processes, want at least 41", len(pids))
	}
}

// BenchmarkReadMany reads eight files of each of 200 groups, as one pass of the agent does.
func BenchmarkReadMany(b *testing.B) {
	tree := testhost.Tree(b)
	top := dir(ofController(b, "memory").ID, "/"+testhost.Root(b))
	if err := tree.Make(top); err != nil {
		b.Fatal(err)
	}
	var dirs []cgroup.Dir
	for i := range 200 {
		d := top.Child(fmt.Sprint("g", i))
		if err := tree.Make(d); err != nil {
			b.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	names := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes",
		"memory.swappiness",
		"memory.oom_control", "memory.usage_in_bytes", "memory.max", "memory.high"} // the last two are absent
	for b.Loop() {
		for _, d := range dirs {
			if values, err := tree.ReadMany(d, names); err != nil || len(values) != 6 {
				b.Fatal(values, err)
			}
		}
	}
}
