package control

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/state"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
	"bulkhead/internal/systemd/unitname"
	"bulkhead/internal/verify"
)

// command has `run` start a command in a group, as a process in no unit does that then becomes it.
func (m *machine) command(group, command string) (procfs.ID, error) {
	m.t.Helper()
	agent := m.Self
	defer func() { m.Self = agent }()
	m.Self = m.start("/usr/bin/bulkhead run " + group + " -- " + command)
	err := Enter(m.t.Context(), m.Reconciler.Controller,
		Entry{Group: group, By: "test", Command: path.Base(strings.Fields(command)[0])})
	m.run(m.Self.PID, 1, command)
	return m.Self, err
}

const jobs = "groups:\n  jobs: {role: helper, match: [{exe: backup}], tasks: 50}\n  other: {role: helper, match: " +
	"[{exe: nothing}], tasks: 50}\n"

func TestRunIsAScope(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"219", "247.3", "252.39", "257.13"} {
		t.Run(version, func(t *testing.T) {
			m := newMachine(t, version)
			m.start("/usr/bin/backup all")
			m.apply(jobs)
			p, err := m.command("jobs", "/usr/bin/report --month 11")
			m.must(err)
			name, err := unitname.RunName("", "jobs", p.PID, p.Start)
			m.must(err)
			scope := "/bulkhead.jobs.slice/" + name
			if at, u := m.where(p), m.unit(name); at != scope || !u.Active() || u.ControlGroup != scope {
				t.Fatalf("it is in %s, the unit is %+v", at, u)
			}
			m.reads("started", scope, "pids.max", "max") // DefaultTasksMax= is not the group's
			check := func(when string) {
				t.Helper()
				if done, err := m.full(); err != nil || len(done.Moved) > 0 || done.Repaired > 0 && version != "219" ||
					m.where(p) != scope {
					t.Errorf("%s: a look: %+v, %v; it is in %s", when, done, err, m.where(p))
				}
				if again := m.apply(jobs); again.Changed {
					t.Errorf("%s: a second apply changes something: %+v", when, again.Plan.Steps)
				}
			}
			check("started")
			m.must(m.bySystemd().Reload(t.Context()))
			check("reloaded")
			if all, err := inspect.Verify(t.Context(), m.Reconciler.Controller, nil); err != nil ||
				slices.ContainsFunc(all, func(v verify.Reading) bool { return !v.OK }) {
				t.Errorf("verify: %+v, %v", all, err)
			}
			// Moved by hand it goes where it is sent, and its unit ends.
			if _, err := m.do(api.Request{Verb: "move", Group: "other", PIDs: []int{p.PID},
				Force: true, Reason: "by hand"}); err != nil {
				t.Fatal(err)
			}
			if at := m.where(p); at != "/bulkhead.other.slice/bulkhead.other.service/members" {
				t.Errorf("moved, it is in %s", at)
			}
			if u := m.unit(name); u.LoadState != systemd.LoadNotFound {
				t.Errorf("empty, its unit is %s", u.ActiveState)
			}
			(*machineKernel)(m).End(p.PID)

			p, err = m.command("jobs", "/usr/bin/report --month 12")
			m.must(err)
			m.must(func() error { _, err := m.full(); return err }())
			reply := m.release()
			if at := m.where(p); at != "/" {
				t.Errorf("released, it is in %s", at)
			}
			if len(reply.Notes) > 0 {
				t.Errorf("notes %q", reply.Notes)
			}
			m.leftNothing()
			if _, err := m.command("jobs", "/usr/bin/report"); err == nil ||
				!strings.Contains(err.Error(), "released") {
				t.Errorf("run in a released group: %v", err)
			}
		})
	}
}

// differs gives the lines of two states that are in one alone.
func differs(after, before string) string {
	var b strings.Builder
	for sign, pair := range map[string][2]string{"+ ": {after, before}, "- ": {before, after}} {
		there := map[string]bool{}
		section := ""
		for line := range strings.Lines(pair[1]) {
			if strings.HasPrefix(line, "[") || strings.HasSuffix(line, ":\n") {
				section = line
			}
			there[section+line] = true
		}
		for line := range strings.Lines(pair[0]) {
			if strings.HasPrefix(line, "[") || strings.HasSuffix(line, ":\n") {
				section = line
			}
			if !there[section+line] {
				b.WriteString(sign + strings.TrimSpace(section) + " " + line)
			}
		}
	}
	return b.String()
}

