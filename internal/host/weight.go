package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// The files of a device's queue that decide whether its requests can be weighed.
const (
	QueueScheduler = "scheduler"
	QueueWriteBack = "wbt_lat_usec"
)

// BFQ is the name of the scheduler that weighs groups (4.12), CFQ of the one before it (gone with 5.0).
const (
	BFQ = "bfq"
	CFQ = "cfq"
)

// weightFacts looks for what can weigh the requests of groups: iocost, whose files are in the root of cgroup2, and BFQ.
func (h *Host) weightFacts(f *Facts) error {
	if u, ok := f.Unified(); ok && u.Has("blkio") {
		qos, err := h.readFile(path.Join(u.Mount, "io.cost.qos"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f.IOCost = err == nil
		model, err := h.readFile(path.Join(u.Mount, "io.cost.model"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for i := range f.Devices {
			f.Devices[i].Cost = IOCost{QoS: deviceLine(qos, f.Devices[i].Number), Model: deviceLine(model, f.Devices[i].Number)}
		}
	}
	f.BFQ = slices.ContainsFunc(f.Devices, func(d Device) bool { return slices.Contains(d.Schedulers, BFQ) }) || h.hasModule(f.Kernel.Text, "/bfq.ko")
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

// hasModule says whether a kernel has a module to load, compressed or not: writing a scheduler's name loads it (elevator_get of
// block/elevator.c).
func (h *Host) hasModule(release, name string) bool {
	text, err := h.readFile(path.Join("/lib/modules", release, "modules.dep"))
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

// QueuePath is the path of a file of a disk's queue, for people.
func QueuePath(number, name string) string { return path.Join(blockDevices, number, "queue", name) }

// queueFile is the path of a file of a whole disk's queue.
func queueFile(number, name string) (string, error) {
	if strings.Trim(number, "0123456789:") != "" || (name != QueueScheduler && name != QueueWriteBack) {
		return "", fmt.Errorf("queue of %q: %q is not one of its files", number, name)
	}
	return QueuePath(number, name), nil
}

// Queue reads a file of a disk's queue: of the schedulers the active one.
func (h *Host) Queue(number, name string) (string, error) {
	file, err := queueFile(number, name)
	if err != nil {
		return "", err
	}
	text, err := h.readText(file)
	if name == QueueScheduler {
		text = activeScheduler(text)
	}
	return text, err
}

// SetQueue writes a file of a disk's queue.
func (h *Host) SetQueue(number, name, value string) error {
	file, err := queueFile(number, name)
	if err != nil {
		return err
	}
	if !h.live {
		return errors.New("a captured host cannot be changed")
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
