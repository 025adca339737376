package cgroup

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
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

// keptDir is the files of a directory that are open, and what they told the last time.
type keptDir struct {
	fds   map[string]int
	texts map[string]string
	used  bool // since Begin
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

// ReadMany does what that of the tree does. Same says that nothing is new since the last time: then nothing was made
// anew either. What it gives is not to be changed, and holds until the next call for the directory.
func (k *Kept) ReadMany(t *Tree, d Dir, names []string) (values map[string]string, same bool, err error) {
	if k.tree != t {
		k.open.closeAll()
		k.tree = t
	}
	kept := k.keep(d, names)
	if kept == nil {
		values, err = t.ReadMany(d, names)
		return values, false, err
	}
	kept.used, same = true, true
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for _, name := range names {
		fd, there := kept.fds[name]
		if !there {
			continue
		}
		text, err := readFrom(fd, name, *buf)
		if err != nil { // the directory is gone, or is another one of that name (ENODEV)
			k.open.close(d)
			values, err = t.ReadMany(d, names)
			return values, false, err
		}
		text = bytes.TrimSpace(text)
		if before, known := kept.texts[name]; !known || before != string(text) {
			kept.texts[name], same = string(text), false
		}
	}
	return kept.texts, same, nil
}

// missing are those of the files that are not open.
func (d *keptDir) missing(names []string) (all []string) {
	for _, name := range names {
		if _, open := d.fds[name]; !open {
			all = append(all, name)
		}
	}
	return all
}

// others says whether other files than these are open, too.
func (d *keptDir) others(names []string) bool {
	for name := range d.fds {
		if !slices.Contains(names, name) {
			return true
		}
	}
	return false
}

// keep has those of the files open that are there, and no others; nil when none is, or when they cannot be kept.
func (k *Kept) keep(d Dir, names []string) *keptDir {
	kept := k.open.dirs[d]
	if kept != nil && kept.others(names) {
		k.open.close(d)
		kept = nil
	}
	if kept == nil {
		kept = &keptDir{fds: make(map[string]int, len(names)), texts: make(map[string]string, len(names))}
	}
	missing := kept.missing(names)
	if len(missing) == 0 {
		return kept
	}
	if k.open.count+len(missing) > k.most {
		k.open.close(d)
		return nil
	}
	opened, err := k.tree.open("read", d)
	if err != nil {
		k.open.close(d)
		return nil
	}
	defer opened.Close()
	dir, real := opened.(*openDir)
	if !real || dir.fixture { // whose files are replaced
		return nil
	}
	k.open.dirs[d] = kept
	for _, name := range missing {
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

// MayHave says whether directories of d's hierarchy may have a file of this name: those of its controllers
// ("memory.stat"), and what begins with "cgroup."; on v2 cpu.stat and files of PSI need no controller.
func MayHave(t *Tree, d Dir, name string) bool {
	m := t.mounts[d.Hierarchy]
	return m == nil || len(m.Controllers) == 0 || m.Version == 2 && name == "cpu.stat" ||
		MayHaveWith(m.Controllers, name)
}

// MayHaveWith says whether a directory with these controllers, by their v1 names, may have a file of this name. It does
// not know cpu.stat of v2.
func MayHaveWith(controllers []string, name string) bool {
	controller, _, ofOne := strings.Cut(name, ".")
	if controller == "io" {
		controller = "blkio" // as v1 names it
	}
	return !ofOne || controller == "cgroup" || strings.HasSuffix(name, ".pressure") ||
		slices.Contains(controllers, controller)
}
