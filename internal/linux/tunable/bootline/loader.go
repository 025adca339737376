package bootline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable/ownfile"
)

// The tools of boot loaders: update-grub(8) of Debian, grubby(8) of Red Hat (sdubby has its name), and
// kernel-install(8) of systemd, which makes entries for systemd-boot.
const (
	updateGrub    = "/usr/sbin/update-grub"
	grubby        = "/usr/sbin/grubby"
	kernelInstall = "/usr/bin/kernel-install"
)

// loader is a boot loader with a tool that is known. A value is that of an argument at the next boot, "" for none.
type loader interface {
	read(name string) (string, error)
	write(ctx context.Context, name, value string) error
	// load makes what the boot loader reads of what was written.
	load(ctx context.Context) error
}

// loader is the one that the host has; the error is in the words for one that is none of them.
func (h Host) loader() (loader, error) {
	grub := []string{updateGrub, "/etc/default/grub", filepath.Dir(File), "/boot/grub/grub.cfg"}
	there := func(files ...string) bool {
		return !slices.ContainsFunc(files, func(f string) bool { return !h.Root.Exists(f) })
	}
	switch {
	case there(grub...):
		return ownDir{h}, nil
	case len(h.entries()) == 0:
	case there(grubby):
		return allEntries{h}, nil
	case there(kernelInstall, Line):
		return oneLine{h}, nil
	}
	return nil, change.Gone("no boot loader is known here: there are neither update-grub with " + filepath.Dir(File) +
		", nor entries (loader/entries) with grubby, or with kernel-install and " + Line)
}

// allEntries are the entries of all kernels, which grubby changes.
type allEntries struct{ Host }

// read gives the value that all entries have. Different ones, and an argument that is there twice, are not set here.
func (e allEntries) read(name string) (string, error) {
	all, err := e.valuesOf(name)
	if err != nil {
		return "", err
	}
	if len(slices.Compact(all)) > 1 {
		return "", change.Gone("the kernels of this host have different values of " + name + ": change them with " +
			"grubby yourself")
	}
	return all[0], nil
}

// valuesOf are those of the entries, of which there is one at least.
func (e allEntries) valuesOf(name string) (all []string, err error) {
	variables, _ := e.Root.ReadText("/boot/grub2/grubenv") // where entries name them
	for _, file := range e.entries() {
		text, err := e.Root.ReadText(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		of := values(expanded(text, variables), name)
		if len(of) > 1 {
			return nil, change.Gone(name + " is there more than once in " + file + ": change it with grubby yourself")
		}
		all = append(all, lastOf(of))
	}
	return all, nil
}

// expanded are the options of an entry, with variables of GRUB's ("$kernelopts") as its environment block has them.
func expanded(entry, environment string) string {
	var words []string
	for line := range strings.Lines(entry) {
		options, is := strings.CutPrefix(line, "options")
		if !is || options == strings.TrimLeft(options, " \t") {
			continue
		}
		for word := range strings.FieldsSeq(options) {
			if name, variable := strings.CutPrefix(word, "$"); variable {
				for set := range strings.Lines(environment) {
					if value, is := strings.CutPrefix(set, name+"="); is {
						word = strings.TrimSpace(value)
					}
				}
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

func (e allEntries) write(ctx context.Context, name, value string) error {
	args := []string{"--update-kernel=ALL", "--remove-args=" + name}
	if value != "" {
		args = append(args, "--args="+name+"="+value)
	}
	return e.run(ctx, grubby, args...)
}

func (allEntries) load(context.Context) error { return nil } // grubby changes the entries themselves

// oneLine is the command line for all entries that kernel-install makes.
type oneLine struct{ Host }

func (o oneLine) read(name string) (string, error) {
	text, err := o.Root.ReadText(Line)
	return lastOf(values(text, name)), err
}

// write changes one word; every other byte stays.
func (o oneLine) write(_ context.Context, name, value string) error {
	text, err := o.Root.ReadFile(Line)
	if err != nil {
		return fmt.Errorf("read %s: %w", Line, err)
	}
	if err := ownfile.Replace(filepath.Join(o.Dir, Line), withWord(string(text), name, value)); err != nil {
		return fmt.Errorf("write %s: %w", Line, err)
	}
	return nil
}

// withWord is a command line with an argument, "" for none: in the place of the last one of its name, or at the end.
func withWord(line, name, value string) string {
	at, end := -1, -1
	for i := 0; i < len(line); {
		next := i + strings.IndexAny(line[i:]+" ", " \t\n")
		if len(values(line[i:next], name)) > 0 {
			at, end = i, next
		}
		i = next + 1
	}
	word := name + "=" + value
	switch body := strings.TrimRight(line, " \t\n"); {
	case at >= 0 && value != "":
		return line[:at] + word + line[end:]
	case at > 0:
		return line[:at-1] + line[end:]
	case at == 0:
		return strings.TrimPrefix(line[end:], " ")
	case value == "":
		return line
	default:
		return strings.TrimLeft(body+" "+word, " ") + line[len(body):]
	}
}

// load has kernel-install make the entries of all kernels anew that have one.
func (o oneLine) load(ctx context.Context) error {
	var versions []string
	for _, file := range o.entries() {
		text, err := o.Root.ReadText(file)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		for line := range strings.Lines(text) {
			if version, is := strings.CutPrefix(line, "version"); is {
				versions = append(versions, strings.TrimSpace(version))
			}
		}
	}
	slices.Sort(versions)
	for _, version := range slices.Compact(versions) {
		image := ""
		for _, at := range []string{path.Join("/usr/lib/modules", version, "vmlinuz"),
			path.Join("/lib/modules", version, "vmlinuz"), "/boot/vmlinuz-" + version} {
			if image == "" && o.Root.Exists(at) {
				image = at
			}
		}
		if image == "" {
			continue // an entry of another system on this disk
		}
		if err := o.run(ctx, kernelInstall, "add", version, image); err != nil {
			return err
		}
	}
	return nil
}

// ownDir are files that update-grub reads, with one of bulkhead's own.
type ownDir struct{ Host }

const before, after = `GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT `, "\"\n"

// file is what bulkhead's file holds: arguments in order, or the text of somebody else.
func (d ownDir) file() (arguments []string, foreign string, err error) {
	text, err := d.Root.ReadFile(File)
	switch body, ours := ownfile.Body(string(text)); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", File, err)
	case ours:
		return strings.Fields(strings.TrimSuffix(strings.TrimPrefix(body, before), after)), "", nil
	default:
		return nil, ownfile.Foreign(string(text)), nil
	}
}

// read gives the value in bulkhead's file; of a file that somebody edited a line that says so and the text.
func (d ownDir) read(name string) (string, error) {
	arguments, foreign, err := d.file()
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

// write writes the argument into the file, or takes it out (""), and the file with the last one.
func (d ownDir) write(_ context.Context, name, value string) error {
	if !strings.HasPrefix(value, ownfile.AsLeft) {
		arguments, _, err := d.file()
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
	if err := ownfile.Write(filepath.Join(d.Dir, File), value, false); err != nil {
		return fmt.Errorf("write %s: %w", File, err)
	}
	return nil
}

func (d ownDir) load(ctx context.Context) error { return d.run(ctx, updateGrub) }
