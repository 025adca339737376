package agent

import (
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/scheduling"
)

// timerSlack is how much later than asked the kernel may wake the agent's threads. Go's monitor thread sleeps 20 µs
// again and again for as long as another thread waits in the kernel, as each first move of a process does, for up to 20
// ms: with the default slack that is a fifth of the CPU time of a placed start.
const timerSlack = 5 * time.Millisecond

// niceness is the agent's: those that it is to hold must not keep it from holding them.
const niceness = -10

// garbage is GOGC where the environment has none: a third of Go's usual, which keeps the agent smaller.
const garbage = 35

// Tune sets up Go's runtime and the scheduling of this process for a program that mostly waits and then does little. It
// is for the process, not for an Agent: main calls it once. Events come one by one: with one thread at work at a time
// none is woken to help, which costs more than the work.
func Tune(log *slog.Logger) {
	runtime.GOMAXPROCS(1)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if err := scheduling.Set(niceness, timerSlack); err != nil {
		log.Warn("the agent stays as patient as other processes", "err", err)
	}
}

// startTime is how long after its start the agent has read and set up what it needs only then.
const startTime = 30 * time.Second

// cpuTime is what this process has used of the CPUs so far.
func cpuTime() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
