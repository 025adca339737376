package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/host"
)

// FavorDynmods is a mount option of cgroup2 (kernel 6.0, Documentation/admin-guide/cgroup-v2.rst): "on" or "off". It
// makes moves of processes fast, in every hierarchy, and fork and exit a little dearer. Kernel 6.18 cannot wholly take
// it back before a reboot.
const FavorDynmods = "favordynmods"

// KindOption is the kind of a mount option of a hierarchy. Its address is the option as a file of the hierarchy's top
// directory, as File.String writes it: "unified:/favordynmods".
const KindOption change.Kind = "mount option"

// MountOptions reads and writes the mount options of the cgroup2 hierarchy. A value is "on" or "off".
type MountOptions struct{ Tree *Tree }

// options is what a Mount has that can change the options of its hierarchy.
type options interface {
	Option(name string) (on bool, err error)
	SetOption(name string, on bool) error
}

var errNoOption = errors.New("this hierarchy has no such mount option")

// open gives the mount of an address as what has options.
func (m MountOptions) open(op, addr string) (options, File, error) {
	f, ok := ParseFile(addr)
	if !ok || f.Path != "/" || f.Key != "" {
		return nil, f, &Error{Op: op, Path: addr, Kind: ErrInvalid, Cause: errBadPath}
	}
	mounted, err := m.Tree.mount(op, f.Dir)
	if err != nil {
		return nil, f, err
	}
	if o, ok := mounted.(options); ok && m.Tree.Version(f.Dir) != 1 {
		return o, f, nil
	}
	return nil, f, &Error{Op: op, Path: m.Tree.Abs(f.Dir), Kind: ErrInvalid, Cause: errNoOption}
}

// Read says whether an option is on.
func (m MountOptions) Read(_ context.Context, addr string) (string, error) {
	o, f, err := m.open("read", addr)
	if err != nil {
		return "", err
	}
	on, err := o.Option(f.Name)
	if err != nil {
		return "", &Error{Op: "read mount options of", Path: m.Tree.Abs(f.Dir), Kind: ErrInvalid, Cause: err}
	}
	return onOff(on), nil
}

// Write switches an option. The kernel has the first one from 6.0 on.
func (m MountOptions) Write(_ context.Context, addr, value string) error {
	o, f, err := m.open("remount", addr)
	if err != nil {
		return err
	}
	fail := &Error{Op: "remount", Path: m.Tree.Abs(f.Dir), Value: f.Name + " " + value, Kind: ErrInvalid, wrote: true}
	if value != "on" && value != "off" {
		fail.Cause = fmt.Errorf("%s is on or off", f.Name)
		return fail
	}
	if fail.Cause = o.SetOption(f.Name, value == "on"); fail.Cause != nil {
		fail.Hint = "the kernel has this option from 6.0 on, and lets only root outside of containers change it"
		return fail
	}
	return nil
}

// Same compares two values.
func (MountOptions) Same(_, want, got string) bool { return want == got }

// Undo gives an option its old value back.
func (m MountOptions) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, m, c)
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
		if h.Mount == m.point {
			return slices.DeleteFunc(slices.Clone(h.Options), func(o string) bool { return o == "rw" || o == "ro" }),
				nil
		}
	}
	return nil, fmt.Errorf("%s is no mount point of cgroups", m.point)
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
