// Package ctxswitch counts context switches: of the machine, of each CPU, of threads that live, and of threads that
// end.
//
//	Total    ctxt of /proc/stat (proc_stat(5)): each switch of each CPU, those to and from its idle thread included
//	CPUs     the kernel's software event context-switches of each CPU (perf_event_open(2)): the same, by CPU
//	Threads  voluntary_ctxt_switches and nonvoluntary_ctxt_switches of
//	         /proc/PID/task/TID/status: those away from a thread
//	Exits    nvcsw and nivcsw of each thread when it ends (taskstats, Documentation/accounting/taskstats.rst)
//
// The status of a process, as that of its main thread, has the switches of this thread alone, and no file has those of
// threads that ended. A CPUs and an Exits belong to one goroutine; the functions keep nothing.
package ctxswitch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/sysroot"
)

// Count is a number of switches away from a thread.
type Count struct {
	Voluntary   uint64 `json:"voluntary"`   // it waited for something
	Involuntary uint64 `json:"involuntary"` // it wanted to go on, or yielded
}

// All is both.
func (c Count) All() uint64 { return c.Voluntary + c.Involuntary }

// Add is the sum of two.
func (c Count) Add(d Count) Count {
	return Count{c.Voluntary + d.Voluntary, c.Involuntary + d.Involuntary}
}

// Since is what came after an earlier count of the same thread; nothing where it went back, as for a reused number.
func (c Count) Since(d Count) Count {
	if c.Voluntary < d.Voluntary || c.Involuntary < d.Involuntary {
		return Count{}
	}
	return Count{c.Voluntary - d.Voluntary, c.Involuntary - d.Involuntary}
}

// Total is the number of switches of all CPUs since the machine started.
func Total(root *sysroot.FS) (uint64, error) {
	text, err := root.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "ctxt "); is {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("parse /proc/stat: ctxt: %w", err)
			}
			return n, nil
		}
	}
	return 0, errors.New("parse /proc/stat: it has no line ctxt")
}

// Threads reads the counts of the threads of a process that live, by thread. One that ends meanwhile is left out, and a
// zombie, which Exits has told of; a process that is gone has none.
func Threads(root *sysroot.FS, pid int) (map[int]Count, error) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	names, err := root.ReadDir(dir)
	if sysroot.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make(map[int]Count, len(names))
	for _, name := range names {
		tid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := root.ReadFile(dir + "/" + name + "/status")
		if sysroot.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c, ended, err := parseStatus(text)
		if err != nil {
			return nil, fmt.Errorf("parse %s/%s/status: %w", dir, name, err)
		}
		if !ended {
			all[tid] = c
		}
	}
	return all, nil
}

// parseStatus reads the counts of a thread, and whether it has ended.
func parseStatus(text []byte) (c Count, ended bool, err error) {
	seen := 0
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		var to *uint64
		switch string(name) {
		case "State":
			ended = bytes.HasPrefix(value, []byte("Z")) || bytes.HasPrefix(value, []byte("X"))
			continue
		case "voluntary_ctxt_switches":
			to = &c.Voluntary
		case "nonvoluntary_ctxt_switches":
			to = &c.Involuntary
		default:
			continue
		}
		if *to, err = strconv.ParseUint(string(value), 10, 64); err != nil {
			return Count{}, false, err
		}
		seen++
	}
	if seen < 2 {
		return Count{}, false, errors.New("it has no counts of context switches")
	}
	return c, ended, nil
}

// CPUs counts the switches of each CPU from its start on.
type CPUs struct {
	fds map[int]int
}

// CountCPUs starts to count on CPUs. It takes CAP_PERFMON or CAP_SYS_ADMIN, or kernel.perf_event_paranoid below 1.
func CountCPUs(cpus []int) (*CPUs, error) {
	c := &CPUs{fds: map[int]int{}}
	for _, cpu := range cpus {
		attr := &unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: unix.PERF_ATTR_SIZE_VER0,
			Config: unix.PERF_COUNT_SW_CONTEXT_SWITCHES}
		fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("count context switches of CPU %d (perf_event_open): %w", cpu, err)
		}
		c.fds[cpu] = fd
	}
	return c, nil
}

// Read gives how often each CPU switched since its start.
func (c *CPUs) Read() (map[int]uint64, error) {
	all := map[int]uint64{}
	for cpu, fd := range c.fds {
		var buf [8]byte
		if n, err := unix.Read(fd, buf[:]); err != nil || n != len(buf) {
			return nil, fmt.Errorf("read context switches of CPU %d: %d bytes: %w", cpu, n, err)
		}
		all[cpu] = binary.NativeEndian.Uint64(buf[:])
	}
	return all, nil
}

// Close ends the counting.
func (c *CPUs) Close() {
	for _, fd := range c.fds {
		_ = unix.Close(fd) // nothing was written
	}
}
