package sampler

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

func TestUse(t *testing.T) {
	u, err := useOf(procfs.New(sysroot.New("/")), os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if u.Resident < 1<<20 {
		t.Errorf("a Go program has %d bytes of memory", u.Resident)
	}
	const stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 5 0 900 1000 25 1 1 1"
	got, err := parseUse([]byte(stat), []byte("rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n"), 4096)
	if want := (processUse{CPU: 3 * time.Second, Resident: 25 * 4096, Read: 4096, Written: 8192}); err != nil ||
		got != want {
		t.Errorf("used %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "7 (a) S 1", strings.Replace(stat, "250", "x", 1)} {
		if _, err := parseUse([]byte(bad), nil, 4096); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// The load average that is being reached is known from two moves of the kernel's: each goes the same part of the way.
func TestLevel(t *testing.T) {
	keep := math.Exp(-1.0 / 12)
	of := func(seconds int, tasks float64) (readings []reading) {
		load := 3.0
		for i := range seconds {
			if i%5 == 2 {
				load = load*keep + tasks*(1-keep)
			}
			readings = append(readings, reading{at: time.Unix(int64(i), 0),
				activity: host.Activity{Load: math.Round(load*100) / 100}})
		}
		return readings
	}
	for _, tasks := range []float64{0, 1, 24, 300} {
		if got := level(of(14, tasks)); math.Abs(got-tasks) > 0.3 {
			t.Errorf("%v tasks: the level is %v", tasks, got)
		}
	}
	if got := level(of(6, 24)); !math.IsNaN(got) {
		t.Errorf("of one move: %v", got)
	}
}
