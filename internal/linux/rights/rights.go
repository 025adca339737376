// Package rights tries what this process may do, in a way that changes nothing: what the sandbox of a service of
// systemd forbids it cannot be read anywhere. Nothing is kept, so it is safe for concurrent use.
package rights

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Service is the name of systemd's service that this process runs in, "bulkhead.service"; "" where it is in none, or
// systemd is not PID 1.
func Service() string {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return ""
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	return serviceOf(string(text))
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

// Forbids says whether this process may not do what a setting of section [Service] allows, as
// "CapabilityBoundingSet=CAP_CHOWN" does. A setting that it does not know, and what the kernel does not have, is not
// forbidden.
func Forbids(setting string) bool {
	key, value, _ := strings.Cut(setting, "=")
	try := tries[key]
	return try != nil && slices.ContainsFunc(strings.Fields(value), try)
}

// Knows says whether each word of a setting can be tried.
func Knows(setting string) bool {
	key, value, _ := strings.Cut(setting, "=")
	for word := range strings.FieldsSeq(value) {
		_, capability := capabilities[word]
		if tries[key] == nil || key == "CapabilityBoundingSet" && !capability ||
			key == "SystemCallFilter" && calls[word] == (call{}) ||
			key == "RestrictAddressFamilies" && families[word] == 0 ||
			key == "RestrictNamespaces" && word != "net" || key == "DeviceAllow" && word != "block-*" && word != "r" {
			return false
		}
	}
	return value != ""
}

// tries say, by key of the setting, whether a word of its value is forbidden.
var tries = map[string]func(word string) bool{
	"CapabilityBoundingSet":   lacksCapability,
	"SystemCallFilter":        filtered,
	"RestrictAddressFamilies": noSocket,
	"RestrictNamespaces":      noNamespace,
	"RestrictRealtime":        noRealtime,
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

// call is one with arguments for which the kernel itself does nothing and gives another error than EPERM, which is the
// filter's.
type call struct{ number, a, b uintptr }

const (
	nowhere   = ^uintptr(0)
	schedFIFO = 1 // SCHED_FIFO
)

// calls are one of each set: the unit's filter has all of a set or none.
var calls = map[string]call{"@chown": {unix.SYS_FCHOWN, nowhere, 0}, "@mount": {unix.SYS_UMOUNT2, 1, nowhere},
	"bpf": {unix.SYS_BPF, nowhere, 0}}

func (c call) refused() bool {
	_, _, errno := unix.RawSyscall(c.number, c.a, c.b, 0)
	return errno == unix.EPERM
}

func filtered(set string) bool {
	c, known := calls[set]
	return known && c.refused()
}

// families of sockets.
var families = map[string]int{"AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6}

func noSocket(family string) bool {
	number := families[family]
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

func noRealtime(string) bool { return call{unix.SYS_SCHED_SETSCHEDULER, nowhere, schedFIFO}.refused() }

// noNamespace asks for a namespace together with something that unshare(2) takes from nobody.
func noNamespace(kind string) bool {
	return kind == "net" && call{unix.SYS_UNSHARE, unix.CLONE_NEWNET | unix.CLONE_VFORK, 0}.refused()
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
		node := "/dev/" + strings.ReplaceAll(name, "!", "/")
		fd, err := unix.Open(node, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
