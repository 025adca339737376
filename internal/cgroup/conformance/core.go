package conformance

import (
	"slices"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
)

// coreCases are about directories and processes, the same on both versions.
var coreCases = slices.Concat(bothVersions("directories", directories), bothVersions("absent knobs", absentKnobs),
	bothVersions("moving", moving), bothVersions("a populated group stays", populatedStays))

func bothVersions(name string, run func(*bench)) []testCase {
	return []testCase{{name: name, version: 1, run: run}, {name: name, version: 2, run: run}}
}

func directories(b *bench) {
	top := b.groups("b", "a", "a/x")
	exists, err := b.Tree.Exists(top.Child("a").Child("x"))
	if !exists || err != nil {
		b.Errorf("Exists of a group that was made: %v, %v", exists, err)
	}
	b.fails(b.Tree.Make(top.Child("a")), cgroup.ErrExists, syscall.EEXIST)
	b.fails(b.Tree.Make(top.Child("absent").Child("x")), cgroup.ErrGone, syscall.ENOENT)
	b.fails(b.Tree.Make(top.Child("cgroup.procs")), cgroup.ErrExists, syscall.EEXIST)
	b.fails(b.Tree.Make(top.Child("cgroup.procs").Child("x")), cgroup.ErrGone, 0)
	children, err := b.Tree.Children(top)
	if b.must(err); !slices.Equal(children, []string{"a", "b"}) {
		b.Errorf("children %q", children)
	}
	all, err := b.Tree.Walk(top)
	want := []cgroup.Dir{top, top.Child("a"), top.Child("a").Child("x"), top.Child("b")}
	if b.must(err); !slices.Equal(all, want) {
		b.Errorf("walk gives %v, want %v", all, want)
	}
	files, err := b.Tree.Files(top)
	if b.must(err); !slices.Contains(files, "cgroup.procs") || slices.Contains(files, "a") || !slices.IsSorted(files) {
		b.Errorf("files %q", files)
	}
	b.fails(b.Tree.Remove(top.Child("a")), cgroup.ErrBusy, syscall.EBUSY)
	b.must(b.Tree.Remove(top.Child("a").Child("x")), b.Tree.Remove(top.Child("a")))
	b.fails(b.Tree.Remove(top.Child("a")), cgroup.ErrGone, syscall.ENOENT)
	b.fails(b.Tree.Remove(cgroup.Dir{Hierarchy: top.Hierarchy, Path: "/"}), cgroup.ErrBusy, 0)
	exists, err = b.Tree.Exists(top.Child("a"))
	if exists || err != nil {
		b.Errorf("Exists of a group that was removed: %v, %v", exists, err)
	}
	_, err = b.Tree.Walk(top.Child("a"))
	b.fails(err, cgroup.ErrGone, 0)
	_, err = b.Tree.Procs(top.Child("a"))
	b.fails(err, cgroup.ErrGone, 0)
}

func absentKnobs(b *bench) {
	top := b.groups()
	_, err := b.Tree.Read(top.File("no.such_knob"))
	b.fails(err, cgroup.ErrNoKnob, syscall.ENOENT)
	b.fails(b.Tree.Write(top.File("no.such_knob"), "1"), cgroup.ErrNoKnob, syscall.ENOENT)
	_, err = b.Tree.Read(top.Child("absent").File("cgroup.procs"))
	b.fails(err, cgroup.ErrGone, syscall.ENOENT)
	b.fails(b.Tree.Write(top.Child("absent").File("cgroup.procs"), "1"), cgroup.ErrGone, syscall.ENOENT)
	values, err := b.Tree.ReadMany(top, []string{"no.such_knob", "cgroup.procs"})
	if b.must(err); len(values) != 1 || values["cgroup.procs"] != "" {
		b.Errorf("ReadMany gives %q", values)
	}
	_, err = b.Tree.ReadMany(top.Child("absent"), []string{"cgroup.procs"})
	b.fails(err, cgroup.ErrGone, 0)
	files, err := b.Tree.Files(top)
	if b.must(err); slices.Contains(files, "no.such_knob") {
		b.Error("a write made a file")
	}
}

func moving(b *bench) {
	top := b.groups("a", "b")
	p := b.spawn(top.Child("a"))
	members := func(d cgroup.Dir, want ...int) {
		b.Helper()
		pids, err := b.Tree.Procs(d)
		if b.must(err); !slices.Equal(pids, want) {
			b.Errorf("processes of %s are %v, want %v", d, pids, want)
		}
	}
	members(top.Child("a"), p.ID().PID)
	b.must(b.Tree.Move(top.Child("b"), p.ID()))
	members(top.Child("a"))
	members(top.Child("b"), p.ID().PID)
	b.must(b.Tree.Move(top.Child("b"), p.ID())) // where it is already
	tasks, err := b.Tree.Tasks(top.Child("b"))
	if b.must(err); !slices.Contains(tasks, p.ID().PID) {
		b.Errorf("tasks %v lack the main thread %d", tasks, p.ID().PID)
	}

	other := p.ID()
	other.Start++
	b.fails(b.Tree.Move(top.Child("a"), other), cgroup.ErrExited, 0)
	members(top.Child("b"), p.ID().PID)
	b.fails(b.Tree.Move(top.Child("absent"), p.ID()), cgroup.ErrGone, syscall.ENOENT)
	for _, pid := range []int{0, -1} {
		b.fails(b.Tree.Move(top.Child("a"), procfs.ID{PID: pid}), cgroup.ErrInvalid, 0)
	}
	p.Exit()
	b.fails(b.Tree.Move(top.Child("a"), p.ID()), cgroup.ErrExited, 0)
	b.fails(b.Tree.Move(top.Child("a"), procfs.ID{PID: 1<<22 + 1}), cgroup.ErrExited, syscall.ESRCH)
	b.must(b.Tree.Remove(top.Child("b")))
}

func populatedStays(b *bench) {
	top := b.groups("a")
	p := b.spawn(top.Child("a"))
	b.fails(b.Tree.Remove(top.Child("a")), cgroup.ErrBusy, syscall.EBUSY)
	p.Exit()
	b.must(b.Tree.Remove(top.Child("a")))
}
