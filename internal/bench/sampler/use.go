package sampler

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// processUse is what one process has used since it started.
type processUse struct {
	CPU      time.Duration
	Resident int64 // bytes
	Read     int64 // bytes that came from devices
	Written  int64 // bytes that went to devices, or will
	Blocked  int   // threads in state D
}

// useOf reads what a process used: its own CPU time and that of its threads, not of its children.
// Errors: procfs.ErrExited.
func useOf(h procfs.FS, pid int) (processUse, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return processUse{}, err
	}
	defer dir.Close()
	stat, err := dir.Read(nil, "stat", sysroot.MaxPseudoFile)
	if err != nil {
		return processUse{}, dir.Failed(err)
	}
	io, err := dir.Read(nil, "io", sysroot.MaxPseudoFile)
	if err != nil {
		return processUse{}, dir.Failed(err)
	}
	page, err := h.PageSize()
	if err != nil {
		return processUse{}, err
	}
	u, err := parseUse(stat, io, page)
	if err != nil {
		return processUse{}, dir.Failed(err)
	}
	tasks, err := h.Tasks(pid)
	for _, task := range tasks {
		if task.State == 'D' {
			u.Blocked++
		}
	}
	return u, err
}

// parseUse reads fields 14, 15 and 24 of stat and two lines of io (proc(5)).
func parseUse(stat, io []byte, page int64) (processUse, error) {
	var u processUse
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
			u.CPU += time.Duration(n) * procfs.Tick
		}
	}
	err := sysroot.Lines("io", io, func(line string) error {
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
