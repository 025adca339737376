//go:build root

package bpfcount

import (
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// ofVictim is what was counted of the group victim in a span of time, how long its processes waited then by their
// schedstat, and for how long it was held back by its cpu.stat.
func ofVictim(t *testing.T, c *Counter, b *bench, all ...procfs.ID) (w *Waits, by, held time.Duration) {
	t.Helper()
	check(t, c.Watch(b.ids))
	time.Sleep(200 * time.Millisecond)
	by, held = delays(t, all...), b.throttled(t, "victim")
	w = during(t, c, span)["victim"]
	by, held = delays(t, all...)-by, b.throttled(t, "victim")-held
	adds(t, "victim", w)
	t.Logf("by schedstat %v, by cpu.stat held back %v", by, held)
	return w, by, held
}

// A group's own limit is blamed for what it held back, and nobody else, though another group runs there all the while.
func TestOwnLimit(t *testing.T) {
	c := counting(t)
	b := groupsOf(t, "victim", "hog")
	b.limit(t, "victim", 0.2)
	v := b.spin(t, "victim", 0)
	b.spin(t, "hog", 0)
	w, by, held := ofVictim(t, c, b, v)
	if held < by/10 {
		t.Skipf("this machine is too busy: the limit held back %v of %v", held, by)
	}
	if !near(w.Waited, by, 0.05) {
		t.Errorf("waited %v, by schedstat %v", w.Waited, by)
	}
	if !near(w.Limited, held, 0.05) {
		t.Errorf("%v blamed on its limit, by cpu.stat %v", w.Limited, held)
	}
	if most := w.Waited - held; w.Others["hog"] > most+w.Waited/20 {
		t.Errorf("%v blamed on the hog, at most %v", w.Others["hog"], most)
	}
}

// What a limit holds back is told of threads that wake up, too: of one that always wants the CPU, one that sleeps 5 ms
// at a time and one that sleeps through several periods of the limit, beside a hog.
func TestOwnLimitOfSleepers(t *testing.T) {
	c := counting(t)
	b := groupsOf(t, "victim", "hog")
	b.limit(t, "victim", 0.2)
	all := []procfs.ID{b.spin(t, "victim", 0)}
	for _, pause := range []string{"0.005", "0.35"} {
		sleeper := testhost.Spawn(t, "perl", "-e", "select(undef, undef, undef, "+pause+") while 1")
		all = append(all, b.put(t, sleeper, "victim", 0))
	}
	b.spin(t, "hog", 0)
	w, by, held := ofVictim(t, c, b, all...)
	if held < span/10 {
		t.Skipf("this machine is too busy: the limit held back %v", held)
	}
	if !near(w.Waited, by, 0.05) {
		t.Errorf("waited %v, by schedstat %v", w.Waited, by)
	}
	// The first one waits for all of it, and each of the others never more.
	if float64(w.Limited) < 0.95*float64(held) || w.Limited > 3*held {
		t.Errorf("%v blamed on its limit, by cpu.stat each has waited for it for %v at most", w.Limited, held)
	}
	// While the limit does not hold it back, it has the CPU, or the hog has.
	if free := span - held; w.Others["hog"] > 3*free {
		t.Errorf("%v blamed on the hog, in %v in which the limit held nothing back", w.Others["hog"], free)
	}
}
