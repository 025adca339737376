//go:build root

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/control"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// BenchmarkIdle is the agent beside 50 groups and 2,000 sleeping processes in them, nothing changing,
// for a minute: its own CPU time in percent of one core and its largest resident set. It runs once,
// whatever -benchtime says.
func BenchmarkIdle(b *testing.B) {
	const groups, processes, watch = 50, 2000, 60 * time.Second
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
	agent := startCopy(b, state)
	time.Sleep(10 * time.Second) // the first looks read everything
	from := usedCPU(b, agent.Pid)
	time.Sleep(watch)
	b.ReportMetric(100*float64(usedCPU(b, agent.Pid)-from)/float64(watch), "%core")
	b.ReportMetric(peakMiB(b, agent.Pid), "MiB")
	b.ReportMetric(0, "ns/op")
}

// peakMiB is the largest resident set so far, VmHWM of /proc/PID/status.
func peakMiB(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
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
	if err := New(c, Options{Socket: state + "/agent.sock"}).Run(ctx); err != nil {
		t.Fatal(err)
	}
}
