//go:build root

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
)

// freezeSite is a site with one group that holds a process.
func freezeSite(t *testing.T, seconds int) (*site, procfs.ID) {
	t.Helper()
	s := newSite(t)
	id, rule := marked(t, seconds)
	s.write("groups:\n  batch: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.must("apply")
	return s, id
}

// frozen says whether the kernel holds a process, in whichever hierarchy this machine freezes.
func (s *site) frozen(id procfs.ID) bool {
	s.t.Helper()
	for hierarchy, group := range s.inside(id.PID) {
		is, err := s.tree.Frozen(s.at(hierarchy, group))
		if err == nil && is { // an error: that hierarchy holds no freezer
			return true
		}
	}
	return false
}

// hold starts a freeze that no agent ends, and waits until it is in force.
func (s *site) hold(id procfs.ID, span string) *background {
	s.t.Helper()
	b := s.start("freeze", "batch", "--for", span, "--reason", "held")
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(b.said())
		}
	})
	soon(s.t, "the freeze", func() bool { return s.frozen(id) })
	return b
}

// says waits until a command has said something.
func (b *background) says(what string) {
	b.t.Helper()
	soon(b.t, what, func() bool { return strings.Contains(b.said(), what) })
}

// A signal ends the freeze with the command, however early it comes.
func TestFreezeEndsWithTheCommandThatHoldsIt(t *testing.T) {
	s, id := freezeSite(t, 60041)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		for _, wait := range []time.Duration{-1, 0, 10 * time.Millisecond} {
			b := s.hold(id, "10m")
			if wait < 0 {
				b.says("Ctrl-C")
			} else {
				time.Sleep(wait)
			}
			b.signal(sig)
			code := b.ends()
			if s.frozen(id) || s.group("batch").Frozen != "" {
				t.Fatalf("%v after %v: exit code %d, and still frozen:\n%s", sig, wait, code, b.said())
			}
			if wait < 0 && (code != 0 || !strings.Contains(b.said(), "running again")) {
				t.Errorf("%v while it waits: exit code %d\n%s", sig, code, b.said())
			}
		}
	}
}

// Two freezes of one group: the later one decides, and the first to end leaves it alone.
func TestSecondFreezeOutlastsTheFirst(t *testing.T) {
	s, id := freezeSite(t, 60042)
	first := s.hold(id, "10m")
	first.says("Ctrl-C")
	second := s.start("freeze", "batch", "--for", "20m")
	second.says("Ctrl-C")
	first.signal(syscall.SIGINT)
	if code := first.ends(); code != 0 || !strings.Contains(first.said(), "frozen again") {
		t.Errorf("the first: exit code %d\n%s", code, first.said())
	}
	if !s.frozen(id) {
		t.Error("the end of the first freeze ended the second")
	}
	s.must("thaw", "batch")
	if s.frozen(id) {
		t.Error("thawed and still stopped")
	}
	second.signal(syscall.SIGINT)
	if code := second.ends(); code != 0 || !strings.Contains(second.said(), "not frozen any more") {
		t.Errorf("the second: exit code %d\n%s", code, second.said())
	}
}

// kill -9 of the command that holds a freeze: a process of its own ends it.
func TestFreezeOfAKilledCommand(t *testing.T) {
	s, id := freezeSite(t, 60043)
	b := s.hold(id, "2s")
	b.says("Ctrl-C")
	b.signal(syscall.SIGKILL)
	b.ends()
	s.goesOn(id)
}

// goesOn waits for the end of a freeze that nobody is left to end.
func (s *site) goesOn(id procfs.ID) {
	s.t.Helper()
	if !s.frozen(id) {
		s.t.Fatal("it runs before the end")
	}
	soon(s.t, "the end", func() bool { return !s.frozen(id) })
	soon(s.t, "status to know", func() bool { return s.group("batch").Frozen == "" })
	if text := s.must("history"); !strings.Contains(text, "the freeze has ended") {
		s.t.Errorf("history:\n%s", text)
	}
}

// An agent that is stopped, or killed, leaves no freeze behind without an end.
func TestFreezeOutlivesTheAgent(t *testing.T) {
	s, id := freezeSite(t, 60045)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		a := s.agent()
		s.must("freeze", "batch", "--for", "3s")
		a.signal(sig)
		a.ends()
		s.goesOn(id)
	}
}

// Who asks from inside the group is turned away, with an agent and without.
func TestFreezeFromInsideIsRefused(t *testing.T) {
	s, id := freezeSite(t, 60044)
	inside := []string{"run", "batch", "--", s.program, "--policy", s.policy, "--state", s.state, "--socket", s.socket,
		"freeze", "batch", "--for", "10m"}
	says := []string{"you are inside", "run it from outside"}
	s.exits(5, says, inside...)
	s.agent()
	s.exits(5, says, inside...)
	if s.frozen(id) {
		t.Error("frozen all the same")
	}
	s.must("freeze", "batch", "--for", "10m")
	s.exits(125, []string{`group "batch" is frozen until`}, "run", "batch", "--", "true")
	s.must("thaw", "batch")
	s.must("run", "batch", "--", "true")
}
