package optionfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/ownfile"
)

// Host says where option files are.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir string
	// Signal has a process read its files again; nil is SIGHUP. For tests.
	Signal func(pid int) error
}

// Settings is the actuator of Kind.
type Settings struct{ Host }

// text is what a file holds. Directories of option files may belong to an account of a database, which could have root
// read another file there and write it down for all, or wait for ever: what is a link, no regular file, or not of this
// process's account or the directory's, is not read.
func (h Host) text(file string) (string, error) {
	if h.Dir == "" && !h.Root.Live() {
		text, err := h.Root.ReadFile(file)
		return string(text), err
	}
	at := filepath.Join("/", h.Dir, file)
	all, is, err := regular(at, unix.O_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", err
	case errors.Is(err, errIrregular), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO),
		errors.Is(err, unix.ENOTDIR):
		return "", change.Gone(file + " is a link or no regular file, and not of bulkhead's making: take it away")
	case err != nil:
		return "", err
	}
	dir, err := ownfile.OwnerOf(filepath.Dir(at))
	if err != nil {
		return "", err
	}
	if int(is.Uid) != os.Geteuid() && is.Uid != dir.Uid || is.Nlink != 1 {
		return "", change.Gone(file + " belongs to somebody else, and is not of bulkhead's making: take it away")
	}
	return all, nil
}

// errIrregular says that a file is not read.
var errIrregular = errors.New("no regular file, or too long")

// regular is the text of a regular file of at most 64 KiB on this machine. It waits for nobody.
func regular(at string, flag int) (text string, is *syscall.Stat_t, err error) {
	const longest = 64 << 10
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|flag, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	is, known := info.Sys().(*syscall.Stat_t)
	if !known || !info.Mode().IsRegular() || info.Size() > longest {
		return "", nil, errIrregular
	}
	all, err := io.ReadAll(io.LimitReader(f, longest))
	return string(all), is, err
}

// file is what the file holds: lines in order, or the text of somebody else.
func (h Host) file(file string) (lines []string, foreign string, err error) {
	text, err := h.text(file)
	switch body, ours := ownfile.Body(text); {
	case errors.Is(err, fs.ErrNotExist):
		if entries, err := h.Root.Lstat(path.Dir(file)); err != nil || !entries.IsDir() {
			return nil, "", change.Gone("there is no directory " + path.Dir(file))
		}
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", file, err)
	case ours:
		lines = slices.DeleteFunc(strings.Split(body, "\n"), func(l string) bool { return l == "" || l == section })
		return lines, "", nil
	default:
		return nil, ownfile.Foreign(text), nil
	}
}

// Read gives what the file sets; of one that somebody edited a line that says so and the text.
func (s Settings) Read(_ context.Context, addr string) (string, error) {
	file, of, err := split(addr)
	if err != nil {
		return "", err
	}
	lines, foreign, err := s.file(file)
	if err != nil || foreign != "" {
		return foreign, err
	}
	for _, line := range lines {
		if value, is := strings.CutPrefix(line, Line(of.name, "")); is {
			return value, nil
		}
	}
	return "", nil
}

// Write writes the line, or takes it away (""), and the file with the last one.
func (s Settings) Write(_ context.Context, addr, value string) error {
	file, of, err := split(addr)
	if err != nil {
		return err
	}
	lines, _, err := s.file(file)
	switch {
	case err != nil:
		return err
	case s.Dir == "":
		return change.ErrCaptured
	}
	if !strings.HasPrefix(value, ownfile.AsLeft) {
		if value != "" && value != of.value {
			return Check(addr, value)
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, Line(of.name, "")) })
		if value != "" {
			lines = append(lines, Line(of.name, value))
		}
		slices.Sort(lines)
		value = Body(file, lines)
	}
	if err := ownfile.Write(filepath.Join(s.Dir, file), value, false); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// Same compares texts.
func (Settings) Same(_, want, got string) bool { return want == got }

// Undo gives the line back that was there, or takes ours away.
func (s Settings) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, s, c)
}

// Left says whether somebody was killed while he wrote the file.
func (s Settings) Left(addr string) bool {
	return s.Dir != "" && ownfile.Left(filepath.Join(s.Dir, path.Dir(addr)), false)
}

