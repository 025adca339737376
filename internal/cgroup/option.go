package cgroup

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
)

// FavorDynmods is a mount option of cgroup2 (kernel 6.0, Documentation/admin-guide/cgroup-v2.rst) that a Tree reads and writes
// as if it was a file of the hierarchy's top directory: "on" or "off". It makes moves of processes fast, in every
// hierarchy, and fork and exit a little dearer. Kernel 6.18 cannot wholly take it back before a reboot.
const FavorDynmods = "favordynmods"

// options is what a Mount has that can change the options of its hierarchy.
type options interface {
	Option(name string) (on bool, err error)
	SetOption(name string, on bool) error
}

// isOption says whether a file is an option of the hierarchy.
func isOption(f File) bool { return f.Name == FavorDynmods && f.Dir.Path == "/" && f.Key == "" }

var errNoOption = errors.New("this hierarchy has no such mount option")

// option gives the Mount of a hierarchy as what has options.
func (t *Tree) option(op string, f File) (options, error) {
	m, err := t.mount(op, f.Dir)
	if err != nil {
		return nil, err
	}
	if o, ok := m.(options); ok && !t.v1(f.Dir) {
		return o, nil
	}
	return nil, &Error{Op: op, Path: t.Abs(f.Dir), Kind: ErrInvalid, Cause: errNoOption}
}

func (t *Tree) readOption(f File) (string, error) {
	o, err := t.option("read", f)
	if err != nil {
		return "", err
	}
	on, err := o.Option(f.Name)
	if err != nil {
		return "", &Error{Op: "read mount options of", Path: t.Abs(f.Dir), Kind: ErrInvalid, Cause: err}
	}
	return onOff(on), nil
}

func (t *Tree) writeOption(f File, value string) error {
	if value != "on" && value != "off" {
		return &Error{Op: "write", Path: t.Abs(f.Dir), Value: value, Kind: ErrInvalid, Cause: fmt.Errorf("%s is on or off", f.Name), wrote: true}
	}
	o, err := t.option("remount", f)
	if err != nil {
		return err
	}
	if err := o.SetOption(f.Name, value == "on"); err != nil {
		return &Error{
			Op: "remount", Path: t.Abs(f.Dir), Value: f.Name + " " + value, Kind: ErrInvalid, Cause: err, wrote: true,
			Hint: "the kernel has this option from 6.0 on, and lets only root outside of containers change it",
		}
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// superOptions are the options of the file system that is mounted at the root, without those of any file system.
func (m *rootMount) superOptions() ([]string, error) {
	facts, err := host.New("/").Facts()
	if err != nil {
		return nil, err
	}
	for _, h := range facts.Hierarchies {
		if h.Mount == m.root.Name() {
			return slices.DeleteFunc(slices.Clone(h.Options), func(o string) bool { return o == "rw" || o == "ro" }), nil
		}
	}
	return nil, fmt.Errorf("%s is no mount point of cgroups", m.root.Name())
}

func (m *rootMount) Option(name string) (bool, error) {
	if m.fixture {
		return false, errNoOption
	}
	all, err := m.superOptions()
	return slices.Contains(all, name), err
}

// SetOption changes one option and leaves the others, and the mount's own flags, as they are: a reconfiguration
// (fsconfig(2), kernel 5.2) takes away what it does not name.
func (m *rootMount) SetOption(name string, on bool) error {
	if m.fixture {
		return errNoOption
	}
	all, err := m.superOptions()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(o string) bool { return o == name })
	if on {
		all = append(all, name)
	}
	fd, err := unix.Fspick(int(m.top.Fd()), "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("fspick: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range all {
		if err := unix.FsconfigSetFlag(fd, o); err != nil {
			return fmt.Errorf("fsconfig %s: %w", o, err)
		}
	}
	if err := unix.FsconfigReconfigure(fd); err != nil {
		return fmt.Errorf("reconfigure: %w", err)
	}
	return nil
}
