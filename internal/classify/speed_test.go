//go:build !race

package classify

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this process has used of the CPU: unlike the time on the wall it does not depend on what
// else the machine does.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// A pass over 200 groups and 2,000 processes stays far below 50 ms of CPU time (some 7 ms when this was
// written).
func TestClassifyIsFast(t *testing.T) {
	p, in := busyHost()
	groups, problems := Expand(p, in.Instances)
	if len(groups) != 200 || len(problems) != 0 {
		t.Fatalf("%d groups, problems %v", len(groups), problems)
	}
	best := time.Hour
	for range 5 {
		start := cpuTime(t)
		result := Classify(groups, in)
		best = min(best, cpuTime(t)-start)
		if len(result.Placements) == 0 {
			t.Fatal("nothing is placed")
		}
	}
	if best > 50*time.Millisecond {
		t.Errorf("one pass takes %s of CPU time", best)
	}
}
