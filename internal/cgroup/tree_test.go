package cgroup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
)

var cpuV1 = host.Hierarchy{ID: "cpu", Version: 1, Controllers: []string{"cpu"}, Mount: "/sys/fs/cgroup/cpu", Root: "/"}

func hierarchies() []host.Hierarchy {
	list := []host.Hierarchy{cpuV1}
	for _, name := range []string{"cpuset", "memory", "blkio", "freezer"} {
		list = append(list, host.Hierarchy{ID: name, Version: 1, Controllers: []string{name},
			Mount: "/sys/fs/cgroup/" + name, Root: "/"})
	}
	return append(list, host.Hierarchy{ID: procfs.UnifiedID, Version: 2, Controllers: []string{"pids", "hugetlb"},
		Mount: "/sys/fs/cgroup/unified", Root: "/"})
}

func model() *cgroupfake.Kernel { return cgroupfake.New(hierarchies(), cgroupfake.Options{}) }

func dir(hierarchy, path string) cgroup.Dir { return cgroup.Dir{Hierarchy: hierarchy, Path: path} }

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestErrorsSayWhatAndWhy pins the text that people see, with its hint.
func TestErrorsSayWhatAndWhy(t *testing.T) {
	k := model()
	a, cpuset := dir("cpu", "/a"), dir("cpuset", "/a")
	must(t, k.Make(a), k.Make(cpuset), k.Make(cpuset.Child("b")), k.Make(dir("memory", "/a")),
		k.Make(dir("blkio", "/a")))
	must(t, k.Make(dir(procfs.UnifiedID, "/a")))
	must(t, k.Write(cpuset.File("cpuset.cpus"), "0"))
	p := k.Spawn()
	readErr := func(_ string, err error) error { return err }
	for _, c := range []struct {
		err        error
		text, hint string
		kind       error
	}{
		{k.Write(a.File("cpu.cfs_quota_us"), "5"),
			`write "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us" value "5": refused by kernel: invalid argument`,
			"at least 1 ms", cgroup.ErrInvalid},
		{k.Write(a.File("cpu.cfs_quota_us"), ""),
			`write "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us" value "": refused by kernel: ` +
				`an empty value is for cpuset.cpus and cpuset.mems only`, "", cgroup.ErrInvalid},
		{k.Write(a.File("cpu.shares"), "5\n6"), `value "5\n6": refused by kernel: a value is one line`, "",
			cgroup.ErrInvalid},
		{k.Write(cpuset.Child("b").File("cpuset.cpus"), "1"),
			`write "/sys/fs/cgroup/cpuset/a/b/cpuset.cpus" value "1": refused by kernel: permission denied`,
			"within its parent's", cgroup.ErrInvalid},
		{k.Write(cgroup.File{Dir: dir("blkio", "/a"), Name: "blkio.throttle.read_bps_device", Key: "8:1"}, "5"),
			`write "/sys/fs/cgroup/blkio/a/blkio.throttle.read_bps_device" value "8:1 5": refused by kernel: ` +
				`no such device`, "whole disk", cgroup.ErrInvalid},
		{k.Write(dir("memory", "/a").File("memory.memsw.limit_in_bytes"), "1M"),
			`refused by kernel: invalid argument`, "raise memsw first", cgroup.ErrInvalid},
		{k.Move(cpuset, p), `move process 100 into "/sys/fs/cgroup/cpuset/a": refused by kernel: ` +
			`no space left on device`, "cpuset.mems", cgroup.ErrInvalid},
		{readErr(k.Read(a.File("memory.max"))),
			`read "/sys/fs/cgroup/cpu/a/memory.max": no such knob: no such file or directory`, "", cgroup.ErrNoKnob},
		{readErr(k.Read(dir("cpu", "/b").File("cpu.shares"))),
			`read "/sys/fs/cgroup/cpu/b": group is gone: no such file or directory`, "", cgroup.ErrGone},
		{k.Make(a), `make "/sys/fs/cgroup/cpu/a": group exists: file exists`, "", cgroup.ErrExists},
		{k.Remove(cpuset), `remove "/sys/fs/cgroup/cpuset/a": busy: device or resource busy`,
			"remove its 1 child groups first", cgroup.ErrBusy},
		{k.Remove(dir("cpu", "/")), `remove "/sys/fs/cgroup/cpu": busy`, "root", cgroup.ErrBusy},
		{k.Make(dir("net_cls", "/a")), `make "net_cls:/a": no such hierarchy`, "", cgroup.ErrNoHierarchy},
		{k.Enable(dir(procfs.UnifiedID, "/a"), []string{"pids"}),
			`write "/sys/fs/cgroup/unified/a/cgroup.subtree_control" value "+pids": no such knob`,
			"enable it in the parent first", cgroup.ErrNoKnob},
	} {
		switch {
		case c.err == nil:
			t.Errorf("no error, want %q", c.text)
		case !strings.Contains(c.err.Error(), c.text):
			t.Errorf("error %q, want %q", c.err, c.text)
		case !errors.Is(c.err, c.kind):
			t.Errorf("error %q is not %q", c.err, c.kind)
		case !strings.Contains(cgroup.Hint(c.err), c.hint) || c.hint == "" && cgroup.Hint(c.err) != "":
			t.Errorf("error %q has hint %q, want %q", c.err, cgroup.Hint(c.err), c.hint)
		}
	}
	if cgroup.Hint(errors.New("other")) != "" || cgroup.Hint(nil) != "" {
		t.Error("a hint for an error of somebody else")
	}
	wrapped := fmt.Errorf("apply: %w", k.Write(a.File("cpu.shares"), "-1"))
	if !errors.Is(wrapped, syscall.EINVAL) || !errors.Is(wrapped, cgroup.ErrInvalid) {
		t.Errorf("%v hides its cause", wrapped)
	}
}

