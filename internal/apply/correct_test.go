package apply

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal"
	"bulkhead/internal/plan"
)

const readLimit = "blkio.throttle.read_bps_device"

// A correction writes and reads back, is in no history, and a release after it gives everything back.
func TestCorrect(t *testing.T) {
	w := newWorld(t, v1)
	w.scores[w.procs[0]], w.scores[w.procs[1]] = 0, 1
	before := w.dump()
	r := w.runner(t)
	if _, err := r.Run(soon(t), w.first(), Options{Verb: "apply"}); err != nil {
		t.Fatal(err)
	}
	b := w.build()
	b.write("blkio", "/bulkhead/a", readLimit+"@8:16", "1048576")
	b.write("blkio", "/bulkhead/a", readLimit+"@8:0", "5")
	done, err := r.Correct(soon(t), b.plan())
	if err != nil || done != 2 {
		t.Fatalf("%d done, %v", done, err)
	}
	f := cgroup.File{Dir: cgroup.Dir{Hierarchy: "blkio", Path: "/bulkhead/a"}, Name: readLimit}
	if text, err := w.Read(f); err != nil || !strings.Contains(text, "8:16 1048576") ||
		!strings.Contains(text, "8:0 5") {
		t.Errorf("%q, %v", text, err)
	}
	if h, err := r.Journal.History(); err != nil || len(h) != 1 {
		t.Errorf("history %+v, %v", h, err)
	}
	if _, err := r.Run(soon(t), w.release(), Options{Verb: "release"}); err != nil {
		t.Fatal(err)
	}
	w.check(t, "after a release", before)
}

// It stops at what fails, does nothing that a journal would have to know of, and nothing while a change is cut off.
func TestCorrectStops(t *testing.T) {
	w := stage(t, v1, []func(*world) plan.Plan{(*world).first})
	r := w.runner(t)
	b := w.build()
	b.write("blkio", "/bulkhead/a", readLimit+"@8:16", "1048576")
	b.write("blkio", "/bulkhead/a/x", readLimit+"@8:16", "1048576")
	before := w.dump()
	w.FailMatch("write", "blkio:/bulkhead/a/"+readLimit, syscall.EIO)
	if done, err := r.Correct(soon(t), b.plan()); done != 0 || !errors.Is(err, syscall.EIO) {
		t.Errorf("%d done, %v", done, err)
	}
	w.check(t, "a write that failed", before)
	for _, p := range []func(*world) plan.Plan{(*world).second, (*world).release} {
		if done, err := r.Correct(soon(t), p(w)); done != 0 || err == nil ||
			!strings.Contains(err.Error(), "is no correction") {
			t.Errorf("%d done, %v", done, err)
		}
	}
	w.check(t, "no corrections", before)
	if _, err := r.Journal.Begin(journal.Txn{Boot: boot, Verb: "apply"}); err != nil {
		t.Fatal(err)
	}
	if done, err := r.Correct(soon(t), b.plan()); done != 0 || !errors.Is(err, journal.ErrPending) {
		t.Errorf("%d done, %v", done, err)
	}
}
