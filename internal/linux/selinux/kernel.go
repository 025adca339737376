package selinux

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Process is the context of a process. The error matches fs.ErrNotExist when it has ended.
func (h Host) Process(pid int) (string, error) {
	text, err := h.Root.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
	return strings.TrimRight(string(text), "\x00\n"), err
}

// Unknown says what the kernel does with classes and permissions that its policy does not know: "allow", "deny" or
// "reject" the policy.
func (h Host) Unknown() (string, error) {
	for _, file := range []struct{ name, does string }{{"reject_unknown", "reject"}, {"deny_unknown", "deny"}} {
		n, err := h.Root.ReadInt(kernel + "/" + file.name)
		if err != nil {
			return "", err
		}
		if n == 1 {
			return file.does, nil
		}
	}
	return "allow", nil
}

// Wanted is SELINUX= of the configuration: the mode after the next boot; "" where it is not said.
func (h Host) Wanted() (string, error) { return h.configured("SELINUX=") }

// Module is a module of the policy that is installed, with its priority: distributions install at 100, semodule(8)
// at 400 where nothing else is said. Of a name, the highest priority counts.
type Module struct {
	Priority int    `json:"priority"`
	Name     string `json:"name"`
	Disabled bool   `json:"disabled"`
}

// Modules are those of a store, sorted by priority and name. Only root may read them: the error matches
// fs.ErrPermission.
func (h Host) Modules(store string) ([]Module, error) {
	kept, err := h.Kept(store)
	if err != nil {
		return nil, err
	}
	dir := path.Join(kept, "active/modules")
	priorities, err := h.Root.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	off, err := h.Root.ReadDir(path.Join(dir, "disabled"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := []Module{}
	for _, p := range priorities {
		n, err := strconv.Atoi(p)
		if err != nil {
			continue
		}
		names, err := h.Root.ReadDir(path.Join(dir, p))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, Module{Priority: n, Name: name, Disabled: slices.Contains(off, name)})
		}
	}
	slices.SortFunc(all, func(a, b Module) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}
