package cgroupfake

import (
	"syscall"

	"bulkhead/internal/cgroup"
)

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
	if err := d.k.before(Operation{Op: "chown", File: d.file(name), Value: o.String()}); err != nil {
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
