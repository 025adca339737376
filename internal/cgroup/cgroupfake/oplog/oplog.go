// Package oplog counts what is done to a model of the cgroup file systems, and has tests come between. It is safe for
// concurrent use.
package oplog

import (
	"path"
	"slices"
	"strings"
	"sync"
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

// Log counts operations. The zero value is an empty one.
type Log struct {
	mu        sync.Mutex
	changes   []Operation
	intercept func(Operation) error
}

// Changes gives every change tried so far, in order, failed ones too.
func (l *Log) Changes() []Operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

// Intercept has f called before every operation. An error of f is the operation's; f may itself
// change the model, for instance with Vanish, but not call Intercept. nil takes it away.
func (l *Log) Intercept(f func(Operation) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.intercept = f
}

// FailNth fails the n-th change from now on, once.
func (l *Log) FailNth(n int, err syscall.Errno) {
	at := len(l.Changes()) + n
	l.Intercept(func(o Operation) error {
		if o.N == at {
			return err
		}
		return nil
	})
}

// FailMatch fails every operation op ("" is any) on a file or directory that matches the pattern of
// path.Match: "cpu:/a/*" is every file of the group a and every group below it in the cpu hierarchy.
func (l *Log) FailMatch(op, pattern string, err syscall.Errno) {
	l.Intercept(func(o Operation) error {
		if op != "" && o.Op != op {
			return nil
		}
		if match, _ := path.Match(pattern, o.File.String()); match {
			return err
		}
		return nil
	})
}

// Before counts the operation and asks the interceptor, without holding the lock.
func (l *Log) Before(o Operation) error {
	l.mu.Lock()
	switch o.Op {
	case "write", "mkdir", "rmdir":
		o.N = len(l.changes) + 1
		l.changes = append(l.changes, o)
	}
	intercept := l.intercept
	l.mu.Unlock()
	if intercept == nil {
		return nil
	}
	return intercept(o)
}
