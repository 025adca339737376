package blockdev

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// DiskShape is a text that differs when block devices have come, gone, or changed in size, or lie on other devices
// than before; it means nothing else. It costs one file and a directory for each device that may lie on others.
func (h FS) DiskShape() (string, error) {
	// All that have a size: a loop device without a file is not among them.
	text, err := h.root.ReadFile("/proc/partitions")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var b strings.Builder
	b.Write(text)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !mayLieOnOthers(fields[3]) {
			continue
		}
		if err := h.listing(&b, path.Join("/sys/class/block", fields[3], "slaves")); err != nil {
			return "", err
		}
	}
	volumes, err := h.root.ReadDir("/sys/fs/btrfs")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	slices.Sort(volumes)
	for _, v := range volumes {
		if err := h.listing(&b, path.Join("/sys/fs/btrfs", v, "devices")); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// mayLieOnOthers says by its name in sysfs whether a device may have others below it.
func mayLieOnOthers(name string) bool {
	return strings.HasPrefix(name, "dm-") || strings.HasPrefix(name, "md") || strings.HasPrefix(name, "bcache") ||
		strings.HasPrefix(name, "drbd")
}

// listing adds the names in a directory, if it is there.
func (h FS) listing(b *strings.Builder, dir string) error {
	names, err := h.root.ReadDir(dir)
	if deviceGone(err) {
		return nil
	}
	slices.Sort(names)
	b.WriteString(dir + ": " + strings.Join(names, " ") + "\n")
	return err
}