// Reread has each PostgreSQL read its files again whose configuration file is beside the directory.
func (h Host) Reread(dir string) error {
	if h.Dir == "" || h.Signal == nil && !h.Root.Live() {
		return change.ErrCaptured
	}
	pids, err := h.Root.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("look for PostgreSQL: %w", err)
	}
	beside := h.resolved(path.Dir(dir))
	for _, name := range pids {
		if h.besideConfig(name) != beside {
			continue
		}
		if err := h.hup(name, beside); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("have PostgreSQL, process %s, read its files again: %w", name, err)
		}
	}
	return nil
}

// hup sends SIGHUP to a process that is still the one.
func (h Host) hup(name, dir string) error {
	var pid int
	if _, err := fmt.Sscan(name, &pid); err != nil {
		return err
	}
	if h.Signal != nil {
		return h.Signal(pid)
	}
	p, err := os.FindProcess(pid) // holds the process, so that no other one has its number
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if h.besideConfig(name) != dir {
		return os.ErrProcessDone
	}
	return p.Signal(syscall.SIGHUP)
}

// besideConfig is the directory of the configuration file of a postmaster, "" for another process.
func (h Host) besideConfig(pid string) string {
	config := h.configOf(pid)
	if config == "" {
		return ""
	}
	return h.resolved(path.Dir(config))
}

// resolved is a directory without links: a server may have been given another path of it.
func (h Host) resolved(dir string) string {
	if at, err := h.Root.EvalSymlinks(dir); err == nil {
		return at
	}
	return dir
}

// configOf is the configuration file of a postmaster, "" for another process. The postmaster works in its data
// directory, and its children have titles of their own.
func (h Host) configOf(pid string) string {
	if pid[0] < '0' || pid[0] > '9' {
		return ""
	}
	text, err := h.Root.ReadFile("/proc/" + pid + "/cmdline")
	args := strings.Split(string(text), "\x00")
	if base := path.Base(args[0]); err != nil || base != "postgres" && base != "postmaster" {
		return ""
	}
	for _, a := range args[1:] {
		if file, is := strings.CutPrefix(strings.TrimPrefix(a, "--"), "config_file="); is && path.IsAbs(file) {
			return file
		}
	}
	dir, err := h.Root.Readlink("/proc/" + pid + "/cwd")
	if err != nil {
		return ""
	}
	return path.Join(dir, "postgresql.conf")
}

// Overruled says which lines of other files of the same directory set the settings after bulkhead's.
func Overruled(root *sysroot.FS, wanted map[change.Target]string, by map[change.Target]string) {
	for target, want := range wanted {
		file, s, err := split(target.Addr)
		if target.Kind != Kind || err != nil {
			continue
		}
		names, _ := root.ReadDir(path.Dir(file)) // one that is not there has no files
		slices.Sort(names)
		for _, name := range names {
			if name <= path.Base(file) || path.Ext(name) != path.Ext(file) {
				continue
			}
			text, _, _ := regular(root.Path(path.Join(path.Dir(file), name)), 0) // what is no file sets nothing
			for number, line := range strings.Split(text, "\n") {
				value, sets := s.in(line)
				switch {
				case !sets:
				case plain(value) == plain(want):
					delete(by, target)
				default:
					by[target] = fmt.Sprintf("line %d of %s sets %s", number+1, path.Join(path.Dir(file), name), value)
				}
			}
		}
	}
}

// in is the value that a line of an option file gives a setting: "fsync = off # now", "fsync off",
// "skip-innodb-doublewrite".
func (s setting) in(line string) (value string, sets bool) {
	line, _, _ = strings.Cut(line, "#")
	words := strings.Fields(strings.Replace(line, "=", " ", 1))
	if len(words) == 0 {
		return "", false
	}
	value = strings.Trim(strings.Join(words[1:], " "), `'"`)
	switch strings.TrimPrefix(strings.ReplaceAll(strings.ToLower(words[0]), "-", "_"), "loose_") {
	case s.name:
		return value, true
	case "skip_" + s.name, "disable_" + s.name:
		if value == "0" { // off of off
			return "ON", true
		}
		return "OFF", true
	}
	return "", false
}

// plain is one word for values that mean the same: "1" and "yes" are "on".
func plain(value string) string {
	switch value = strings.ToLower(value); value {
	case "1", "true", "yes", "": // an option without a value is on
		return "on"
	case "0", "false", "no":
		return "off"
	}
	return value
}
