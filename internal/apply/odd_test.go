package apply

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

// at makes something happen right before the first change of the model that matches.
func (w *world) at(op, file string, happen func()) {
	done := false
	w.Intercept(func(o cgroupfake.Operation) error {
		if !done && o.Op == op && o.File.String() == file {
			done = true
			happen()
		}
		return nil
	})
}

// where gives the group of a process in each hierarchy, as text.
func (w *world) where(i int) string { return fmt.Sprint(w.Membership(w.procs[i].PID)) }

func TestProcessExitsBetweenLookAndMove(t *testing.T) {
	for _, when := range []string{"before its first move", "between two moves", "after its last move"} {
		t.Run(when, func(t *testing.T) {
			w := newWorld(t, v1)
			p := w.first()
			r := w.runner(t)
			victim := w.procs[0]
			r.AfterStep = func(i int, s plan.Step) {
				moved := s.PID() == victim && s.Moves()
				if when == "before its first move" && i == 0 || when == "between two moves" && moved &&
					s.Dir().Hierarchy == "cpuset" {
					w.Exit(victim.PID)
				}
			}
			if when == "after its last move" {
				r.Members = afterMove{w, func(d cgroup.Dir, id procfs.ID) {
					if id == victim && d.Hierarchy == "blkio" {
						w.Exit(victim.PID)
					}
				}}
			}
			result, err := r.Run(soon(t), p, Options{Verb: "apply"})
			if err != nil || result.Exited != 1 || len(result.Skipped) != 1 ||
				!strings.Contains(result.Skipped[0], "has exited") {
				t.Errorf("%+v, %v", result, err)
			}
			if got := w.where(1); strings.Count(got, "/bulkhead/a/x") != len(v1) {
				t.Errorf("the other process is in %s", got)
			}
		})
	}
}

// afterMove calls a function after each move.
type afterMove struct {
	*world
	then func(cgroup.Dir, procfs.ID)
}

func (a afterMove) Move(d cgroup.Dir, id procfs.ID) error {
	err := a.world.Move(d, id)
	a.then(d, id)
	return err
}

// A number that belongs to another process by now: that one is not touched.
func TestReusedNumber(t *testing.T) {
	w := newWorld(t, v1)
	p := w.first()
	w.Exit(w.procs[0].PID)
	stranger := w.Reuse(w.procs[0].PID)
	result, err := w.runner(t).Run(soon(t), p, Options{})
	if err != nil || result.Exited != 1 {
		t.Errorf("%+v, %v", result, err)
	}
	if got := w.Membership(stranger.PID); got["cpu"] != "/" || w.scores[stranger] != 0 {
		t.Errorf("the stranger was moved to %v, oom_score_adj %d", got, w.scores[stranger])
	}
}

// A real-time process enters no group of the cpu hierarchy, and so none at all, wherever cpu stands
// in the order of hierarchies.
func TestRealtimeProcess(t *testing.T) {
	orders := [][]host.Hierarchy{v1, {v1[1], v1[0], v1[2], v1[3]}, {v1[1], v1[2], v1[3], v1[0]}}
	for _, hierarchies := range orders {
		w := newWorld(t, hierarchies)
		rt := w.procs[3] // in the root, where it may be real-time
		w.must(t, w.SetRealtime(rt.PID, true))
		before := w.where(3)
		r := w.runner(t)
		result, err := r.Run(soon(t), w.first(), Options{Verb: "apply"})
		if err != nil || result.Exited != 0 || len(result.Skipped) != 1 ||
			!strings.Contains(result.Skipped[0], "real-time") {
			t.Fatalf("%+v, %v", result, err)
		}
		if after := w.where(3); after != before {
			t.Errorf("it is in %s, was in %s", after, before)
		}
		if process, _ := r.Journal.InBoot(boot).Homes(); process[rt] != nil {
			t.Errorf("the journal has a home of a process that was not moved: %v", process[rt])
		}
		if got := w.where(0); strings.Count(got, "/bulkhead/a/db") != len(v1) {
			t.Errorf("the other process is in %s", got)
		}
	}
}

