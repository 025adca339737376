// Package testhost is for tests that need root and a real kernel: cgroup roots of their own,
// processes and devices that are gone afterwards, and measurements of what the kernel enforces.
//
// Nothing outside the given test root is written, nothing but processes started here is killed, and
// every clean-up is bounded in time. Linking this package into a test binary lets it start copies of
// itself as load generators.
package testhost

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// RequireRoot fails the test when it does not run as root.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test changes cgroups and devices of this machine: run it as root")
	}
}

// Hierarchies are those of this machine.
func Hierarchies(t testing.TB) []host.Hierarchy {
	t.Helper()
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatalf("look at this machine: %v", err)
	}
	return facts.Hierarchies
}

// Tree is the live tree of this machine, closed at the end of the test.
func Tree(t testing.TB) *cgroup.Tree {
	t.Helper()
	tree := cgroup.New(Hierarchies(t))
	t.Cleanup(func() { tree.Close() })
	return tree
}

// cleanupTime bounds each part of a clean-up.
const cleanupTime = 5 * time.Second

var roots struct {
	sync.Mutex
	next atomic.Int64
	used []string // names of the roots not cleaned up yet
	// enabled are the controllers that were on at the top of cgroup2 before the first of these.
	enabled map[string][]string
}

// Root gives a name for a cgroup root that nobody else has: "bulkhead-test-<pid>-<n>". Nothing is made.
// At the end of the test every directory of that name is removed from every hierarchy, with all below it;
// processes left inside that were started with Spawn are killed, others go back to the hierarchy's root.
// cgroup2 controllers that the test enabled for the children of the hierarchy's root are disabled again,
// unless another test's root is there. Roots of test binaries that died are removed too.
func Root(t testing.TB) string {
	t.Helper()
	RequireRoot(t)
	hierarchies := Hierarchies(t)
	tree := cgroup.New(hierarchies)
	name := fmt.Sprintf("bulkhead-test-%d-%d", os.Getpid(), roots.next.Add(1))
	enabled := make(map[string][]string)
	for _, h := range hierarchies {
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		sweep(t, tree, top)
		if h.Version == 2 {
			_, on, err := tree.Subtree(top)
			if err != nil {
				t.Fatalf("look at %s: %v", top, err)
			}
			enabled[h.ID] = on
		}
	}
	roots.Lock()
	if len(roots.used) > 0 { // tests run side by side
		enabled = roots.enabled
	}
	roots.enabled, roots.used = enabled, append(roots.used, name)
	roots.Unlock()
	t.Cleanup(func() {
		defer tree.Close()
		thaw(tree, name)
		for _, h := range hierarchies {
			top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
			if err := RemoveTree(tree, top.Child(name)); err != nil {
				t.Errorf("clean up: %v", err)
			}
			if before, v2 := enabled[h.ID]; v2 {
				restoreSubtree(t, tree, top, before)
			}
		}
		roots.Lock()
		defer roots.Unlock()
		roots.used = slices.DeleteFunc(roots.used, func(used string) bool { return used == name })
	})
	return name
}

// restoreSubtree takes back what a test enabled at the top of cgroup2, if it was the last test there.
func restoreSubtree(t testing.TB, tree *cgroup.Tree, top cgroup.Dir, before []string) {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		return // systemd hands these down, and takes them back when it likes
	}
	children, err := tree.Children(top)
	if err != nil || slices.ContainsFunc(children, testRoot.MatchString) {
		return
	}
	_, now, err := tree.Subtree(top)
	if err != nil {
		t.Errorf("clean up: %v", err)
		return
	}
	extra := slices.DeleteFunc(now, func(name string) bool { return slices.Contains(before, name) })
	if err := tree.Disable(top, extra); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

var testRoot = regexp.MustCompile(`^bulkhead-test-(\d+)-\d+$`)

// sweep removes the roots of test binaries that are not running any more.
func sweep(t testing.TB, tree *cgroup.Tree, top cgroup.Dir) {
	children, err := tree.Children(top)
	if err != nil {
		t.Fatalf("list %s: %v", top, err)
	}
	for _, name := range children {
		match := testRoot.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		pid, err := strconv.Atoi(match[1])
		if err != nil || unix.Kill(pid, 0) != unix.ESRCH {
			continue
		}
		thaw(tree, name)
		if err := RemoveTree(tree, top.Child(name)); err != nil {
			t.Logf("remove what a dead test left: %v", err)
		}
	}
}

// RemoveTree removes d and everything below it. Processes inside that Spawn started are killed; others are
// moved to the hierarchy's root. It is no error when d is not there.
func RemoveTree(tree *cgroup.Tree, d cgroup.Dir) error {
	dirs, err := tree.Walk(d)
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Reverse(dirs)
	deadline := time.Now().Add(cleanupTime)
	for _, dir := range dirs {
		for {
			empty(tree, dir)
			err := tree.Remove(dir)
			if err == nil || errors.Is(err, cgroup.ErrGone) {
				break
			}
			if time.Now().After(deadline) {
				return err
			}
		}
	}
	return nil
}

// empty kills or moves away the processes directly in d. What fails shows when d is removed.
func empty(tree *cgroup.Tree, d cgroup.Dir) {
	pids, _ := tree.Procs(d)
	for _, pid := range pids {
		if spawned.session(pid) {
			_ = unix.Kill(pid, unix.SIGKILL)
			continue
		}
		_ = tree.Move(cgroup.Dir{Hierarchy: d.Hierarchy, Path: "/"}, procfs.ID{PID: pid})
	}
}

// thaw lets every frozen group of a test root go on: a process frozen by v1 does not even die. What fails
// shows when the process is waited for.
func thaw(tree *cgroup.Tree, root string) {
	for _, h := range tree.Hierarchies() {
		top := cgroup.Dir{Hierarchy: h.ID, Path: path.Join("/", root)}
		if h.Version == 1 && !h.Has("freezer") {
			continue
		}
		dirs, _ := tree.Walk(top)
		for _, d := range dirs {
			if h.Version == 1 {
				_ = tree.Write(d.File("freezer.state"), "THAWED")
			} else {
				_ = tree.Write(d.File("cgroup.freeze"), "0")
			}
		}
	}
}

// thawAll lets the groups of every test root of this binary go on.
func thawAll() {
	roots.Lock()
	names := slices.Clone(roots.used)
	roots.Unlock()
	if len(names) == 0 {
		return
	}
	facts, err := host.New("/").Facts()
	if err != nil {
		return
	}
	tree := cgroup.New(facts.Hierarchies)
	defer tree.Close()
	for _, name := range names {
		thaw(tree, name)
	}
}
