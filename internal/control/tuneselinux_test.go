package control

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable/sepolicy/sepolicytest"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

// policies are the stores of machines.
var policies = map[*machine]*sepolicytest.Policy{}

// selinuxMachine is a machine with a policy, of which an administrator has changed a boolean, and a database in
// /srv/db.
func selinuxMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "252.39")
	p := sepolicytest.New(t, m.root)
	policies[m] = p
	t.Cleanup(func() { delete(policies, m) })
	p.Put(sepolicytest.Active+"booleans.local", "# auto-generated\nother=1\n")
	p.Put("srv/db/ibdata1", "")
	p.Put("srv/db/mysql.sock", "")
	p.Labels[m.inode("srv/db/mysql.sock")] = "system_u:object_r:mysqld_var_run_t:s0"
	m.ChangePolicy, m.Labels = p.Run, p
	return m
}

func (m *machine) inode(file string) uint64 {
	m.t.Helper()
	var st unix.Stat_t
	m.must(unix.Lstat(filepath.Join(m.root, file), &st))
	return st.Ino
}

// selinux is what the store has, with labels and booleans in force.
func (m *machine) selinux() string {
	m.t.Helper()
	p := policies[m]
	var held []string
	for _, file := range []string{"booleans.local", "ports.local", "file_contexts.local"} {
		for line := range strings.Lines(p.Text(sepolicytest.Active + file)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				held = append(held, line)
			}
		}
	}
	modules, err := filepath.Glob(filepath.Join(m.root, sepolicytest.Active, "modules/400/*/cil"))
	m.must(err)
	for _, file := range modules {
		text, err := os.ReadFile(file)
		m.must(err)
		held = append(held, filepath.Base(filepath.Dir(file))+" "+strings.TrimSpace(string(text)))
	}
	for _, name := range []string{"mysql_connect_any", "other"} {
		held = append(held, fmt.Sprintf("%s is %s", name, p.Text("sys/fs/selinux/booleans/" + name)[:1]))
	}
	for _, file := range []string{"srv/db", "srv/db/ibdata1", "srv/db/mysql.sock"} {
		held = append(held, p.Labels[m.inode(file)])
	}
	return strings.Join(held, "\n")
}

func ofSELinux(name, value string) state.Tuned {
	return state.Tuned{Rule: state.RuleSELinux, Name: "selinux " + name, Value: value}
}

var selinuxSettings = []state.Tuned{
	ofSELinux("context /srv/db", "mysqld_db_t"), ofSELinux("port tcp/4444", "mysqld_port_t from kerberos_port_t"),
	ofSELinux("boolean mysql_connect_any", "on"),
	ofSELinux("module bulkhead_mysqld_t", "(allow mysqld_t self (process (setpgid)))"),
}

const (
	untunedPolicy = "other=1\nmysql_connect_any is 0\nother is 0\n\n\nsystem_u:object_r:mysqld_var_run_t:s0"
	tunedPolicy   = "other=1\nmysql_connect_any=1\nportcon tcp 4444 system_u:object_r:mysqld_port_t:s0\n" +
		"/srv/db(/.*)?    system_u:object_r:mysqld_db_t:s0\nbulkhead_mysqld_t " +
		"(allow mysqld_t self (process (setpgid)))\nmysql_connect_any is 1\nother is 0\n" +
		dbLabel + "\n" + dbLabel + "\n" + dbLabel
	dbLabel = "system_u:object_r:mysqld_db_t:s0"
)