// A group that vanishes halfway: everything is undone as far as it is there, and the error says that a new
// look may help.
func TestGroupVanishes(t *testing.T) {
	w := stage(t, v1, []func(*world) plan.Plan{(*world).first})
	r := w.runner(t)
	w.at("write", "blkio:/bulkhead/a/blkio.throttle.read_bps_device", func() {
		w.Vanish(cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a/x"})
		w.Vanish(cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"})
	})
	_, err := r.Run(soon(t), w.second(), Options{Verb: "apply"})
	var step *StepError
	if !errors.Is(err, cgroup.ErrGone) || !errors.As(err, &step) || len(step.Left) > 0 {
		t.Fatalf("%v", err)
	}
	got, err := w.Read(cgroup.File{Dir: cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/a"},
		Name: "memory.limit_in_bytes"})
	if got != "1073741824" || err != nil {
		t.Errorf("memory limit %s, %v", got, err)
	}
	if there, _ := w.Exists(cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/b"}); there {
		t.Error("the new group was left behind")
	}
}

// A write that the kernel takes and does not keep is a failed step.
func TestReadBack(t *testing.T) {
	for name, tamper := range map[string]func(w *world, p plan.Plan) (file string, during string){
		"at once":    func(*world, plan.Plan) (string, string) { return "cpu:/bulkhead/a/cpu.cfs_quota_us", "" },
		"at the end": func(*world, plan.Plan) (string, string) { return "cpu:/bulkhead/a/x/cpu.shares", "later" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v1)
			p := w.first()
			before := w.dump()
			file, later := tamper(w, p)
			d := cgroup.Dir{Hierarchy: "cpu", Path: strings.TrimPrefix(file[:strings.LastIndex(file, "/")], "cpu:")}
			f := d.File(file[strings.LastIndex(file, "/")+1:])
			r := w.runner(t)
			if later != "" {
				r.AfterStep = func(_ int, s plan.Step) {
					if s.Kind == procfs.KindScore {
						w.Set(f, "77777")
					}
				}
			} else {
				r.Files = rounding{w, f, "77777"}
				r.Actuators[cgroup.KindFile] = knob.Files{Tree: r.Files}
			}
			_, err := r.Run(soon(t), p, Options{})
			if err == nil || !strings.Contains(err.Error(), `found "77777"`) ||
				!strings.Contains(err.Error(), f.String()) {
				t.Fatalf("%v", err)
			}
			var step *StepError
			if errors.As(err, &step); later == "" &&
				(step.Step.File().Name != f.Name || strings.Contains(err.Error(), "when all steps were done")) {
				t.Errorf("noticed late: %v", err)
			}
			w.check(t, name, before)
		})
	}
}

// A change of what a directory hands to its children that the kernel does not keep is a failed step.
func TestReadBackOfControllers(t *testing.T) {
	w := newWorld(t, v2)
	r := w.runner(t)
	r.Actuators[cgroup.KindControllers] = cgroup.Controllers{Tree: deaf{w}}
	w.must(t, w.Enable(cgroup.Dir{Hierarchy: "unified", Path: "/"}, []string{"pids"}))
	for _, words := range []string{"+cpu", "-pids"} {
		b := w.build()
		b.write("unified", "/", cgroup.SubtreeControl, words)
		if _, err := r.Run(soon(t), b.plan(), Options{}); err == nil || !strings.Contains(err.Error(), "read back") {
			t.Errorf("%s: %v", words, err)
		}
	}
}

// deaf takes controllers and neither enables nor disables them.
type deaf struct{ *world }

func (deaf) Enable(cgroup.Dir, []string) error  { return nil }
func (deaf) Disable(cgroup.Dir, []string) error { return nil }

// rounding answers reads of one file with another value once it has been written.
type rounding struct {
	*world
	file  cgroup.File
	value string
}

func (r rounding) Write(f cgroup.File, value string) error {
	err := r.world.Write(f, value)
	if f == r.file {
		r.Set(f, r.value)
	}
	return err
}

// What went between look and step is no failure of an optional step: a service that stops takes its slice along.
func TestNoLongerThere(t *testing.T) {
	seen := plan.Step{Change: change.Change{Old: "100"}}
	for _, c := range []struct {
		step  plan.Step
		cause error
		want  bool
	}{
		{seen, &cgroup.Error{Kind: cgroup.ErrGone}, true},
		{seen, fmt.Errorf("use %q: %w", "a.slice", systemd.ErrNoUnit), true},
		{seen, &cgroup.Error{Kind: cgroup.ErrNoKnob}, true},
		{plan.Step{}, &cgroup.Error{Kind: cgroup.ErrNoKnob}, false},
		{plan.Step{Change: change.Change{Target: dropIn}}, systemd.ErrNoUnit, false},
		{seen, &cgroup.Error{Kind: cgroup.ErrBusy}, false},
	} {
		if got := noLongerThere(c.step, c.cause); got != c.want {
			t.Errorf("%s of %q, %v: %t", c.step.Target, c.step.Old, c.cause, got)
		}
	}
}

