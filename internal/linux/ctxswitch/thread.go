package ctxswitch

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// Thread is what one thread did so far.
type Thread struct {
	Count

	// Ran is its time on a CPU, and Waited that for which it could run and had none: also while the CPU limit of its
	// group held it back. Both are 0 where the kernel counts neither.
	Ran, Waited time.Duration

	CPU int // on which it ran last
}

// Waits says whether the kernel counts how long threads wait for a CPU (CONFIG_SCHED_INFO).
func Waits(root *sysroot.FS) bool { return root.Exists("/proc/1/schedstat") }

// ReadThread reads /proc/TID/schedstat (Documentation/scheduler/sched-stats.rst), and the status and stat of a thread.
// before is what was read last, or nothing: where the thread has not been on a CPU since, it cannot have switched, and
// its status is not read, which costs the kernel more than all else here. A thread that is gone, or has ended, is not
// there: it gives an error that sysroot.IsGone knows, or false.
func ReadThread(root *sysroot.FS, tid int, before Thread) (t Thread, lives bool, err error) {
	dir := "/proc/" + strconv.Itoa(tid)
	text, err := root.ReadFile(dir + "/schedstat")
	if err != nil && !sysroot.IsGone(err) { // a kernel without it, or the thread ended: then its status says so
		return t, false, err
	}
	i := 0
	for word := range bytes.FieldsSeq(text) {
		n, err := strconv.ParseInt(string(word), 10, 64)
		if err != nil {
			return t, false, fmt.Errorf("parse %s/schedstat: %w", dir, err)
		}
		switch i {
		case 0:
			t.Ran = time.Duration(n)
		case 1:
			t.Waited = time.Duration(n)
		}
		i++
	}
	if t.Ran > 0 && t.Ran == before.Ran && t.Waited == before.Waited {
		return before, true, nil
	}
	if text, err = root.ReadFile(dir + "/status"); err != nil {
		return t, false, err
	}
	var ended bool
	if t.Count, ended, err = parseStatus(text); err != nil || ended {
		return t, false, err
	}
	dir += "/task/" + strconv.Itoa(tid) // that of a thread alone
	if text, err = root.ReadFile(dir + "/stat"); err == nil {
		for number, word := range sysroot.StatFields(text) {
			if number == processor {
				t.CPU, _ = strconv.Atoi(string(word)) // a word that is no number is CPU 0
				break
			}
		}
	}
	return t, true, nil
}

// processor is the field of a stat that has the CPU (proc_pid_stat(5)).
const processor = 39
