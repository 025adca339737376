package control

import (
	"strings"
	"testing"
)

// Under systemd host.others weighs the slices in which it keeps what matches no rule, moves nobody, and a release gives
// them back.
func TestOthersUnderSystemd(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"247.3", "252.39", "257.13"} {
		m := newMachine(t, version)
		m.service("web.service", "/usr/sbin/httpd")
		db := m.service("db.service", "/usr/sbin/mysqld")
		idle := m.start("/usr/bin/idle")
		login := m.service("session.service", "/bin/bash", "Slice=user.slice")
		const session = "/user.slice/session.service"
		before := m.state()
		text := "host: {others: {weight: 10}}\ngroups:\n  app: {role: database, " + dbRule + "}\n"
		reply := m.apply(text)
		m.reads("applied", "/system.slice", "cpu.weight", "10")
		if got := m.where(idle); got != "/" {
			t.Errorf("%s: what is in no unit is in %s", version, got)
		}
		m.reads("applied", "/user.slice", "cpu.weight", "10")
		if got := m.where(login); got != session {
			t.Errorf("%s: a login is in %s", version, got)
		}
		if got := m.where(db); got != "/system.slice/db.service" {
			t.Errorf("%s: the database is in %s", version, got)
		}
		said := false
		for _, n := range reply.Plan.Notes {
			said = said || n.Group == "app" &&
				strings.Contains(n.Text, "db.service runs in system.slice, which host.others weighs")
		}
		if !said {
			t.Errorf("%s: the database is weighed down with its slice, and plan does not say so: %+v",
				version, reply.Plan.Notes)
		}
		if again := m.apply(text); again.Changed {
			t.Errorf("%s: a second apply changes something: %+v", version, again.Plan.Steps)
		}
		if done, err := m.full(); err != nil || done.Repaired > 0 || len(done.Moved) > 0 {
			t.Errorf("%s: a look: %+v, %v", version, done, err)
		}
		m.apply("groups:\n  app: {role: database, " + dbRule + "}\n")
		m.reads("no longer asked for", "/system.slice", "cpu.weight", "100")
		m.apply(text)
		m.release()
		if after := m.state(); after != before {
			t.Errorf("%s: after release:\n%s", version, differs(after, before))
		}
	}
}
