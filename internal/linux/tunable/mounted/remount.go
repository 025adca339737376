package mounted

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/mountinfo"
)

// Mounted is the actuator of KindMounted.
type Mounted struct{ Host }

// flagsOf are the options of one mount as mount(2) has them; those of a file system are in flagsOfSystem. All that are
// not named at a remount are taken away.
var (
	flagsOf = map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
		"noexec": unix.MS_NOEXEC, "nodiratime": unix.MS_NODIRATIME, "nosymfollow": unix.MS_NOSYMFOLLOW}
	flagsOfSystem = map[string]uintptr{"ro": unix.MS_RDONLY, "sync": unix.MS_SYNCHRONOUS,
		"dirsync": unix.MS_DIRSYNC, "lazytime": unix.MS_LAZYTIME, "mand": unix.MS_MANDLOCK}
	flagsOfTimes = map[string]uintptr{"noatime": unix.MS_NOATIME, "relatime": unix.MS_RELATIME,
		"strictatime": unix.MS_STRICTATIME}
)

// mount is what is mounted at a place, as the first process of the host sees it: that of the agent's sandbox differs.
func (h Host) mount(point string) (m mountinfo.Mount, err error) {
	text, err := h.Root.ReadFile("/proc/1/mountinfo")
	if errors.Is(err, fs.ErrNotExist) {
		text, err = h.Root.ReadFile("/proc/self/mountinfo")
	}
	if err != nil {
		return m, fmt.Errorf("read what is mounted: %w", err)
	}
	all, err := mountinfo.Parse(text)
	if err != nil {
		return m, err
	}
	if m, found := all.Of(point); found && m.Point == point {
		return m, nil
	}
	return m, change.Gone("nothing is mounted at " + point)
}

// times is the word of the family atime that counts.
func times(options []string) string {
	for _, word := range []string{"noatime", "relatime"} {
		if slices.Contains(options, word) {
			return word
		}
	}
	return "strictatime"
}

// Read gives the option in force.
func (m Mounted) Read(_ context.Context, addr string) (string, error) {
	point, f, err := split(addr)
	if err != nil {
		return "", err
	}
	at, err := m.mount(point)
	if err != nil {
		return "", err
	}
	if len(f.types) > 0 && !slices.Contains(f.types, at.Type) {
		return "", change.Gone(at.Type + " of " + point + " has no option " + f.name)
	}
	switch f.name {
	case "atime":
		return times(at.Options), nil
	case "errors":
		return m.errorsOf(at)
	}
	if i := last(at.Super, f); i >= 0 {
		return f.word(cmp.Or(map[string]string{"barrier=0": "nobarrier", "barrier=1": "barrier"}[at.Super[i]],
			at.Super[i])), nil
	}
	return map[string]string{"discard": "off", "barrier": "on"}[f.name], nil
}

// errorsOf is what ext4 does after an error: mountinfo tells it only where that is not what its super block says.
func (m Mounted) errorsOf(at mountinfo.Mount) (string, error) {
	link, err := m.Root.Readlink("/sys/dev/block/" + at.Dev)
	if err != nil {
		return "", fmt.Errorf("find the device of %s: %w", at.Point, err)
	}
	text, err := m.Root.ReadText(path.Join("/proc/fs/ext4", path.Base(link), "options"))
	if err != nil {
		return "", fmt.Errorf("read the options of %s: %w", at.Point, err)
	}
	for option := range strings.FieldsSeq(text) {
		if word, is := strings.CutPrefix(option, "errors="); is {
			return word, nil
		}
	}
	return "", fmt.Errorf("the kernel does not tell what %s does after an error", at.Point)
}

// Write mounts again with the option. Other options stay: those of the mount are named, and a file system keeps what
// is not.
func (m Mounted) Write(_ context.Context, addr, word string) error {
	point, f, err := split(addr)
	if err != nil {
		return err
	}
	option, err := f.option(word)
	if err == nil && option == "" {
		err = fmt.Errorf("%s of %s has no value", f.name, point)
	}
	if err != nil {
		return err
	}
	at, err := m.mount(point)
	if err != nil {
		return err
	}
	remount := m.Remount
	switch {
	case m.Dir == "" || remount == nil && !m.Root.Live():
		return change.ErrCaptured
	case remount == nil:
		remount = func(point string, flags uintptr, data string) error {
			return unix.Mount("none", point, "", flags, data)
		}
	}
	flags, data := uintptr(unix.MS_REMOUNT), option
	for _, o := range at.Options {
		flags |= flagsOf[o]
	}
	now := times(at.Options)
	if f.name == "atime" { // of this mount alone
		flags, data, now = flags|unix.MS_BIND, "", word
		if flagsOfTimes[now] == 0 {
			return fmt.Errorf("atime of a mount takes no %q, but %s", word, f.takes())
		}
	} else {
		if slices.Contains(at.Options, "ro") != slices.Contains(at.Super, "ro") {
			return fmt.Errorf("%s is read-only and its file system is not, which a remount would change: mount it "+
				"again yourself, with %s", point, option)
		}
		for _, o := range at.Super {
			flags |= flagsOfSystem[o]
		}
	}
	if err := remount(point, flags|flagsOfTimes[now], data); err != nil {
		return fmt.Errorf("mount %s again with %s: %w", point, option, err)
	}
	return nil
}

// Same compares words.
func (Mounted) Same(_, want, got string) bool { return want == got }

// Undo mounts again with the option that was in force.
func (m Mounted) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, m, c)
}
