//go:build root

package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/control"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// BenchmarkPlace starts a program 20 times a second that a rule places, and measures the time from the end of
// its execve(2) until it is in its cpu group. In turn with that, at the same pace, a process is moved between
// two groups by a bare write to cgroup.procs: the kernel's own wait, which no agent can be faster than (the
// first move after a quiet while waits for an RCU grace period). It runs once, whatever -benchtime says.
func BenchmarkPlace(b *testing.B) {
	const rounds, starts, pace = 3, 100, 50 * time.Millisecond
	root, state, tree := testhost.Root(b), b.TempDir(), testhost.Tree(b)
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	argument, rule := mark(62001)
	text := fmt.Sprintf("version: 1\nhost: {root: %s}\ngroups:\n  placed: {match: [{cmdline: '%s'}], cpu: {limit: "+
		"1}}\n  a: {cpu: {limit: 1}}\n  b: {cpu: {limit: 1}}\n", root, rule)
	if _, err := control.Do(context.Background(), c,
		api.Request{Verb: "apply", By: "benchmark",
			Sources: []policy.Source{{Path: "place.yaml", Text: text}}}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { // after the agent has ended
		if _, err := control.Do(context.Background(), c,
			api.Request{Verb: "release", All: true, By: "benchmark"}); err != nil {
			b.Error(err)
		}
	})
	startCopy(b, state)
	var ours, kernels []time.Duration
	bare := testhost.Spawn(b, "sleep", "600")
	group := func(name string) cgroup.Dir { return cgroup.Dir{Hierarchy: "cpu", Path: "/" + root + "/" + name} }
	for range rounds {
		for range starts {
			began := time.Now()
			ours = append(ours, untilPlaced(b, argument, "/"+root+"/placed"))
			time.Sleep(pace - time.Since(began))
		}
		for i := range starts {
			began := time.Now()
			if err := tree.Move(group(string("ab"[i%2])), bare); err != nil {
				b.Fatal(err)
			}
			kernels = append(kernels, time.Since(began))
			time.Sleep(pace - time.Since(began))
		}
	}
	report := func(name string, all []time.Duration) {
		slices.Sort(all)
		for _, percent := range []int{50, 99} {
			b.ReportMetric(all[(len(all)-1)*percent/100].Seconds()*1e3, fmt.Sprintf("ms-%s-p%d", name, percent))
		}
	}
	report("placed", ours)
	report("bare-move", kernels)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkChurn is the agent beside programs that match no rule, come and go, about 300 a second for ten
// seconds: its CPU time in percent of one core and for each event. It runs once, whatever -benchtime says.
func BenchmarkChurn(b *testing.B) {
	const watch, pace = 10 * time.Second, time.Second / 300
	root, state := testhost.Root(b), b.TempDir()
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	_, rule := mark(62002)
	text := fmt.Sprintf("version: 1\nhost: {root: %s}\ngroups:\n  placed: {match: [{cmdline: '%s'}], cpu: {limit: "+
		"1}}\n", root, rule)
	if _, err := control.Do(context.Background(), c,
		api.Request{Verb: "apply", By: "benchmark",
			Sources: []policy.Source{{Path: "churn.yaml", Text: text}}}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if _, err := control.Do(context.Background(), c,
			api.Request{Verb: "release", All: true, By: "benchmark"}); err != nil {
			b.Error(err)
		}
	})
	agent, _ := startCopy(b, state)
	running, err := client.Dial(context.Background(), state+"/agent.sock", state)
	if err != nil || running == nil {
		b.Fatal(err)
	}
	events := func() *api.AgentStatus {
		st, err := running.Status(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		return &st.Agent
	}
	from, before, starts := events(), usedCPU(b, agent.Pid), 0
	for end := time.Now().Add(watch); time.Now().Before(end); starts++ {
		began := time.Now()
		if err := exec.Command("true").Run(); err != nil {
			b.Fatal(err)
		}
		time.Sleep(pace - time.Since(began))
	}
	used, to := usedCPU(b, agent.Pid)-before, events()
	b.ReportMetric(100*float64(used)/float64(watch), "%core")
	b.ReportMetric(float64(used.Microseconds())/float64(to.Events-from.Events), "us-cpu/event")
	b.ReportMetric(float64(to.Looks-from.Looks)/watch.Seconds(), "looks/s")
	b.ReportMetric(float64(starts)/watch.Seconds(), "starts/s")
	b.ReportMetric(float64(to.Lost), "lost")
	b.ReportMetric(0, "ns/op")
}

// usedCPU is the CPU time of a process so far, from /proc/PID/stat.
func usedCPU(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// untilPlaced starts a program and watches its cgroup; it is killed at the end.
func untilPlaced(b *testing.B, argument, want string) time.Duration {
	cmd := exec.Command("sleep", argument)
	if err := cmd.Start(); err != nil { // it returns when execve(2) has succeeded
		b.Fatal(err)
	}
	began := time.Now()
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	name := fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid)
	for time.Since(began) < 5*time.Second {
		text, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		if strings.Contains(string(text), ":cpu:"+want+"\n") ||
			strings.Contains(string(text), ":cpu,cpuacct:"+want+"\n") {
			return time.Since(began)
		}
		time.Sleep(20 * time.Microsecond)
	}
	b.Fatalf("%s is not placed", name)
	return 0
}

// startCopy runs an agent in a process of its own until the benchmark ends, and waits until it listens.
func startCopy(b *testing.B, state string) (agent *os.Process, end func()) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAgentInACopy$")
	cmd.Env = append(os.Environ(), "BULKHEAD_TEST_AGENT_STATE="+state)
	cmd.Stderr = os.Stderr
	return startAgent(b, cmd, state), sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// startAgent starts an agent, which ends with the benchmark, and waits until it answers and has looked.
func startAgent(b *testing.B, cmd *exec.Cmd, state string) *os.Process {
	b.Helper()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	soon(b, "the agent", func() bool {
		c, err := client.Dial(context.Background(), state+"/agent.sock", state)
		return err == nil && c != nil
	})
	time.Sleep(2 * time.Second) // the first looks read everything
	return cmd.Process
}