// leftNothing says that systemd knows no unit of ours, and no file of one.
func (m *machine) leftNothing() {
	m.t.Helper()
	all, err := m.bySystemd().Units(context.Background())
	m.must(err)
	for _, u := range all {
		if _, ours := unitname.GroupOf("", u.Name); ours {
			m.t.Errorf("left behind: %s, %s", u.Name, u.ActiveState)
		}
	}
	for line := range strings.Lines(m.state()) {
		if strings.Contains(line, "bulkhead") {
			m.t.Errorf("left behind: %s", line)
		}
	}
}

// A group whose processes are gone from the policy lets its commands go; a group of another name holds none of them.
func TestRunOfAGroupThatIsNoMore(t *testing.T) {
	m := newMachine(t, "")
	m.start("/usr/bin/backup all")
	m.apply(jobs)
	p, err := m.command("jobs", "/usr/bin/report")
	m.must(err)
	m.apply("groups:\n  other: {role: helper, match: [{exe: nothing}], tasks: 50}\n")
	if at := m.where(p); at != "/" {
		t.Errorf("it is in %s", at)
	}
	if left := m.kernel.Dump(); strings.Contains(left, "bulkhead.jobs") {
		t.Errorf("left behind:\n%s", left)
	}
}

// Where no scope can be made nothing is started, the caller is where it was, and nobody is pinned.
func TestRunThatSystemdRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse     func(m *machine)
		text, hint string
	}{
		"not permitted": {func(m *machine) { m.refuse("StartTransientUnit", "no") }, "jobs", "systemctl status"},
		"no answer": {func(m *machine) {
			m.pid1.Hang(true)
			m.pid1.Drop()
		}, "does not answer|connection to systemd is gone", "systemctl status"},
		"gone": {func(m *machine) { m.pid1.Away(true) }, "systemd", "systemctl status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "")
			m.start("/usr/bin/backup all")
			m.apply(jobs)
			c.refuse(m)
			p, err := m.command("jobs", "/usr/bin/report")
			if err == nil || !regexp.MustCompile(c.text).MatchString(err.Error()) ||
				!strings.Contains(api.HintOf(err), c.hint) {
				t.Errorf("%v; hint %q", err, api.HintOf(err))
			}
			if at := m.where(p); at != "/" {
				t.Errorf("it is in %s", at)
			}
			var pins []state.Pin
			if _, err := m.Store.Load(state.DocPins, &pins); err != nil || len(pins) > 0 {
				t.Errorf("pins %+v, %v", pins, err)
			}
		})
	}
}

// refuse has systemd answer a method with an error.
func (m *machine) refuse(method, text string) {
	m.pid1.Intercept(func(call systemdfake.Call) error {
		if call.Method == method {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// A service keeps its limits while it is not yet what its group claims (measured on 252: the agent took them away while
// ExecStartPre= ran, and the database served without), and when the host goes down. One that has become another gives
// them back.
func TestServiceBetweenTwoPrograms(t *testing.T) {
	m := newMachine(t, "")
	db := m.service("db.service", "/usr/sbin/mysqld")
	m.apply("groups:\n  app: {role: database, adopt: next-start, " + dbRule + ", memory: {max: 1GiB}}\n")
	look := func(when, program, want string) {
		t.Helper()
		m.run(db.PID, 1, program)
		if _, err := m.full(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		m.reads(when, "/system.slice/db.service", "memory.max", want)
		if drops, err := m.bySystemd().DropIns(); err != nil || (len(drops) == 1) != (want != "max") {
			t.Errorf("%s: drop-ins %v, %v", when, drops, err)
		}
	}
	look("before its program runs", "/usr/lib/systemd/systemd-executor --deserialize 9", "1073741824")
	look("its server", "/usr/sbin/mysqld", "1073741824")
	look("another program", "/usr/bin/other", "max")
	look("its server again", "/usr/sbin/mysqld", "1073741824")
	m.pid1.GoDown()
	look("the host goes down", "/usr/bin/other", "1073741824")
}
