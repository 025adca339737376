package conformance

import (
	"errors"
	"path"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
)

// Subject is what a case works on.
type Subject struct {
	Tree *cgroup.Tree
	// Root names a group below the top of each hierarchy that the case has for itself. It is not made
	// yet, and removed afterwards by whoever made the subject.
	Root string
	// CPUs and Nodes are those online.
	CPUs, Nodes idset.Set
	// Device is the number of a whole disk that may be limited.
	Device string
	// Absent is the number of no device.
	Absent string
	// Spawn starts a process that sleeps, in whatever groups the caller is in.
	Spawn func(testing.TB) Process
}

// Process is one process that a case may do anything to.
type Process interface {
	ID() procfs.ID
	// Exit ends it.
	Exit()
	// Touch has it take bytes of anonymous memory; false when the kernel killed it over that.
	Touch(bytes int64) bool
	// Realtime gives one thread that is not the main one a real-time policy.
	Realtime() error
}

// testCase is one entry of the list.
type testCase struct {
	name       string
	version    int
	controller string // "" for what every hierarchy of that version does
	run        func(*bench)
}

func orCore(controller string) string {
	if controller == "" {
		return "core"
	}
	return controller
}

// bench is a subject with the hierarchy of the case and what assertions need.
type bench struct {
	*testing.T
	Subject
	hierarchy  host.Hierarchy
	controller string
	top        cgroup.Dir // the case's root group
}

// find picks the hierarchy of the case.
func (b *bench) find(c testCase) bool {
	for _, h := range b.Tree.Hierarchies() {
		if h.Version == c.version && (c.controller == "" || h.Has(c.controller)) {
			b.hierarchy, b.controller = h, c.controller
			b.top = cgroup.Dir{Hierarchy: h.ID, Path: path.Join("/", b.Root)}
			return true
		}
	}
	return false
}

// must fails the case on an error.
func (b *bench) must(errs ...error) {
	b.Helper()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// groups makes the root group and those groups below it, with the case's controller in each.
func (b *bench) groups(paths ...string) cgroup.Dir {
	b.Helper()
	b.group(b.top)
	for _, p := range paths {
		b.group(cgroup.Dir{Hierarchy: b.top.Hierarchy, Path: path.Join(b.top.Path, p)})
	}
	return b.top
}

// group makes one group with the case's controller and, on a v1 cpuset, with all CPUs and nodes.
func (b *bench) group(d cgroup.Dir) cgroup.Dir {
	b.Helper()
	if b.controller != "" {
		b.must(b.Tree.Enable(d.Parent(), []string{b.controller}))
	}
	b.must(b.Tree.Make(d))
	b.seed(d)
	return d
}

// seed makes a v1 group that has a cpuset beside the case's controller usable.
func (b *bench) seed(d cgroup.Dir) {
	b.Helper()
	if b.hierarchy.Version != 1 || !b.hierarchy.Has("cpuset") || b.controller == "cpuset" {
		return
	}
	b.must(b.Tree.Write(d.File("cpuset.cpus"), b.CPUs.String()), b.Tree.Write(d.File("cpuset.mems"), b.Nodes.String()))
}

// holds fails the case when the file does not read as want.
func (b *bench) holds(d cgroup.Dir, file, want string) {
	b.Helper()
	got, err := b.Tree.Read(d.File(file))
	if err != nil {
		b.Error(err)
	} else if got != want {
		b.Errorf("%s holds %q, want %q", d.File(file), got, want)
	}
}

// absent says, in the log too, that this kernel has no such file. A file is asked for so only where the kernel that
// brought it is newer than the oldest we run on.
func (b *bench) absent(d cgroup.Dir, file string) bool {
	b.Helper()
	_, err := b.Tree.Read(d.File(file))
	if !errors.Is(err, cgroup.ErrNoKnob) {
		return false
	}
	b.Logf("not covered here: this kernel has no %s", file)
	return true
}

// counts fails the case when that line of the file is not want.
func (b *bench) counts(d cgroup.Dir, file, line, want string) {
	b.Helper()
	text, err := b.Tree.Read(d.File(file))
	if err != nil {
		b.Error(err)
	} else if got := cgroup.Line(text, line); got != want {
		b.Errorf("%s has %q for %s, want %q", d.File(file), got, line, want)
	}
}

// fails fails the case when err is not of that kind and errno; errno 0 is any.
func (b *bench) fails(err, kind error, errno syscall.Errno) {
	b.Helper()
	switch {
	case err == nil:
		b.Errorf("no error, want %v", kind)
	case !errors.Is(err, kind):
		b.Errorf("error %q is not %q", err, kind)
	case errno != 0 && !errors.Is(err, errno):
		b.Errorf("error %q is not %q", err, errno)
	}
}

// write is one write to a file and what follows from it.
type write struct {
	file, value string
	errno       syscall.Errno // 0 is success
	then        string        // what the file reads as afterwards
}

// writes does them in order in one group.
func (b *bench) writes(d cgroup.Dir, list ...write) {
	b.Helper()
	for _, w := range list {
		err := b.Tree.Write(d.File(w.file), w.value)
		switch {
		case w.errno == 0 && err != nil:
			b.Errorf("%v", err)
		case w.errno != 0 && !errors.Is(err, w.errno):
			b.Errorf("write %q to %s: error %v, want %v", w.value, d.File(w.file), err, w.errno)
		}
		b.holds(d, w.file, w.then)
	}
}

// spawn starts a process and puts it into d.
func (b *bench) spawn(d cgroup.Dir) Process {
	b.Helper()
	p := b.Spawn(b.T)
	b.must(b.Tree.Move(d, p.ID()))
	return p
}
