//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/observing"
)

// beside has a victim and a guilty one on a CPU, and an innocent one that works on another.
func (s *site) beside() {
	s.t.Helper()
	s.write(`groups:
  victim: {role: helper, match: [{exe: no-such-program-v}], cpu: {cpus: "0", weight: 1000}}
  guilty: {role: batch, match: [{exe: no-such-program-g}], cpu: {cpus: "0", weight: 1000, limit: 0.9}}
  innocent: {role: batch, match: [{exe: no-such-program-i}], cpu: {cpus: "1"}}
  database: {role: database, match: [{exe: no-such-program-d}]}
`)
	s.must("apply")
	half := "while :; do i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; sleep 0.05; done"
	for group, load := range map[string]string{"victim": spins, "guilty": spins, "innocent": half} {
		s.start("run", group, "--", "sh", "-c", load)
	}
	for _, group := range []string{"victim", "guilty", "innocent"} {
		soon(s.t, "the load of "+group, func() bool { return len(s.group(group).Members) > 0 })
	}
}

// proves makes an experiment with a group, which takes 40 s at most and leaves limits as they were.
func (s *site) proves(group string) *observing.Proof {
	s.t.Helper()
	was, began := s.cores(group), time.Now()
	p := &observing.Proof{}
	text := s.must("suspects", "victim", "--prove", group, "--json")
	if took := time.Since(began); took > 42*time.Second {
		s.t.Errorf("it took %s", took)
	}
	if err := json.Unmarshal([]byte(text), p); err != nil {
		s.t.Fatal(err)
	}
	if is := s.cores(group); is != was {
		s.t.Errorf("the limit of %s was %s and is %s", group, was, is)
	}
	s.t.Log(p.Verdict, p.Finding)
	return p
}

// What cannot be an experiment is refused before anything is changed.
func TestProveRefuses(t *testing.T) { // by itself: what it starts takes all CPUs
	s := newSite(t)
	s.beside()
	before := s.must("history")
	for group, want := range map[string]struct {
		code api.Code
		text string
	}{
		"nobody":   {api.CodeUsage, `no group "nobody"`},
		"victim":   {api.CodeRefused, "the victim itself"},
		"database": {api.CodeRefused, "it is a database"},
	} {
		s.exits(int(want.code), []string{want.text}, "suspects", "victim", "--prove", group)
	}
	if after := s.must("history"); after != before {
		t.Errorf("something was done:\n%s", after)
	}
}

// Ctrl-C lifts the hold; what somebody else changes meanwhile ends the experiment and stays; a second experiment waits
// for its turn.
func TestProveStops(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes half a minute: LONG=1")
	}
	s := newSite(t)
	s.beside()
	holds := func() *background {
		b := s.start("suspects", "victim", "--prove", "guilty")
		soon(t, "a hold", func() bool { return s.cores("guilty") == "0.05 cores" })
		return b
	}
	b := holds()
	s.exits(int(api.CodeLocked), []string{"another experiment runs"}, "suspects", "victim", "--prove", "guilty")
	b.signal(syscall.SIGINT)
	if code := b.ends(); code != int(api.CodeFailed) || !strings.Contains(b.said(), "interrupt") ||
		!strings.HasPrefix(s.cores("guilty"), "0.9") {
		t.Errorf("Ctrl-C: code %d, the limit is %s\n%s", code, s.cores("guilty"), b.said())
	}
	b = holds()
	soon(t, "another's change", func() bool { return s.run("set", "guilty:cpu.limit=0.7").code == 0 })
	if code := b.ends(); code != int(api.CodeFailed) || !strings.Contains(b.said(), "limits were changed meanwhile") ||
		!strings.HasPrefix(s.cores("guilty"), "0.7") {
		t.Errorf("another's change: code %d, the limit is %s\n%s", code, s.cores("guilty"), b.said())
	}
}

// The guilty one is shown, the innocent one is not, and the result is a line of the history.
func TestProveShowsTheGuilty(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes minutes: LONG=1")
	}
	s := newSite(t)
	s.beside()
	if p := s.proves("guilty"); !p.Shown {
		t.Error("the guilty one is not shown")
	}
	if p := s.proves("innocent"); p.Shown {
		t.Error("the innocent one is shown")
	}
	if text := s.must("history"); strings.Count(text, "suspects victim --prove") != 2 {
		t.Errorf("the results are not in the history:\n%s", text)
	}
}

// Killed at a random moment, limits are back within the time that a hold lasts; with an agent and without.
func TestProveKilled(t *testing.T) { // by itself: what it starts takes all CPUs
	kills, within := 1, 4*time.Second
	if os.Getenv("LONG") != "" {
		kills, within = 50, 30*time.Second
	}
	for n := range kills {
		t.Run(fmt.Sprint(n), func(t *testing.T) { killedOnce(t, n%2 == 1, within) })
	}
}

func killedOnce(t *testing.T, agent bool, within time.Duration) {
	t.Parallel()
	s := newSite(t)
	s.beside()
	if agent {
		s.agent()
	}
	was := s.cores("guilty")
	b := s.start("suspects", "victim", "--prove", "guilty")
	soon(t, "the experiment to begin", func() bool { return strings.Contains(b.said(), "Ctrl-C stops it") })
	after := time.Duration(rand.Int64N(int64(within)))
	time.Sleep(after)
	if b.Process.Signal(syscall.SIGKILL) != nil {
		t.Skip("it had ended before: it was that quick")
	}
	_ = b.ends()
	during, at := s.cores("guilty"), time.Now()
	soon(t, "the limit to be back", func() bool { return s.cores("guilty") == was })
	took := time.Since(at)
	soon(t, "the watchdog to be done", func() bool { return s.status().Trial == nil })
	time.Sleep(time.Second) // it writes its last entry
	t.Logf("killed after %s, agent %v: the limit was %s and %s again after %s", after, agent, during, was, took)
	if took > 15*time.Second {
		t.Errorf("it took %s", took)
	}
	s.verified("guilty")
}
