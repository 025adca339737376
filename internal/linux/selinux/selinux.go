// Package selinux reads what a host tells of SELinux: whether the kernel has it and what it enforces (/sys/fs/selinux,
// https://docs.kernel.org/admin-guide/LSM/SELinux.html), the policy that is loaded, labels of files (the extended
// attribute security.selinux) and where libselinux has its files (/etc/selinux/config, selinux_config(5)). It writes
// nothing. A Host may be used at once by many.
package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/sysroot"
)

const kernel = "/sys/fs/selinux"

// Host is a host.
type Host struct {
	Root *sysroot.FS
	// Labels reads the context of a file, whose links were followed but for the last; nil is the extended attribute.
	Labels func(file string) (string, error)
}

// Loaded says whether the kernel has SELinux with a policy.
func (h Host) Loaded() bool { return h.Root.Exists(kernel + "/policy") }

// Enforcing says whether the kernel enforces the policy, or only logs.
func (h Host) Enforcing() (bool, error) {
	n, err := h.Root.ReadInt(kernel + "/enforce")
	return n == 1, err
}

// Policy is the policy that is loaded, in the format of the kernel.
func (h Host) Policy() ([]byte, error) { return h.Root.ReadFile(kernel + "/policy") }

// Store is the directory of the policy that the host is set up with; "" is none.
func (h Host) Store() (string, error) {
	kind, err := h.configured("SELINUXTYPE=")
	if err != nil || kind == "" || strings.ContainsAny(kind, "/.") {
		return "", err
	}
	return "/etc/selinux/" + kind, nil
}

// configured is the last value of a name in selinux_config(5); "" is none.
func (h Host) configured(name string) (value string, err error) {
	text, err := h.Root.ReadOptional("/etc/selinux/config")
	for line := range strings.Lines(text) {
		if v, found := strings.CutPrefix(strings.TrimSpace(line), name); found {
			value = strings.TrimSpace(v)
		}
	}
	return value, err
}

// Kept is the directory in which libsemanage keeps what the policy of a store is made of, with the directory "active"
// below it: below /var/lib/selinux since libsemanage 2.4, in RHEL 7 below /etc/selinux. The error matches
// fs.ErrNotExist where there is none, and may match fs.ErrPermission.
func (h Host) Kept(store string) (string, error) {
	for _, dir := range []string{path.Join("/var/lib/selinux", path.Base(store)), store} {
		if _, err := h.Root.Lstat(dir + "/active"); !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
	}
	return "", fmt.Errorf("what %s is made of: %w", store, fs.ErrNotExist)
}

// FileContexts are the texts that say which label a path has, in the order in which libselinux reads them; one that
// is not there is "".
type FileContexts struct{ Base, Homes, Local, Subs, SubsDist string }

// FileContexts reads them from a store.
func (h Host) FileContexts(store string) (f FileContexts, err error) {
	for name, to := range map[string]*string{"": &f.Base, ".homedirs": &f.Homes, ".local": &f.Local, ".subs": &f.Subs,
		".subs_dist": &f.SubsDist} {
		file := store + "/contexts/files/file_contexts" + name
		text, one := h.Root.ReadFile(file)
		if one != nil && !errors.Is(one, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("read %q: %w", file, sysroot.Cause(one)))
		}
		*to = string(text)
	}
	return f, err
}

// ErrNoLabel is of a file that has no label, or of a host that is only captured.
var ErrNoLabel = errors.New("it has no label")

// Label is the context of a file; a symbolic link's is its own.
func (h Host) Label(file string) (string, error) {
	if h.Labels != nil {
		return h.Labels(file)
	}
	if !h.Root.Live() {
		return "", ErrNoLabel
	}
	buf := make([]byte, 4096)
	n, err := unix.Lgetxattr(path.Clean(file), "security.selinux", buf)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return "", ErrNoLabel
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}
