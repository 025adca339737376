package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
)

func TestScenesSucceed(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			w := stage(t, sc.hierarchies, sc.before)
			r := w.runner(t)
			p := sc.plan(w)
			var seen []int
			r.AfterStep = func(i int, _ plan.Step) { seen = append(seen, i) }
			result, err := r.Run(soon(t), p, Options{Verb: "apply", By: "alice", Reason: "why", Revision: 3})
			if err != nil {
				t.Fatal(err)
			}
			if len(seen) != len(p.Steps) || result.Steps != len(p.Steps) || len(result.Skipped) > 0 ||
				len(result.Notes) > 0 {
				t.Errorf("of %d steps, %d were seen; result %+v", len(p.Steps), len(seen), result)
			}
			h, err := r.Journal.History()
			if err != nil || len(h) != len(sc.before)+1 {
				t.Fatalf("history %+v, %v", h, err)
			}
			e := h[len(h)-1]
			if e.N != result.Entry || e.Txn != result.Txn || e.Outcome != journal.Committed || e.By != "alice" ||
				e.Reason != "why" || e.Revision != 3 || e.Boot != boot || len(e.Changes) < len(p.Steps) {
				t.Errorf("entry %+v", e)
			}
			if _, pending := r.Journal.Pending(); pending {
				t.Error("a transaction is open")
			}
		})
	}
}

// After apply and release the host is as it was, and the journal knows of nothing.
func TestThereAndBack(t *testing.T) {
	for _, sc := range scenes {
		if !strings.HasSuffix(sc.name, "release") {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			w := newWorld(t, sc.hierarchies)
			w.scores[w.procs[0]], w.scores[w.procs[1]] = 0, 1
			before := w.dump()
			r := w.runner(t)
			for _, p := range []func(*world) plan.Plan{(*world).first, (*world).release} {
				if _, err := r.Run(soon(t), p(w), Options{Verb: "apply"}); err != nil {
					t.Fatal(err)
				}
			}
			w.check(t, "after release", before)
			if made, originals := r.Journal.InBoot(boot).Made(),
				r.Journal.InBoot(boot).Originals(); len(made)+len(originals) > 0 {
				t.Errorf("the journal still knows %v %v", made, originals)
			}
			if process, _ := r.Journal.InBoot(boot).Homes(); len(process) > 0 {
				t.Errorf("the journal still knows homes %v", process)
			}
		})
	}
}

// changes is how many changes of the model and of oom_score_adj a scene makes.
func changes(t *testing.T, hierarchies int) (kernel, scores int) {
	t.Helper()
	sc := scenes[hierarchies]
	w := stage(t, sc.hierarchies, sc.before)
	kernel, scores = len(w.Changes()), w.calls
	if _, err := w.runner(t).Run(soon(t), sc.plan(w), Options{}); err != nil {
		t.Fatal(err)
	}
	return len(w.Changes()) - kernel, w.calls - scores
}

// A fault at every single change: everything is undone, and the journal is as before.
func TestEveryStepFails(t *testing.T) {
	for i, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			kernel, scores := changes(t, i)
			for n := range kernel + scores {
				w := stage(t, sc.hierarchies, sc.before)
				p := sc.plan(w)
				before := w.dump()
				r := w.runner(t)
				known := state(r.Journal)
				if n < kernel {
					w.FailNth(n+1, syscall.EIO)
				} else {
					first := w.calls + n - kernel + 1
					w.fail = func(call int) error {
						if call == first {
							return errFault
						}
						return nil
					}
				}
				result, err := r.Run(soon(t), p, Options{Verb: "apply"})
				var step *StepError
				if !errors.As(err, &step) || len(step.Left) > 0 || step.Open {
					t.Fatalf("change %d: error %v, left %v", n, err, step)
				}
				if n < kernel && !errors.Is(err, syscall.EIO) || n >= kernel && !errors.Is(err, errFault) {
					t.Fatalf("change %d: the cause is lost: %v", n, err)
				}
				for _, part := range []string{fmt.Sprintf("step %d of %d", step.Index+1, len(p.Steps)),
					step.Step.Reason, "everything was undone"} {
					if !strings.Contains(err.Error(), part) {
						t.Fatalf("change %d: error %q does not say %q", n, err, part)
					}
				}
				w.check(t, fmt.Sprintf("change %d (%v)", n, err), before)
				if now := state(r.Journal); withoutGroups(now) != withoutGroups(known) {
					t.Fatalf("change %d: the journal knows\n%s\nknew\n%s", n, now, known)
				}
				h, _ := r.Journal.History()
				if e := h[len(h)-1]; e.N != result.Entry || e.Outcome != journal.Undone ||
					!strings.Contains(e.Text, "fault") && !strings.Contains(e.Text, "input/output") {
					t.Fatalf("change %d: entry %+v", n, e)
				}
				w.must(t, r.Journal.Close())
			}
		})
	}
}

