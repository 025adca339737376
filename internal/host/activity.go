package host

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Activity is what the machine as a whole did since it booted, and what it does now.
type Activity struct {
	Busy    time.Duration // of all CPUs together
	Idle    time.Duration // waiting for a disk counts as idle
	Blocked int           // tasks in state D
	Load    float64       // average over a minute
}

// tick is a hundredth of a second, what /proc counts in: USER_HZ is 100 on every Linux that matters (time(7)).
const tick = 10 * time.Millisecond

// Activity reads /proc/stat and /proc/loadavg.
func (h *Host) Activity() (Activity, error) {
	text, err := h.readFile("/proc/stat")
	if err != nil {
		return Activity{}, err
	}
	a, err := parseActivity(text)
	if err != nil {
		return Activity{}, err
	}
	load, err := h.LoadAverage()
	if err != nil {
		return Activity{}, err
	}
	first, _, _ := strings.Cut(load, " ")
	if a.Load, err = strconv.ParseFloat(first, 64); err != nil {
		return Activity{}, fmt.Errorf("read load average %q: %w", load, err)
	}
	return a, nil
}

// parseActivity reads the first line of /proc/stat and the number of blocked tasks. Time as a guest is in user time too,
// so the fields behind steal do not count.
func parseActivity(text []byte) (Activity, error) {
	var a Activity
	seen := false
	err := lines("/proc/stat", text, func(line string) error {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 5 && fields[0] == "cpu":
			seen = true
			for i, f := range fields[1:min(len(fields), 9)] {
				n, err := strconv.ParseInt(f, 10, 64)
				if err != nil || n < 0 {
					return fmt.Errorf("%q is not a count", f)
				}
				if i == 3 || i == 4 { // idle, iowait
					a.Idle += time.Duration(n) * tick
				} else {
					a.Busy += time.Duration(n) * tick
				}
			}
		case len(fields) == 2 && fields[0] == "procs_blocked":
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				return fmt.Errorf("%q is not a count", fields[1])
			}
			a.Blocked = n
		}
		return nil
	})
	if err == nil && !seen {
		err = errors.New("parse /proc/stat: it has no line for all CPUs")
	}
	return a, err
}

// ProcessUse is what one process has used since it started.
type ProcessUse struct {
	CPU      time.Duration
	Resident int64 // bytes
	Read     int64 // bytes that came from devices
	Written  int64 // bytes that went to devices, or will
}

// Use reads what a process used: its own CPU time and that of its threads, not of its children. Errors: ErrExited.
func (h *Host) Use(pid int) (ProcessUse, error) {
	dir, err := h.openProc(pid)
	if err != nil {
		return ProcessUse{}, err
	}
	defer dir.close()
	stat, err := dir.read(nil, "stat", maxPseudoFile)
	if err != nil {
		return ProcessUse{}, dir.failed(err)
	}
	io, err := dir.read(nil, "io", maxPseudoFile)
	if err != nil {
		return ProcessUse{}, dir.failed(err)
	}
	page, err := h.pageSize()
	if err != nil {
		return ProcessUse{}, err
	}
	u, err := parseUse(stat, io, page)
	if err != nil {
		return ProcessUse{}, dir.failed(err)
	}
	return u, nil
}

// parseUse reads fields 14, 15 and 24 of stat and two lines of io (proc(5)).
func parseUse(stat, io []byte, page int64) (ProcessUse, error) {
	var u ProcessUse
	closing := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[closing+1:])) // the first is field 3
	const user, system, resident = 14 - 3, 15 - 3, 24 - 3
	if closing < 0 || len(fields) <= resident {
		return u, fmt.Errorf("parse stat: %d fields behind the name", len(fields))
	}
	for _, i := range []int{user, system, resident} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil || n < 0 {
			return u, fmt.Errorf("parse stat: field %d: %q is not a count", i+3, fields[i])
		}
		if i == resident {
			u.Resident = n * page
		} else {
			u.CPU += time.Duration(n) * tick
		}
	}
	err := lines("io", io, func(line string) error {
		name, value, _ := strings.Cut(line, ": ")
		into := map[string]*int64{"read_bytes": &u.Read, "write_bytes": &u.Written}[name]
		if into == nil {
			return nil
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if *into = n; err != nil || n < 0 {
			return fmt.Errorf("%s: %q is not a count", name, value)
		}
		return nil
	})
	return u, err
}
