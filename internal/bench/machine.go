package bench

import (
	"fmt"
	"path/filepath"

	"bulkhead/internal/host"
)

// machine is what the demo needs to know of the host.
type machine struct {
	facts     *host.Facts
	cpus      int
	available int64 // memory that could be allocated, bytes
	dir       string
	mount     host.Mount
	disk      host.Device // the whole disk that dir lies on
}

// lookAtMachine reads the host, and finds the disk below dir: the kernel throttles whole block
// devices only, so a file system without one cannot be shown.
func lookAtMachine(dir string) (machine, error) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		return machine{}, fmt.Errorf("look at the host: %w", err)
	}
	m := machine{facts: facts, cpus: len(facts.CPUs)}
	if m.available, err = availableMemory(); err != nil {
		return machine{}, err
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return machine{}, fmt.Errorf("find the disk of %q: %w", dir, err)
	}
	if m.dir, err = h.Evaluate(absolute); err != nil {
		return machine{}, fmt.Errorf("find the disk of %q: %w", dir, err)
	}
	mount, ok := facts.MountOf(m.dir)
	if !ok {
		return machine{}, fmt.Errorf("find the disk of %q: no mount holds it", dir)
	}
	m.mount = mount
	device, ok := facts.Device(mount.Dev)
	if ok {
		m.disk, ok = facts.Device(device.Disk)
	}
	if !ok {
		return machine{}, &RequirementError{
			Reason: fmt.Sprintf("%q is on a file system of type %s, with no block device that the kernel could throttle", dir, mount.Type),
			Hint:   "--dir DIR puts the work directory on another disk",
		}
	}
	return m, nil
}

// cgroups says how the controllers are mounted, in the words of the documentation.
func (m machine) cgroups() string {
	v1, v2 := 0, 0
	for _, c := range m.facts.Controllers {
		h, ok := m.facts.Hierarchy(c.Hierarchy)
		switch {
		case !ok:
		case h.Version == 1:
			v1++
		default:
			v2++
		}
	}
	switch {
	case v1 > 0 && v2 > 0:
		return "cgroup v1 and v2 (hybrid)"
	case v1 > 0:
		return "cgroup v1"
	default:
		return "cgroup v2"
	}
}