func TestPathsStayInsideTheHierarchy(t *testing.T) {
	k := model()
	before := k.Dump()
	for _, p := range []string{"", "a", "/..", "/a/../..", "/a//b", "/a/", "/./a", "/a\nb", "/\x00"} {
		if err := k.Make(dir("cpu", p)); !errors.Is(err, cgroup.ErrInvalid) {
			t.Errorf("Make(%q): %v", p, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../cpu.shares", "a/b", "\x00"} {
		f := dir("cpu", "/").File(name)
		if err := k.Write(f, "1"); !errors.Is(err, cgroup.ErrInvalid) {
			t.Errorf("Write(%q): %v", name, err)
		}
		if _, err := k.Read(f); !errors.Is(err, cgroup.ErrInvalid) {
			t.Errorf("Read(%q): %v", name, err)
		}
		if _, err := k.ReadMany(f.Dir, []string{name}); !errors.Is(err, cgroup.ErrInvalid) {
			t.Errorf("ReadMany(%q): %v", name, err)
		}
	}
	if k.Dump() != before {
		t.Error("a refused path changed something")
	}
}

// TestFixture works on plain directories: a captured host, with a symbolic link that leads out.
func TestFixture(t *testing.T) {
	root := t.TempDir()
	group := filepath.Join(root, "sys/fs/cgroup/cpu/a")
	outside := filepath.Join(root, "outside")
	must(t, os.MkdirAll(group, 0o755), os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(group, "cpu.shares"), []byte("1024\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("1"), 0o644))
	must(t, os.Symlink(outside, filepath.Join(group, "dirlink")), os.Symlink("/etc", filepath.Join(group, "etc")))
	must(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(group, "filelink")))
	tree := cgroup.NewWith([]host.Hierarchy{cpuV1}, cgroup.Options{Root: root})
	a := dir("cpu", "/a")
	must(t, tree.Write(a.File("cpu.shares"), "5"))
	if got, err := tree.Read(a.File("cpu.shares")); got != "5" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := tree.Write(a.File("cpu.idle"), "1"); !errors.Is(err, cgroup.ErrNoKnob) {
		t.Errorf("a write to a missing file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(group, "cpu.idle")); err == nil {
		t.Error("a write made a file")
	}
	for _, link := range []string{"dirlink", "etc"} {
		if got, err := tree.Read(a.Child(link).File("secret")); err == nil {
			t.Errorf("read %q through a link out of the hierarchy", got)
		}
		if err := tree.Make(a.Child(link).Child("x")); err == nil {
			t.Error("made a directory outside the hierarchy")
		}
	}
	if got, err := tree.Read(a.File("filelink")); err == nil {
		t.Errorf("read %q through a link out of the hierarchy", got)
	}
	must(t, tree.Make(a.Child("b")), tree.Remove(a.Child("b")), tree.Close())
}

// TestPlainDirectoryIsNoHierarchy: a stale mount point must not be written to.
func TestPlainDirectoryIsNoHierarchy(t *testing.T) {
	h := cpuV1
	h.Mount = t.TempDir()
	tree := cgroup.New([]host.Hierarchy{h})
	err := tree.Make(dir("cpu", "/a"))
	if !errors.Is(err, cgroup.ErrNoHierarchy) || !strings.Contains(err.Error(), "not a cgroup v1 file system") {
		t.Errorf("error %v", err)
	}
	if entries, _ := os.ReadDir(h.Mount); len(entries) > 0 {
		t.Error("a directory was made on a plain file system")
	}
	h.Mount = filepath.Join(h.Mount, "absent")
	if _, err := cgroup.New([]host.Hierarchy{h}).Exists(dir("cpu", "/")); !errors.Is(err, cgroup.ErrNoHierarchy) {
		t.Errorf("an absent mount point: %v", err)
	}
}

func TestMoveHoldsTheStartTime(t *testing.T) {
	k := model()
	a := dir("cpu", "/a")
	must(t, k.Make(a))
	old := k.Spawn()
	k.Exit(old.PID)
	reused := k.Reuse(old.PID)
	if err := k.Move(a, old); !errors.Is(err, cgroup.ErrExited) {
		t.Errorf("moving a process whose number was reused: %v", err)
	}
	if got := k.Membership(reused.PID)["cpu"]; got != "/" {
		t.Errorf("the new owner of the number is in %q", got)
	}
	must(t, k.Move(a, reused))
	k.Exit(reused.PID)
	if err := k.Move(a, procfs.ID{PID: reused.PID}); !errors.Is(err, cgroup.ErrExited) ||
		!errors.Is(err, syscall.ESRCH) {
		t.Errorf("moving a process that exited, by number only: %v", err)
	}
}

func TestMoveTellsRealtimeFromOtherRefusals(t *testing.T) {
	k := model()
	a := dir("cpu", "/a")
	must(t, k.Make(a))
	kernelThread := k.SpawnKernelThread()
	err := k.Move(a, kernelThread)
	if !errors.Is(err, cgroup.ErrInvalid) || errors.Is(err, cgroup.ErrRealtime) ||
		!strings.Contains(cgroup.Hint(err), "kernel threads") {
		t.Errorf("a kernel thread: %v (%s)", err, cgroup.Hint(err))
	}
	p := k.Spawn()
	must(t, k.SetRealtime(p.PID, true))
	err = k.Move(a, p)
	if !errors.Is(err, cgroup.ErrRealtime) || errors.Is(err, cgroup.ErrInvalid) {
		t.Errorf("a real-time process: %v", err)
	}
	must(t, k.SetRealtime(p.PID, false), k.Move(a, p))
}

func TestRemoveWaitsForTheLastTask(t *testing.T) {
	k := cgroupfake.New(hierarchies(), cgroupfake.Options{RemoveWait: 1e9})
	a := dir("cpu", "/a")
	must(t, k.Make(a))
	p := k.Spawn()
	must(t, k.Move(a, p))
	tries := 0
	k.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "rmdir" {
			if tries++; tries == 3 {
				k.Exit(p.PID)
			}
		}
		return nil
	})
	must(t, k.Remove(a))
	if tries != 3 {
		t.Errorf("removed after %d tries", tries)
	}
}

func TestGroupThatVanishes(t *testing.T) {
	a := dir("cpu", "/a")
	for name, use := range map[string]func(*cgroupfake.Kernel) error{
		"write":    func(k *cgroupfake.Kernel) error { return k.Write(a.File("cpu.shares"), "5") },
		"read":     func(k *cgroupfake.Kernel) error { _, err := k.Read(a.File("cpu.shares")); return err },
		"readmany": func(k *cgroupfake.Kernel) error { _, err := k.ReadMany(a, []string{"cpu.shares"}); return err },
		"move":     func(k *cgroupfake.Kernel) error { return k.Move(a, k.Spawn()) },
		"stat":     func(k *cgroupfake.Kernel) error { _, err := metrics.Read(k.Tree, a); return err },
	} {
		k := model()
		must(t, k.Make(a))
		k.Intercept(func(o cgroupfake.Operation) error {
			if o.File.Path == "/a" && o.Op != "open" { // after its directory was opened
				k.Intercept(nil)
				k.Vanish(a)
			}
			return nil
		})
		if err := use(k); !errors.Is(err, cgroup.ErrGone) || errors.Is(err, cgroup.ErrNoKnob) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One that vanishes below is left out of a walk.
	k := model()
	must(t, k.Make(a), k.Make(a.Child("b")), k.Make(a.Child("c")))
	k.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "open" && o.File.Path == "/a/b" {
			k.Intercept(nil)
			k.Vanish(a.Child("b"))
		}
		return nil
	})
	dirs, err := k.Walk(a)
	if must(t, err); len(dirs) != 2 || dirs[1] != a.Child("c") {
		t.Errorf("walk: %v", dirs)
	}
}

// TestFreezeLetsGoWhenATaskCannotStop: on both versions, nothing is left half stopped.
func TestFreezeLetsGoWhenATaskCannotStop(t *testing.T) {
	for _, id := range []string{"freezer", procfs.UnifiedID} {
		k := model()
		a := dir(id, "/a")
		must(t, k.Make(a))
		p := k.Spawn()
		must(t, k.Move(a, p))
		k.SetStuck(p.PID, true)
		err := k.Freeze(a, true)
		if !errors.Is(err, cgroup.ErrBusy) || !strings.Contains(cgroup.Hint(err), "uninterruptible") {
			t.Errorf("%s: %v (%s)", id, err, cgroup.Hint(err))
		}
		k.SetStuck(p.PID, false)
		if frozen, err := k.Frozen(a); frozen || err != nil {
			t.Errorf("%s: still freezing: %v %v", id, frozen, err)
		}
		must(t, k.Freeze(a, true), k.Freeze(a, false))
	}
	if err := model().Freeze(dir("cpu", "/"), true); !errors.Is(err, cgroup.ErrNoKnob) {
		t.Errorf("freezing in a hierarchy without freezer: %v", err)
	}
}

func TestReadManyLeavesOutWhatTheKernelLacks(t *testing.T) {
	k := model()
	top := dir(procfs.UnifiedID, "/")
	k.FailMatch("read", "unified:/io.pressure", syscall.EOPNOTSUPP) // PSI switched off
	values, err := k.ReadMany(top, []string{"cpu.pressure", "io.pressure", "memory.max"})
	if must(t, err); len(values) != 1 || values["cpu.pressure"] == "" {
		t.Errorf("values %q", values)
	}
	if _, err := metrics.Read(k.Tree, top); err != nil {
		t.Errorf("Stat: %v", err)
	}
	k.FailMatch("read", "unified:/*.pressure", syscall.EIO)
	if _, err := k.ReadMany(top, []string{"cpu.pressure"}); !errors.Is(err, syscall.EIO) {
		t.Errorf("an IO error: %v", err)
	}
}
