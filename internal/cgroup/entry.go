package cgroup

import (
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// maxEntries bounds how many directories are kept open, and entryLife for how long one is used: a directory of v1
	// may get another name, and an open one does not tell.
	maxEntries = 256
	entryLife  = 5 * time.Second

	procsFile = "cgroup.procs"
	// The lists of threads of v1 and of v2.
	tasksFile, threadsFile = "tasks", "cgroup.threads"
)

// entries are directories that processes were moved into, kept open for the next one: finding a directory costs more
// than the write. One that was removed meanwhile refuses, also when another one has its name.
type entries struct {
	mu   sync.Mutex // also held while a process is moved: the kernel moves one at a time
	open map[Dir]entry
}

type entry struct {
	Directory
	since time.Time
}

// writeEntry writes a number to cgroup.procs of a directory.
func (t *Tree) writeEntry(d Dir, pid int) error {
	e := &t.entries
	e.mu.Lock()
	defer e.mu.Unlock()
	f, data := d.File(procsFile), strconv.Itoa(pid)
	if kept, known := e.open[d]; known {
		if time.Since(kept.since) < entryLife {
			if err := t.writeIn(kept, f, data); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) {
				return err
			}
		}
		delete(e.open, d)
		_ = kept.Close() // nothing was written through it that Close could tell of
	}
	dir, err := t.open("write", d)
	if err != nil {
		return err
	}
	if err := t.writeIn(dir, f, data); err != nil {
		return errors.Join(err, dir.Close())
	}
	if len(e.open) >= maxEntries {
		e.drop()
	}
	if e.open == nil {
		e.open = map[Dir]entry{}
	}
	e.open[d] = entry{dir, time.Now()}
	return nil
}

// drop closes all. The caller holds mu.
func (e *entries) drop() {
	for _, kept := range e.open {
		_ = kept.Close()
	}
	clear(e.open)
}

// close closes all.
func (e *entries) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop()
}
