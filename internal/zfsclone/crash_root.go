//go:build root

package zfsclone

import (
	"os"
	"strconv"
	"syscall"
)

// crashVariable has a binary that is built for root tests die of SIGKILL after so many steps of a copy. Its last line
// on the standard error is the step.
const crashVariable = "BULKHEAD_TEST_CLONE"

func init() {
	left, err := strconv.Atoi(os.Getenv(crashVariable))
	if err != nil {
		return
	}
	eachStep = func(what string) {
		if left > 0 {
			left--
			return
		}
		_, _ = os.Stderr.WriteString("killed at: " + what + "\n")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
