package cgroup

import (
	"errors"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Kept reads files of the same directories again and again and keeps them open in between, up to a number of files:
// opening and closing them is more than half of what a small file costs. A file that is open keeps nobody from removing
// its directory. It is for one goroutine at a time.
type Kept struct {
	most int
	tree *Tree
	open *openFiles
}

// openFiles are by directory and name.
type openFiles struct {
	dirs  map[Dir]*keptDir
	count int
}

// keptDir is the files of a directory that are open.
type keptDir struct {
	fds  map[string]int
	used bool // since Begin
}

// NewKept makes one that keeps so many files open at most. What it keeps is closed with it.
func NewKept(most int) *Kept {
	k := &Kept{most: most, open: &openFiles{dirs: map[Dir]*keptDir{}}}
	runtime.AddCleanup(k, (*openFiles).closeAll, k.open)
	return k
}

// Begin begins a round of reads: what the round before did not read is closed.
func (k *Kept) Begin() {
	for d, kept := range k.open.dirs {
		if !kept.used {
			k.open.close(d)
		}
		kept.used = false
	}
}

// ReadMany does what that of the tree does.
func (k *Kept) ReadMany(t *Tree, d Dir, names []string) (map[string]string, error) {
	if k.tree != t {
		k.open.closeAll()
		k.tree = t
	}
	kept := k.open.dirs[d]
	if kept == nil || !kept.has(names) {
		k.open.close(d)
		kept = k.keep(d, names)
	}
	if kept == nil {
		return t.ReadMany(d, names)
	}
	kept.used = true
	values := make(map[string]string, len(names))
	for _, name := range names {
		fd, there := kept.fds[name]
		if !there {
			continue
		}
		text, err := readFrom(fd)
		if err != nil { // the directory is gone, or is another one of that name (ENODEV)
			k.open.close(d)
			return t.ReadMany(d, names)
		}
		values[name] = strings.TrimSpace(string(text))
	}
	return values, nil
}

// has says whether all of these files are open.
func (d *keptDir) has(names []string) bool {
	for _, name := range names {
		if _, open := d.fds[name]; !open {
			return false
		}
	}
	return true
}

// keep opens those of the files that are there; nil when none is, or when they cannot be kept.
func (k *Kept) keep(d Dir, names []string) *keptDir {
	if k.open.count+len(names) > k.most {
		return nil
	}
	opened, err := k.tree.open("read", d)
	if err != nil {
		return nil
	}
	defer opened.Close()
	dir, real := opened.(*openDir)
	if !real || dir.fixture { // whose files are replaced
		return nil
	}
	kept := &keptDir{fds: make(map[string]int, len(names))}
	k.open.dirs[d] = kept
	for _, name := range names {
		if _, twice := kept.fds[name]; twice {
			continue
		}
		fd, err := -1, error(unix.EINVAL)
		if plainName(name) {
			fd, err = dir.openat(name, unix.O_RDONLY)
		}
		switch {
		case err == nil:
			kept.fds[name] = fd
			k.open.count++
		case errors.Is(err, unix.ENOENT):
		default:
			k.open.close(d)
			return nil
		}
	}
	if len(kept.fds) == 0 {
		k.open.close(d)
		return nil
	}
	return kept
}

// close closes the files of a directory.
func (o *openFiles) close(d Dir) {
	kept := o.dirs[d]
	if kept == nil {
		return
	}
	for _, fd := range kept.fds {
		_ = unix.Close(fd) // nothing was written
		o.count--
	}
	delete(o.dirs, d)
}

func (o *openFiles) closeAll() {
	for d := range o.dirs {
		o.close(d)
	}
}
