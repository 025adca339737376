package cgroupfake

import (
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake/oplog"
	"bulkhead/internal/linux/procfs"
)

// mount implements cgroup.Mount.
type mount struct {
	k    *kernel
	root *group
}

func (m *mount) Open(dir string) (cgroup.Directory, error) {
	if err := m.k.Before(oplog.Operation{Op: "open", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return nil, err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	g := m.root.find(dir)
	if g == nil {
		return nil, syscall.ENOENT
	}
	return &directory{k: m.k, g: g}, nil
}

// Option says whether a mount option is set. The model takes cgroup2's favordynmods, which changes nothing else of it.
func (m *mount) Option(name string) (bool, error) {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	return slices.Contains(m.root.Options, name), nil
}

// SetOption sets or clears a mount option.
func (m *mount) SetOption(name string, on bool) error {
	if err := m.k.Before(oplog.Operation{Op: "write", File: m.dir("").File(name)}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	m.root.Options = slices.DeleteFunc(slices.Clone(m.root.Options), func(o string) bool { return o == name })
	if on {
		m.root.Options = append(m.root.Options, name)
	}
	return nil
}

func (m *mount) dir(rel string) cgroup.Dir {
	return cgroup.Dir{Hierarchy: m.root.ID, Path: path.Join("/", rel)}
}

func (m *mount) Mkdir(dir string) error {
	if err := m.k.Before(oplog.Operation{Op: "mkdir", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	parent, name := m.root.find(path.Dir(dir)), path.Base(dir)
	switch {
	case parent == nil:
		return syscall.ENOENT
	case parent.children[name] != nil || m.k.file(parent, name) != nil:
		return syscall.EEXIST
	case strings.Contains(name, "\n"):
		return syscall.EINVAL
	case m.k.full(parent):
		return syscall.EAGAIN
	}
	m.k.newGroup(parent.Hierarchy, parent, name)
	return nil
}

func (m *mount) Rmdir(dir string) error {
	if err := m.k.Before(oplog.Operation{Op: "rmdir", File: cgroup.File{Dir: m.dir(dir)}}); err != nil {
		return err
	}
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	g := m.root.find(dir)
	switch {
	case g == nil:
		return syscall.ENOENT
	case g.root(), len(g.children) > 0, len(m.k.threadsIn(g)) > 0:
		return syscall.EBUSY
	}
	m.k.drop(g)
	return nil
}

func (m *mount) Close() error { return nil }

// directory implements cgroup.Directory.
type directory struct {
	k *kernel
	g *group
}

func (d *directory) file(name string) cgroup.File { return d.g.dir().File(name) }

func (d *directory) ReadFile(name string) ([]byte, error) {
	if err := d.k.Before(oplog.Operation{Op: "read", File: d.file(name)}); err != nil {
		return nil, err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	f := d.k.file(d.g, name)
	switch {
	case d.g.gone || f == nil:
		return nil, syscall.ENOENT
	case f.writeOnly:
		return nil, syscall.EINVAL
	}
	return []byte(d.k.value(d.g, f) + "\n"), nil
}

func (d *directory) WriteFile(name string, data []byte) error {
	if err := d.k.Before(oplog.Operation{Op: "write", File: d.file(name), Value: string(data)}); err != nil {
		return err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	f := d.k.file(d.g, name)
	switch {
	case d.g.gone || f == nil:
		return syscall.ENOENT
	case f.write == nil:
		return syscall.EINVAL
	case len(data) == 0:
		return nil // cgroup_file_write: nothing to do
	}
	return f.write(d.k, d.g, string(data))
}

func (d *directory) Names() (dirs, files []string, err error) {
	if err := d.k.Before(oplog.Operation{Op: "list", File: cgroup.File{Dir: d.g.dir()}}); err != nil {
		return nil, nil, err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	if d.g.gone {
		return nil, nil, syscall.ENOENT
	}
	return slices.Collect(maps.Keys(d.g.children)), slices.Collect(maps.Keys(d.k.files(d.g))), nil
}

// Owner says who owns a file of the group; root does unless somebody has changed it.
func (d *directory) Owner(name string) (cgroup.Ownership, error) {
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	return d.owner(name)
}

func (d *directory) owner(name string) (cgroup.Ownership, error) {
	f := d.k.file(d.g, name)
	owned, changed := d.g.owned[name]
	switch {
	case d.g.gone || f == nil && name != ".":
		return cgroup.Ownership{}, syscall.ENOENT
	case changed:
		return owned, nil
	case name == ".":
		return cgroup.Ownership{Mode: 0o755}, nil
	case f.writeOnly:
		return cgroup.Ownership{Mode: 0o200}, nil
	case f.write == nil:
		return cgroup.Ownership{Mode: 0o444}, nil
	}
	return cgroup.Ownership{Mode: 0o644}, nil
}

// SetOwner changes who owns a file.
func (d *directory) SetOwner(name string, o cgroup.Ownership) error {
	if err := d.k.Before(oplog.Operation{Op: "chown", File: d.file(name), Value: o.String()}); err != nil {
		return err
	}
	d.k.mu.Lock()
	defer d.k.mu.Unlock()
	now, err := d.owner(name)
	if err != nil {
		return err
	}
	if o.Mode == cgroup.Keep {
		o.Mode = now.Mode
	}
	if d.g.owned == nil {
		d.g.owned = map[string]cgroup.Ownership{}
	}
	d.g.owned[name] = o
	return nil
}

func (d *directory) Close() error { return nil }

// processTable is the model's processes as cgroup.Processes.
type processTable struct{ k *kernel }

// Tasks gives the threads of a process.
func (p *processTable) Tasks(pid int) ([]procfs.Task, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	process := p.k.processes[pid]
	if process == nil {
		return nil, syscall.ESRCH
	}
	var tasks []procfs.Task
	for _, t := range process.threads {
		tasks = append(tasks, procfs.Task{TID: t.tid, State: 'S', RT: t.realtime})
	}
	return tasks, nil
}

// Alive says whether the process runs under that start time.
func (p *processTable) Alive(id procfs.ID) bool {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return p.k.alive(id)
}

// Hold watches a number by the start time that belongs to it.
func (p *processTable) Hold(id procfs.ID) (procfs.Hold, error) {
	if !p.Alive(id) {
		return procfs.Hold{}, procfs.ErrExited
	}
	return procfs.Hold{Same: func() bool { return p.Alive(id) }, Close: func() {}}, nil
}

// Birthplace gives the process that has a number, and the groups that Reuse made it in.
func (p *processTable) Birthplace(pid int) (procfs.ID, map[string]string, error) {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	process := p.k.processes[pid]
	if process == nil {
		return procfs.ID{}, nil, procfs.ErrExited
	}
	return process.id, paths(process.born), nil
}

var _ cgroup.Processes = (*processTable)(nil)
