// Package bootline has the actuator of arguments of the kernel's command line, which count when the host boots next.
// They stand in a file of bulkhead's own that GRUB's update-grub reads (Debian, Ubuntu), in the entries of all kernels,
// which grubby changes (Red Hat), or in the command line that kernel-install makes entries of (systemd-boot).
package bootline

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/ownfile"
)

// KindArgument is an argument of the kernel at the next boot. Its address is the name, "psi"; "" is none. With GRUB of
// Debian only what bulkhead's own file has is one.
const KindArgument change.Kind = "kernel argument"

// KindLoader stands for what the boot loader reads, which Load makes; it has no value.
const KindLoader change.Kind = "boot loader"

// Prefix begins the name of an argument of the kernel: "kernel psi".
const Prefix = "kernel "

var (
	argumentName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	// plainValue is one that neither a shell nor GRUB reads as something else. Its length is apart: an expression that
	// counts to 200 takes 200 KB.
	plainValue = regexp.MustCompile(`^[A-Za-z0-9_.,:@%+/=-]+$`)
)

const longestValue = 200 // bytes

// Check says what is wrong with an argument and its value.
func Check(name, value string) error {
	switch {
	case !argumentName.MatchString(name):
		return fmt.Errorf("%q is not the name of an argument of the kernel", name)
	case strings.HasPrefix(name, "systemd."):
		return fmt.Errorf("%s changes how the whole host is started: add it to the kernel command line yourself", name)
	case !plainValue.MatchString(value) || len(value) > longestValue:
		return fmt.Errorf("%s of the kernel takes no %q here: write a value without blanks and quotes", name, value)
	}
	return nil
}

// Target is that of an argument.
func Target(name string) change.Target { return change.Target{Kind: KindArgument, Addr: name} }

// Name is the name of the setting that an argument, "psi=1", asks for, with its value.
func Name(argument string) (name, value string, known bool) {
	name, value, known = strings.Cut(argument, "=")
	return Prefix + name, value, known && Check(name, value) == nil
}

// Waits says whether an argument counts only after the next boot: the kernel was not started with it, or was and it
// was taken away ("").
func Waits(root *sysroot.FS, t change.Target, value string) bool {
	if t.Kind != KindArgument {
		return false
	}
	now, known := running(root, t.Addr)
	return known && now != value
}

// running is the last value of an argument that the kernel was started with.
func running(root *sysroot.FS, name string) (value string, known bool) {
	text, err := root.ReadText("/proc/cmdline")
	return lastOf(values(text, name)), err == nil
}

// Arguments is the actuator of KindArgument.
type Arguments struct{ Host }

// Read gives the value at the next boot. Of a file of bulkhead's that somebody edited it is a line that says so and the
// text.
func (a Arguments) Read(_ context.Context, name string) (string, error) {
	l, err := a.loader()
	if err != nil {
		return "", err
	}
	return l.read(name)
}

// Write sets the argument, or takes it away ("").
func (a Arguments) Write(ctx context.Context, name, value string) error {
	l, err := a.loader()
	switch {
	case err != nil:
		return err
	case a.Dir == "":
		return change.ErrCaptured
	case value != "" && !strings.HasPrefix(value, ownfile.AsLeft):
		err = Check(name, value)
	}
	if err != nil {
		return err
	}
	return l.write(ctx, name, value)
}

// Same compares texts.
func (Arguments) Same(_, want, got string) bool { return want == got }

// Undo gives the argument back that was there.
func (a Arguments) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, a, c)
}

// Left says whether somebody was killed while he wrote the command line.
func (a Arguments) Left(string) bool {
	return a.Root.Exists(ownfile.Beside(Line)) || a.Dir != "" && ownfile.Left(filepath.Join(a.Dir, File), false)
}

// Half says whether whoever wrote the argument was killed between the entries of two kernels: some have the new value,
// some the old one or none.
func (a Arguments) Half(c change.Change) bool {
	l, err := a.loader()
	e, parted := l.(allEntries)
	if err != nil || !parted {
		return false
	}
	all, err := e.valuesOf(c.Addr)
	return err == nil && len(slices.Compact(slices.Sorted(slices.Values(all)))) > 1 &&
		!slices.ContainsFunc(all, func(v string) bool { return v != "" && v != c.Old && v != c.New })
}

// Load makes what the boot loader reads of what was written.
func (h Host) Load(ctx context.Context) error {
	l, err := h.loader()
	if errors.Is(err, change.ErrGone) {
		return nil // nothing was written
	}
	if err != nil {
		return err
	}
	return l.load(ctx)
}
