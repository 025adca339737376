package procfs

import (
	"os/exec"
	"testing"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// benchProcesses is how many sleeping children the benchmarks look at, beside what runs anyway.
const benchProcesses = 2000

// sleepers starts n children that sleep until the benchmark ends.
func sleepers(b *testing.B, n int) {
	b.Helper()
	for range n {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
}

func benchmarkLook(b *testing.B, full bool) {
	sleepers(b, benchProcesses)
	s := New(sysroot.New("/")).NewScanner()
	defer s.Close()
	// The clock of the scanner stands far in the future, so that no child is young any more.
	s.clock = func() uint64 { return 1 << 63 }
	if _, _, err := s.Look(true); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		procs, _, err := s.Look(full)
		if err != nil {
			b.Fatal(err)
		}
		if len(procs) < benchProcesses {
			b.Fatalf("%d processes, want at least %d", len(procs), benchProcesses)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
}

// cpuTime is what this process has used so far, in nanoseconds: on a machine that others use too it
// says more than the clock.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

func BenchmarkScannerQuick(b *testing.B) { benchmarkLook(b, false) }

func BenchmarkScannerFull(b *testing.B) { benchmarkLook(b, true) }

func BenchmarkProcesses(b *testing.B) {
	sleepers(b, benchProcesses)
	h := New(sysroot.New("/"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Processes(Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