// withoutGroups leaves out the homes of groups: they are written before anything is done, and stay.
func withoutGroups(s string) string {
	lines := strings.Split(s, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "home of group") }),
		"\n")
}

// Interrupted between any two steps, as by Ctrl-C.
func TestCancelledAtEveryStep(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			for n := 0; ; n++ {
				w := stage(t, sc.hierarchies, sc.before)
				p := sc.plan(w)
				if n >= len(p.Steps)-1 {
					return
				}
				before := w.dump()
				r := w.runner(t)
				ctx, cancel := context.WithCancel(soon(t))
				r.AfterStep = func(i int, _ plan.Step) {
					if i == n {
						cancel()
					}
				}
				_, err := r.Run(ctx, p, Options{Verb: "apply"})
				if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
					t.Fatalf("step %d: %v", n, err)
				}
				w.check(t, fmt.Sprintf("step %d", n), before)
				w.must(t, r.Journal.Close())
			}
		})
	}
}

// crash is what the tests panic with where a process would be killed.
type crash struct{}

// crashing runs f and says whether it was killed on the way.
func crashing(f func()) (killed bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			killed = true
		}
	}()
	f()
	return false
}

// kill -9 after every step, then Recover, itself killed again and again, each time a little later.
func TestKilledAtEveryStep(t *testing.T) {
	for _, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			for n := 0; ; n++ {
				w := stage(t, sc.hierarchies, sc.before)
				p := sc.plan(w)
				if n >= len(p.Steps) {
					return
				}
				before := w.dump()
				r := w.runner(t)
				known := state(r.Journal)
				r.AfterStep = func(i int, _ plan.Step) {
					if i == n {
						panic(crash{})
					}
				}
				if !crashing(func() { r.Run(soon(t), p, Options{Verb: "apply"}) }) {
					t.Fatalf("step %d: not killed", n)
				}
				w.must(t, r.Journal.Close())
				for kills := 0; ; kills++ {
					r := w.runner(t)
					left := 1 + kills*kills + n%4
					r.AfterUndo = func(journal.Change) {
						if left--; left == 0 {
							panic(crash{})
						}
					}
					if !crashing(func() { w.recovers(t, r, fmt.Sprintf("step %d, recovery %d", n, kills)) }) {
						w.check(t, fmt.Sprintf("step %d", n), before)
						if now := state(r.Journal); withoutGroups(now) != withoutGroups(known) {
							t.Fatalf("step %d: the journal knows\n%s\nknew\n%s", n, now, known)
						}
						w.must(t, r.Journal.Close())
						break
					}
					w.must(t, r.Journal.Close())
				}
			}
		})
	}
}

func (w *world) recovers(t *testing.T, r *Runner, what string) {
	t.Helper()
	if _, err := r.Run(soon(t), w.first(), Options{}); !errors.Is(err, journal.ErrPending) {
		t.Fatalf("%s: Run before Recover: %v", what, err)
	}
	result, done, err := r.Recover(soon(t))
	if err != nil || !done || result.Entry == 0 {
		t.Fatalf("%s: %+v, %v, %v", what, result, done, err)
	}
	if _, done, err := r.Recover(soon(t)); done || err != nil {
		t.Fatalf("%s: a second Recover found something: %v, %v", what, done, err)
	}
}

// Killed inside a step: after every single change of the kernel, a step being several, and
// after changes that were only half of one.
func TestKilledAtEveryChange(t *testing.T) {
	for i, sc := range scenes {
		t.Run(sc.name, func(t *testing.T) {
			kernel, _ := changes(t, i)
			for n := range kernel {
				w := stage(t, sc.hierarchies, sc.before)
				p := sc.plan(w)
				before := w.dump()
				r := w.runner(t)
				at := len(w.Changes()) + n + 1
				w.Intercept(func(o cgroupfake.Operation) error {
					if o.N == at {
						panic(crash{})
					}
					return nil
				})
				if !crashing(func() { r.Run(soon(t), p, Options{Verb: "apply"}) }) {
					t.Fatalf("change %d: not killed", n)
				}
				w.Intercept(nil)
				w.must(t, r.Journal.Close())
				r = w.runner(t)
				w.recovers(t, r, fmt.Sprintf("change %d", n))
				w.check(t, fmt.Sprintf("change %d", n), before)
				w.must(t, r.Journal.Close())
			}
		})
	}
}

