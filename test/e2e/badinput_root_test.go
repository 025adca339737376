//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// marks counts what marked started.
var marks atomic.Int64

// marked starts a sleeping process that a rule of its own can find by its command line.
func marked(t testing.TB, seconds int) (procfs.ID, string) {
	t.Helper()
	mark := fmt.Sprintf("%d.%d%04d", seconds, os.Getpid(), marks.Add(1))
	return testhost.Spawn(t, "sleep", mark), "^sleep " + strings.ReplaceAll(mark, ".", "[.]") + "$"
}

// many is a policy whose apply takes long enough to be interrupted.
func many(rule string) string {
	var b strings.Builder
	b.WriteString("groups:\n")
	for i := range 80 {
		fmt.Fprintf(&b, "  g%02d: {match: [{exe: no-such-program-%d}], cpu: {limit: 1}, memory: {max: 64MiB}, tasks: "+
			"100}\n", i, i)
	}
	fmt.Fprintf(&b, "  last: {match: [{cmdline: '%s'}], cpu: {limit: 1}}\n", rule)
	return b.String()
}

// A memory limit below what cannot be reclaimed is refused with exit 5, and the limit in force stays.
func TestMemoryLimitBelowWhatIsHeld(t *testing.T) {
	s := newSite(t)
	holder := testhost.HoldMemory(t)
	policy := "groups:\n  app: {match: [{exe: no-such-program}], memory: {max: %s}}\n"
	s.write(fmt.Sprintf(policy, "256MiB"))
	s.must("apply")
	s.must("move", "app", strconv.Itoa(holder.ID.PID))
	if !holder.Touch(64 << 20) {
		t.Fatal("the process was killed below its limit")
	}
	before := s.snapshot(holder.ID)
	s.write(fmt.Sprintf(policy, "32MiB"))
	s.exits(5, []string{"app", "memory.max", "hint: ", "--force"}, "apply")
	s.exits(5, nil, "set", "app:memory.max=32MiB")
	s.exits(5, nil, "apply", "--dry-run")
	s.exits(2, []string{"--force needs a reason"}, "apply", "--force")
	s.same("after refused changes", before, holder.ID)
	if st := s.status(); st.Revision != 1 || len(st.Overrides) != 0 {
		t.Errorf("revision %d, overrides %q after refused changes", st.Revision, st.Overrides)
	}
	// Between that and current use it is lowered.
	s.must("set", "app:memory.max=128MiB")
	if got := s.read("memory", "app", "memory.limit_in_bytes"); got != strconv.Itoa(128<<20) {
		t.Errorf("limit %s", got)
	}
	if !holder.Touch(1 << 20) {
		t.Error("lowering the limit killed the process")
	}
}

