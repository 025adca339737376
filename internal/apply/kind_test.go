package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/journal"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
)

// withDials gives a world two dials, and a runner that knows their kind.
func withDials(t *testing.T, w *world) (*conformance.Dials, func() *Runner) {
	t.Helper()
	d := &conformance.Dials{Values: map[string]string{"bass": "3", "treble": "7"}}
	return d, func() *Runner {
		r := w.runner(t)
		r.Actuators[conformance.KindDial] = d
		return r
	}
}

// dialed is the first plan with two dials set around it.
func (w *world) dialed() plan.Plan {
	b := w.build()
	b.add(plan.Step{Group: "a", Change: change.Of(conformance.Dial("bass"), "3", "11")})
	b.steps = append(b.steps, w.first().Steps...)
	b.add(plan.Step{Group: "a", Change: change.Of(conformance.Dial("treble"), "7", "Off")})
	return b.plan()
}

// A kind that is an actuator and nothing else goes through journal, crashes at every step, faults, undo, checks and
// output.
func TestNewKindIsAnActuator(t *testing.T) {
	before := map[string]string{"bass": "3", "treble": "7"}
	conformance.Run(t, conformance.Case{
		Actuator: &conformance.Dials{Values: maps.Clone(before)}, Target: conformance.Dial("bass"),
		Values: []string{"4", "off"}, Gone: "volume",
	})
	after := map[string]string{"bass": "11", "treble": "Off"}
	t.Run("crash at every step, and in the recovery", func(t *testing.T) {
		for at := 0; ; at++ {
			w := newWorld(t, v2)
			host := w.dump()
			knobs, runner := withDials(t, w)
			r := runner()
			r.AfterStep = func(i int, _ plan.Step) {
				if i == at {
					panic(crash{})
				}
			}
			killed := crashing(func() { _, _ = r.Run(soon(t), w.dialed(), Options{Verb: "apply"}) })
			w.must(t, r.Journal.Close())
			if !killed {
				if at == 0 || !maps.Equal(knobs.Values, after) {
					t.Errorf("after %d steps: %v", at, knobs.Values)
				}
				return
			}
			r = runner()
			r.AfterUndo = func(journal.Change) { panic(crash{}) }
			crashing(func() { _, _, _ = r.Recover(soon(t)) })
			w.must(t, r.Journal.Close())
			r = runner()
			if _, done, err := r.Recover(soon(t)); !done || err != nil {
				t.Fatalf("step %d: recovered %t, %v", at, done, err)
			}
			w.check(t, fmt.Sprintf("step %d", at), host)
			if !maps.Equal(knobs.Values, before) || len(r.Journal.InBoot(boot).Originals()) > 0 {
				t.Fatalf("step %d: %v, and the journal knows %v", at, knobs.Values, r.Journal.InBoot(boot).Originals())
			}
			w.must(t, r.Journal.Close())
		}
	})
	t.Run("faults", func(t *testing.T) {
		for n := 1; n <= 2; n++ {
			w := newWorld(t, v2)
			host := w.dump()
			knobs, runner := withDials(t, w)
			knobs.Fail = n
			_, err := runner().Run(soon(t), w.dialed(), Options{Verb: "apply"})
			if !errors.Is(err, conformance.ErrFault) || !strings.Contains(err.Error(), "everything was undone") {
				t.Errorf("write %d: %v", n, err)
			}
			w.check(t, fmt.Sprintf("write %d", n), host)
			if !maps.Equal(knobs.Values, before) {
				t.Errorf("write %d: %v", n, knobs.Values)
			}
		}
	})
	t.Run("originals, rollback and history", func(t *testing.T) {
		w := newWorld(t, v2)
		knobs, runner := withDials(t, w)
		r := runner()
		if _, err := r.Run(soon(t), w.dialed(), Options{Verb: "apply"}); err != nil {
			t.Fatal(err)
		}
		if !r.Journal.InBoot(boot).Changed(conformance.Dial("bass")) {
			t.Error("the journal does not know that the dial is changed")
		}
		var originals []string
		for _, c := range r.Journal.InBoot(boot).Originals() {
			if c.Kind == conformance.KindDial {
				originals = append(originals, c.Target.Addr+" "+c.Old)
			}
		}
		if !slices.Equal(originals, []string{"bass 3", "treble 7"}) {
			t.Errorf("originals %v", originals)
		}
		b := w.build()
		for name, old := range before {
			b.add(plan.Step{Change: change.Of(conformance.Dial(name), "", old)})
		}
		if _, err := r.Run(soon(t), b.plan(), Options{Verb: "rollback"}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(knobs.Values, before) || r.Journal.InBoot(boot).Changed(conformance.Dial("bass")) {
			t.Errorf("rolled back: %v", knobs.Values)
		}
		h, err := r.Journal.History()
		isBass := func(c journal.Change) bool { return c.Target == conformance.Dial("bass") && c.New == "11" }
		if err != nil || len(h) != 2 || !slices.ContainsFunc(h[0].Changes, isBass) {
			t.Errorf("history %+v, %v", h, err)
		}
	})
	t.Run("a value that does not stay", func(t *testing.T) {
		w := newWorld(t, v2)
		knobs, runner := withDials(t, w)
		r := runner()
		r.AfterStep = func(int, plan.Step) {
			if knobs.Values["treble"] == "Off" {
				knobs.Values["bass"] = "4"
			}
		}
		_, err := r.Run(soon(t), w.dialed(), Options{Verb: "apply"})
		const want = `when all steps were done: read back dial "bass": wrote "11", found "4"`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
		if !maps.Equal(knobs.Values, before) {
			t.Errorf("undone: %v", knobs.Values)
		}
	})
	t.Run("nobody knows the kind", func(t *testing.T) {
		w := newWorld(t, v2)
		host := w.dump()
		_, err := w.runner(t).Run(soon(t), w.dialed(), Options{Verb: "apply"})
		if err == nil || !strings.Contains(err.Error(), `change dial "bass": this host has no actuator of that kind`) {
			t.Errorf("%v", err)
		}
		w.check(t, "unknown kind", host)
	})
	t.Run("shown", func(t *testing.T) {
		p := plan.Plan{Steps: newWorld(t, v2).dialed().Steps[:1]}
		data, err := json.Marshal(p)
		var back plan.Plan
		if err == nil {
			err = json.Unmarshal(data, &back)
		}
		if err != nil || len(back.Steps) != 1 || back.Steps[0].Target != conformance.Dial("bass") {
			t.Fatalf("%+v, %v", back, err)
		}
		text := plan.Render(back, plan.RenderOptions{})
		for _, want := range []string{"1 step: 1 set;", "   1  set      dial bass\n", "3 -> 11\n", `undo: write "3"`} {
			if !strings.Contains(text, want) {
				t.Errorf("the plan does not say %q:\n%s", want, text)
			}
		}
	})
}

// older is a plan of all kinds that a journal of the first format holds: the captured ones are of this plan.
func (w *world) older() plan.Plan {
	b := w.build()
	b.write("unified", "/", cgroup.FavorDynmods, "on")
	b.write("unified", "/", cgroup.QueueScheduler+"@8:16", "bfq")
	b.steps = append(b.steps, w.first().Steps...)
	b.write("unified", "/user", cgroup.OwnerOf("cgroup.procs"), "5:6 0664")
	b.write("unified", "/bulkhead/a", cgroup.OwnedRest, "0:7 -")
	b.score(2, 250)
	return b.plan()
}

// Journals as commit 36981b0 wrote them are read: one that was cut off is undone, and one that was not has the
// originals.
func TestOlderJournals(t *testing.T) {
	top := cgroup.Dir{Hierarchy: unified, Path: "/"}
	user := top.Child("user").File(cgroup.OwnerOf("cgroup.procs"))
	scheduler := cgroup.File{Dir: top, Name: cgroup.QueueScheduler, Key: "8:16"}
	for _, name := range []string{"cut-off", "committed"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, v2)
			disks := &conformance.Dials{Values: map[string]string{"8:16/scheduler": "mq-deadline"}}
			runner := func() *Runner {
				r := w.runner(t)
				r.Actuators[blockdev.KindQueue] = disks
				return r
			}
			known := w.actuators()
			known[blockdev.KindQueue] = disks
			values := func() (all []string) {
				for _, f := range []cgroup.File{user, top.File(cgroup.FavorDynmods), scheduler} {
					got, err := known[f.Target().Kind].Read(t.Context(), f.Target().Addr)
					all = append(all, fmt.Sprint(got, err))
				}
				return all
			}
			before, set := w.dump(), values()
			r := runner()
			if _, err := r.Run(soon(t), w.older(), Options{Verb: "apply"}); err != nil {
				t.Fatal(err)
			}
			w.must(t, r.Journal.Close())
			captured, err := os.ReadFile(filepath.Join("testdata", "journals", name+".log"))
			w.must(t, err)
			w.must(t, os.WriteFile(filepath.Join(w.dir, "journal.log"), captured, 0o600))
			w.must(t, os.Remove(filepath.Join(w.dir, "history.log")))
			r = runner()
			if name == "committed" {
				for _, f := range []cgroup.File{user, scheduler} {
					if !r.Journal.InBoot(boot).Changed(f.Target()) {
						t.Errorf("%s is not known to be changed", f)
					}
				}
				if scores := r.Journal.InBoot(boot).Scores(); len(scores) != 3 ||
					len(r.Journal.InBoot(boot).Made()) != 4 {
					t.Errorf("scores %v, made %v", scores, r.Journal.InBoot(boot).Made())
				}
				return
			}
			if _, done, err := r.Recover(soon(t)); !done || err != nil {
				t.Fatalf("recovered %t, %v", done, err)
			}
			// The model tells of owners that somebody has changed, also back.
			if now := strings.ReplaceAll(w.dump(), "cgroup.procs is owned by 0:0 0644 = \n", ""); now != before {
				t.Errorf("the host changed:\n%s", difference(before, now))
			}
			if now := values(); !slices.Equal(now, set) {
				t.Errorf("%q, were %q", now, set)
			}
		})
	}
}