// What an earlier boot left open is closed without a look at the host.
func TestRecoverAfterReboot(t *testing.T) {
	w := newWorld(t, v1)
	r := w.runner(t)
	r.Boot = "an earlier boot"
	r.AfterStep = func(int, plan.Step) { panic(crash{}) }
	if !crashing(func() { r.Run(soon(t), w.first(), Options{Verb: "apply"}) }) {
		t.Fatal("not killed")
	}
	w.must(t, r.Journal.Close())
	before := w.dump()
	r = w.runner(t)
	ops := 0
	w.Intercept(func(cgroupfake.Operation) error { ops++; return nil })
	_, done, err := r.Recover(soon(t))
	if !done || err != nil || ops > 0 {
		t.Errorf("done %v, %v, %d operations on the host", done, err, ops)
	}
	w.Intercept(nil)
	w.check(t, "after a reboot", before)
	if _, pending := r.Journal.Pending(); pending || len(r.Journal.InBoot(boot).Made()) > 0 {
		t.Error("the earlier boot's transaction was taken over")
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, v1)
	r := w.runner(t)
	p := w.first()
	p.Refusals = []plan.Refusal{{Group: "a", Reason: "memory.max 1 GiB is below what cannot be reclaimed",
		Hint: "raise it"}}
	before := w.dump()
	var refused *RefusedError
	_, err := r.Run(soon(t), p, Options{Reason: "why"})
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), `group "a": memory.max`) ||
		!strings.Contains(refused.Hint(), "raise it; --force") {
		t.Errorf("without --force: %v", err)
	}
	if _, err := r.Run(soon(t), p, Options{Force: true, Reason: " "}); err == nil {
		t.Error("--force without a reason was taken")
	}
	w.check(t, "refused", before)
	if _, err := r.Run(soon(t), p, Options{Force: true, Reason: "month end"}); err != nil {
		t.Error(err)
	}
}

func TestNothingToDo(t *testing.T) {
	w := newWorld(t, v2)
	r := w.runner(t)
	for name, p := range map[string]plan.Plan{
		"no steps": {},
		"controllers that are on already": {Steps: []plan.Step{
			{Change: change.Of(at("/").File(cgroup.SubtreeControl).Target(), "", "-cpu")},
		}},
	} {
		result, err := r.Run(soon(t), p, Options{Verb: "apply"})
		if err != nil || result.Txn != 0 || result.Steps != 0 {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
	if h, _ := r.Journal.History(); len(h) > 0 {
		t.Errorf("history %+v", h)
	}
}

func TestDryRun(t *testing.T) {
	w := newWorld(t, v1)
	r := w.runner(t)
	before := w.dump()
	if result, err := r.Run(soon(t), w.first(), Options{DryRun: true}); err != nil || result.Txn != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	w.check(t, "dry run", before)
	if _, pending := r.Journal.Pending(); pending {
		t.Error("a dry run is in the journal")
	}
}

func TestUnrecorded(t *testing.T) {
	w := newWorld(t, v1)
	r := w.runner(t)
	if result, err := r.Run(soon(t), w.first(), Options{Unrecorded: true}); err != nil || result.Txn == 0 ||
		result.Entry != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	w.must(t, r.Journal.Close())
	r = w.runner(t)
	if h, _ := r.Journal.History(); len(h) > 0 {
		t.Errorf("history %+v", h)
	}
	// Cut off and undone it is in there: somebody may have been told to undo it.
	r.AfterStep = func(int, plan.Step) { panic(crash{}) }
	if !crashing(func() { r.Run(soon(t), w.second(), Options{Verb: "look", Unrecorded: true}) }) {
		t.Fatal("not killed")
	}
	w.must(t, r.Journal.Close())
	r = w.runner(t)
	if result, done, err := r.Recover(soon(t)); err != nil || !done || result.Entry == 0 {
		t.Fatalf("%+v, %v, %v", result, done, err)
	}
	if h, err := r.Journal.History(); len(h) != 1 || err != nil || h[0].Verb != "look" || !h[0].WasCutOff() {
		t.Errorf("history %+v, %v", h, err)
	}
}

// A directory of somebody else is neither used nor removed, whenever it appears.
func TestForeignDirectory(t *testing.T) {
	w := newWorld(t, v1)
	d := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead"}
	w.must(t, w.Make(d))
	before := w.dump()
	r := w.runner(t)
	if _, err := r.Run(soon(t), w.first(), Options{}); !errors.Is(err, cgroup.ErrExists) ||
		!strings.Contains(err.Error(), "did not make it") {
		t.Errorf("there before: %v", err)
	}
	w.check(t, "there before", before)
	w.must(t, w.Remove(d))

	// It appears between the look and the step.
	late := cgroup.Dir{Hierarchy: "cpuset", Path: "/bulkhead"}
	r.AfterStep = func(i int, s plan.Step) {
		if i == 0 {
			w.must(t, w.Make(late))
		}
	}
	if _, err := r.Run(soon(t), w.first(), Options{}); !errors.Is(err, cgroup.ErrExists) {
		t.Errorf("made meanwhile: %v", err)
	}
	if there, _ := w.Exists(late); !there {
		t.Error("somebody else's directory was removed")
	}
}
