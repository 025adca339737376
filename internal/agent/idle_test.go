//go:build root

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// BenchmarkIdle is the agent beside 50 groups and 2,000 sleeping processes in them, nothing changing, for a minute: its
// own CPU time in percent of one core, and its largest resident set. What starts and ends elsewhere on the machine
// costs it something, too: events/s says how much did. With BULKHEAD_PROGRAM, as scripts/bench has it, program-MiB is
// the resident set of that program as an agent of the same groups when it has run for a minute, program-file-MiB the
// part that is mapped from its file, and program-most-MiB its largest. It runs once, whatever -benchtime says.
func BenchmarkIdle(b *testing.B) { benchmarkIdle(b, "") }

// BenchmarkIdleQuiet is BenchmarkIdle on a machine on which no process starts or ends: the agent's source of events has
// none.
func BenchmarkIdleQuiet(b *testing.B) { benchmarkIdle(b, quiet) }

// BenchmarkHot is BenchmarkIdleQuiet while the agent looks every second, as a group misses what it is promised: it
// waits for its own limit, so that there is nobody to squeeze. That lasts a minute.
func BenchmarkHot(b *testing.B) { benchmarkIdle(b, hot) }

// What is going on beside the groups.
const quiet, hot = "quiet", "hot"

func benchmarkIdle(b *testing.B, how string) {
	const groups, processes = 50, 2000
	watch := 60 * time.Second
	root := testhost.Root(b)
	state := b.TempDir()
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nhost: {root: %s}\ngroups:\n", root)
	mark := os.Getpid()
	for g := range groups {
		fmt.Fprintf(&text, "  g%02d: {match: [{cmdline: '^sleep 6%02d[.]%d$'}], cpu: {weight: 100, limit: 1}, tasks: "+
			"1000, memory: {max: 256MiB, swap: 0}}\n", g, g, mark)
	}
	for p := range processes {
		testhost.Spawn(b, "sleep", fmt.Sprintf("6%02d.%d", p%groups, mark))
	}
	if how == hot {
		watch = 40 * time.Second
		busy := fmt.Sprintf("while :; do :; done # hot%d", mark)
		fmt.Fprintf(&text, "  busy: {role: database, match: [{cmdline: 'hot%d'}], cpu: {limit: 0.05}, "+
			"slo: {waits: 1%%}}\nslo: {mode: advise}\n", mark)
		testhost.Spawn(b, "sh", "-c", busy)
	}
	if _, err := control.Do(context.Background(), c,
		api.Request{Verb: "apply", By: "benchmark",
			Sources: []policy.Source{{Path: "idle.yaml", Text: text.String()}}}); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if _, err := control.Do(context.Background(), c,
			api.Request{Verb: "release", All: true, By: "benchmark"}); err != nil {
			b.Error(err)
		}
	}()
	if how != "" {
		b.Setenv(quietAgent, "1")
	}
	agent, end := startCopy(b, state)
	time.Sleep(10 * time.Second) // the first looks read everything
	events := func() float64 { return float64(status(b, state).Agent.Events) }
	before := events()
	from := usedCPU(b, agent.Pid)
	time.Sleep(watch)
	b.ReportMetric(100*float64(usedCPU(b, agent.Pid)-from)/float64(watch), "%core")
	b.ReportMetric((events()-before)/watch.Seconds(), "events/s")
	if how == hot && !sawMiss(b, state) {
		b.Error("the group did not miss what it is promised: the agent was not hot")
	}
	b.ReportMetric(memoryMiB(b, agent.Pid, "VmHWM"), "MiB")
	b.ReportMetric(0, "ns/op")
	end()
	if program := os.Getenv("BULKHEAD_PROGRAM"); program != "" && how == "" {
		cmd := exec.Command(program, "agent", "--state", state, "--socket", state+"/agent.sock")
		pid := startAgent(b, cmd, state).Pid
		time.Sleep(watch)
		b.ReportMetric(memoryMiB(b, pid, "VmRSS"), "program-MiB")
		b.ReportMetric(memoryMiB(b, pid, "VmHWM"), "program-most-MiB")
		b.ReportMetric(memoryMiB(b, pid, "RssFile"), "program-file-MiB")
	}
}

// quietAgent has the agent of TestAgentInACopy hear of no process.
const quietAgent = "BULKHEAD_TEST_AGENT_QUIET"

// silence is a source that has none.
type silence struct{ closed chan struct{} }

func (s silence) Read([]procevents.Event) ([]procevents.Event, int, error) {
	<-s.closed
	return nil, 0, os.ErrClosed
}

func (silence) Within(time.Duration) {}

func (s silence) Close() error {
	close(s.closed)
	return nil
}

// sawMiss says whether a database has just missed what it is promised.
func sawMiss(b *testing.B, state string) bool {
	b.Helper()
	return slices.ContainsFunc(status(b, state).SLO, func(s api.SLO) bool { return s.Slack != nil && *s.Slack < 0 })
}

// status asks the agent of a state directory.
func status(b *testing.B, state string) *api.Status {
	b.Helper()
	c, err := client.Dial(b.Context(), state+"/agent.sock", state)
	if err != nil || c == nil {
		b.Fatalf("the agent does not answer: %v", err)
	}
	st, err := c.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return st
}

// memoryMiB is a size of /proc/PID/status: VmRSS is the resident set, VmHWM the largest one so far, RssFile the part of
// it now that files have.
func memoryMiB(b *testing.B, pid int, name string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), name+":")
	var kib float64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}

// TestAgentInACopy is the agent of BenchmarkIdle; on its own it has nothing to do.
func TestAgentInACopy(t *testing.T) {
	state := os.Getenv("BULKHEAD_TEST_AGENT_STATE")
	if state == "" {
		return
	}
	c, err := transaction.Open(transaction.Options{State: state})
	if err != nil {
		t.Fatal(err)
	}
	Tune(slog.New(slog.DiscardHandler)) // as main does
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o := Options{Socket: state + "/agent.sock"}
	if os.Getenv(quietAgent) != "" {
		o.events = func() (source, error) { return silence{make(chan struct{})}, nil }
	}
	if err := New(c, o).Run(ctx); err != nil {
		t.Fatal(err)
	}
}
