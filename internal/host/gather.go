package host

import (
	"bulkhead/internal/linux/blockdev"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Facts looks at the machine. Files that every Linux host has must be readable; what a kernel may be
// built without (NUMA, huge pages, cgroups, block devices) is empty when it is not there.
func (h *Host) Facts() (*Facts, error) {
	f := &Facts{}
	for _, part := range []func(*Facts) error{
		h.kernelFacts, h.memoryFacts, h.topologyFacts, h.cgroupFacts, h.deviceFacts, h.weightFacts, h.privilegeFacts,
	} {
		if err := part(f); err != nil {
			return nil, fmt.Errorf("read host facts: %w", err)
		}
	}
	return f, nil
}

func (h *Host) deviceFacts(f *Facts) (err error) {
	f.Devices, err = h.Block.Devices()
	return err
}

func (h *Host) kernelFacts(f *Facts) error {
	release, err := h.Root.ReadText("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	if f.Kernel, err = ParseVersion(release); err != nil {
		return err
	}
	if f.Hostname, err = h.Root.ReadText("/proc/sys/kernel/hostname"); err != nil {
		return err
	}
	if f.BootID, err = h.Root.ReadText("/proc/sys/kernel/random/boot_id"); err != nil {
		return err
	}
	if f.PIDMax, err = h.Root.ReadInt("/proc/sys/kernel/pid_max"); err != nil {
		return err
	}
	f.ThreadsMax, err = h.Root.ReadInt("/proc/sys/kernel/threads-max")
	return err
}

func (h *Host) privilegeFacts(f *Facts) error {
	self, err := h.Proc.SelfStatus()
	if err != nil {
		return err
	}
	f.Pressure = h.Root.Exists("/proc/pressure/cpu")
	f.SysResource = self.CapEffective>>capSysResource&1 == 1
	init, err := h.Root.ReadText("/proc/1/comm")
	if err != nil {
		return err
	}
	// The name may be another one ("init" after a re-execution by hand); sd_booted(3) asks for the directory.
	f.Systemd = strings.HasPrefix(init, "systemd") || h.Root.Exists("/run/systemd/system")
	return nil
}

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
