package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"
)

// Place is where a file of a process lies.
type Place struct {
	Path string // as the process names it
	Real string // every symbolic link followed, inside the process's own root directory
	// Layer is the filesystem that holds the file, or the block device that it is.
	Layer *Layer
	// Elsewhere says that the process has mounts of its own, so that the path means something else to others.
	Elsewhere bool
}

// Place finds where a file of a process lies, by the mounts that this process sees; pid 0 is the caller. Errors match
// fs.ErrNotExist when the path leads nowhere and ErrExited when the process is gone.
func (s *Storage) Place(pid int, name string) (Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.place(pid, name)
	if err != nil {
		return Place{}, fmt.Errorf("find what %q lies on: %w", name, err)
	}
	return p, nil
}

func (s *Storage) place(pid int, name string) (Place, error) {
	if !path.IsAbs(name) {
		return Place{}, errors.New("it is not absolute")
	}
	table, err := s.table(pid)
	if err != nil {
		return Place{}, err
	}
	real, device, err := s.h.proc.EvalSymlinks(pid, name)
	if err != nil {
		return Place{}, err
	}
	p := Place{Path: name, Real: real, Elsewhere: table.foreign}
	if device == "" {
		device, _ = s.deviceNode(table, real)
	}
	if device != "" {
		p.Layer = s.device(device)
		return p, nil
	}
	m, found := table.of(real)
	if !found {
		return Place{}, errors.New("no mount holds it")
	}
	p.Layer = s.filesystem(m)
	return p, nil
}

// Open finds where a file lies that a process has open, by its path in /proc/PID/fd: no link is left in that, so
// nothing is looked up on any disk.
func (s *Storage) Open(pid int, name string) (Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := s.table(pid)
	if err != nil {
		return Place{}, fmt.Errorf("find what %q lies on: %w", name, err)
	}
	real := strings.TrimSuffix(name, " (deleted)")
	p := Place{Path: name, Real: real, Elsewhere: table.foreign}
	if device, is := s.deviceNode(table, real); is {
		p.Layer = s.device(device)
		return p, nil
	}
	m, found := table.of(real)
	if !found {
		return Place{}, fmt.Errorf("find what %q lies on: no mount holds it", name)
	}
	p.Layer = s.filesystem(m)
	return p, nil
}

// deviceNode tells a device by its path alone.
func (s *Storage) deviceNode(table *mountTable, real string) (number string, is bool) {
	if m, found := table.of(real); !found || m.Type != "devtmpfs" {
		return "", false
	}
	return s.numberOf(real)
}

// table is what a process sees mounted. Processes of one mount namespace and root directory share it.
func (s *Storage) table(pid int) (*mountTable, error) {
	if pid == 0 {
		return s.own, nil
	}
	dir, err := s.h.proc.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	key := ""
	for _, name := range []string{"ns/mnt", "root"} {
		link, err := dir.Link(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, dir.Failed(err)
		}
		key += link + "\n"
	}
	if t, known := s.tables[key]; known && strings.HasPrefix(key, "mnt:") {
		return t, nil
	}
	text, err := dir.Read(nil, "mountinfo", sysroot.MaxPseudoFile)
	if errors.Is(err, fs.ErrNotExist) && dir.Alive() {
		return s.own, nil // a captured host has it only where it differs
	}
	if err != nil {
		return nil, dir.Failed(err)
	}
	mounts, err := mountinfo.Parse(text)
	if err != nil {
		return nil, dir.Failed(err)
	}
	own, _ := s.h.root.Readlink("/proc/self/ns/mnt")
	t := newMountTable(mounts, !strings.HasPrefix(key, own+"\n/\n"))
	s.tables[key] = t
	return t, nil
}

func newMountTable(mounts mountinfo.Mounts, foreign bool) *mountTable {
	t := &mountTable{mounts: mounts, foreign: foreign, points: make(map[string]bool, len(mounts)),
		known: make(map[string]int)}
	for _, m := range mounts {
		t.points[m.Point] = true
	}
	return t
}

// of returns the mount that a clean absolute path lies on. Files of one directory are on one mount unless one is a
// mount point itself.
func (t *mountTable) of(name string) (mountinfo.Mount, bool) {
	if !t.points[name] {
		name = path.Dir(name)
	}
	at, known := t.known[name]
	if !known {
		at = -1
		if m, found := t.mounts.Of(name); found {
			for i := range t.mounts {
				if t.mounts[i].ID == m.ID {
					at = i
				}
			}
		}
		t.known[name] = at
	}
	if at < 0 {
		return mountinfo.Mount{}, false
	}
	return t.mounts[at], true
}
