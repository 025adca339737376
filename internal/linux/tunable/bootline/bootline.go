// Package bootline has the actuator of arguments of the kernel's command line. They stand in a file of bulkhead's own
// that GRUB's update-grub reads, as Debian and Ubuntu have it, and count when the host boots next.
package bootline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/ownfile"
)

// KindArgument is an argument of the kernel at the next boot. Its address is the name, "psi"; "" is none of bulkhead's.
const KindArgument change.Kind = "kernel argument"

// KindLoader stands for what the boot loader reads, which Load makes; it has no value.
const KindLoader change.Kind = "boot loader"

// Prefix begins the name of an argument of the kernel: "kernel psi".
const Prefix = "kernel "

// File is bulkhead's own: update-grub reads all of the directory by name, after /etc/default/grub.
const File = "/etc/default/grub.d/90-bulkhead.cfg"

// updateGrub makes grub.cfg of these files (update-grub(8)).
const updateGrub = "/usr/sbin/update-grub"

// Host says where the boot loader is.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir string
	// Update runs the boot loader's tool; nil is the tool itself.
	Update func(ctx context.Context) error
}

var (
	argumentName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	// plainValue is one that neither a shell nor GRUB reads as something else.
	plainValue = regexp.MustCompile(`^[A-Za-z0-9_.,:@%+/=-]{1,200}$`)
)

// Check says what is wrong with an argument and its value.
func Check(name, value string) error {
	switch {
	case !argumentName.MatchString(name):
		return fmt.Errorf("%q is not the name of an argument of the kernel", name)
	case strings.HasPrefix(name, "systemd."):
		return fmt.Errorf("%s changes how the whole host is started: add it to the kernel command line yourself", name)
	case !plainValue.MatchString(value):
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
	for word := range strings.FieldsSeq(text) {
		if key, v, is := strings.Cut(word, "="); is && plain(key) == plain(name) {
			value = v
		}
	}
	return value, err == nil
}

// plain is a name as the kernel compares it: "-" in it is "_".
func plain(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Arguments is the actuator of KindArgument.
type Arguments struct{ Host }

const before, after = `GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT `, "\"\n"

// missing is what a host with a boot loader whose tool is known has, and this one has not; "" is nothing.
func (h Host) missing() string {
	for _, file := range []string{updateGrub, "/etc/default/grub", filepath.Dir(File), "/boot/grub/grub.cfg"} {
		if !h.Root.Exists(file) {
			return file
		}
	}
	return ""
}

// there says in the words of an error that the boot loader is none whose tool is known.
func (h Host) there() error {
	if file := h.missing(); file != "" {
		return change.Gone("no boot loader is known here: there is no " + file)
	}
	return nil
}

// file is what bulkhead's file holds: arguments in order, or the text of somebody else.
func (h Host) file() (arguments []string, foreign string, err error) {
	text, err := h.Root.ReadFile(File)
	switch body, ours := ownfile.Body(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", File, err)
	case ours:
		return strings.Fields(strings.TrimSuffix(strings.TrimPrefix(body, before), after)), "", nil
	default:
		return nil, ownfile.AsLeft + string(text), nil
	}
}

// Read gives the value in bulkhead's file; of a file that somebody edited a line that says so and the text.
func (a Arguments) Read(_ context.Context, name string) (string, error) {
	if err := a.there(); err != nil {
		return "", err
	}
	arguments, foreign, err := a.file()
	if err != nil || foreign != "" {
		return foreign, err
	}
	for _, argument := range arguments {
		if value, is := strings.CutPrefix(argument, name+"="); is {
			return value, nil
		}
	}
	return "", nil
}

// Write writes the argument into the file, or takes it out (""), and the file with the last one.
func (a Arguments) Write(_ context.Context, name, value string) error {
	if err := a.there(); err != nil {
		return err
	}
	if a.Dir == "" {
		return change.ErrCaptured
	}
	if !strings.HasPrefix(value, ownfile.AsLeft) {
		if value != "" {
			if err := Check(name, value); err != nil {
				return err
			}
		}
		arguments, _, err := a.file()
		if err != nil {
			return err
		}
		arguments = slices.DeleteFunc(arguments, func(o string) bool { return strings.HasPrefix(o, name+"=") })
		if value != "" {
			arguments = append(arguments, name+"="+value)
		}
		slices.Sort(arguments)
		if value = ""; len(arguments) > 0 {
			value = before + strings.Join(arguments, " ") + after
		}
	}
	if err := ownfile.Write(filepath.Join(a.Dir, File), value, false); err != nil {
		return fmt.Errorf("write %s: %w", File, err)
	}
	return nil
}

// Same compares texts.
func (Arguments) Same(_, want, got string) bool { return want == got }

// Undo gives the argument back that the file had.
func (a Arguments) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, a, c)
}

// Load makes what GRUB reads of the files.
func (h Host) Load(ctx context.Context) error {
	switch {
	case h.missing() != "":
		return nil // nothing was written
	case h.Update != nil:
		return h.Update(ctx)
	case h.Dir == "" || !h.Root.Live():
		return change.ErrCaptured
	}
	if out, err := exec.CommandContext(ctx, updateGrub).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", updateGrub, err, strings.TrimSpace(string(out)))
	}
	return nil
}
