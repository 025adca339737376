//go:build root

package steprecord

import (
	"os"
	"strconv"
	"syscall"
)

// Crash has a binary that is built for root tests die of SIGKILL after as many steps as an environment variable says.
// Its last line on the standard error is the step. Without the variable it gives what is done at each step otherwise.
func Crash(variable string, otherwise func(step string)) func(step string) {
	left, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		return otherwise
	}
	return func(step string) {
		if left > 0 {
			left--
			return
		}
		_, _ = os.Stderr.WriteString("killed at: " + step + "\n")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