// busyPolicy has another program change the policy until what it gives is closed.
func (m *machine) busyPolicy() *os.File {
	m.t.Helper()
	lock, err := os.Open(filepath.Join(m.root, "var/lib/selinux/default/semanage.trans.LOCK"))
	m.must(err)
	m.must(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	return lock
}

// plainLabels has a label that was written as one that was never set, where they are the same.
func plainLabels(m *machine) string {
	text := strings.ReplaceAll(m.selinux(), "system_u:object_r:var_t:s0", "")
	return strings.Replace(text, "mysql_connect_any=0\n", "", 1) // the default, beside another's boolean
}

// Settings of SELinux are in the store and in force, are listed, and go again as they were, but for a boolean beside
// others, which stays at its default. What somebody else changes is read in no look of the agent, and not set again.
func TestTuneSELinux(t *testing.T) {
	m := selinuxMachine(t)
	m.tune(selinuxSettings...)
	if got := m.selinux(); got != tunedPolicy {
		t.Errorf("tuned it is\n%s\nwant\n%s", got, tunedPolicy)
	}
	if reply := m.tune(selinuxSettings...); len(reply.Plan.Steps) > 0 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	kept, err := inspect.Tuning(t.Context(), m.Reconciler.Controller)
	m.must(err)
	for _, k := range kept {
		if k.From != "selinux apply" || k.Running != "" {
			t.Errorf("status: %+v", k)
		}
	}
	p := policies[m]
	ports := p.Text(sepolicytest.Active + "ports.local")
	p.Labels[m.inode("srv/db/ibdata1")] = "system_u:object_r:httpd_t:s0"
	p.Put(sepolicytest.Active+"ports.local", "")
	changed := m.selinux()
	busy := m.busyPolicy()
	_, err = m.full()
	m.must(err)
	busy.Close()
	reply := m.apply("host: {tune: {vm.swappiness: 7}}\n")
	if got := m.selinux(); got != changed {
		t.Errorf("after a look of the agent and a policy it is\n%s\nwant\n%s", got, changed)
	}
	if text := shown(reply); !strings.Contains(text, `selinux port tcp/4444 is "" and not "mysqld_port_t from `+
		`kerberos_port_t", as it was set: somebody else has changed it`) {
		t.Errorf("it says\n%s", text)
	}
	reply, err = m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	if got := m.selinux(); got != changed || !strings.Contains(strings.Join(reply.Notes, "\n"),
		"settings of SELinux stay") {
		t.Errorf("after a rollback of everything else it is\n%s\n%s", got, shown(reply))
	}
	p.Put(sepolicytest.Active+"ports.local", ports)
	reply, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{state.RuleSELinux}})
	m.must(err)
	if got := plainLabels(m); got != untunedPolicy {
		t.Errorf("rolled back it is\n%s\nwant\n%s\n%+v", got, untunedPolicy, reply.Plan.Steps)
	}
	reply, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{state.RuleSELinux}})
	if err != nil || !strings.Contains(reply.Text, "`selinux apply` has nothing in force") {
		t.Errorf("once more: %q, %v", reply.Text, err)
	}
	m.tune(selinuxSettings...)
	m.release()
	if got := plainLabels(m); got != untunedPolicy {
		t.Errorf("released it is\n%s", got)
	}
}

// Killed after any step, all of the policy is as it was, over a boot too.
func TestTuneSELinuxKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine: selinuxMachine, settings: selinuxSettings, untuned: untunedPolicy, tuned: tunedPolicy, steps: 6,
		step: func(*machine, plan.Step) {}, boot: func(m *machine) {
			m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			m.reopened(-1)
		},
		held: plainLabels, rules: []string{state.RuleSELinux},
	})
}

// A step that fails takes those before it back.
func TestTuneSELinuxThatFails(t *testing.T) {
	m := selinuxMachine(t)
	_, err := m.do(api.Request{Verb: "tune apply", Tune: append(slices.Clone(selinuxSettings),
		ofSELinux("port udp/4567", "no_such_t"))})
	if err == nil || !strings.Contains(err.Error(), "type is invalid") {
		t.Errorf("it says %v", err)
	}
	if got := plainLabels(m); got != untunedPolicy {
		t.Errorf("undone it is\n%s\nwant\n%s", got, untunedPolicy)
	}
	_, err = m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{ofSELinux("context /etc", "mysqld_db_t")}})
	if api.CodeOf(err) != api.CodeUsage {
		t.Errorf("of /etc: %v", err)
	}
}

