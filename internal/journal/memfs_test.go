package journal

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"

	"bulkhead/internal/atomicfile"
)

// memFS is a file system in memory that can lose power and fail on purpose. What was not synced is
// lost with the power: content since the file's last Sync, names since the directory's.
type memFS struct {
	mu    sync.Mutex
	names map[string]*memFile // as the running system sees them
	disk  map[string]*memFile // names as they are on disk

	calls int                          // operations so far
	fail  func(call int, o fsCall) any // nil, an error, or shortWrite
	log   []fsCall
}

// fsCall names an operation of memFS.
type fsCall struct{ op, name string }

// shortWrite makes a write take only that many bytes and report no error.
type shortWrite int

type memFile struct {
	data   []byte
	synced []byte
}

func newMemFS() *memFS {
	return &memFS{names: map[string]*memFile{}, disk: map[string]*memFile{}}
}

var errPowerOff = errors.New("power is off")

// powerCut gives the file system as it comes up again.
func (m *memFS) powerCut() *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := newMemFS()
	for name, f := range m.disk {
		c := &memFile{data: slices.Clone(f.synced), synced: slices.Clone(f.synced)}
		next.names[name], next.disk[name] = c, c
	}
	return next
}

// killed gives the file system as it is for the next process after kill -9: nothing is lost.
func (m *memFS) killed() *memFS {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := newMemFS()
	for name, f := range m.names {
		c := &memFile{data: slices.Clone(f.data), synced: slices.Clone(f.synced)}
		next.names[name] = c
		if m.disk[name] == f {
			next.disk[name] = c
		}
	}
	return next
}

// put makes a file that is wholly on disk.
func (m *memFS) put(name string, data []byte) {
	f := &memFile{data: slices.Clone(data), synced: slices.Clone(data)}
	m.names[name], m.disk[name] = f, f
}

func (m *memFS) list() []string { return slices.Sorted(maps.Keys(m.names)) }

// enter counts an operation and decides whether it fails.
func (m *memFS) enter(op, name string) (short int, err error) {
	o := fsCall{op, name}
	call := m.calls
	m.calls++
	m.log = append(m.log, o)
	if m.fail == nil {
		return -1, nil
	}
	switch f := m.fail(call, o).(type) {
	case error:
		return -1, f
	case shortWrite:
		return int(f), nil
	}
	return -1, nil
}

func (m *memFS) Open(name string, flag int, _ fs.FileMode) (atomicfile.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.enter("open", name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return &memHandle{m: m, name: name}, nil // a directory, to be synced
	}
	f := m.names[name]
	if f == nil {
		if flag&os.O_CREATE == 0 {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
		}
		f = &memFile{}
		m.names[name] = f
	}
	if flag&os.O_TRUNC != 0 {
		f.data = nil
	}
	return &memHandle{m: m, name: name, f: f}, nil
}

func (m *memFS) ReadFile(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.enter("read", name); err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	f := m.names[name]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	}
	return slices.Clone(f.data), nil
}

func (m *memFS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.enter("rename", from); err != nil {
		return err
	}
	m.names[to] = m.names[from]
	delete(m.names, from)
	return nil
}

func (m *memFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.enter("remove", name); err != nil {
		return err
	}
	delete(m.names, name)
	return nil
}

type memHandle struct {
	m    *memFS
	name string
	f    *memFile // nil for a directory
}

func (h *memHandle) Write(p []byte) (int, error) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	short, err := h.m.enter("write", h.name)
	if err != nil {
		// A full disk takes a part.
		h.f.data = append(h.f.data, p[:len(p)/2]...)
		return len(p) / 2, err
	}
	if short >= 0 && short < len(p) {
		h.f.data = append(h.f.data, p[:short]...)
		return short, nil
	}
	h.f.data = append(h.f.data, p...)
	return len(p), nil
}

func (h *memHandle) Truncate(size int64) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if _, err := h.m.enter("truncate", h.name); err != nil {
		return err
	}
	h.f.data = h.f.data[:size:size]
	return nil
}

func (h *memHandle) Sync() error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if _, err := h.m.enter("sync", h.name); err != nil {
		return err
	}
	if h.f != nil {
		h.f.synced = slices.Clone(h.f.data)
		return nil
	}
	for name := range h.m.disk {
		if h.m.names[name] == nil {
			delete(h.m.disk, name)
		}
	}
	maps.Copy(h.m.disk, h.m.names)
	return nil
}

func (h *memHandle) Close() error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	_, err := h.m.enter("close", h.name)
	return err
}
