package service

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// Systemd is who reads drop-ins, and knows which process is the main one of a service.
type Systemd interface {
	change.Loader
	// MainPID gives 0 for a service that does not run.
	MainPID(ctx context.Context, unit string) (int, error)
	// Version is the number of systemd's version, 0 where it is not known: it counts as new.
	Version(ctx context.Context) (int, error)
}

// Host says where services are.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir     string
	Systemd Systemd // nil is one that cannot be asked
	// SetLimit gives a process a limit; nil is prlimit(2).
	SetLimit func(pid, resource int, soft, hard uint64) error
}

var (
	errNone = change.Gone("no systemd runs here")
	errMute = errors.New("systemd could not be asked")
)

type mute struct{}

func (mute) Reload(context.Context, ...string) error      { return errMute }
func (mute) MainPID(context.Context, string) (int, error) { return 0, errMute }
func (mute) Version(context.Context) (int, error)         { return 0, errMute }

// Dirs are where systemd looks for files of units: a file hides those of its name in later directories.
var dirs = []string{
	"/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
	"/run/systemd/generator.early", "/etc/systemd/system", "/run/systemd/system", "/run/systemd/generator",
	"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/generator.late",
}

// names are those under which the files of a unit are: its own, and that of its template.
func names(unit string) []string {
	if before, _, is := strings.Cut(unit, "@"); is {
		return []string{unit, before + "@.service"}
	}
	return []string{unit}
}

// knows says in the words of an error that this systemd has no such setting: it would read over the line.
func (h Host) knows(ctx context.Context, k key) error {
	want, young := since[k.name]
	if !young {
		return nil
	}
	has, err := h.Systemd.Version(ctx)
	if err == nil && has != 0 && has < want {
		err = change.Gone(fmt.Sprintf("systemd %d has no %s, which came with %d", has, k.name, want))
	}
	return err
}

// there says in the words of an error that there is no such unit, or no systemd.
func (h Host) there(unit string) error {
	if !h.Root.Exists("/run/systemd/system") {
		return errNone
	}
	for _, dir := range dirs {
		for _, name := range names(unit) {
			if h.Root.Exists(path.Join(dir, name)) {
				return nil
			}
		}
	}
	return change.Gone("there is no unit " + unit)
}
