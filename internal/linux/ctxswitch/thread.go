package ctxswitch

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// Thread is what one thread did so far.
type Thread struct {
	Count

	// Ran is its time on a CPU, and Waited that for which it could run and had none: also while the CPU limit of its
	// group held it back. Both are 0 where the kernel counts neither.
	Ran, Waited time.Duration
}

// Waits says whether the kernel counts how long threads wait for a CPU (CONFIG_SCHED_INFO).
func Waits(root *sysroot.FS) bool { return root.Exists("/proc/1/schedstat") }

// ReadThread reads /proc/TID/status and /proc/TID/schedstat (Documentation/scheduler/sched-stats.rst). A thread that is
// gone, or has ended, is not there: it gives an error that sysroot.IsGone knows, or false.
func ReadThread(root *sysroot.FS, tid int) (t Thread, lives bool, err error) {
	dir := "/proc/" + strconv.Itoa(tid)
	text, err := root.ReadFile(dir + "/status")
	if err != nil {
		return t, false, err
	}
	var ended bool
	if t.Count, ended, err = parseStatus(string(text)); err != nil || ended {
		return t, false, err
	}
	text, err = root.ReadFile(dir + "/schedstat")
	if sysroot.IsGone(err) {
		return t, true, nil // a kernel without it, or it ended: then the next reading says so
	}
	if err != nil {
		return t, false, err
	}
	for i, word := range strings.Fields(string(text)) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return t, false, fmt.Errorf("parse %s/schedstat: %w", dir, err)
		}
		switch i {
		case 0:
			t.Ran = time.Duration(n)
		case 1:
			t.Waited = time.Duration(n)
		}
	}
	return t, true, nil
}
