// Package rlimit reads the resource limits of a process as the kernel lists them (proc_pid_limits(5)).
package rlimit

import (
	"math"
	"strconv"
	"strings"
)

// Unlimited is RLIM_INFINITY of <sys/resource.h>.
const Unlimited = math.MaxUint64

// Limit is a soft and a hard limit, in the unit of its row: bytes, seconds, processes or files.
type Limit struct{ Soft, Hard uint64 }

// Parse reads the text of /proc/PID/limits: limits by the name of their row, such as "Max open files". A row without
// two numbers is left out.
func Parse(text string) map[string]Limit {
	all := map[string]Limit{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		for i := 1; i+1 < len(fields); i++ {
			soft, ok1 := number(fields[i])
			hard, ok2 := number(fields[i+1])
			if ok1 && ok2 {
				all[strings.Join(fields[:i], " ")] = Limit{soft, hard}
				break
			}
		}
	}
	return all
}

func number(text string) (uint64, bool) {
	if text == "unlimited" {
		return Unlimited, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}
