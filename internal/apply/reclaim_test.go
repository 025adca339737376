package apply

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
	"bulkhead/internal/systemd"
)

// charged is a world with a group of 1 GiB limit whose process has page cache and anonymous memory, MiB.
func charged(t *testing.T, hierarchies []host.Hierarchy, file, anonymous int64) (*world, cgroup.Dir) {
	w := stage(t, hierarchies, []func(*world) plan.Plan{(*world).first})
	d := cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead/a"}
	if w.v2() {
		d.Hierarchy = unified
	}
	w.must(t, w.Charge(w.procs[0].PID, cgroupfake.File, file<<20))
	w.must(t, w.Charge(w.procs[0].PID, cgroupfake.Anonymous, anonymous<<20))
	return w, d
}

// lowers is a plan as package plan makes it: from 1 GiB to 512 MiB, with some time for it.
func lowers(d cgroup.Dir, within time.Duration) plan.Plan {
	const limit, high = "536870912", "520093696"
	wait := func(below int64, push string) *plan.Reclaim {
		return &plan.Reclaim{Use: "memory.current", Below: below, Push: push, To: 512 << 20, Within: within}
	}
	step := func(file, text string, r *plan.Reclaim) plan.Step {
		return plan.Step{Change: change.Of(d.File(file).Target(), "", text), Group: "a", Reason: "memory.max",
			Reclaim: r}
	}
	if d.Hierarchy == unified {
		return plan.Plan{Steps: []plan.Step{
			step("memory.high", "629145600", nil), step("memory.high", high, wait(640<<20, "629145600")),
			step("memory.max", limit, wait(512<<20, high)), step("memory.high", "max", nil),
		}}
	}
	v1 := wait(0, "")
	v1.Use = "memory.usage_in_bytes"
	memsw := *v1
	memsw.Use = "memory.memsw.usage_in_bytes"
	return plan.Plan{Steps: []plan.Step{
		step("memory.limit_in_bytes", "629145600", v1), step("memory.limit_in_bytes", limit, v1),
		step("memory.memsw.limit_in_bytes", limit, &memsw),
	}}
}

func TestMemoryIsLowered(t *testing.T) {
	for name, hierarchies := range map[string][]host.Hierarchy{"v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			w, d := charged(t, hierarchies, 600, 300)
			r := w.runner(t)
			if _, err := r.Run(soon(t), lowers(d, time.Minute), Options{Verb: "apply"}); err != nil {
				t.Fatal(err)
			}
			if use := w.use(t, d); use > 512<<20 {
				t.Errorf("%d bytes in use", use)
			}
			if !w.Alive(w.procs[0]) {
				t.Error("the process was killed")
			}
			if high, err := w.Read(d.File("memory.high")); d.Hierarchy == unified && high != "max" {
				t.Errorf("memory.high is %s, %v", high, err)
			}
		})
	}
}

func (w *world) use(t *testing.T, d cgroup.Dir) int64 {
	file := "memory.usage_in_bytes"
	if d.Hierarchy == unified {
		file = "memory.current"
	}
	text, err := w.Read(d.File(file))
	w.must(t, err)
	n, err := strconv.ParseInt(text, 10, 64)
	w.must(t, err)
	return n
}

// Memory that does not go in time: nothing is done, nobody is killed, and the error says how much is in use.
func TestMemoryDoesNotFall(t *testing.T) {
	for name, hierarchies := range map[string][]host.Hierarchy{"v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			w, d := charged(t, hierarchies, 100, 550)
			before := w.dump()
			r := w.runner(t)
			beats := 0
			ctx := systemd.WithProgress(soon(t), func() { beats++ })
			_, err := r.Run(ctx, lowers(d, 80*time.Millisecond), Options{Verb: "apply"})
			var use *UseError
			if !errors.As(err, &use) || use.Group != "a" || use.To != 512<<20 || use.Now < 550<<20 || use.Hint() == "" {
				t.Fatalf("error %v", err)
			}
			if !strings.Contains(err.Error(), "everything was undone") {
				t.Errorf("error %v", err)
			}
			// The page cache that was reclaimed is gone, and nothing else.
			after := w.dump()
			if a, b := limitsIn(before), limitsIn(after); a != b {
				t.Errorf("the host changed:\n%s", difference(a, b))
			}
			if !w.Alive(w.procs[0]) || beats < 3 {
				t.Errorf("alive %v, %d signs of life", w.Alive(w.procs[0]), beats)
			}
		})
	}
}