// What somebody has changed since stays when it is taken back, and so does what is not there any more.
func TestTuneSELinuxChangedByOthers(t *testing.T) {
	m := selinuxMachine(t)
	m.tune(selinuxSettings...)
	p := policies[m]
	p.Put(sepolicytest.Active+"ports.local", "portcon tcp 4444 system_u:object_r:other_port_t:s0\n")
	p.Put(sepolicytest.Active+"file_contexts.local", "/srv/db(/.*)?    system_u:object_r:httpd_t:s0\n")
	m.must(os.Rename(filepath.Join(m.root, "srv/db"), filepath.Join(m.root, "srv/gone")))
	reply, err := m.do(api.Request{Verb: "tune rollback", Rules: []string{state.RuleSELinux}})
	m.must(err)
	for file, want := range map[string]string{"ports.local": "other_port_t", "file_contexts.local": "httpd_t",
		"modules/400/bulkhead_mysqld_t/cil": ""} {
		if got := p.Text(sepolicytest.Active + file); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s is %q", file, got)
		}
	}
	for _, part := range []string{`selinux port tcp/4444 is "other_port_t", which somebody else has set since`,
		`selinux context /srv/db is "httpd_t"`, "selinux labels /srv/db cannot be read"} {
		if !strings.Contains(shown(reply), part) {
			t.Errorf("%q is missing in\n%s", part, shown(reply))
		}
	}
}

// A domain that becomes enforced is watched: what is denied to it makes it permissive again, what was set beside stays,
// and the history says why. What was denied in permissive mode, to others or before does not; without a denial it stays
// enforced.
func TestEnforcedDomainIsWatched(t *testing.T) {
	m := selinuxMachine(t)
	p := policies[m]
	const log = "var/log/audit/audit.log"
	m.atTime("23 12:00")
	denied := func(ago time.Duration, domain, extra string) {
		at := m.Now().Add(-ago)
		p.Put(log, p.Text(log)+fmt.Sprintf("type=AVC msg=audit(%d.000:7): avc:  denied  { write } for  pid=7 "+
			"comm=\"mariadbd\" path=\"/srv/db/x\" scontext=system_u:system_r:%s:s0 "+
			"tcontext=system_u:object_r:tmp_t:s0 tclass=file%s\n", at.Unix(), domain, extra))
	}
	m.tune(append(slices.Clone(selinuxSettings),
		ofSELinux("module permissive_mysqld_t", "(typepermissive mysqld_t)"))...)
	soaked := m.selinux()
	enforce := api.Request{Verb: "tune rollback", Rules: []string{state.RuleSELinux}, Enforce: []string{"mysqld_t"},
		EnforceFor: time.Hour}
	if _, err := m.do(enforce); err == nil || !strings.Contains(err.Error(), "watch what SELinux denies") {
		t.Errorf("without a log of auditd: %v", err)
	}
	if got := m.selinux(); got != soaked {
		t.Errorf("and something was changed: %s", got)
	}
	p.Put(log, "")
	denied(time.Hour, "mysqld_t", " permissive=0")
	reply, err := m.do(enforce)
	m.must(err)
	if got := m.selinux(); got != tunedPolicy || !reply.Guarded.Equal(m.Now().Add(time.Hour)) {
		t.Errorf("enforced, until %s, it is\n%s", reply.Guarded, got)
	}
	denied(0, "mysqld_t", " permissive=1")
	denied(0, "httpd_t", " permissive=0")
	m.tended()
	if got := m.selinux(); got != tunedPolicy {
		t.Errorf("after denials that do not count it is\n%s", got)
	}
	denied(0, "mysqld_t", " permissive=0")
	m.trials = nil // as when the watchdog was killed: another one reads from the beginning
	m.tended()
	if got := m.selinux(); got != soaked {
		t.Errorf("after a denial it is\n%s\nwant\n%s", got, soaked)
	}
	entries, err := m.Store.History()
	m.must(err)
	const why = `guard: SELinux denied "mariadbd" (process 7) in mysqld_t: write on /srv/db/x (allow mysqld_t ` +
		`tmp_t:file write;)`
	if last := entries[len(entries)-1]; last.Verb != "revert" || last.Reason != why {
		t.Errorf("the history says %+v", last)
	}
	m.atTime("23 12:30")
	_, err = m.do(enforce)
	m.must(err)
	m.tended()
	m.atTime("23 13:30")
	m.watched()
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if got := m.selinux(); got != tunedPolicy || st.Trial != nil {
		t.Errorf("when its time is over: %+v\n%s", st.Trial, got)
	}
	reply, err = m.do(enforce)
	if err != nil || !strings.Contains(reply.Text, "bulkhead has not made mysqld_t permissive") {
		t.Errorf("once more: %q, %v", reply.Text, err)
	}
}
