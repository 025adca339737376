package bpfcount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Why is a reason for which nothing can be counted, in a word for labels.
type Why string

// The reasons.
const (
	NoBTF       Why = "no BTF"
	NotAllowed  Why = "not allowed"
	Lockdown    Why = "lockdown"
	OldKernel   Why = "old kernel"
	OtherReason Why = "refused"
)

// MissingError says why this kernel, or this process, cannot count.
type MissingError struct {
	Why   Why
	Cause error
}

// The words for people, by reason.
var reasons = map[Why]string{
	NoBTF:       "the kernel has no BTF (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF)",
	NotAllowed:  "it takes CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN, and the call bpf(2)",
	Lockdown:    "the kernel is locked down (/sys/kernel/security/lockdown)",
	OldKernel:   "the kernel is too old, or lacks a tracepoint; it takes 5.5",
	OtherReason: "the kernel refused the programs",
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("BPF programs cannot count: %s: %v", reasons[e.Why], e.Cause)
}

// Unwrap gives the cause.
func (e *MissingError) Unwrap() error { return e.Cause }

// Reason is the reason in words, without what the kernel said.
func (w Why) Reason() string { return reasons[w] }

const (
	btfFile      = "/sys/kernel/btf/vmlinux"
	lockdownFile = "/sys/kernel/security/lockdown"
)

// missing finds out why.
func missing(err error) error {
	if err == nil {
		return nil
	}
	_, noBTF := os.Stat(btfFile)
	lockdown, _ := os.ReadFile(lockdownFile) // where it cannot be read, it is not the reason
	return &MissingError{Why: why(err, noBTF != nil, string(lockdown)), Cause: err}
}

// why is the reason of an error, on a kernel without BTF or not, and with this in its file of lockdown.
func why(err error, noBTF bool, lockdown string) Why {
	var refused *ebpf.VerifierError
	switch denied := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES); {
	case denied && strings.Contains(lockdown, "[confidentiality]"):
		return Lockdown
	case denied && !errors.As(err, &refused):
		return NotAllowed
	case noBTF:
		return NoBTF
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOSYS):
		return OldKernel
	}
	return OtherReason
}

// ErrNoController says that a directory of cgroup v2 has not the controller that is asked for: the kernel takes its
// threads, and what they ask of disks, as those of the nearest directory above it that has one, and the programs see
// them there.
var ErrNoController = errors.New("it has not the controller")

// Directory is the number of a directory of the cgroup file system, as Watch takes it. Errors: ErrNoController.
func Directory(path string) (uint64, error) { return directory(path, "cpu.weight") }

// Owner is the same for WatchDisks.
func Owner(path string) (uint64, error) { return directory(path, "io.stat") }

// directory is the number of a directory that has, on v2, a file of the controller.
func directory(path, of string) (uint64, error) {
	var st, file unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("stat %q: %w", path, err)
	}
	events, has := unix.Stat(path+"/cgroup.events", &file), unix.Stat(path+"/"+of, &file)
	if events == nil && has != nil { // v1 has none of both, nor has the root of v2, which has all controllers
		return 0, fmt.Errorf("%q: %w", path, ErrNoController)
	}
	return st.Ino, nil
}

// CountCost has the kernel count what all its BPF programs take, until it is closed. That costs some 20 ns for each run
// of a program. Linux 5.8.
func CountCost() (io.Closer, error) {
	c, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fmt.Errorf("count what BPF programs take: %w", err)
	}
	return c, nil
}
