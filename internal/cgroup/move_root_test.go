//go:build root

package cgroup_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// reused is the live host, on which the process with a number has just followed on another one.
type reused struct {
	procfs.FS
	before procfs.ID
}

func (r reused) Hold(id procfs.ID) (procfs.Hold, error) {
	if id != r.before {
		return r.FS.Hold(id)
	}
	return procfs.Hold{Same: func() bool { return false }, Close: func() {}}, nil
}

func TestMovePutsAStrangerBackOnTheKernel(t *testing.T) {
	live, root := testhost.Tree(t), testhost.Root(t)
	group := governed(t, live, root, "cpu")
	if ofController(t, "cpu").Version == 2 {
		group = group.Child("leaf")
		must(t, live.Make(group))
	}
	id := testhost.Spawn(t, "sleep", "600")
	where := func() string {
		t.Helper()
		procs, err := host.New("/").Proc.Processes(procfs.Options{PIDs: []int{id.PID}})
		if err != nil || len(procs) != 1 {
			t.Fatal(procs, err)
		}
		return procs[0].Cgroups[group.Hierarchy]
	}
	home := where()
	before := procfs.ID{PID: id.PID, Start: id.Start - 1}
	tree := cgroup.NewWith(testhost.Hierarchies(t), cgroup.Options{Processes: reused{host.New("/").Proc, before}})
	defer tree.Close()
	if err := tree.Move(group, before); !errors.Is(err, cgroup.ErrExited) || tree.Mistaken() != 1 || where() != home {
		t.Errorf("%v, %d mistaken moves, in %s", err, tree.Mistaken(), where())
	}
	must(t, tree.Move(group, id))
	if where() != group.Path || tree.Mistaken() != 1 {
		t.Errorf("in %s, %d mistaken moves", where(), tree.Mistaken())
	}
	if err := live.Move(group, before); !errors.Is(err, cgroup.ErrExited) {
		t.Errorf("another start time: %v", err)
	}
}

// A pidfd tells when the kernel has forgotten the process: a zombie keeps its number.
func TestHold(t *testing.T) {
	h := host.New("/")
	cmd := exec.Command("sleep", "600")
	must(t, cmd.Start())
	id := testhost.Identify(t, cmd.Process.Pid)
	hold, err := h.Proc.Hold(id)
	must(t, err)
	defer hold.Close()
	if !hold.Same() {
		t.Error("it lives, and is another one")
	}
	must(t, cmd.Process.Kill())
	testhost.WaitFor(t, "it to be a zombie", func() bool { return !h.Proc.Alive(id) })
	if !hold.Same() {
		t.Error("a zombie has lost its number")
	}
	_ = cmd.Wait()
	if hold.Same() {
		t.Error("it is gone, and still the same")
	}
	for _, wrong := range []procfs.ID{id, {PID: os.Getpid(), Start: 1}} {
		if _, err := h.Proc.Hold(wrong); !errors.Is(err, procfs.ErrExited) {
			t.Errorf("hold %v: %v", wrong, err)
		}
	}
}

// A group that was removed and made again since the last move into it, and one that is gone.
func TestMoveIntoARemadeGroupOnTheKernel(t *testing.T) {
	tree, root := testhost.Tree(t), testhost.Root(t)
	group := governed(t, tree, root, "cpu")
	if ofController(t, "cpu").Version == 2 {
		group = group.Child("leaf")
		must(t, tree.Make(group))
	}
	id := testhost.Spawn(t, "sleep", "600")
	home := cgroup.Dir{Hierarchy: group.Hierarchy, Path: "/"}
	for range 3 {
		must(t, tree.Move(group, id))
		if inside, err := tree.Procs(group); err != nil || !slices.Equal(inside, []int{id.PID}) {
			t.Fatalf("inside are %v: %v", inside, err)
		}
		must(t, tree.Move(home, id))
		must(t, tree.Remove(group))
		must(t, tree.Make(group))
	}
	must(t, tree.Move(group, id))
	must(t, tree.Move(home, id))
	must(t, tree.Remove(group))
	if err := tree.Move(group, id); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("moved into a group that is gone: %v", err)
	}
	must(t, tree.Make(group))
}
