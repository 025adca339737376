//go:build root

package cgroup_test

import (
	"errors"
	"maps"
	"os"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

// What is kept open reads what the tree reads: after a change of the file, after its directory went and another one of
// that name came, and when there is none; and it holds no directory.
func TestKeptFiles(t *testing.T) {
	tree := testhost.Tree(t)
	root := governed(t, tree, testhost.Root(t), "pids")
	group := root.Child("kept")
	if ofController(t, "pids").Version == 2 {
		must(t, tree.Enable(root, []string{"pids"}))
	}
	must(t, tree.Make(group))
	k := cgroup.NewKept(4)
	names := []string{"pids.max", "pids.current", "not.there"}
	same := func(what, limit string) {
		t.Helper()
		k.Begin()
		want, err := tree.ReadMany(group, names)
		must(t, err)
		got, _, err := k.ReadMany(tree, group, names)
		must(t, err)
		if !maps.Equal(got, want) || got["pids.max"] != limit || got["pids.current"] != "0" {
			t.Errorf("%s: %v, want %v with the limit %s", what, got, want, limit)
		}
	}
	same("the first time", "max")
	names = names[:2]
	open := openFiles(t)
	same("again", "max")
	same("and again", "max")
	if now := openFiles(t); now != open {
		t.Errorf("%d files are open, %d were", now, open)
	}
	must(t, tree.Write(group.File("pids.max"), "17"))
	same("after a write", "17")
	must(t, tree.Remove(group), tree.Make(group))
	same("in a new directory", "max")
	must(t, tree.Remove(group))
	if got, _, err := k.ReadMany(tree, group, names); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("of a directory that is gone: %v, %v", got, err)
	}
	must(t, tree.Make(group))
	same("once more", "max")
	others := []cgroup.Dir{root.Child("a"), root.Child("b")}
	must(t, tree.Make(others[0]), tree.Make(others[1]))
	open = openFiles(t)
	for _, d := range others { // the first fits, the second does not
		got, _, err := k.ReadMany(tree, d, names)
		if must(t, err); len(got) != 2 {
			t.Errorf("of %s: %v", d.Path, got)
		}
	}
	if now := openFiles(t); now != open+2 {
		t.Errorf("%d more files are open, want 2", now-open)
	}
	k.Begin()
	k.Begin()
	if now := openFiles(t); now != open-2 {
		t.Errorf("%d files are open that nobody reads any more", now-open+2)
	}
}

// openFiles counts the descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(names)
}
