package host

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseActivity(t *testing.T) {
	// Captured on a machine with two CPUs, kernel 6.18; the counts of single CPUs and of interrupts are cut.
	const text = "cpu  846201 1027 222031 9012211 15201 0 4121 2011 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nctxt 1\nprocs_running 3\nprocs_blocked 2\n"
	a, err := parseActivity([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if want := time.Duration(9012211+15201) * 10 * time.Millisecond; a.Idle != want {
		t.Errorf("idle %v, want %v", a.Idle, want)
	}
	if want := time.Duration(846201+1027+222031+4121+2011) * 10 * time.Millisecond; a.Busy != want || a.Blocked != 2 {
		t.Errorf("busy %v, want %v; %d blocked", a.Busy, want, a.Blocked)
	}
	for _, bad := range []string{"", "cpu  1 2 x 4 5\n", "cpu  1 2 3 -4 5\n", "cpu  1 2 3 4 5\nprocs_blocked x\n"} {
		if _, err := parseActivity([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestUse(t *testing.T) {
	u, err := New("/").Proc.Use(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if u.Resident < 1<<20 {
		t.Errorf("a Go program has %d bytes of memory", u.Resident)
	}
	const stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 5 0 900 1000 25 1 1 1"
	got, err := parseUse([]byte(stat), []byte("rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n"), 4096)
	if want := (ProcessUse{CPU: 3 * time.Second, Resident: 25 * 4096, Read: 4096, Written: 8192}); err != nil || got != want {
		t.Errorf("used %+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", "7 (a) S 1", strings.Replace(stat, "250", "x", 1)} {
		if _, err := parseUse([]byte(bad), nil, 4096); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
