package conformance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

// Subject is what a case works on.
type Subject struct {
	*systemd.Manager
	Options systemd.Options
	// Name begins the name of every unit that the case makes: letters and digits. Whoever made the subject takes away
	// the units and files of that name.
	Name string
	// Sleep is a command that runs for long, Absent one that is not there.
	Sleep  []string
	Absent string
	// Cgroups is the version of the hierarchy that holds the memory controller.
	Cgroups int
	Host    Host
	// Spawn starts a process in no unit of the case's.
	Spawn func(testing.TB) int
}

// Host is what a case sees beside systemd. Groups are paths below the mount of the file's hierarchy.
type Host interface {
	Read(group, file string) (string, error)
	Write(group, file, text string) error
	MakeGroup(group string) error
	Processes
}

// Processes are those of the host.
type Processes interface {
	Kill(pid int)
	Alive(pid int) bool
	GroupOf(pid int) string
}

// testCase is one entry of the list.
type testCase struct {
	name string
	run  func(*bench)
}

// bench is a subject with what assertions need.
type bench struct {
	*testing.T
	Subject
	ctx context.Context
}

// must fails the case on an error.
func (b *bench) must(errs ...error) {
	b.Helper()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fails fails the case when err is not of that kind, or gives a user no hint where it should.
func (b *bench) fails(err, kind error) {
	b.Helper()
	switch {
	case err == nil:
		b.Errorf("no error, want %q", kind)
	case !errors.Is(err, kind):
		b.Errorf("error %q is not %q", err, kind)
	}
}

// ended fails the case when err is not that of a job that ended so.
func (b *bench) ended(err error, want systemd.Result) {
	b.Helper()
	var e *systemd.Error
	if !errors.As(err, &e) || !errors.Is(err, systemd.ErrJob) || e.Result != want {
		b.Errorf("error %v, want a job that ended with %q", err, want)
	}
}

// until waits for a condition.
func (b *bench) until(what string, holds func() bool) {
	b.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			b.Fatalf("waited in vain for: %s", what)
		}
	}
}

// unit looks a unit up.
func (b *bench) unit(name string) *systemd.Unit {
	b.Helper()
	u, err := b.Unit(b.ctx, name)
	b.must(err)
	return u
}

// gone waits until a unit is not loaded.
func (b *bench) gone(name string) {
	b.Helper()
	b.until(name+" is gone", func() bool {
		units, err := b.Units(b.ctx)
		b.must(err)
		return !slices.ContainsFunc(units, func(s systemd.Status) bool { return s.Name == name })
	})
}

// file writes a unit file and reloads.
func (b *bench) file(name string, lines ...string) string {
	b.Helper()
	b.write(name, lines...)
	b.must(b.Reload(b.ctx))
	return name
}

// write writes a unit file, which systemd reads at the next reload.
func (b *bench) write(name string, lines ...string) {
	b.Helper()
	path := filepath.Join("/", b.Options.Root, "/etc/systemd/system", name)
	b.must(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}

// service writes a service that runs for long, and starts it.
func (b *bench) service(name string) string {
	b.Helper()
	b.file(name, "[Service]", "ExecStart="+strings.Join(b.Sleep, " "))
	b.must(b.Start(b.ctx, name))
	return name
}

// slice names a slice of the case's and starts it.
func (b *bench) slice(group string, properties ...systemd.Property) string {
	b.Helper()
	name, err := unitname.SliceName(b.Name, group)
	b.must(err, b.StartTransient(b.ctx, systemd.Transient{Name: name, Properties: properties}))
	return name
}

// memory names the file that MemoryMax= becomes.
func (b *bench) memory() string {
	if b.Cgroups == 1 {
		return "memory.limit_in_bytes"
	}
	return "memory.max"
}

// noLimit is what that file holds without one.
func (b *bench) noLimit() string {
	if b.Cgroups == 1 {
		return "9223372036854771712"
	}
	return "max"
}

// holds fails the case when a file of a unit's directory does not read as want.
func (b *bench) holds(group, file, want string) {
	b.Helper()
	got, err := b.Host.Read(group, file)
	if err != nil {
		b.Error(err)
	} else if got != want {
		b.Errorf("%s/%s holds %q, want %q", group, file, got, want)
	}
}

// reloaded fails the case when after a reload the limit in a unit's file is not want, at once or, where reloads are
// lazy, after a property was set; until then it is before.
func (b *bench) reloaded(unit, before, want string) {
	b.Helper()
	dir := b.unit(unit).ControlGroup
	if b.Version().AtLeast(lazyReloadSince) {
		b.holds(dir, b.memory(), before)
		b.must(b.SetProperties(b.ctx, unit, systemd.Runtime, systemd.Property{Name: "CPUWeight", Value: uint64(77)}))
	}
	b.holds(dir, b.memory(), want)
}

func mib(n uint64) uint64 { return n << 20 }
