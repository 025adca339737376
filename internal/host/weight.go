package host

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/blockdev"
)

// weightFacts looks for what can weigh the requests of groups: iocost, whose files are in the root of cgroup2, and BFQ.
func (h *Host) weightFacts(f *Facts) error {
	if u, ok := f.Unified(); ok && u.Has("blkio") {
		qos, err := h.Root.ReadFile(path.Join(u.Mount, "io.cost.qos"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f.IOCost = err == nil
		model, err := h.Root.ReadFile(path.Join(u.Mount, "io.cost.model"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for i := range f.Devices {
			f.Devices[i].Cost = blockdev.IOCost{QoS: deviceLine(qos, f.Devices[i].Number),
				Model: deviceLine(model, f.Devices[i].Number)}
		}
	}
	f.BFQ = slices.ContainsFunc(f.Devices,
		func(d blockdev.Device) bool { return slices.Contains(d.Schedulers, blockdev.BFQ) }) ||
		h.hasModule(f.Kernel.Text, "/bfq.ko")
	return nil
}

// deviceLine is what follows a device's number in a file with a line for each.
func deviceLine(text []byte, number string) string {
	for line := range strings.Lines(string(text)) {
		if dev, rest, found := strings.Cut(strings.TrimSpace(line), " "); found && dev == number {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// hasModule says whether a kernel has a module to load, compressed or not: writing a scheduler's name loads it
// (elevator_get of block/elevator.c).
func (h *Host) hasModule(release, name string) bool {
	text, err := h.Root.ReadFile(path.Join("/lib/modules", release, "modules.dep"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if file, _, found := strings.Cut(line, ":"); found && strings.Contains(file, name) {
			return true
		}
	}
	return false
}