// A limit that was raised, and is filled before a later step fails, is given back as far as nobody is killed for it:
// what the kernel can reclaim makes room, and else the limit stays. So it is after a crash.
func TestUndoKillsNobody(t *testing.T) {
	for name, one := range map[string]struct {
		anonymous int64
		crash     bool
		limit     string
		old       bool // a kernel without memory.reclaim
	}{
		"page cache": {600, false, "1073741824", false}, "anonymous": {1500, false, "2147483648", false},
		"page cache, crash": {600, true, "1073741824", false}, "anonymous, crash": {1500, true, "2147483648", false},
		"page cache, old kernel": {600, true, "1073741824", true}, "anonymous, old": {1500, true, "2147483648", true},
	} {
		t.Run(name, func(t *testing.T) {
			w, d := charged(t, v2, 0, 10)
			w.Intercept(func(o cgroupfake.Operation) error {
				if one.old && o.File.Name == "memory.reclaim" {
					return syscall.ENOENT
				}
				return nil
			})
			p := lowers(d, 80*time.Millisecond)
			raise := plan.Step{Change: change.Of(d.File("memory.max").Target(), "", "2147483648"), Group: "a",
				Reason: "memory.max"}
			p.Steps = []plan.Step{raise, p.Steps[2]}
			r := w.runner(t)
			r.AfterStep = func(int, plan.Step) {
				r.AfterStep = nil
				w.must(t, w.Charge(w.procs[0].PID, cgroupfake.Anonymous, one.anonymous<<20))
				w.must(t, w.Charge(w.procs[0].PID, cgroupfake.File, (1800-one.anonymous)<<20))
				if one.crash {
					panic(crash{})
				}
			}
			var err error
			if crashing(func() { _, err = r.Run(soon(t), p, Options{Verb: "apply"}) }) != one.crash {
				t.Fatal("it should have crashed, or not")
			}
			if one.crash {
				w.must(t, r.Journal.Close())
				_, _, err = w.runner(t).Recover(soon(t))
			}
			stays := err != nil && strings.Contains(err.Error(), "was not set back to 1 GiB")
			if stays == (one.limit == "1073741824") {
				t.Errorf("error %v", err)
			}
			if high, err := w.Read(d.File("memory.high")); one.crash && high != "max" { // else the plan has written it
				t.Errorf("memory.high is %s, %v", high, err)
			}
			if limit, err := w.Read(d.File("memory.max")); limit != one.limit || !w.Alive(w.procs[0]) {
				t.Errorf("memory.max is %s, %v; alive %v", limit, err, w.Alive(w.procs[0]))
			}
		})
	}
}

// limitsIn leaves out of a dump what only counts.
func limitsIn(dump string) string {
	var kept []string
	for _, l := range strings.Split(dump, "\n") {
		if !strings.Contains(l, "memory.stat") && !strings.Contains(l, "memory.current") &&
			!strings.Contains(l, "usage_in_bytes") {
			kept = append(kept, l)
		}
	}
	return strings.Join(kept, "\n")
}

// A kernel that is busy reclaiming is asked again.
func TestMemoryFallsLater(t *testing.T) {
	w, d := charged(t, v1, 600, 300)
	tries := 0
	w.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "write" && o.File.Name == "memory.limit_in_bytes" && tries < 5 {
			tries++
			return syscall.EBUSY
		}
		return nil
	})
	if _, err := w.runner(t).Run(soon(t), lowers(d, time.Minute), Options{Verb: "apply"}); err != nil || tries != 5 {
		t.Errorf("%d times busy: %v", tries, err)
	}
}

