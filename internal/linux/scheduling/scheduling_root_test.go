//go:build root

package scheduling

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads are urgent, and then as they were.
func TestUrgently(t *testing.T) {
	all := func(what string, want int) {
		t.Helper()
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil || len(tasks) < 2 {
			t.Fatal(tasks, err)
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			got, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
			if err == unix.ESRCH {
				continue
			}
			if err != nil || 20-got != want {
				t.Errorf("%s: thread %d has niceness %d, %v; want %d", what, tid, 20-got, err, want)
			}
		}
	}
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	back := Urgently()
	all("urgent", Urgent)
	back()
	all("after that", 20-before)
}