// A file in the top directory is there before a controller is handed down: its original counts.
func TestFilesOfTheRootAreGivenBack(t *testing.T) {
	w := newWorld(t, v2)
	disks := &conformance.Dials{Values: map[string]string{"8:16/scheduler": "mq-deadline"}}
	b := w.build()
	b.write("unified", "/", cgroup.SubtreeControl, "+io")
	b.write("unified", "/", cgroup.QueueScheduler+"@8:16", "bfq")
	b.mkdir("unified", "/bulkhead")
	w.FailMatch("mkdir", "unified:/bulkhead", syscall.ENOSPC)
	r := w.runner(t)
	r.Actuators[blockdev.KindQueue] = disks
	if _, err := r.Run(soon(t), b.plan(), Options{}); err == nil {
		t.Error("the last step cannot be done, and nothing is said")
	}
	if got := disks.Values["8:16/scheduler"]; got != "mq-deadline" {
		t.Errorf("undone, and the scheduler is %q", got)
	}
}

// A directory that somebody else makes between look and step stays, whatever becomes of the step.
func TestDirectoryOfSomebodyElseStays(t *testing.T) {
	for _, optional := range []bool{false, true} {
		w := newWorld(t, v2)
		made := cgroup.Dir{Hierarchy: unified, Path: "/bulkhead"}
		b := w.build()
		b.score(0, 5)
		b.mkdir("unified", "/bulkhead")
		b.steps[1].Optional = optional
		r := w.runner(t)
		r.AfterStep = func(i int, _ plan.Step) {
			if i == 0 {
				w.must(t, w.Make(made))
				w.must(t, w.Move(made, w.procs[3]))
			}
		}
		if _, err := r.Run(soon(t), b.plan(), Options{}); (err == nil) != optional {
			t.Errorf("optional %t: %v", optional, err)
		}
		pids, err := w.Procs(made)
		if err != nil || len(pids) != 1 || r.Journal.InBoot(boot).Made()[made] {
			t.Errorf("optional %t: %s holds %v, %v; made by us: %v", optional, made, pids, err,
				r.Journal.InBoot(boot).Made())
		}
	}
}
