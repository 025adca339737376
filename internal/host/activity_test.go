package host

import (
	"testing"
	"time"
)

func TestParseActivity(t *testing.T) {
	// Captured on a machine with two CPUs, kernel 6.18; the counts of single CPUs and of interrupts are cut.
	const text = "cpu  846201 1027 222031 9012211 15201 0 4121 2011 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nctxt " +
		"17\nprocesses 4711\nintr 900 1 2\nprocs_running 3\nprocs_blocked 2\n"
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
	if a.Switches != 17 || a.Forks != 4711 || a.Interrupts != 900 {
		t.Errorf("%d switches, %d forks, %d interrupts", a.Switches, a.Forks, a.Interrupts)
	}
	for _, bad := range []string{"", "cpu  1 2 x 4 5\n", "cpu  1 2 3 -4 5\n", "cpu  1 2 3 4 5\nprocs_blocked x\n"} {
		if _, err := parseActivity([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
