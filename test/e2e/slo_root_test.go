//go:build root

package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// history is what `history` says, the oldest first.
func (s *site) history() (all []journal.Entry) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.must("history", "--json")), &all); err != nil {
		s.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b journal.Entry) int { return a.N - b.N })
	return all
}

// The watchdog gives back what an agent has lowered once that is gone, or gives no sign of life, and nothing else.
func TestSLOWatchdogGivesBack(t *testing.T) {
	for _, how := range []string{"gone", "silent"} {
		if how == "silent" && os.Getenv("LONG") == "" {
			continue // it takes 4 s until an agent counts as dead
		}
		s := newSite(t)
		s.write("groups:\n  reports: {role: batch, match: [{exe: no-such-program}], cpu: {limit: 2}}\n" +
			"  other: {role: batch, match: [{exe: no-such-program-2}], cpu: {limit: 2}}\n")
		s.must("apply")
		s.must("set", "other:cpu.limit=1")
		c, err := transaction.Open(transaction.Options{State: s.state})
		if err != nil {
			t.Fatal(err)
		}
		err = control.Squeeze(t.Context(), c, time.Second, []state.Override{{Group: "reports", Key: policy.KeyCPULimit,
			Text: "reports:cpu.limit=0.5", At: time.Now(), Ends: time.Now().Add(time.Minute), By: state.BySLO}})
		_ = c.Close()
		if err != nil {
			t.Fatal(err)
		}
		if q := s.read("cpu", "reports", "cpu.cfs_quota_us"); q != "50000" {
			t.Fatalf("lowered, the quota is %s", q)
		}
		cmd := s.command("watchdog", "--squeezed")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := io.WriteString(in, "{}\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
			t.Fatalf("it says %q, %v", line, err)
		}
		if how == "gone" {
			_ = in.Close()
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: the watchdog ended: %v", how, err)
		}
		if took := time.Since(begun); took > 30*time.Second {
			t.Errorf("%s: it took %s", how, took)
		}
		if q := s.read("cpu", "reports", "cpu.cfs_quota_us"); q != "200000" {
			t.Errorf("%s: given back, the quota is %s", how, q)
		}
		if q := s.read("cpu", "other", "cpu.cfs_quota_us"); q != "100000" {
			t.Errorf("%s: what a person has set is %s", how, q)
		}
		all := s.history()
		if e := all[len(all)-1]; e.Verb != "slo" || e.By != "watchdog" {
			t.Errorf("%s: the history ends with %+v", how, e)
		}
		_ = in.Close()
		s.must("release", "--all")
	}
}

// sloOf is what status says of the one target.
func (s *site) sloOf() api.SLO {
	s.t.Helper()
	if all := s.status().SLO; len(all) == 1 {
		return all[0]
	}
	return api.SLO{}
}

// An agent that lowers a batch beside a database that waits for it, on one CPU, and is killed: the policy's value is
// in force again within 60 s. An agent after that begins anew.
func TestSLOAgentKilled(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes two minutes: LONG=1")
	}
	s := newSite(t)
	s.write("groups:\n  victim: {role: database, match: [{exe: no-such-program-1}], cpu: {cpus: \"0\", weight: 100}, " +
		"slo: {waits: 1%}}\n" +
		"  reports: {role: batch, match: [{exe: no-such-program-2}], cpu: {cpus: \"0\", weight: 100, limit: 1}}\n" +
		"slo: {mode: act}\n")
	s.must("apply")
	for _, group := range []string{"victim", "reports"} {
		s.start("run", group, "--", "sh", "-c", spins)
		soon(t, "the load of "+group, func() bool { return len(s.group(group).Members) > 0 })
	}
	shares := func() string { return s.read("cpu", "reports", "cpu.shares") }
	agent := s.agent()
	lowered := func() {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); shares() == "1024"; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nothing is lowered: %+v", s.sloOf())
			}
		}
	}
	lowered()
	told := s.sloOf()
	says := "holds reports:cpu.idle=true (policy: cpu.weight 100"
	if text := s.must("status"); len(told.Held) != 1 || !strings.Contains(text, says) {
		t.Errorf("status says %+v\n%s", told, text)
	}
	agent.signal(syscall.SIGKILL)
	killed := time.Now()
	for shares() != "1024" && time.Since(killed) < time.Minute {
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("the policy's value was in force again %s after the agent was killed", time.Since(killed))
	if q := shares(); q != "1024" {
		t.Errorf("a minute after the agent was killed cpu.shares is %s", q)
	}
	agent.ends()
	agent = s.agent()
	lowered()
	time.Sleep(time.Second) // stopped in the midst of a change it would hold the lock; the next one is 2 s away
	agent.signal(syscall.SIGSTOP)
	stopped := time.Now()
	for shares() != "1024" && time.Since(stopped) < time.Minute {
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("and %s after it was stopped", time.Since(stopped))
	if q := shares(); q != "1024" {
		t.Errorf("a minute after the agent was stopped cpu.shares is %s", q)
	}
	agent.signal(syscall.SIGCONT)
	lowered()
	agent.signal(syscall.SIGTERM)
	agent.ends()
	soon(t, "the policy's value after the agent ended", func() bool { return shares() == "1024" })
	s.must("release", "--all") // after the watchdog, which writes into the history
	for _, e := range s.history() {
		if e.Verb == "squeeze" {
			t.Errorf("the history has a single change: %+v", e)
		}
	}
}