// A torn tail of the journal, as a crash leaves it, costs nothing.
func TestJournalTorn(t *testing.T) {
	s := newSite(t)
	id, rule := marked(t, 60001)
	before := s.snapshot(id)
	s.write("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.must("apply")
	applied := s.snapshot(id)
	s.appendTo("journal.log", "0badc0de {\"kind\":\"beg")
	s.exits(0, []string{"warning: ", "journal.log"}, "status")
	s.same("status on a torn journal", applied, id)
	s.exits(0, []string{"warning: "}, "release", "--all")
	s.same("released on a torn journal", before, id)
	if r := s.exits(0, nil, "history"); strings.Contains(r.err, "warning") {
		t.Errorf("the journal is mended, yet: %s", r.err)
	}
}

func (s *site) appendTo(name, text string) {
	s.t.Helper()
	f, err := os.OpenFile(filepath.Join(s.state, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// A journal damaged in the middle is reported and kept aside; release --all still gives back what it can
// and says so.
func TestJournalDamaged(t *testing.T) {
	for _, damage := range []struct {
		name string
		do   func(text []byte) []byte
	}{
		{"the middle", func(text []byte) []byte { copy(text[len(text)/2:], "\x00\xff rust \x00"); return text }},
		{"everything", func(text []byte) []byte { return []byte("\x7fELF\x00\x00\nno journal\n") }},
		{"empty", func([]byte) []byte { return nil }},
	} {
		t.Run(damage.name, func(t *testing.T) {
			s := newSite(t)
			id, rule := marked(t, 60002)
			home := s.snapshot(id)
			s.write("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
			s.must("apply")
			s.must("set", "a:cpu.limit=0.5")
			s.must("unset", "a:cpu.limit")
			log := filepath.Join(s.state, "journal.log")
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(log, damage.do(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s.must("status")
			s.must("release", "--all")
			if in := s.inside(id.PID); len(in) > 0 {
				t.Errorf("released, yet the process is in %v", in)
			}
			if damage.name != "empty" {
				kept, _ := filepath.Glob(log + ".damaged-*")
				if len(kept) != 1 {
					t.Errorf("kept aside: %q", kept)
				}
			}
			s.same("released", home, id)
		})
	}
}

// A full disk below the state directory: exit 1, nothing changed on the host, and a hint; release works.
func TestFullDisk(t *testing.T) {
	s := newSite(t)
	if err := os.Mkdir(s.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", s.state, "tmpfs", 0, "size=256k,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.state, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	id, rule := marked(t, 60003)
	before := s.snapshot(id)
	policy := "groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: %s}}\n"
	s.write(fmt.Sprintf(policy, "1"))
	full := filepath.Join(s.state, "full")
	fill := func() {
		t.Helper()
		f, err := os.Create(full)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, block := range []int{4096, 1} {
			for {
				if _, err := f.Write(make([]byte, block)); err != nil {
					break
				}
			}
		}
	}
	fill()
	s.exits(1, []string{"no space left on device", "hint: ", "--state"}, "apply")
	s.same("apply on a full disk", before, id)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	s.must("apply")
	applied := s.snapshot(id)
	fill()
	s.write(fmt.Sprintf(policy, "0.5"))
	s.exits(1, []string{"no space left on device", "hint: "}, "apply")
	s.same("a second apply on a full disk", applied, id)
	s.exits(1, []string{"no space left on device"}, "set", "a:cpu.limit=0.25")
	s.same("set on a full disk", applied, id)
	if got := s.group("a").Limits; len(got) == 0 || !got[0].OK {
		t.Errorf("status on a full disk: %+v", got)
	}
	// The way out is open all the same; only that it was taken cannot be recorded.
	s.exits(1, []string{"released, but that could not be recorded", "hint: stop the agent"}, "release", "--all")
	s.same("released on a full disk", before, id)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	s.must("release", "--all")
	s.same("released", before, id)
}

// Groups that somebody removes while bulkhead works: a clear error or nothing, never half of it, and the
// next apply puts it right.
func TestGroupVanishes(t *testing.T) {
	s := newSite(t)
	before := s.snapshot()
	policy := "groups:\n  a: {match: [{exe: no-such-program}], cpu: {limit: %s}, tasks: %d, memory: {max: 64MiB}}\n"
	s.write(fmt.Sprintf(policy, "1", 100))
	s.must("apply")
	for _, h := range []string{"cpu", "pids"} {
		if err := s.tree.Remove(s.at(h, "a")); err != nil {
			t.Fatal(err)
		}
	}
	s.exits(4, []string{"NOT ENFORCED"}, "verify")
	s.must("apply")
	s.verified()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_ = s.tree.Remove(s.at("cpu", "a"))
				_ = s.tree.Remove(s.at("pids", "a"))
			}
		}
	}()
	for i := range 12 {
		s.write(fmt.Sprintf(policy, strconv.Itoa(1+i%2), 100+i))
		r := s.run("apply")
		if r.code != 0 && (r.code != 1 || !strings.Contains(r.err, "bulkhead: ")) {
			t.Errorf("apply beside somebody who removes its groups: exit code %d\n%s", r.code, r.err)
		}
	}
	close(stop)
	<-stopped
	s.must("apply")
	s.verified()
	s.must("release", "--all")
	s.same("released", before)
}

// Processes that come and go while they are moved are no error.
func TestProcessesExitWhileTheyAreMoved(t *testing.T) {
	s := newSite(t)
	before := s.snapshot()
	mark := fmt.Sprintf("0.00%d", os.Getpid())
	for range 3 {
		testhost.Spawn(t, "sh", "-c", "while :; do sleep "+mark+"; done")
	}
	policy := "groups:\n  a: {match: [{cmdline: '^sleep " + strings.ReplaceAll(mark, ".", "[.]") +
		"$'}], cpu: {limit: %s}, tasks: 100}\n"
	for i := range 12 {
		s.write(fmt.Sprintf(policy, strconv.Itoa(1+i%2)))
		s.must("apply")
	}
	s.must("release", "--all")
	s.same("released", before)
}

// realtime makes one thread real-time: SCHED_FIFO, the lowest priority of it.
func realtime(t *testing.T, tid int) {
	t.Helper()
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(tid, &attr, 0); err != nil {
		t.Fatalf("make thread %d real-time: %v", tid, err)
	}
}

// A process with a real-time thread cannot enter a v1 cpu group: it is named and stays out of every
// hierarchy, and the others are placed.
func TestRealTimeThread(t *testing.T) {
	s := newSite(t)
	plain, rule := marked(t, 60004)
	process, processRule := marked(t, 60005)
	realtime(t, process.PID)
	holder := testhost.HoldMemory(t) // the copy of a Go program: several threads
	var threads []string
	soon(t, "more than one thread", func() bool {
		threads, _ = filepath.Glob(fmt.Sprintf("/proc/%d/task/*", holder.ID.PID))
		return len(threads) > 1
	})
	tid, _ := strconv.Atoi(filepath.Base(threads[len(threads)-1]))
	realtime(t, tid)
	before := s.snapshot(plain, process, holder.ID)
	s.write(fmt.Sprintf("groups:\n  a: {match: [{cmdline: '%s'}, {cmdline: '%s'}], cpu: {limit: 1}, memory: {max: "+
		"1GiB}}\n", rule, processRule))
	r := s.exits(0, nil, "apply")
	if in := s.inside(plain.PID); in["cpu"] != "a" || in["memory"] != "a" {
		t.Errorf("the plain process is in %v", in)
	}
	if in := s.inside(process.PID); len(in) != 0 {
		t.Errorf("the real-time process is in %v", in)
	}
	if e := s.must("explain", strconv.Itoa(process.PID)); !strings.Contains(e, "real-time") {
		t.Errorf("explain does not say why:\n%s", e)
	}
	t.Logf("apply said:\n%s%s", r.out, r.err)
	// Placed by hand, with one real-time thread among others.
	r = s.run("move", "a", strconv.Itoa(holder.ID.PID))
	if in := s.inside(holder.ID.PID); len(in) != 0 {
		t.Errorf("a process with a real-time thread is in %v", in)
	}
	if !strings.Contains(r.out+r.err, strconv.Itoa(holder.ID.PID)) || !strings.Contains(r.out+r.err, "real-time") {
		t.Errorf("move does not say why it is not placed: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	s.must("release", "--all")
	s.same("released", before, plain, process, holder.ID)
}

// A second change waits a little and is then turned away, with the name of the first.
func TestTwoAppliesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, rule := marked(t, 60006)
	s.write(many(rule))
	first := s.start("apply")
	lock := filepath.Join(s.state, "lock")
	soon(t, "the first apply to hold the lock", func() bool {
		text, _ := os.ReadFile(lock)
		return strings.Contains(string(text), `"verb":"apply"`)
	})
	first.signal(syscall.SIGSTOP)
	s.exits(6, []string{"held by `bulkhead apply` by root, process " + strconv.Itoa(first.Process.Pid)}, "apply")
	first.signal(syscall.SIGCONT)
	if code := first.ends(); code != 0 {
		t.Errorf("the first apply: exit code %d\n%s", code, first.said())
	}
	s.must("release", "--all")
}

// interrupt starts an apply and signals it when some of its groups are there.
func (s *site) interrupt(sig syscall.Signal) *background {
	s.t.Helper()
	b := s.start("apply", "--reason", "to be cut off")
	soon(s.t, "some groups", func() bool {
		names, err := s.tree.Children(s.at("cpu", ""))
		return err == nil && len(names) > 10
	})
	b.signal(sig)
	return b
}

// Ctrl-C during apply undoes it.
func TestInterruptedApplyIsUndone(t *testing.T) {
	s := newSite(t)
	id, rule := marked(t, 60007)
	before := s.snapshot(id)
	s.write(many(rule))
	b := s.interrupt(syscall.SIGINT)
	if code := b.ends(); code != 1 {
		t.Fatalf("exit code %d\n%s", code, b.said())
	}
	s.same("after Ctrl-C", before, id)
	t.Logf("it said: %s", b.said())
	s.exits(1, []string{"no policy is applied"}, "status")
	s.must("apply")
	s.must("release", "--all")
	s.same("released", before, id)
}

// kill -9 during apply is undone by rollback, by release, and by the next apply itself.
func TestKilledApplyIsUndone(t *testing.T) {
	for _, verb := range [][]string{{"rollback"}, {"release", "--all"}, {"apply"}} {
		t.Run(verb[0], func(t *testing.T) {
			s := newSite(t)
			id, rule := marked(t, 60008)
			before := s.snapshot(id)
			s.write(many(rule))
			s.interrupt(syscall.SIGKILL).ends()
			if s.snapshot(id) == before {
				t.Fatal("nothing was left half done")
			}
			r := s.exits(0, []string{"undid the apply that was interrupted"}, verb...)
			if strings.Contains(r.err, "panic") {
				t.Error(r.err)
			}
			if verb[0] == "apply" {
				s.verified()
				s.must("release", "--all")
			}
			s.same("after "+verb[0], before, id)
			s.exits(0, []string{"to be cut off"}, "history")
		})
	}
}

// The agent killed and started again changes nothing.
func TestAgentKilledAndStartedAgain(t *testing.T) {
	s := newSite(t)
	id, rule := marked(t, 60009)
	s.write("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}, memory: {max: 1GiB}}\n")
	s.must("apply")
	applied := s.snapshot(id)
	first := s.agent()
	soon(t, "a look", func() bool { return s.status().Agent.Looks > 2 })
	first.signal(syscall.SIGKILL)
	first.ends()
	s.same("the agent dead", applied, id)
	if st := s.status(); st.Agent.Running || !st.Groups[0].Members[0].Placed {
		t.Errorf("status without the agent: %+v", st)
	}
	s.agent()
	soon(t, "a full look", func() bool { return s.status().Agent.Looks > 12 })
	if a := s.status().Agent; a.Moved != 0 || a.Repaired != 0 || a.Error != "" {
		t.Errorf("started again: %+v", a)
	}
	s.same("the agent again", applied, id)
	if got := strings.Count(s.must("history"), "\n"); got != 2 {
		t.Errorf("history has %d lines, want the heading and apply", got)
	}
}

// The emergency exit works while the agent is there and does not answer.
func TestReleaseBesideAStoppedAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, rule := marked(t, 60010)
	before := s.snapshot(id)
	s.write("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.must("apply")
	agent := s.agent()
	soon(t, "a look", func() bool { return s.status().Agent.Looks > 0 })
	agent.signal(syscall.SIGSTOP)
	s.exits(0, []string{"warning: going on without the agent: the agent does not answer"}, "release", "--all")
	s.same("released", before, id)
	agent.signal(syscall.SIGCONT)
	soon(t, "the agent to look again", func() bool { return s.status().Agent.Running })
	time.Sleep(300 * time.Millisecond)
	s.same("the agent goes on", before, id)
	agent.signal(syscall.SIGTERM)
	if code := agent.ends(); code != 0 {
		t.Errorf("the agent ended with %d\n%s", code, agent.said())
	}
}
