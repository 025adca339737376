package bench

import (
	"fmt"
	"path/filepath"
	"syscall"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/proof"
)

// machine is what a run needs to know of the host.
type machine struct {
	facts     *host.Facts
	cpus      int
	available int64 // memory that could be allocated, bytes
	dir       string
	mount     mountinfo.Mount
	disk      blockdev.Device // the whole disk that dir lies on
	free      int64           // bytes free in dir
}

// lookAtMachine reads the host, and finds the disk below dir: the kernel throttles whole block devices only, so a file
// system without one cannot be shown: that is a RequirementError, beside all else that is known.
func lookAtMachine(dir string) (machine, error) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		return machine{}, fmt.Errorf("look at the host: %w", err)
	}
	memory, err := h.MemInfo()
	if err != nil {
		return machine{}, fmt.Errorf("read available memory: %w", err)
	}
	m := machine{facts: facts, cpus: len(facts.CPUs), available: memory["MemAvailable"]}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return machine{}, fmt.Errorf("find the disk of %q: %w", dir, err)
	}
	if m.dir, err = h.Root.EvalSymlinks(absolute); err != nil {
		return machine{}, fmt.Errorf("find the disk of %q: %w", dir, err)
	}
	mount, ok := facts.Mounts.Of(m.dir)
	if !ok {
		return machine{}, fmt.Errorf("find the disk of %q: no mount holds it", dir)
	}
	m.mount = mount
	device, ok := facts.Device(mount.Dev)
	if ok {
		m.disk, ok = facts.Device(device.Disk)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(m.dir, &fs); err != nil {
		return machine{}, fmt.Errorf("ask how much is free in %q: %w", m.dir, err)
	}
	m.free = int64(fs.Bavail) * fs.Bsize
	if !ok {
		return m, &process.RequirementError{
			Reason: fmt.Sprintf("%q is on a file system of type %s, with no block device that the kernel could "+
				"throttle",
				dir, mount.Type),
			Hint:  "--dir DIR puts the work directory on another disk",
			Reach: process.EveryScenario,
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

// v1 says whether a controller is mounted as cgroup v1.
func (m machine) v1(controller string) bool {
	for _, c := range m.facts.Controllers {
		if h, ok := m.facts.Hierarchy(c.Hierarchy); c.Name == controller && ok {
			return h.Version == 1
		}
	}
	return false
}

// text describes the machine in one line.
func (m machine) text() string {
	return fmt.Sprintf("%d CPUs, %s of memory, Linux %s, %s, disk %s (%s)", m.cpus, proof.BytesText(m.facts.MemTotal),
		m.facts.Kernel.Text, m.cgroups(), m.disk.Name, m.mount.Type)
}

// quantity is a quantity of the machine as scenarios name it.
func (m machine) quantity(name string) (float64, bool) {
	switch name {
	case "cpus":
		return float64(m.cpus), true
	case "nodes":
		return float64(max(len(m.facts.Nodes), 1)), true
	case "memory":
		return float64(m.available >> 20), true
	case "disk_free":
		return float64(m.free >> 20), true
	}
	return 0, false
}