// The mount option is changed like a file: journalled, undone by a failure and by recovery.
func TestFastMovesAreUndone(t *testing.T) {
	w := stage(t, v2, nil)
	option := cgroup.File{Dir: cgroup.Dir{Hierarchy: "unified", Path: "/"}, Name: cgroup.FavorDynmods}
	is := func(want string) {
		t.Helper()
		if got, err := w.actuators()[cgroup.KindOption].Read(t.Context(), option.String()); got != want || err != nil {
			t.Errorf("the option is %q, %v; want %q", got, err, want)
		}
	}
	r := w.runner(t)
	b := w.build()
	b.write("unified", "/", cgroup.FavorDynmods, "on")
	b.mkdir("unified", "/bulkhead")
	w.FailMatch("mkdir", "unified:/bulkhead", syscall.ENOSPC)
	if _, err := r.Run(soon(t), b.plan(), Options{}); err == nil {
		t.Error("the second step cannot be done, and nothing is said")
	}
	is("off")
	w.Intercept(nil)
	if _, err := r.Run(soon(t), b.plan(), Options{}); err != nil {
		t.Fatal(err)
	}
	is("on")
	if !r.Journal.InBoot(boot).Changed(option.Target()) {
		t.Error("the journal does not know that it is ours")
	}
	b = w.build()
	b.write("unified", "/", cgroup.FavorDynmods, "off")
	if _, err := r.Run(soon(t), b.plan(), Options{}); err != nil {
		t.Fatal(err)
	}
	is("off")
	if r.Journal.InBoot(boot).Changed(option.Target()) {
		t.Error("it is back, and the journal says that it is changed")
	}
}

func TestOptionalSteps(t *testing.T) {
	w := stage(t, v1, []func(*world) plan.Plan{(*world).first})
	p := w.release()
	for i := range p.Steps {
		p.Steps[i].Optional = true
	}
	// Somebody else's group keeps one directory, the kernel one limit, and a home is gone.
	foreign := cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/a/theirs"}
	w.must(t, w.Make(foreign))
	w.must(t, w.Move(cgroup.Dir{Hierarchy: "cpu", Path: "/"}, w.procs[2]))
	w.must(t, w.Remove(cgroup.Dir{Hierarchy: "cpu", Path: "/user"}))
	w.FailMatch("write", "cpu:/bulkhead/a/cpu.cfs_quota_us", syscall.EBUSY)
	r := w.runner(t)
	result, err := r.Run(soon(t), p, Options{Verb: "release"})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(result.Notes, "\n"); len(result.Notes) != 3 || strings.Count(notes, "not done") != 3 ||
		len(result.LeftOut) != 3 {
		t.Errorf("notes %q, left out %+v", result.Notes, result.LeftOut)
	} else {
		for _, part := range []string{
			"memory/bulkhead/a\": busy: device or resource busy; no process is in it, so it holds a group that " +
				"bulkhead did not make",
			`remove "memory:/bulkhead": "/bulkhead/a" in it is still there`, "cpu.cfs_quota_us\" value \"-1\"",
		} {
			if !strings.Contains(notes, part) {
				t.Errorf("notes %q do not say %q", result.Notes, part)
			}
		}
	}
	if got := w.Membership(w.procs[0].PID); got["cpu"] != "/" || got["memory"] != "/user" {
		t.Errorf("process 0 is in %v", got)
	}
	left := []string{"memory:/bulkhead", "memory:/bulkhead/a"}
	var made []string
	for d := range r.Journal.InBoot(boot).Made() {
		made = append(made, d.String())
	}
	slices.Sort(made)
	if !slices.Equal(made, left) {
		t.Errorf("the journal says that %v are ours, want %v", made, left)
	}
	// When the others have gone, a second release finishes.
	w.Intercept(nil)
	w.must(t, w.Remove(foreign))
	b := w.build()
	b.rmdir("memory", "/bulkhead/a")
	b.rmdir("memory", "/bulkhead")
	if _, err := r.Run(soon(t), b.plan(), Options{Verb: "release"}); err != nil ||
		len(r.Journal.InBoot(boot).Made()) > 0 {
		t.Errorf("%v, %v", err, r.Journal.InBoot(boot).Made())
	}
}

