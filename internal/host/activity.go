package host

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Activity is what the machine as a whole did since it booted, and what it does now.
type Activity struct {
	Busy    time.Duration // of all CPUs together
	Idle    time.Duration // waiting for a disk counts as idle
	Blocked int           // tasks in state D
	Load    float64       // average over a minute

	// Switches of CPUs from one thread to another, processes and threads that were made, and interrupts, since boot.
	Switches, Forks, Interrupts int64
}

// Activity reads /proc/stat and /proc/loadavg.
func (h *Host) Activity() (Activity, error) {
	a, err := h.Stat()
	if err == nil {
		a.Load, err = h.Load()
	}
	if err != nil {
		return Activity{}, err
	}
	return a, nil
}

// Stat reads /proc/stat alone: all but Load.
func (h *Host) Stat() (Activity, error) {
	text, err := h.Root.ReadFile("/proc/stat")
	if err != nil {
		return Activity{}, err
	}
	return parseActivity(text)
}

// Load is the load average over a minute (/proc/loadavg).
func (h *Host) Load() (float64, error) {
	text, err := h.LoadAverage()
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("read load average %q: %w", text, err)
	}
	return load, nil
}

// parseActivity reads the first line of /proc/stat and the number of blocked tasks. Time as a guest is in user time
// too, so the fields behind steal do not count.
func parseActivity(text []byte) (Activity, error) {
	var a Activity
	var blocked int64
	counts := map[string]*int64{"procs_blocked": &blocked, "ctxt": &a.Switches, "processes": &a.Forks,
		"intr": &a.Interrupts}
	seen := false
	err := sysroot.Lines("/proc/stat", text, func(line string) error {
		name, rest, _ := strings.Cut(line, " ")
		if name != "cpu" && counts[name] == nil {
			return nil
		}
		if name == "intr" { // it has a number for each interrupt of the machine
			rest, _, _ = strings.Cut(rest, " ")
		}
		fields := append([]string{name}, strings.Fields(rest)...)
		switch {
		case len(fields) >= 5 && name == "cpu":
			seen = true
			for i, f := range fields[1:min(len(fields), 9)] {
				n, err := strconv.ParseInt(f, 10, 64)
				if err != nil || n < 0 {
					return fmt.Errorf("%q is not a count", f)
				}
				if i == 3 || i == 4 { // idle, iowait
					a.Idle += time.Duration(n) * procfs.Tick
				} else {
					a.Busy += time.Duration(n) * procfs.Tick
				}
			}
		case len(fields) == 2 && name != "cpu":
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return fmt.Errorf("%q is not a count", fields[1])
			}
			*counts[name] = n
		}
		return nil
	})
	a.Blocked = int(blocked)
	if err == nil && !seen {
		err = errors.New("parse /proc/stat: it has no line for all CPUs")
	}
	return a, err
}

// BusyByCPU reads for how long each CPU was busy, by its number, from /proc/stat. Lines that are not understood are
// left out.
func (h *Host) BusyByCPU() (map[int]time.Duration, error) {
	text, err := h.Root.ReadFile("/proc/stat")
	all := map[int]time.Duration{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, " ")
		number, is := strings.CutPrefix(name, "cpu")
		id, err := strconv.Atoi(number)
		if !is || err != nil {
			continue
		}
		for i, f := range strings.Fields(rest) {
			if n, err := strconv.ParseInt(f, 10, 64); err == nil && i != 3 && i != 4 && i < 8 { // idle, iowait, guest
				all[id] += time.Duration(n) * procfs.Tick
			}
		}
	}
	return all, err
}

// Pressure gives the text of /proc/pressure for "cpu", "memory" or "io" (Documentation/accounting/psi.rst); "" where
// the kernel does not tell it.
func (h *Host) Pressure(resource string) string {
	text, err := h.Root.ReadText("/proc/pressure/" + resource)
	if err != nil {
		return "" // an older kernel, or one that was booted without
	}
	return text
}
