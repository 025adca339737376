package cgroupfake

import (
	"path"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup"
)

// Operation is one thing done to the model. Op is "open", "list" or "read", which change nothing and
// have N 0, or a change, "write", "mkdir" or "rmdir", counted from 1. File.Name is set for reads and writes.
type Operation struct {
	N     int
	Op    string
	File  cgroup.File
	Value string // of a write
}

// String gives "write cpu:/a/cpu.shares 512"; a trailing line break of the value is left out.
func (o Operation) String() string {
	s := o.Op + " " + o.File.String()
	if o.Op == "write" {
		s += " " + strings.TrimSuffix(o.Value, "\n")
	}
	return s
}

// Changes gives every change tried so far, in order, failed ones too.
func (k *Kernel) Changes() []Operation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.changes)
}

// Intercept has f called before every operation. An error of f is the operation's; f may itself
// change the model, for instance with Vanish, but not call Intercept. nil takes it away.
func (k *Kernel) Intercept(f func(Operation) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.intercept = f
}

// FailNth fails the n-th change from now on, once.
func (k *Kernel) FailNth(n int, err syscall.Errno) {
	at := len(k.Changes()) + n
	k.Intercept(func(o Operation) error {
		if o.N == at {
			return err
		}
		return nil
	})
}

// FailMatch fails every operation op ("" is any) on a file or directory that matches the pattern of
// path.Match: "cpu:/a/*" is every file of the group a and every group below it in the cpu hierarchy.
func (k *Kernel) FailMatch(op, pattern string, err syscall.Errno) {
	k.Intercept(func(o Operation) error {
		if op != "" && o.Op != op {
			return nil
		}
		if match, _ := path.Match(pattern, o.File.String()); match {
			return err
		}
		return nil
	})
}

// before counts the operation and asks the interceptor, without holding the lock.
func (k *Kernel) before(o Operation) error {
	k.mu.Lock()
	switch o.Op {
	case "write", "mkdir", "rmdir":
		o.N = len(k.changes) + 1
		k.changes = append(k.changes, o)
	}
	intercept := k.intercept
	k.mu.Unlock()
	if intercept == nil {
		return nil
	}
	return intercept(o)
}

// Vanish removes a directory with everything below it, as another administrator would: the processes
// inside go to the hierarchy's root first.
func (k *Kernel) Vanish(d cgroup.Dir) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(d)
	if g == nil || g.root() {
		return
	}
	var below []*group
	g.each(func(g *group) { below = append(below, g) })
	slices.Reverse(below)
	for _, g := range below {
		for _, t := range k.threadsIn(g) {
			t.groups[g.ID] = k.roots[g.ID]
		}
		k.drop(g)
	}
}

// Set puts text into a file past every rule: what a counter has counted, or what another writer left.
func (k *Kernel) Set(f cgroup.File, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(f.Dir)
	if g == nil {
		panic("cgroupfake: Set in a group that is not there: " + f.String())
	}
	if spec := k.file(g, f.Name); spec != nil && spec.read == nil {
		g.values[f.Name] = text
		return
	}
	g.counters[f.Name] = text
}