// Children that are born while their directory is about to be removed go home, and come back when
// the removal is undone.
func TestForksDuringRelease(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := stage(t, v1, []func(*world) plan.Plan{(*world).first})
		p := w.release()
		r := w.runner(t)
		forks := 0
		r.Dirs = beforeRemove{w, func(d cgroup.Dir) {
			if d.Path == "/bulkhead/a/db" && d.Hierarchy == "memory" && forks < 3 {
				forks++
				child := w.Spawn()
				w.must(t, w.Move(d, child))
				w.procs = append(w.procs, child)
			}
		}}
		if fails {
			w.FailMatch("rmdir", "blkio:/bulkhead", syscall.EIO)
		}
		_, err := r.Run(soon(t), p, Options{Verb: "release"})
		if fails != (err != nil) || forks != 3 {
			t.Fatalf("fails %v: %v after %d forks", fails, err, forks)
		}
		for _, id := range w.procs[4:] {
			want := "/user" // the home of group a
			if fails {
				want = "/bulkhead/a/db"
			}
			if got := w.Membership(id.PID)["memory"]; got != want {
				t.Errorf("fails %v: the child is in %s, want %s", fails, got, want)
			}
		}
	}
}

// A state directory that is full at any write: no change of the host without its original on disk, and
// either everything is done and known, or nothing.
func TestFullDisk(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			for n := 1; ; n++ {
				w := stage(t, sc.hierarchies, sc.before)
				p := sc.plan(w)
				before := w.dump()
				r := w.runner(t)
				writes, began := 0, false
				w.full = func(name string, data []byte) error {
					writes++
					if writes >= n {
						return syscall.ENOSPC
					}
					began = began || strings.Contains(string(data), `"kind":"begin"`)
					return nil
				}
				first := len(w.Changes())
				w.Intercept(func(o cgroupfake.Operation) error {
					if o.N > 0 && !began {
						t.Fatalf("write %d: %v before the journal had its original", n, o)
					}
					return nil
				})
				result, err := r.Run(soon(t), p, Options{Verb: "apply"})
				w.Intercept(nil)
				if writes < n {
					if n < 4 {
						t.Fatalf("only %d writes", writes)
					}
					return
				}
				if err == nil {
					// Only the history is missing, and it is written late.
					if len(result.Notes) != 1 || result.Entry != 0 {
						t.Fatalf("write %d: %+v", n, result)
					}
					w.full = nil
					w.must(t, r.Journal.Close())
					r = w.runner(t)
					if h, _ := r.Journal.History(); len(h) != len(sc.before)+1 ||
						h[len(h)-1].Outcome != journal.Committed {
						t.Fatalf("write %d: history %+v", n, h)
					}
					w.must(t, r.Journal.Close())
					continue
				}
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(statedir.Hint(err), "free space") {
					t.Fatalf("write %d: %v (hint %q)", n, err, statedir.Hint(err))
				}
				if n == 1 && len(w.Changes()) > first {
					t.Fatalf("changed %v", w.Changes()[first:])
				}
				w.check(t, fmt.Sprintf("write %d (%v)", n, err), before)
				w.full = nil
				w.must(t, r.Journal.Close())
				r = w.runner(t)
				if _, _, err := r.Recover(soon(t)); err != nil {
					t.Fatalf("write %d: %v", n, err)
				}
				w.check(t, fmt.Sprintf("write %d, recovered", n), before)
				w.must(t, r.Journal.Close())
			}
		})
	}
}

func TestBadPlans(t *testing.T) {
	w := newWorld(t, v1)
	r := w.runner(t)
	before := w.dump()
	cpu := func(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: "cpu", Path: path} }
	for name, c := range map[string]change.Change{
		"unknown kind":      change.Of(change.Target{Kind: "format"}, "", "1"),
		"no such file":      change.Of(cpu("/user").File("cpu.magic").Target(), "", "1"),
		"no such directory": change.Of(cpu("/nowhere").File("cpu.shares").Target(), "", "1"),
		"no such hierarchy": change.Of(cgroup.Dir{Hierarchy: "net_cls", Path: "/bulkhead"}.Target(), "", cgroup.There),
		"not a number":      change.Of(w.procs[0].ScoreTarget(), "", "many"),
		"no such home":      change.Of(cgroup.Membership(w.procs[0], "cpu"), "/user", "/nowhere"),
	} {
		mkdir := plan.Step{Change: change.Of(cpu("/bulkhead").Target(), "", cgroup.There)}
		if _, err := r.Run(soon(t), plan.Plan{Steps: []plan.Step{mkdir, {Change: c}}}, Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
		w.check(t, name, before)
	}
}
