package apply

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
)

// What goes away with a directory is not written back before.
func TestUndoOfNewGroupsOnlyRemoves(t *testing.T) {
	w := newWorld(t, v1)
	first := 0
	w.fail = func(int) error { first = len(w.Changes()); return errFault }
	if _, err := w.runner(t).Run(soon(t), w.first(), Options{}); err == nil {
		t.Fatal("did not fail")
	}
	for _, o := range w.Changes()[first:] {
		if o.Op != "rmdir" && o.File.Name != "cgroup.procs" {
			t.Errorf("undoing did %v", o)
		}
	}
}

// Values that the kernel takes only in another order are given back in a second pass.
func TestUndoInSecondPass(t *testing.T) {
	w := newWorld(t, v1)
	d := cgroup.Dir{Hierarchy: "memory", Path: "/user"}
	value := func(file string) journal.Change {
		c := change.Change{Target: d.File(file).Target(), Old: "1073741824", Undo: "1073741824"}
		return journal.Change{Change: c}
	}
	u := undoing{Runner: w.runner(t), ctx: t.Context()}
	// The last one is undone first, and refused: memsw below an unlimited limit.
	left, errs := u.all([]journal.Change{value("memory.limit_in_bytes"), value("memory.memsw.limit_in_bytes")})
	if len(left)+len(errs) > 0 {
		t.Errorf("left %v: %v", left, errs)
	}
	if got, err := w.Read(d.File("memory.memsw.limit_in_bytes")); got != "1073741824" || err != nil {
		t.Errorf("memsw %s, %v", got, err)
	}
}

