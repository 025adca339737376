//go:build root

package switches

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/probe"
)

// The test's program is the loads, too.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "probe":
		if err := probe.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
	case len(os.Args) == 3 && os.Args[1] == "load":
		load(os.Args[2])
	default:
		os.Exit(m.Run())
	}
}

// load works between two lines on its input, and says after each how often it switched, by the kernel's sum over its
// threads that live and those that ended.
func load(kind string) {
	in := bufio.NewReader(os.Stdin)
	for _, work := range []func(){func() {}, loads[kind], func() {}} {
		work()
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
		fmt.Println(u.Nvcsw, u.Nivcsw)
		if _, err := in.ReadString('\n'); err != nil {
			return
		}
	}
}

var loads = map[string]func(){
	// Two threads wake each other: switches are voluntary.
	"swpairs": func() {
		var there, back [2]int
		_, _ = unix.Pipe(there[:]), unix.Pipe(back[:])
		var group sync.WaitGroup
		side := func(from, to int) {
			runtime.LockOSThread()
			var b [1]byte
			for range 30_000 {
				_, _ = unix.Read(from, b[:])
				_, _ = unix.Write(to, b[:])
			}
		}
		group.Go(func() { side(there[0], back[1]) })
		group.Go(func() { side(back[0], there[1]) })
		_, _ = unix.Write(there[1], []byte{0})
		group.Wait()
	},
	// Threads that yield to each other on one CPU: involuntary.
	"swyields": func() { yields(4, 10_000) },
	// Threads that end after a while.
	"swends": func() {
		for range 40 {
			yields(5, 2000) // the last switch of each is not in what the kernel sums up
		}
	},
}

func yields(threads, times int) {
	var set unix.CPUSet
	_ = unix.SchedGetaffinity(0, &set)
	for i := range 1024 {
		if set.IsSet(i) {
			set.Zero()
			set.Set(i)
			break
		}
	}
	var group sync.WaitGroup
	for range threads {
		group.Go(func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			_ = unix.SchedSetaffinity(0, &set)
			for range times {
				_, _, _ = syscall.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			}
		})
	}
	group.Wait()
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	t.Logf("%s: %.0f, by the kernel %.0f", what, got, want)
	if math.Abs(got-want) > 0.02*want {
		t.Errorf("%s: %.0f, by the kernel %.0f", what, got, want)
	}
}

// What is counted of three loads is within 2 % of what the kernel sums up for them (getrusage(2)), of one that goes on
// and of one that begins and ends meanwhile; the CPUs together have done as often as /proc/stat says.
func TestCountsAreTheKernels(t *testing.T) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	for kind := range loads {
		t.Run(kind, func(t *testing.T) {
			// As its name, by which it is found again when it is gone.
			program := filepath.Join(t.TempDir(), kind)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(self, program); err != nil {
				t.Fatal(err)
			}
			lives := start(t, program, kind)
			before := lives.said(t)
			var after, ended ctxswitch.Count
			r, err := measure(t.Context(), h, facts, nil, func(hear func() error) error {
				lives.goOn(t)
				after = lives.said(t)
				ends := start(t, program, kind)
				ends.said(t)
				ends.goOn(t)
				ends.said(t)
				ended = ends.end(t)
				return hear()
			})
			if err != nil {
				t.Fatal(err)
			}
			lives.end(t)
			if len(r.Notes) > 0 {
				t.Errorf("not all is counted: %q", r.Notes)
			}
			at := slices.IndexFunc(r.Procs, func(u Use) bool { return u.PID == lives.cmd.Process.Pid })
			gone := slices.IndexFunc(r.Procs, func(u Use) bool { return u.PID == 0 && u.Name == kind })
			if at < 0 || gone < 0 {
				t.Fatalf("it is missing: %d, %d in %+v", at, gone, r.Procs)
			}
			near(t, "one that lives", float64(r.Procs[at].Count.All()), float64(after.Since(before).All()))
			share := func(c ctxswitch.Count) float64 { return 1000 + 1000*float64(c.Involuntary)/float64(c.All()) }
			near(t, "its involuntary share", share(r.Procs[at].Count), share(after.Since(before)))
			near(t, "one that ended", float64(r.Procs[gone].Count.All()), float64(ended.All()))
			sum := 0.0
			for _, c := range r.CPUs {
				sum += c.Rate
			}
			near(t, "the CPUs", sum, r.PerCPU*float64(len(facts.CPUs)))
		})
	}
}

type running struct {
	cmd *exec.Cmd
	in  interface{ Write([]byte) (int, error) }
	out *bufio.Reader
}

func start(t *testing.T, program, kind string) *running {
	t.Helper()
	cmd := exec.Command(program, "load", kind)
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &running{cmd, in, bufio.NewReader(out)}
}

func (r *running) goOn(t *testing.T) {
	t.Helper()
	if _, err := r.in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
}

func (r *running) said(t *testing.T) (c ctxswitch.Count) {
	t.Helper()
	line, err := r.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &c.Voluntary, &c.Involuntary)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// end ends it, and gives what the kernel sums up for its whole life.
func (r *running) end(t *testing.T) ctxswitch.Count {
	t.Helper()
	r.goOn(t)
	r.said(t)
	r.goOn(t)
	if err := r.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	u := r.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return ctxswitch.Count{Voluntary: uint64(u.Nvcsw), Involuntary: uint64(u.Nivcsw)}
}

// The sweep finds at least what the document's command does, in a tenth of its time, with sysbench counted as the
// document does: all switches of the machine.
func TestSweepAgainstSysbench(t *testing.T) {
	span := 6 * time.Second
	if os.Getenv("LONG") != "" {
		span = 30 * time.Second
	}
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Sweep(t.Context(), h, facts, []string{"probe"}, span/10/time.Duration(len(perCPU)))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Steps) > len(perCPU) {
		t.Errorf("%d steps take longer than a tenth", len(m.Steps))
	}
	cmd := exec.Command("sysbench", "--thread-locks=128", fmt.Sprintf("--time=%.0f", span.Seconds()), "--threads=1024",
		"threads", "run")
	if err := cmd.Start(); err != nil {
		t.Fatalf("the tests need sysbench: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	best := 0.0
	last, at := total(t, h), time.Now()
	for over := false; !over; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		case <-time.After(500 * time.Millisecond):
			n := total(t, h)
			best = max(best, float64(n-last)/time.Since(at).Seconds()/float64(len(facts.CPUs)))
			last, at = n, time.Now()
		}
	}
	text, _ := json.Marshal(m)
	t.Logf("sysbench: %.0f; the sweep: %s", best, text)
	if m.Rate < best {
		t.Errorf("the sweep found %.0f switches a second for each CPU, sysbench with 1,024 threads %.0f", m.Rate, best)
	}
	dir := t.TempDir()
	if err := m.Keep(dir); err != nil {
		t.Fatal(err)
	}
	kept, err := Kept(dir, MachineOf(h, facts))
	if err != nil || kept.Rate != m.Rate || kept.Stale != "" ||
		!strings.Contains(kept.Machine.Mitigations, "spectre_v2") {
		t.Errorf("kept: %+v, %v", kept, err)
	}
}

func total(t *testing.T, h *host.Host) uint64 {
	t.Helper()
	n, err := ctxswitch.Total(h.Root)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
