//go:build root

package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/conformance"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/testhost"
)

// requireSystemd ends a test where systemd is not PID 1. In the lab (BULKHEAD_LAB is set) that is a failure: there the
// machine was booted for it.
func requireSystemd(t *testing.T) {
	t.Helper()
	testhost.RequireRoot(t)
	if systemd.Running("") {
		return
	}
	const why = "/run/systemd/system is not there: systemd is not PID 1"
	if os.Getenv("BULKHEAD_LAB") != "" {
		t.Fatal(why + ", and this is the lab")
	}
	t.Skip(why + "; the lab runs this test (BULKHEAD_LAB=1), here only the model was tested")
}

// TestSystemd runs the cases on this machine's systemd, some of them over both sockets; in short only those on which
// the verbs stand.
func TestSystemd(t *testing.T) {
	requireSystemd(t)
	t.Cleanup(reload(t))
	sockets := map[string][]string{"private": nil, "bus": conformance.OverBus}
	if testing.Short() {
		sockets = map[string][]string{"private": conformance.Brief, "bus": {"a scope", "the watch"}}
	}
	for name, only := range sockets {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Subject { return subject(t, name == "bus") }, only...)
		})
	}
}

// reload gives what has systemd forget the files of all cases.
func reload(t *testing.T) func() {
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m, err := systemd.Connect(ctx, systemd.Options{})
		if err == nil {
			defer m.Close()
			err = m.Reload(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

var subjects atomic.Int64

func subject(t *testing.T, bus bool) conformance.Subject {
	t.Helper()
	options := systemd.Options{Bus: bus}
	m, err := systemd.Connect(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("systemd %s", m.Version())
	name := fmt.Sprintf("bhc%dn%d", os.Getpid(), subjects.Add(1))
	t.Cleanup(func() { sweep(t, name) })
	t.Cleanup(m.Close)
	h := live{cgroups: 1}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		h.cgroups = 2
	}
	return conformance.Subject{
		Manager: m, Options: options, Name: name, Sleep: []string{"/bin/sleep", "1000"}, Absent: "/bin/no-such-program",
		Cgroups: h.cgroups, Host: h, Spawn: spawn,
	}
}

// spawn starts a process that is gone at the end of the test.
func spawn(t testing.TB) int {
	t.Helper()
	c := exec.Command("/bin/sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }()
	t.Cleanup(func() { c.Process.Kill(); <-ended })
	return c.Process.Pid
}

// sweep takes away every unit and file of a case. systemd hears of the files at the next reload, of another case or at
// the end: one takes seconds in an emulated machine.
func sweep(t *testing.T, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
	defer cancel()
	m, err := systemd.Connect(ctx, systemd.Options{})
	if err != nil {
		t.Error(err)
		return
	}
	defer m.Close()
	for range 10 {
		units, err := m.Units(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		left := 0
		for _, u := range units {
			if !strings.HasPrefix(u.Name, name) || u.ActiveState == "inactive" {
				continue
			}
			left++
			if full, err := m.Unit(ctx, u.Name); err == nil && full.ControlGroup != "" &&
				unitname.TypeOf(u.Name) != "slice" {
				killAll(full.ControlGroup)
			}
			if err := m.Stop(ctx, u.Name); err != nil && !errors.Is(err, systemd.ErrBusy) &&
				!errors.Is(err, systemd.ErrNoUnit) {
				t.Logf("sweep: %v", err)
			}
			if err := m.ResetFailed(ctx, u.Name); err != nil && !errors.Is(err, systemd.ErrNoUnit) {
				t.Logf("sweep: %v", err)
			}
		}
		if left == 0 {
			break
		}
	}
	for _, dir := range []string{"/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system.control"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), name) {
				os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		}
	}
	units, err := m.Units(ctx)
	for _, u := range units {
		if err != nil || strings.HasPrefix(u.Name, name) && u.ActiveState != "inactive" {
			t.Errorf("left behind: %+v %v", u, err)
		}
	}
}

// live is this machine.
type live struct{ cgroups int }

// dir gives the directory of a group in the hierarchy that has the file.
func (h live) dir(group, file string) string {
	if h.cgroups == 2 {
		return filepath.Join("/sys/fs/cgroup", group)
	}
	controller, _, _ := strings.Cut(file, ".")
	return filepath.Join("/sys/fs/cgroup", controller, group)
}

func (h live) Read(group, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(h.dir(group, file), file))
	return strings.TrimSpace(string(text)), err
}

func (h live) Write(group, file, text string) error {
	f, err := os.OpenFile(filepath.Join(h.dir(group, file), file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// MakeGroup makes the group in every hierarchy in which the one above it is.
func (h live) MakeGroup(group string) error {
	if h.cgroups == 2 {
		return os.Mkdir(filepath.Join("/sys/fs/cgroup", group), 0o755)
	}
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*")
	for _, hierarchy := range hierarchies {
		if info, err := os.Lstat(hierarchy); err != nil || !info.IsDir() {
			continue // a link to a co-mounted one
		}
		if err := os.Mkdir(filepath.Join(hierarchy, group), 0o755); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return err
}

func (h live) Kill(pid int) {
	syscall.Kill(pid, syscall.SIGKILL)
	for range 500 {
		if !h.Alive(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Alive counts a zombie as dead.
func (h live) Alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	at := strings.LastIndex(string(stat), ") ")
	return err == nil && at > 0 && stat[at+2] != 'Z'
}

// GroupOf gives the group in systemd's own hierarchy.
func (h live) GroupOf(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	group := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if at := strings.Index(line, ":name=systemd:"); at > 0 {
			return line[at+len(":name=systemd:"):]
		}
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			group = rest
		}
	}
	return group
}

// killAll kills every process of a unit, which a unit with KillMode=process does not.
func killAll(group string) {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd"} {
		filepath.WalkDir(filepath.Join(mount, group), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				text, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for _, field := range strings.Fields(string(text)) {
					if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
						syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			}
			return nil
		})
	}
}
