//go:build root

package cgroup_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

// TestCoveredGroup reaches a group that somebody has mounted a file system over: its limit is read, changed and lifted
// as if nothing were there. The mount is in a namespace of the test's own.
func TestCoveredGroup(t *testing.T) {
	if name := os.Getenv("COVERED_GROUP"); name != "" {
		covered(t, name)
		return
	}
	tree := testhost.Tree(t)
	group := governed(t, tree, testhost.Root(t), "pids")
	inner := group.Child("covered")
	if ofController(t, "pids").Version == 2 {
		must(t, tree.Enable(group, []string{"pids"}))
	}
	must(t, tree.Make(inner), tree.Write(inner.File("pids.max"), "50"))
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "-test.run", "^TestCoveredGroup$", "-test.v")
	cmd.Env = append(os.Environ(), "COVERED_GROUP="+inner.Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := tree.Read(inner.File("pids.max")); err != nil || got != "max" {
		t.Errorf("outside it reads %q, %v", got, err)
	}
}

func covered(t *testing.T, name string) {
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	group := dir(ofController(t, "pids").ID, name)
	before := testhost.Tree(t)
	if _, err := before.Read(group.File("pids.max")); err != nil {
		t.Fatal(err)
	}
	point := before.Abs(group)
	must(t, unix.Mount("none", point, "tmpfs", 0, ""))
	if _, err := os.Stat(point + "/pids.max"); err == nil {
		t.Fatal("nothing lies over the group")
	}
	for name, tree := range map[string]*cgroup.Tree{"opened before": before, "opened after": testhost.Tree(t)} {
		got, err := tree.Read(group.File("pids.max"))
		if err != nil || got != "50" && got != "max" {
			t.Errorf("%s: it reads %q, %v", name, got, err)
		}
		if err := tree.Write(group.File("pids.max"), "max"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := os.ReadDir(point); err != nil || len(names) > 0 {
		t.Errorf("what lies over the group holds %v, %v", names, err)
	}
}
