//go:build root

package script

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"bulkhead/examples"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/testhost"
)

// A MariaDB and a PostgreSQL that systemd runs as services.
func TestServices(t *testing.T) { onSystemd(t, "services") }

// Slices of an administrator's.
func TestSlices(t *testing.T) { onSystemd(t, "slices") }

// onSystemd runs the scripts for a host that systemd runs.
func onSystemd(t *testing.T, folder string) {
	testhost.RequireRoot(t)
	if !systemd.Running("") {
		if os.Getenv("BULKHEAD_LAB") == "1" {
			t.Fatal("systemd is not PID 1 of this machine of the lab")
		}
		t.Skip("systemd is not PID 1 here; the lab's machines have it")
	}
	each(t, folder, func(t *testing.T, file string) {
		s := &site{t: t, root: testhost.Root(t), tree: testhost.Tree(t), snapshots: map[string]string{}}
		run(t, file, s.root, map[string]func(*testscript.TestScript, bool, []string){
			"spawn": s.spawn, "agent": s.agent, "unit": s.unit, "main": s.main, "units": s.units, "state": s.state,
			"same": s.sameState, "postgresql": postgresql,
			"example": example, "install": s.install, "figures": s.figures,
		})
	})
}

// postgresql makes $POSTGRESQL the unit of the one cluster there is: each release of Debian has another.
func postgresql(ts *testscript.TestScript, _ bool, _ []string) {
	out, err := exec.Command("systemctl", "list-units", "--plain", "--no-legend", "--no-pager",
		"postgresql@*.service").Output()
	if fields := strings.Fields(string(out)); err == nil && len(fields) > 0 {
		ts.Setenv("POSTGRESQL", fields[0])
		return
	}
	ts.Fatalf("no PostgreSQL runs as a service: %v\n%s", err, out)
}

// example writes one of the examples.
func example(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text, err := examples.Policies.ReadFile(name)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(name), text, 0o600))
	}
}

// install makes files the units of an administrator's and starts them. They are gone at the end of the script.
func (s *site) install(ts *testscript.TestScript, _ bool, units []string) {
	ctl := func(args ...string) {
		if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
			s.t.Errorf("systemctl %v: %v\n%s", args, err, out)
		}
	}
	ts.Defer(func() {
		ctl(append([]string{"stop"}, units...)...)
		for _, unit := range units {
			if err := os.Remove(filepath.Join("/etc/systemd/system", unit)); err != nil {
				s.t.Error(err)
			}
		}
		ctl("daemon-reload")
	})
	for _, unit := range units {
		ts.Check(os.WriteFile(filepath.Join("/etc/systemd/system", unit), []byte(ts.ReadFile(unit)), 0o644))
	}
	ctl("daemon-reload")
	ctl(append([]string{"start"}, units...)...)
}

// figures makes $PERCENT4 and $PERCENT5 what the kernel holds of so much of the memory, and $VERIFIES the exit code of
// verify for a policy with limits that cgroup v1 has no file for.
func (s *site) figures(ts *testscript.TestScript, _ bool, _ []string) {
	facts, err := host.New("/").Facts()
	ts.Check(err)
	for _, n := range []int64{4, 5} {
		bytes := facts.MemTotal * n / 100
		ts.Setenv(fmt.Sprintf("PERCENT%d", n), fmt.Sprint(bytes-bytes%facts.PageSize))
	}
	ts.Setenv("VERIFIES", "0")
	if h, ok := facts.HierarchyOf("memory"); !ok || h.Version == 1 {
		ts.Setenv("VERIFIES", "4")
	}
}

// unit waits until the kernel holds a value in the directory of a unit, in the file of v1 or of v2. "-" is no file. A
// second value is that of v2:
//
//	unit mariadb.service memory.limit_in_bytes memory.max 536870912
//	unit mariadb.service cpu.shares cpu.weight 10240 1000
func (s *site) unit(ts *testscript.TestScript, _ bool, args []string) {
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = s.unitHolds(args); err == nil {
			return
		}
	}
	ts.Fatalf("after half a minute: %v", err)
}

func (s *site) unitHolds(args []string) error {
	dir, err := property(args[0], "ControlGroup")
	if err != nil {
		return err
	}
	controller, _, _ := strings.Cut(args[2], ".")
	for _, h := range s.tree.Hierarchies() {
		file, want := args[1], args[3]
		if h.Version == 2 {
			file, want = args[2], args[len(args)-1]
		}
		if !h.Has(host.V1Name(controller)) {
			continue
		}
		if file == "-" {
			return nil
		}
		got, err := s.tree.Read(cgroup.Dir{Hierarchy: h.ID, Path: dir}.File(file))
		if err == nil && strings.TrimSpace(got) != want && (want != "max" || len(got) < 16) {
			err = fmt.Errorf("%s of %s holds %q, not %s", file, args[0], strings.TrimSpace(got), want)
		}
		return err
	}
	return fmt.Errorf("no hierarchy holds %s", controller)
}

// property asks systemd for a property of a unit.
func property(unit, name string) (string, error) {
	out, err := exec.Command("systemctl", "show", "-p", name, unit).Output()
	return strings.TrimSpace(strings.TrimPrefix(string(out), name+"=")), err
}

// main holds the main process of a unit to the one that it had when it was asked for first:
//
//	main mariadb.service            remember it
//	main mariadb.service same       it was not restarted
func (s *site) main(ts *testscript.TestScript, _ bool, args []string) {
	now, err := property(args[0], "MainPID")
	ts.Check(err)
	where, err := property(args[0], "ControlGroup")
	ts.Check(err)
	now += " in " + where
	if len(args) > 1 && s.snapshots["main "+args[0]] != now {
		ts.Fatalf("%s is process %s, was %s", args[0], now, s.snapshots["main "+args[0]])
	}
	s.snapshots["main "+args[0]] = now
}

// units says that none of ours runs.
func (s *site) units(ts *testscript.TestScript, neg bool, _ []string) {
	out, err := exec.Command("systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager").Output()
	ts.Check(err)
	prefix := unitname.Escape(s.root)
	var ours []string
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasPrefix(fields[0], prefix) &&
			fields[2] == "active" {
			ours = append(ours, fields[0])
		}
	}
	if (len(ours) == 0) == neg {
		ts.Fatalf("units of ours: %v", ours)
	}
}

// state keeps, and same compares, all that systemd and the kernel hold of units.
func (s *site) state(ts *testscript.TestScript, _ bool, args []string) {
	s.snapshots[args[0]] = s.stateOf(ts, args[1:])
}

func (s *site) sameState(ts *testscript.TestScript, _ bool, args []string) {
	if was, is := s.snapshots[args[0]], s.stateOf(ts, args[1:]); was != is {
		ts.Fatalf("now:\n%s\n%s:\n%s", is, args[0], was)
	}
}

func (s *site) stateOf(ts *testscript.TestScript, units []string) string {
	var b strings.Builder
	for _, unit := range units {
		dir, err := property(unit, "ControlGroup")
		ts.Check(err)
		out, err := exec.Command("systemctl", "show", unit).Output()
		ts.Check(err)
		fmt.Fprintf(&b, "%s\n", unit)
		for line := range strings.Lines(string(out)) {
			name, _, _ := strings.Cut(line, "=")
			if row, ok := systemd.RowOf(name); ok && row.Form != systemd.FormFlag || name == "DropInPaths" ||
				name == "ActiveState" || name == "Slice" {
				b.WriteString(line)
			}
		}
		b.WriteString(testhost.Snapshot(s.t, s.tree, strings.TrimPrefix(dir, "/")))
	}
	return b.String()
}
