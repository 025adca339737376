//go:build root

package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/plan"
	"bulkhead/internal/transaction"
)

// crashVariable makes a binary that is built for root tests come to grief after a step of a plan: "kill 3" dies of
// SIGKILL after the fourth, "stop 3" stands still, "sleep 3" takes a minute over it.
const crashVariable = "BULKHEAD_TEST_CRASH"

func init() {
	how, at, ok := strings.Cut(os.Getenv(crashVariable), " ")
	step, err := strconv.Atoi(at)
	if !ok || err != nil {
		return
	}
	atSteps = func(o *transaction.Options) {
		o.AfterStep = func(i int, _ plan.Step) {
			switch {
			case i != step:
			case how == "sleep":
				time.Sleep(time.Minute)
			case how == "stop":
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				time.Sleep(time.Second) // until another thread has taken the signal
			default:
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
}
