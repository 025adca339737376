//go:build root

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/policy"
)

// writingCalls are the system calls that change files of the state directory and of the groups, with about how many of
// each a verb makes.
var writingCalls = map[string]int{
	"write": 18, "fdatasync": 16, "mkdirat": 7, "renameat": 5, "unlinkat": 7, "ftruncate": 2, "pwrite64": 2,
}

// killed makes a command one that is killed at one of the system calls that write, if it makes so many of it.
func killed(cmd *exec.Cmd, call string, nth int) *exec.Cmd {
	inject := fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", call, nth)
	args := []string{"-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", inject, cmd.Path}
	traced := exec.Command("strace", append(args, cmd.Args[1:]...)...)
	// strace counts each thread's calls: with one processor most are one thread's.
	traced.Dir, traced.Env = cmd.Dir, append(cmd.Environ(), "GOMAXPROCS=1")
	traced.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return traced
}

// A verb, or the agent, is killed at any system call that writes. Once the next agent listens, half of the times after
// another verb, status, verify and the kernel say the same, and at the end a release gives the host back. KILLS says
// how many there are (all: 1,000), SEED which (the log names it).
func TestKilledAtSystemCalls(t *testing.T) {
	kills, err := strconv.Atoi(strings.Replace(cmp.Or(os.Getenv("KILLS"), "30"), "all", "1000", 1))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), fmt.Sprint(time.Now().UnixNano())), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := newSite(t)
	a, ruleA := marked(t, 3600)
	b, ruleB := marked(t, 3601)
	policies := []string{
		"groups:\n  a: {match: [{cmdline: '" + ruleA + "'}], cpu: {limit: 1}, tasks: 60}\n",
		"groups:\n  a: {match: [{cmdline: '" + ruleA + "'}], cpu: {limit: 0.5}, tasks: 50}\n" +
			"  b: {match: [{cmdline: '" + ruleB + "'}], tasks: 70}\n",
	}
	before := s.snapshot(a, b)
	calls := slices.Sorted(maps.Keys(writingCalls))
	hit := 0
	for i := 0; i < kills || hit < kills/4 && i < 4*kills; i++ { // a drawn call may come too late in a verb
		s.write(policies[r.IntN(len(policies))])
		verb := [][]string{
			{"apply"}, {"apply"}, {"set", fmt.Sprintf("a:tasks=%d", 20+r.IntN(9))}, {"unset", "a:tasks"}, {"rollback"},
			{"release", "a"}, {"release", "--all"}, {"set", "a:cpu.limit=0.7", "--for", "1h"},
		}[r.IntN(8)]
		call := calls[r.IntN(len(calls))]
		nth := 1 + r.IntN(writingCalls[call])
		if i%3 == 0 { // the agent that does it for the verb
			agent := s.startCommand(killed(s.command("agent", "--every", "100ms"), call, nth))
			for range 100 {
				if _, err := os.Stat(s.socket); err == nil || agent.ended() {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			_ = s.command(verb...).Run()
			if agent.ended() {
				hit++
			}
			// Its process group, which this test made: strace and the agent.
			_ = syscall.Kill(-agent.Process.Pid, syscall.SIGKILL)
			<-agent.done
		} else {
			cmd := killed(s.command(verb...), call, nth)
			out, _ := cmd.CombinedOutput() // it may be refused, too
			if strings.Contains(string(out), "goroutine ") {
				t.Fatalf("bulkhead %q panicked:\n%s", verb, out)
			}
			if cmd.ProcessState.ExitCode() < 0 {
				hit++
			}
		}
		when := fmt.Sprintf("kill %d: %q at %s %d", i, verb, call, nth)
		if r.IntN(2) == 0 { // a verb finds what is left before the agent does
			verbs := [][]string{{"apply"}, {"unset", "a:tasks"}, {"rollback"}, {"release", "a"}}
			next := verbs[r.IntN(len(verbs))]
			out, _ := s.command(next...).CombinedOutput() // it may be refused
			if when += fmt.Sprintf(", then %q", next); strings.Contains(string(out), "goroutine ") {
				t.Fatalf("%s panicked:\n%s", when, out)
			}
		}
		agent := s.agent()
		s.agrees(when, map[string]int{"a": a.PID, "b": b.PID})
		_ = agent.Process.Kill()
		<-agent.done
		if t.Failed() {
			t.Fatal(s.run("history", "--long").out)
		}
	}
	if hit < kills/4 {
		t.Errorf("%d of %d were killed: the rest came to their ends", hit, kills)
	}
	s.must("release", "--all")
	s.same("after release", before, a, b)
}

// ended says whether a command has come to its end.
func (b *background) ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// agrees holds what status and verify say against the kernel, once nothing is interrupted any more.
func (s *site) agrees(when string, processes map[string]int) {
	s.t.Helper()
	var st api.Status
	soon(s.t, "nothing to be interrupted: "+when, func() bool {
		st = api.Status{}
		r := s.run("status", "--json")
		return json.Unmarshal([]byte(r.out), &st) != nil || st.Pending == "" && st.UnderWay == ""
	})
	asked := map[string]string{} // of a group that is governed, its limit of tasks
	for _, g := range st.Groups {
		if g.Released || slices.Contains(st.Released, g.Group) {
			continue
		}
		asked[g.Group] = "max"
		for _, l := range g.Limits {
			if l.Key == policy.KeyTasks {
				asked[g.Group] = l.Asked
			}
		}
	}
	holds := func() (wrong string) {
		for group, pid := range processes {
			want, governed := asked[group]
			text, err := s.tree.Read(cgroup.File{Dir: s.at("pids", group), Name: "pids.max"})
			_, inside := s.inside(pid)["pids"]
			if governed != (err == nil) || governed && strings.TrimSpace(text) != want || inside != governed {
				wrong += fmt.Sprintf("%s: status says %t, tasks %s; the kernel %q, %v; its process is inside: %t\n",
					group, governed, want, text, err, inside)
			}
		}
		return wrong
	}
	// One look may still be bringing the processes in.
	for deadline := time.Now().Add(5 * time.Second); holds() != "" && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if wrong := holds(); wrong != "" {
		s.t.Errorf("%s:\n%s", when, wrong)
	}
	if r := s.run("verify"); r.code != 0 && len(asked) > 0 {
		s.t.Errorf("%s: verify: exit code %d\n%s%s", when, r.code, r.out, r.err)
	}
}

// startCommand starts a command as start does.
func (s *site) startCommand(cmd *exec.Cmd) *background {
	s.t.Helper()
	file, err := os.CreateTemp(s.dir, filepath.Base(cmd.Path)+"-")
	if err != nil {
		s.t.Fatal(err)
	}
	b := &background{Cmd: cmd, t: s.t, err: file, done: make(chan struct{})}
	b.Stdout, b.Stderr = file, file
	if err := b.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { _ = b.Cmd.Wait(); close(b.done) }()
	s.t.Cleanup(func() {
		_ = b.Process.Kill()
		<-b.done
		_ = file.Close()
	})
	return b
}