// An empty v2 cpuset list is given back as such where the kernel takes it, else by number; and one that was
// not reached is not touched.
func TestUndoOfWideCPUSet(t *testing.T) {
	for name, c := range map[string]struct {
		inside  bool
		failing string // file whose write fails
		want    string
	}{
		"nobody inside": {false, "memory.max", ""},
		"inside":        {true, "memory.max", "0-1"},
		"not reached":   {true, "cpu.weight", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := stage(t, v2, []func(*world) plan.Plan{(*world).first})
			d := cgroup.Dir{Hierarchy: unified, Path: "/bulkhead"}
			if !c.inside {
				for _, id := range w.procs {
					w.must(t, w.Move(cgroup.Dir{Hierarchy: unified, Path: "/"}, id))
				}
			}
			w.FailMatch("write", d.File(c.failing).String(), syscall.EIO)
			b := w.build()
			b.write(unified, d.Path, "cpu.weight", "50")
			b.write(unified, d.Path, "cpuset.cpus", "0")
			b.steps[1].Undo = "0-1"
			b.write(unified, d.Path, "memory.max", "1073741824")
			_, err := w.runner(t).Run(soon(t), b.plan(), Options{})
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "everything was undone") {
				t.Fatal(err)
			}
			if got, err := w.Read(d.File("cpuset.cpus")); got != c.want || err != nil {
				t.Errorf("cpuset.cpus %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// beforeRemove calls a function before each removal.
type beforeRemove struct {
	*world
	first func(cgroup.Dir)
}

func (b beforeRemove) Remove(d cgroup.Dir) error {
	b.first(d)
	return b.world.Remove(d)
}

// Children born in new groups do not keep them from being undone; they go where their parents came from.
func TestForksBeforeUndo(t *testing.T) {
	for _, killed := range []bool{false, true} {
		w := newWorld(t, v1)
		p := w.first()
		r := w.runner(t)
		last := len(p.Steps) - 1
		var child procfs.ID
		r.AfterStep = func(i int, _ plan.Step) {
			if i != last-1 {
				return
			}
			var err error
			child, err = w.Fork(w.procs[0].PID)
			w.must(t, err)
			if killed {
				panic(crash{})
			}
			w.fail = func(int) error { return errFault }
		}
		if crashing(func() { r.Run(soon(t), p, Options{Verb: "apply"}) }) != killed {
			t.Fatal("not as planned")
		}
		if killed {
			w.must(t, r.Journal.Close())
			r = w.runner(t)
			if _, done, err := r.Recover(soon(t)); !done || err != nil {
				t.Fatalf("%v, %v", done, err)
			}
		}
		for h, at := range w.Membership(child.PID) {
			if at != "/user" {
				t.Errorf("killed %v: the child is in %s:%s, want /user", killed, h, at)
			}
		}
		if there, _ := w.Exists(cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead"}); there {
			t.Errorf("killed %v: the groups were left behind", killed)
		}
	}
}

// A home that is gone when a move is undone is replaced by the nearest directory above it.
func TestUndoWithoutHome(t *testing.T) {
	w := newWorld(t, v1)
	deep := cgroup.Dir{Hierarchy: "cpu", Path: "/user/deep"}
	w.must(t, w.Make(deep))
	w.must(t, w.Move(deep, w.procs[0]))
	r := w.runner(t)
	w.fail = func(int) error {
		w.must(t, w.Remove(deep))
		return errFault
	}
	if _, err := r.Run(soon(t), w.first(), Options{}); err == nil ||
		!strings.Contains(err.Error(), "everything was undone") {
		t.Fatal(err)
	}
	if got := w.Membership(w.procs[0].PID); got["cpu"] != "/user" || got["memory"] != "/user" {
		t.Errorf("it is in %v", got)
	}
}

// A process that went elsewhere on its own is not dragged back.
func TestUndoLeavesOthersMovesAlone(t *testing.T) {
	w := newWorld(t, v1)
	theirs := cgroup.Dir{Hierarchy: "cpu", Path: "/theirs"}
	w.must(t, w.Make(theirs))
	r := w.runner(t)
	w.fail = func(int) error {
		w.must(t, w.Move(theirs, w.procs[0]))
		return errFault
	}
	if _, err := r.Run(soon(t), w.first(), Options{}); err == nil {
		t.Fatal("did not fail")
	}
	if got := w.Membership(w.procs[0].PID); got["cpu"] != "/theirs" || got["memory"] != "/user" {
		t.Errorf("it is in %v", got)
	}
}

// When undoing fails too, the error says what is left, and the journal still knows it as ours.
func TestUndoFails(t *testing.T) {
	for _, killed := range []bool{false, true} {
		w := newWorld(t, v1)
		r := w.runner(t)
		stuck := cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/a/x"}
		w.fail = func(int) error {
			w.FailMatch("rmdir", stuck.String(), syscall.EBUSY)
			if killed {
				panic(crash{})
			}
			return errFault
		}
		var err error
		crashing(func() { _, err = r.Run(soon(t), w.first(), Options{Verb: "apply"}) })
		if killed {
			w.must(t, r.Journal.Close())
			r = w.runner(t)
			var done bool
			if _, done, err = r.Recover(soon(t)); done {
				t.Error("Recover says that it is done")
			}
		} else if !errors.Is(err, errFault) {
			t.Errorf("the cause is lost: %v", err)
		}
		if err == nil || !strings.Contains(err.Error(), stuck.Path) ||
			strings.Contains(err.Error(), "everything was undone") {
			t.Fatalf("killed %v: %v", killed, err)
		}
		if _, pending := r.Journal.Pending(); pending {
			t.Error("the transaction is open: nothing else could be done any more, not even a release")
		}
		var made []string
		for d := range r.Journal.InBoot(boot).Made() {
			made = append(made, d.String())
		}
		slices.Sort(made)
		if want := []string{"memory:/bulkhead", "memory:/bulkhead/a", "memory:/bulkhead/a/x"}; !slices.Equal(made,
			want) {
			t.Errorf("killed %v: ours are %v, want %v", killed, made, want)
		}
		if len(r.Journal.InBoot(boot).Originals()) > 0 {
			t.Errorf("killed %v: originals %v", killed, r.Journal.InBoot(boot).Originals())
		}
	}
}

// What others enabled in cgroup.subtree_control meanwhile stays, and what they disabled is no error.
func TestSubtreeControlOfOthers(t *testing.T) {
	w := newWorld(t, v2)
	top := cgroup.Dir{Hierarchy: "unified", Path: "/"}
	w.must(t, w.Enable(top, []string{"pids"}))
	r := w.runner(t)
	b := w.build()
	b.write("unified", "/", cgroup.SubtreeControl, "+cpu +io +pids")
	b.mkdir("unified", "/bulkhead")
	b.score(0, 500)
	w.fail = func(int) error {
		w.must(t, w.Enable(top, []string{"memory"}))
		w.must(t, w.Disable(top, []string{"cpu"}))
		return errFault
	}
	if _, err := r.Run(soon(t), b.plan(), Options{}); !errors.Is(err, errFault) ||
		!strings.Contains(err.Error(), "everything was undone") {
		t.Fatal(err)
	}
	if _, on, err := w.Subtree(top); err != nil || !slices.Equal(on, []string{"memory", "pids"}) {
		t.Errorf("enabled %v, %v", on, err)
	}
	w.fail = nil
	if _, err := r.Run(soon(t), b.plan(), Options{}); err != nil {
		t.Fatal(err)
	}
	if got := r.Journal.InBoot(boot).Subtree()[top]; !slices.Equal(got, []string{"blkio", "cpu"}) {
		t.Errorf("the journal says that bulkhead enabled %v", got)
	}
}
