// Package confined says what the sandbox of a running service forbids the process in it.
//
//	unit := confined.Own()                               // nil where systemd started no service for this process
//	forbidden := unit.Forbidden(sandbox.Settings(needs)) // "CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER"
//
// The process tries for itself what each setting allows, in a way that changes nothing, since neither a drop-in nor
// systemd's properties of the unit tell what a process had when it started. A Unit is safe for concurrent use.
package confined

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/plan"
	"bulkhead/internal/systemd/sandbox"
)

// Unit is the service that a process runs in.
type Unit struct {
	Name string // "bulkhead.service"
	// Forbids says whether the process may not do what a setting of section [Service] allows. A setting that it does
	// not know, and what the kernel does not have, is not forbidden.
	Forbids func(setting string) bool
}

// Own is the service that this process runs in; nil where it is in none, or systemd is not PID 1.
func Own() *Unit {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	if name := serviceOf(string(text)); name != "" {
		return &Unit{Name: name, Forbids: forbids}
	}
	return nil
}

// serviceOf finds the service in the text of /proc/PID/cgroup, in the hierarchy that systemd keeps its units in.
func serviceOf(text string) string {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[0] == "0" || f[1] == "name=systemd") && strings.HasSuffix(f[2], ".service") {
			return path.Base(f[2])
		}
	}
	return ""
}

// Forbidden are those of the settings that the process lacks. Of no service nothing is forbidden.
func (u *Unit) Forbidden(settings []string) (list []string) {
	if u == nil {
		return nil
	}
	for _, s := range settings {
		if u.Forbids(s) {
			list = append(list, s)
		}
	}
	return list
}

// Refusals are what a plan is refused for when a unit forbids its process some of the settings that are needed. File
// is the policy's, "" for the usual one; to is the revision that is gone back to, 0 for none.
func Refusals(unit string, forbidden []string, needs []sandbox.Need, file string, to int) (list []plan.Refusal) {
	for _, n := range needs {
		if slices.ContainsFunc(n.Allow, func(s string) bool { return slices.Contains(forbidden, s) }) {
			list = append(list, plan.Refusal{Reason: unit + " forbids the agent what `" + n.For + "` asks for: " + n.Because})
		}
	}
	if len(list) == 0 {
		return nil
	}
	write := "bulkhead unit --write"
	if file != "" {
		write = "bulkhead --policy " + file + " unit --write"
	}
	if to > 0 {
		write += " --to " + strconv.Itoa(to)
	}
	list[len(list)-1].Hint = "`" + write + " && systemctl daemon-reload && systemctl restart " +
		strings.TrimSuffix(unit, ".service") + "`, then the same again; limits stay in force meanwhile. With --force " +
		"the kernel refuses it"
	return list
}

// forbids tries it for this process.
func forbids(setting string) bool {
	key, value, _ := strings.Cut(setting, "=")
	try := tries[key]
	return try != nil && slices.ContainsFunc(strings.Fields(value), try)
}

// tries say, by key of the setting, whether a word of its value is forbidden.
var tries = map[string]func(word string) bool{
	"CapabilityBoundingSet":   lacksCapability,
	"SystemCallFilter":        filtered,
	"RestrictAddressFamilies": noSocket,
	"RestrictNamespaces":      noNamespace,
	"RestrictRealtime":        func(string) bool { return refused(unix.SYS_SCHED_SETSCHEDULER, ^uintptr(0), 1, 0) },
	"DeviceAllow":             noDisks,
	"ReadWritePaths":          readOnly,
}

// capabilities are those that a policy may need, by number (linux/capability.h).
var capabilities = map[string]uint{"CAP_CHOWN": unix.CAP_CHOWN, "CAP_FOWNER": unix.CAP_FOWNER,
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_BPF": unix.CAP_BPF}

// lacksCapability goes by the effective set, which for root is what the unit bounds.
func lacksCapability(name string) bool {
	number, known := capabilities[name]
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if top, bad := strconv.Atoi(strings.TrimSpace(string(last))); !known || err != nil || bad != nil ||
		number > uint(top) {
		return false
	}
	text, err := os.ReadFile("/proc/self/status")
	_, rest, found := strings.Cut(string(text), "\nCapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	set, bad := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err == nil && found && bad == nil && set&(1<<number) == 0
}

// refused says whether the filter of system calls refuses a call. With these arguments the kernel itself does nothing
// and gives another error than EPERM.
func refused(call, a, b, c uintptr) bool {
	_, _, errno := unix.RawSyscall(call, a, b, c)
	return errno == unix.EPERM
}

// filtered tries one call of a set: the unit's filter has all of a set or none.
func filtered(set string) bool {
	nowhere := ^uintptr(0)
	switch set {
	case "@chown":
		return refused(unix.SYS_FCHOWN, nowhere, 0, 0)
	case "@mount":
		return refused(unix.SYS_UMOUNT2, 1, nowhere, 0)
	case "bpf":
		return refused(unix.SYS_BPF, nowhere, 0, 0)
	}
	return false
}

func noSocket(family string) bool {
	number := map[string]int{"AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6}[family]
	if number == 0 {
		return false
	}
	// The kernel has the same error for a family that it was built or booted without.
	if _, err := os.Stat("/proc/net/if_inet6"); number == unix.AF_INET6 && err != nil {
		return false
	}
	fd, err := unix.Socket(number, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EAFNOSUPPORT)
}

// noNamespace asks for a namespace together with something that unshare(2) takes from nobody.
func noNamespace(kind string) bool {
	return kind == "net" && refused(unix.SYS_UNSHARE, unix.CLONE_NEWNET|unix.CLONE_VFORK, 0, 0)
}

// noDisks opens a disk for reading. Drives whose medium may be missing are not tried.
func noDisks(what string) bool {
	if what != "block-*" {
		return false
	}
	disks, _ := filepath.Glob("/sys/block/*")
	for _, disk := range disks {
		name := filepath.Base(disk)
		if strings.HasPrefix(name, "sr") || strings.HasPrefix(name, "fd") {
			continue
		}
		fd, err := unix.Open("/dev/"+strings.ReplaceAll(name, "!", "/"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
			return false
		} else if errors.Is(err, unix.EPERM) {
			return true
		}
	}
	return false
}

// readOnly says whether a path, with a "-" before it where it may be missing, is mounted read-only for this process.
func readOnly(file string) bool {
	return errors.Is(unix.Access(strings.TrimPrefix(file, "-"), unix.W_OK), unix.EROFS)
}
