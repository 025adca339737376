// Package procfs reads processes from /proc (proc(5), Documentation/filesystems/proc.rst): who they are, what they run,
// which groups they are in, what they have open and what they use.
//
// FS is a value over a root directory and safe for concurrent use. A Scanner and a LazyReader look again and again
// and keep buffers: each belongs to one goroutine. A process is named by pid and start time (ID), as pids are reused;
// what is asked about one that is gone gives ErrExited. Reading and parsing are apart: parsers take text and are
// fuzzed, and what a later kernel adds to a file is passed over.
package procfs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// FS reads /proc.
type FS struct{ Root *sysroot.FS }

// New reads the /proc below root.
func New(root *sysroot.FS) FS { return FS{root} }

// Errors that callers branch on; the errors returned wrap them.
var (
	// ErrExited says that a process is gone, or that its pid belongs to another one now.
	ErrExited = change.Gone("process has exited")
	// ErrHidden says that /proc is mounted with hidepid and that this process may not see all others.
	ErrHidden = errors.New("processes of other users are hidden (/proc is mounted with hidepid)")
)

// capSysPtrace is the number of CAP_SYS_PTRACE, which sees through hidepid.
const capSysPtrace = 19

// hidden returns an error that matches ErrHidden when this process does not see all others. A reader
// in the group of the gid= option sees all too; that is not looked at, because such a reader still
// lacks what is needed to govern anything.
func (h FS) hidden() error {
	mounts, err := mountinfo.Read(h.Root)
	if err != nil {
		return fmt.Errorf("find how /proc is mounted: %w", err)
	}
	proc, found := mounts.Of("/proc")
	if !found || proc.Type != "proc" || !hidesProcesses(proc.Super) {
		return nil
	}
	self, err := h.SelfStatus()
	if err != nil {
		return fmt.Errorf("find own capabilities: %w", err)
	}
	if self.CapEffective>>capSysPtrace&1 == 1 {
		return nil
	}
	return ErrHidden
}

// hidesProcesses knows the values of hidepid= (proc(5)), which have names since kernel 5.8. 1
// (noaccess) leaves the directories in sight but not their files.
func hidesProcesses(options []string) bool {
	for _, option := range options {
		if value, found := strings.CutPrefix(option, "hidepid="); found {
			return value != "0" && value != "off"
		}
	}
	return false
}

// PageSize takes the page size from the first mapping of this process in smaps, so that a captured
// host has its own: getpagesize(2) would answer for the reader. The first mapping is the program's.
func (h FS) PageSize() (int64, error) {
	const firstMapping = 2048
	text, err := h.Root.ReadSome("/proc/self/smaps", firstMapping)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if size, found := strings.CutPrefix(line, "KernelPageSize:"); found {
			return ParseAmount(size)
		}
	}
	return 0, errors.New("parse /proc/self/smaps: no KernelPageSize")
}

// SelfStatus reads /proc/self/status.
func (h FS) SelfStatus() (status, error) {
	text, err := h.Root.ReadFile("/proc/self/status")
	if err != nil {
		return status{}, err
	}
	return parseStatus(text)
}

// SelfExe is the program that runs now, also when its file was replaced since.
const SelfExe = "/proc/self/exe"

// DescriptorPath opens, for others too, the file that a process has open under a number, also one without a name.
func DescriptorPath(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

// ParseAmount reads "  24684092 kB" (1024 bytes each) or a bare number.
func ParseAmount(text string) (int64, error) {
	digits, kilo := strings.CutSuffix(strings.TrimSpace(text), " kB")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || kilo && n > 1<<52 {
		return 0, fmt.Errorf("%q is not an amount of memory", strings.TrimSpace(text))
	}
	if kilo {
		n *= 1024
	}
	return n, nil
}
