//go:build root

package agent

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// After a boot nothing of the applied policy is there. Ready is said when all of it is, though somebody else holds the
// lock when the agent starts.
func TestReadyWhenEverythingIsInForce(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(64001)
	c, err := transaction.Open(transaction.Options{State: s.state})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := control.Do(context.Background(), c,
		api.Request{Verb: "apply", By: "test",
			Sources: s.sources("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")}); err != nil {
		t.Fatal(err)
	}
	lock, err := c.Lock(context.Background(), "test", "")
	if err != nil {
		t.Fatal(err)
	}
	var unlocked atomic.Bool
	time.AfterFunc(300*time.Millisecond, func() {
		unlocked.Store(true)
		lock.Release()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	id := testhost.Spawn(t, "sleep", argument)
	if err := s.tree.Write(s.file("a", "cpu.cfs_quota_us"), "-1"); err != nil {
		t.Fatal(err)
	}
	m := newManager(t, "400000")
	atReady := ""
	o := byEvents
	o.Ready = func() {
		if !unlocked.Load() {
			t.Error("ready before its first look")
		}
		atReady = s.quota("a") + " " + s.group(id.PID)
	}
	s.startWith(o)
	if heard := m.heard("READY=1"); !slices.Contains(heard, "STATUS=enforcing revision 1") {
		t.Errorf("heard %q", heard)
	}
	if atReady != "100000 a" {
		t.Errorf("ready with %q", atReady)
	}
	for range 3 {
		m.heard("WATCHDOG=1") // though the next look is an hour away
	}
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 2}}\n")
	heard := m.heard("RELOADING=1")
	if heard = append(heard, m.heard("STATUS=enforcing revision 2")...); !slices.Contains(heard, "READY=1") {
		t.Errorf("heard %q", heard)
	}
	if _, err := s.try(api.Request{Verb: "apply", Sources: s.sources("groups: 7\n")}); err == nil {
		t.Error("a bad policy is applied")
	}
	m.heard("RELOADING=1")
	m.heard("READY=1")
	s.stop()
	m.heard("STOPPING=1")
}

// A loop that is stuck gives no sign of life.
func TestAStuckLoopIsSilent(t *testing.T) {
	s := newSite(t)
	m := newManager(t, "400000")
	stuck := make(chan struct{})
	o := byEvents
	o.Ready = func() { <-stuck }
	s.startWith(o)
	time.Sleep(300 * time.Millisecond)
	if heard := m.heard(""); slices.ContainsFunc(heard,
		func(l string) bool { return strings.HasPrefix(l, "WATCHDOG") }) {
		t.Errorf("heard %q of a loop that waits", heard)
	}
	close(stuck)
	m.heard("WATCHDOG=1")
}
