package cgroup

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"bulkhead/internal/change"
)

// Errors that callers branch on; the errors returned wrap them with the path and the value.
var (
	ErrNoHierarchy = errors.New("no such hierarchy") // not mounted, or not a cgroup file system
	// The directory is there, the file is not: controller or kernel lacks it.
	ErrNoKnob   = errors.New("no such knob")
	ErrGone     = change.Gone("group is gone")      // the directory is not there
	ErrExists   = errors.New("group exists")        // EEXIST
	ErrBusy     = errors.New("busy")                // EBUSY
	ErrInvalid  = errors.New("refused by kernel")   // EINVAL, ERANGE, ENOSPC, ENODEV, and cpuset's EACCES
	ErrExited   = change.Gone("process has exited") // ESRCH on a move, or the pid was reused
	ErrRealtime = errors.New("real-time thread cannot enter this cpu group")
)

// Error is what the methods of Tree return. errors.Is finds both the kind and the kernel's errno.
type Error struct {
	Op    string // "read", "write", "make", "remove", "move process 4711 into", …
	Path  string // absolute on the host
	Value string // of a write; "" for everything else
	Kind  error  // one of the ErrXxx of this package, or nil
	Cause error  // the errno, or nil when the package itself refused
	Hint  string // what to do, or why the kernel does so; may be empty

	wrote bool // a write: Value is part of the text even when empty
}

// Error gives `write "/sys/fs/cgroup/cpu/a/cpu.shares" value "5": refused by kernel: invalid argument`.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q", e.Op, e.Path)
	if e.wrote {
		fmt.Fprintf(&b, " value %q", e.Value)
	}
	if e.Kind != nil {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, err := range []error{e.Kind, e.Cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Hint gives the hint of the first *Error in err's chain, "" when there is none.
func Hint(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// errno digs the kernel's answer out of err; 0 when there is none.
func errno(err error) syscall.Errno {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return 0
}

// kindOf maps an errno of a group that still exists to the error callers branch on.
// ENOENT is not here: what it means depends on what was opened.
func kindOf(no syscall.Errno) error {
	switch no {
	case syscall.EBUSY:
		return ErrBusy
	case syscall.EEXIST:
		return ErrExists
	case syscall.ESRCH:
		return ErrExited
	case syscall.EINVAL, syscall.ERANGE, syscall.ENOSPC, syscall.ENODEV, syscall.EOPNOTSUPP, syscall.EOVERFLOW,
		syscall.E2BIG:
		return ErrInvalid
	}
	return nil
}

// bare keeps the errno and drops the "openat …" of os.PathError: the path is said once, by Error.
func bare(err error) error {
	if no := errno(err); no != 0 {
		return no
	}
	return err
}

// writeHint says why the kernel refuses a write to a file of that name, as far as errno and file tell.
func writeHint(name string, no syscall.Errno, v1 bool) string {
	switch {
	case no == syscall.ENOENT && name == "cgroup.subtree_control":
		return "the controller is not handed down to this group: enable it in the parent first, or another hierarchy " +
			"holds it"
	case no == syscall.EROFS:
		return "the hierarchy is mounted read-only"
	case no == syscall.EPERM || no == syscall.EACCES && !isCPUSet(name):
		return "run as root"
	case no == syscall.ENODEV:
		return "give a whole disk that exists, as major:minor; the kernel limits no partition"
	case no == syscall.ENOSPC && isCPUSet(name):
		return "a cpuset that holds processes cannot be emptied; move them out first"
	case no == syscall.EACCES:
		return "on cgroup v1 a group's CPUs and nodes must lie within its parent's"
	case no == syscall.EBUSY:
		return busyHint(name, v1)
	case no == syscall.EINVAL || no == syscall.ERANGE:
		return invalidHint(name, v1)
	}
	return ""
}

func isCPUSet(name string) bool { return name == "cpuset.cpus" || name == "cpuset.mems" }

func busyHint(name string, v1 bool) string {
	switch {
	case name == "cgroup.subtree_control":
		return "processes sit in this group itself (cgroup v2 allows them in leaves only), or a child still uses the " +
			"controller"
	case isCPUSet(name):
		return "a child group still uses what would be taken away; narrow the children first"
	case strings.HasPrefix(name, "memory.") && v1:
		return "the group uses more than that and it could not be reclaimed"
	}
	return ""
}

func invalidHint(name string, v1 bool) string {
	switch name {
	case "memory.limit_in_bytes", "memory.memsw.limit_in_bytes":
		return "memory.memsw.limit_in_bytes must never be below memory.limit_in_bytes: raise memsw first, lower it last"
	case "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max":
		if v1 {
			return "a period is 1 ms to 1 s, a quota at least 1 ms and not below the burst; a child's quota/period " +
				"must not exceed its parent's"
		}
		return "a period is 1 ms to 1 s, a quota at least 1 ms and not below the burst"
	case "cpu.cfs_burst_us", "cpu.max.burst":
		return "a burst must not exceed the quota"
	case "cpu.shares", "cpu.weight", "cpu.weight.nice":
		return "weights cannot be written while cpu.idle is 1"
	case "cpu.rt_runtime_us":
		return "the sum of the children's real-time budgets must fit the parent's"
	case "cpuset.cpus", "cpuset.mems":
		return "give CPUs or nodes that exist and are online"
	}
	return ""
}