// Whoever stops it while it waits gets everything undone.
func TestWaitingForMemoryIsStopped(t *testing.T) {
	w, d := charged(t, v2, 0, 900)
	before := w.dump()
	ctx, cancel := context.WithCancel(soon(t))
	n := 0
	ctx = systemd.WithProgress(ctx, func() {
		if n++; n == 3 {
			cancel()
		}
	})
	_, err := w.runner(t).Run(ctx, lowers(d, time.Hour), Options{Verb: "apply"})
	var use *UseError
	if err == nil || errors.As(err, &use) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	w.check(t, "stopped", before)
}

// Killed at every step of it, the next one gives back what was.
func TestLoweringKilledAtEveryStep(t *testing.T) {
	for name, hierarchies := range map[string][]host.Hierarchy{"v1": v1, "v2": v2} {
		t.Run(name, func(t *testing.T) {
			for i := 0; ; i++ {
				w, d := charged(t, hierarchies, 600, 300)
				before := limitsIn(w.dump())
				r := w.runner(t)
				r.AfterStep = func(at int, _ plan.Step) {
					if at == i {
						panic(crash{})
					}
				}
				p := lowers(d, time.Minute)
				if !crashing(func() { _, _ = r.Run(soon(t), p, Options{Verb: "apply"}) }) {
					if i < len(p.Steps) {
						t.Errorf("only %d steps", i)
					}
					return
				}
				if err := r.Journal.Close(); err != nil {
					t.Fatal(err)
				}
				if _, _, err := w.runner(t).Recover(soon(t)); err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if after := limitsIn(w.dump()); after != before {
					t.Errorf("killed after step %d:\n%s", i, difference(before, after))
				}
			}
		})
	}
}

// Runs that are told not to wait long go on with one another: each undoes what it did and leaves no entry in the
// history, until the time of the group is over. What was waited for one fall does not count for the next.
func TestMemoryFallsOverRuns(t *testing.T) {
	const within = 200 * time.Millisecond
	w, d := charged(t, v2, 0, 900)
	before := w.dump()
	r := w.runner(t)
	told := func() int {
		entries, err := r.Journal.History()
		w.must(t, err)
		return len(entries)
	}
	var waits Waits
	run := func() (*UseError, error) {
		waits.Refill(within / 4)
		_, err := r.Run(WithWaits(soon(t), &waits), lowers(d, within), Options{Verb: "look"})
		var use *UseError
		_ = errors.As(err, &use)
		return use, err
	}
	for range 2 {
		entries, tries, waited := told(), 0, time.Duration(0)
		for use := (*UseError)(nil); use == nil || use.Early; tries++ {
			var err error
			if use, err = run(); use == nil || tries > 20 {
				t.Fatalf("try %d: %v", tries, err)
			}
			if waited += use.Waited; use.Early && told() != entries {
				t.Fatalf("try %d has an entry in the history", tries)
			}
			w.check(t, "given up", before)
		}
		if tries < 2 || waited < within || told() != entries+1 {
			t.Errorf("given up after %d tries and %s, with %d entries in the history", tries, waited, told()-entries)
		}
		if again, err := journal.Open(w.dir, journal.Options{}); err != nil {
			t.Error(err)
		} else if late, err := again.History(); err != nil || len(late) != told() {
			t.Errorf("another process reads %d entries, %v", len(late), err)
		}
	}
	if use, err := run(); use == nil || !use.Early || waits.took(d) == 0 {
		t.Fatal(err)
	}
	waits.spent[d] = spent{within, time.Now().Add(-2 * forgotten)}
	if use, err := run(); use == nil || !use.Early {
		t.Fatal(err)
	}
	w.Exit(w.procs[0].PID)
	if use, err := run(); use != nil || err != nil || len(waits.spent) > 0 {
		t.Errorf("once it fell: %v, %v, and so far %v count", use, err, waits.spent)
	}
}
