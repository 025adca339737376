// Package loaded asks a host what its policy says, for package verdict: the policy that the kernel has loaded, the file
// contexts of its store, and labels of files. What a host does not have, or does not let us read, is said in words and
// stays unanswered. A Host is for one goroutine.
package loaded

import (
	"errors"
	"fmt"
	"io/fs"

	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/filecon"
	"bulkhead/internal/selinux/policydb"
	"bulkhead/internal/selinux/verdict"
)

// States of a host beside "permissive", and "not told" where it cannot be read.
const (
	Enforcing = "enforcing"
	NoPolicy  = "none" // the kernel has loaded none
)

// Host is what was found of a host.
type Host struct {
	Ask verdict.Host
	// State is of the kernel.
	State string
	// Policy says which policy is asked; "" is none.
	Policy string
	// Missing says what cannot be asked, and why.
	Missing []string
}

// None is a host that is not asked, as a log is of another one.
func None() Host {
	return Host{State: "not asked", Missing: []string{"the policy: the log is of another host"}}
}

// Of looks at a host.
func Of(root *sysroot.FS) Host {
	from := selinux.Host{Root: root}
	h := Host{State: NoPolicy}
	if !from.Loaded() {
		h.Missing = append(h.Missing, "the policy: this kernel has loaded none of SELinux")
	} else {
		h.State = "permissive"
		switch on, err := from.Enforcing(); {
		case err != nil:
			h.State = "not told"
		case on:
			h.State = Enforcing
		}
		h.policy(from)
	}
	h.files(from)
	return h
}

func (h *Host) policy(from selinux.Host) {
	data, err := from.Policy()
	if errors.Is(err, fs.ErrPermission) {
		h.Missing = append(h.Missing, "the policy: only root may read it; run it with sudo")
		return
	}
	p, err := decode(data, err)
	if err != nil {
		h.Missing = append(h.Missing, fmt.Sprintf("the policy: it cannot be read: %v", err))
		return
	}
	h.Policy = fmt.Sprintf("the loaded policy, version %d", p.Version)
	h.Ask.Policy, h.Ask.Starts = p, p
}

func decode(data []byte, err error) (*policydb.Policy, error) {
	if err != nil {
		return nil, sysroot.Cause(err)
	}
	return policydb.Decode(data)
}

func (h *Host) files(from selinux.Host) {
	store, err := from.Store()
	if err == nil && store == "" {
		h.Missing = append(h.Missing, "labels of paths: there is no policy store (/etc/selinux/config)")
		return
	}
	var texts selinux.FileContexts
	if err == nil {
		texts, err = from.FileContexts(store)
	}
	if err == nil && texts.Base == "" {
		err = fmt.Errorf("%s/contexts/files/file_contexts is not there", store)
	}
	if err != nil {
		h.Missing = append(h.Missing, fmt.Sprintf("labels of paths: %v", err))
		return
	}
	h.Ask.Files = &files{from: from,
		table: filecon.Parse(texts.Base, texts.Homes, texts.Local, texts.Subs, texts.SubsDist)}
}

// files are those of a host.
type files struct {
	from  selinux.Host
	table *filecon.Table
}

// Expected is what the file contexts say.
func (f *files) Expected(path, class string) (string, bool) {
	text, _ := f.table.Context(path, class)
	c, ok := avc.ParseContext(text)
	return c.Type, ok
}

// Actual is what the extended attribute says.
func (f *files) Actual(path string) (string, bool) {
	text, err := f.from.Label(path)
	if err != nil {
		return "", false
	}
	c, ok := avc.ParseContext(text)
	return c.Type, ok
}

// longest is how much of a script is read.
const longest = 1 << 20

// Read gives the beginning of a regular file.
func (f *files) Read(path string) ([]byte, error) {
	real, err := f.from.Root.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	info, err := f.from.Root.Lstat(real)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is no regular file", path)
	}
	return f.from.Root.ReadSome(real, longest)
}
