package selinux

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/journal"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/state"
)

// record is one of the soak's time in the log of auditd.
func record(at time.Time, comm, source, target string) string {
	return fmt.Sprintf("type=AVC msg=audit(%d.%03d:%d): avc:  denied  { read } for  pid=7 comm=%q name=\"x\" "+
		"scontext=system_u:system_r:%s:s0 tcontext=system_u:object_r:%s:s0 tclass=file permissive=1\n", at.Unix(),
		at.Nanosecond()/1e6, at.UnixMilli(), comm, source, target)
}

// A soak makes its domains permissive, puts what is denied to its checkpoints, names the cases that are left, and takes
// back at its end what it made. What others have made permissive is told, and is not taken back.
func TestSoak(t *testing.T) {
	l := newLab(t)
	l.logs("")
	runs := func(args string) string {
		t.Helper()
		out, err := l.run("", append([]string{"soak"}, strings.Fields(args)...)...)
		if err != nil {
			t.Fatalf("soak %s: %v", args, err)
		}
		return out
	}
	says := func(args string, parts ...string) {
		t.Helper()
		out := runs(args)
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("soak %s: %q is missing in\n%s", args, part, out)
			}
		}
	}
	says("status", "no soak has begun", "permissive by bulkhead: none; by others: init_t")
	for _, verb := range []string{"checkpoint backup", "end"} {
		if _, err := l.run("", append([]string{"soak"}, strings.Fields(verb)...)...); err == nil ||
			!strings.Contains(err.Error(), "no soak has begun") {
			t.Errorf("%s without one: %v", verb, err)
		}
	}
	says("begin --domain mysqld_t --domain init_t", "mysqld_t, init_t are permissive now",
		"note: init_t: permissive before")
	if q := l.changed[0]; q.Verb != "tune apply" || len(q.Tune) != 1 || q.Tune[0].Name !=
		"selinux module permissive_mysqld_t" || q.Tune[0].Value != "(typepermissive mysqld_t)" {
		t.Errorf("it asks for %+v", q)
	}
	first := time.Now()
	time.Sleep(5 * time.Millisecond)
	says("checkpoint stop-start", "stop-start begins")
	second := time.Now()
	l.logs(record(first.Add(-time.Hour), "old", "mysqld_t", "tmp_t") + record(first, "mariadbd", "mysqld_t", "nfs_t") +
		record(second, "sh", "mysqld_t", "tmp_t") + record(second, "httpd", "kernel_t", "tmp_t"))
	time.Sleep(5 * time.Millisecond)
	says("status", "a soak of mysqld_t, init_t, since ", " by test\n", "before the first checkpoint, from ",
		"NOT PERMISSIVE: mysqld_t; ", // the policy of this host never changes
		"  allow mysqld_t nfs_t:file read; by mariadbd, 1 time: boolean\n    why the loaded policy allows",
		"    do  setsebool -P use_nfs on\n",
		": 1 denial\n  whether records of audit got lost in that time is not known\n"+
			"  allow mysqld_t tmp_t:file read; by sh, 1 time: ", "and 1 denial of other domains",
		"CASES LEFT\nsst-donor (of a Galera cluster)\n", "grastate.dat")
	if out := runs("status"); strings.Contains(out, "old") || strings.Contains(out, "\nstop-start (") {
		t.Errorf("it says\n%s", out)
	}
	says("end", "ended: the soak of mysqld_t, init_t", "  allow mysqld_t tmp_t:file read; by sh",
		"CASES LEFT\nsst-donor")
	if q := l.changed[1]; q.Verb != "tune rollback" || strings.Join(q.Enforce, " ") != "mysqld_t init_t" ||
		q.EnforceFor != 0 || len(l.changed) != 2 {
		t.Errorf("it asks for %+v", l.changed)
	}
	says("status", "no soak has begun", "by others: init_t\n`semanage permissive -d DOMAIN` enforces what others have")
}

// Records that the kernel loses while a soak goes on are told at the checkpoint in which they got lost, and so is that
// nobody takes them.
func TestSoakLoses(t *testing.T) {
	l := newLab(t)
	l.logs("")
	status, failed := audit.Status{Enabled: 1, PID: 1, Lost: 5}, error(nil)
	l.audits = func() (audit.Status, error) { return status, failed }
	says := func(args string, parts ...string) string {
		t.Helper()
		out, err := l.run("", append([]string{"soak"}, strings.Fields(args)...)...)
		if err != nil {
			t.Fatalf("soak %s: %v", args, err)
		}
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("soak %s: %q is missing in\n%s", args, part, out)
			}
		}
		return out
	}
	status.PID = 0
	says("begin --domain mysqld_t", "note: nobody takes the records of audit")
	status = audit.Status{Enabled: 1, PID: 1, Lost: 5}
	says("checkpoint stop-start")
	status.Lost = 17
	says("checkpoint backup")
	out := says("status", "LOST: 12 records of audit in that time")
	if strings.Count(out, "LOST") != 1 || strings.Index(out, "LOST") > strings.Index(out, "\nbackup, from") {
		t.Errorf("it is not of stop-start\n%s", out)
	}
	boot := filepath.Join(l.dir, "proc/sys/kernel/random/boot_id")
	if err := os.WriteFile(boot, []byte("7a2b30ff-0000-4a36-9b1e-0f5e8a4f1c11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status.Lost = 0
	says("status", "the host was started anew in that time")
	failed = errors.New("no answer")
	says("end", "note: whether records of audit get lost is not known: no answer", "LOST: 12 records")
}

// What cannot be begun is said, and nothing is recorded of it.
func TestNoSoak(t *testing.T) {
	l := newLab(t)
	begin := []string{"soak", "begin", "--domain", "mysqld_t"}
	fails := func(want string, args ...string) {
		t.Helper()
		if _, err := l.run("", args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	fails("audit.log", begin...)
	l.logs("")
	fails("no type no_such_t", "soak", "begin", "--domain", "no_such_t")
	fails("no database runs here", "soak", "begin")
	l.fails = errors.New("semodule says no")
	fails("semodule says no", begin...)
	l.fails = nil
	if out, err := l.run("", "soak", "status"); err != nil || !strings.Contains(out, "no soak has begun") {
		t.Errorf("after one that failed: %v\n%s", err, out)
	}
	if _, err := l.run("", "soak", "begin", "--domain", "init_t"); err != nil {
		t.Error(err)
	}
	fails("a soak has begun", begin...)
	fails("small letters", "soak", "checkpoint", "A b")
	if err := os.Remove(filepath.Join(l.dir, "sys/fs/selinux/policy")); err != nil {
		t.Fatal(err)
	}
	fails("has loaded none", begin...)
	if out, err := l.run("", "soak", "status"); err != nil || !strings.Contains(out, "SELinux is not on here") {
		t.Errorf("status without a policy: %v\n%s", err, out)
	}
}

// documents are what is recorded.
func (l *lab) documents() *state.Documents {
	l.t.Helper()
	s, err := journal.Open(filepath.Join(l.dir, "state"), journal.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	docs, err := state.Load(s, state.DocSoak, state.DocTuned)
	if err != nil {
		l.t.Fatal(err)
	}
	return docs
}

// enforced are the domains that the last change enforces.
func (l *lab) enforced() string {
	l.t.Helper()
	if len(l.changed) == 0 || l.changed[len(l.changed)-1].Verb != "tune rollback" {
		l.t.Fatalf("nothing is enforced: %+v", l.changed)
	}
	return strings.Join(l.changed[len(l.changed)-1].Enforce, " ")
}

// made has domains be recorded as permissive by bulkhead.
func (l *lab) made(domains ...string) {
	l.t.Helper()
	all := []state.Tuned{{Rule: state.RuleSELinux, Name: "selinux boolean third"}}
	for _, d := range domains {
		all = append(all, state.Tuned{Rule: state.RuleSELinux, Name: sepolicy.PermissiveName(d),
			Value: sepolicy.Permissive(d)})
	}
	l.tuned(all...)
}

// What bulkhead has made permissive can be enforced again though no soak is recorded of it: a watch makes domains
// permissive after the end of one, and a caller may be killed.
func TestEndOfWhatIsPermissive(t *testing.T) {
	l := newLab(t)
	l.logs("")
	l.made("init_t") // as which the policy of this host has
	if out, err := l.run("", "soak", "status"); err != nil || !strings.Contains(out, "`bulkhead selinux soak end`") {
		t.Errorf("status: %v\n%s", err, out)
	}
	out, err := l.run("", "soak", "end")
	if err != nil || l.enforced() != "init_t" || !strings.Contains(out, "enforced again: init_t\n") {
		t.Errorf("%v, %+v\n%s", err, l.changed, out)
	}
	// One that a soak does not know goes with its own.
	if _, err := l.run("", "soak", "begin", "--domain", "mysqld_t"); err != nil {
		t.Fatal(err)
	}
	if out, err = l.run("", "soak", "end"); err != nil || l.enforced() != "mysqld_t init_t" {
		t.Errorf("%v, %+v\n%s", err, l.changed, out)
	}
}

// A begin that failed leaves what is recorded as it was, and records what was made permissive though the answer was
// lost.
func TestBeginThatFails(t *testing.T) {
	l := newLab(t)
	l.logs("")
	begin := []string{"soak", "begin", "--domain", "mysqld_t", "--reason"}
	if _, err := l.run("", append(begin, "first")...); err != nil {
		t.Fatal(err)
	}
	l.fails = errors.New("the agent is cut off")
	l.does = func() {}
	recorded := func(want string) {
		t.Helper()
		if docs := l.documents(); docs.Soak.Reason != want {
			t.Errorf("%+v is recorded, want that for %s", docs.Soak, want)
		}
	}
	if _, err := l.run("", append(begin, "second")...); err == nil { // this host's policy never changes
		t.Fatal("it does not fail")
	}
	recorded("first")
	l.does = func() { l.made("mysqld_t") }
	if _, err := l.run("", append(begin, "third")...); err == nil {
		t.Fatal("it does not fail")
	}
	recorded("third")
}

// A soak that has domains permissive is not written over by another one, and a checkpoint does not bring back one that
// was ended meanwhile.
func TestTwoSoaks(t *testing.T) {
	l := newLab(t)
	l.logs("")
	l.does = func() { l.made("mysqld_t") }
	if _, err := l.run("", "soak", "begin", "--domain", "mysqld_t", "--domain", "init_t"); err != nil {
		t.Fatal(err)
	}
	for _, domain := range []string{"mysqld_t", "kernel_t"} {
		if _, err := l.run("", "soak", "begin", "--domain", domain); err == nil || !strings.Contains(err.Error(),
			"a soak has begun") {
			t.Errorf("another one of %s: %v", domain, err)
		}
	}
	opened := 0
	l.opens = func() {
		if opened++; opened != 2 { // the checkpoint has looked
			return
		}
		if _, err := l.run("", "soak", "end"); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.run("", "soak", "checkpoint", "backup"); err == nil || !strings.Contains(err.Error(),
		"no soak has begun") {
		t.Errorf("a checkpoint beside the end: %v", err)
	}
	if docs := l.documents(); !docs.Soak.At.IsZero() {
		t.Errorf("%+v is there again", docs.Soak)
	}
}

// A checkpoint that another overtakes comes before it; one of a soak that was ended does not come into the next one.
func TestCheckpointsBesideOthers(t *testing.T) {
	l := newLab(t)
	l.logs("")
	runs := func(args ...string) {
		t.Helper()
		if _, err := l.run("", append([]string{"soak"}, args...)...); err != nil {
			t.Error(err)
		}
	}
	beside := func(verbs func()) {
		opened := 0
		l.opens = func() {
			if opened++; opened == 2 { // the checkpoint has looked
				verbs()
			}
		}
	}
	runs("begin", "--domain", "mysqld_t")
	beside(func() { runs("checkpoint", "second") })
	runs("checkpoint", "first")
	if all := l.documents().Soak.Checkpoints; len(all) != 2 || all[0].Name != "first" || all[1].Name != "second" {
		t.Errorf("%+v", all)
	}
	beside(func() {
		runs("end")
		runs("begin", "--domain", "mysqld_t")
	})
	if _, err := l.run("", "soak", "checkpoint", "old"); err == nil || !strings.Contains(err.Error(),
		"another soak has begun meanwhile") || len(l.documents().Soak.Checkpoints) > 0 {
		t.Errorf("%v, %+v", err, l.documents().Soak)
	}
}

// Without a log to read a soak can be ended all the same, and what is permissive is said.
func TestSoakWithoutItsLog(t *testing.T) {
	l := newLab(t)
	l.logs("")
	if _, err := l.run("", "soak", "begin", "--domain", "mysqld_t"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(l.dir, "var/log/audit/audit.log")); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"status", "end"} {
		out, err := l.run("", "soak", verb)
		if err != nil || !strings.Contains(out, "note: what was denied is not known: read \"/var/log/audit") {
			t.Errorf("%s: %v\n%s", verb, err, out)
		}
	}
	if l.enforced() != "mysqld_t" {
		t.Errorf("it asks for %+v", l.changed)
	}
}

// tuned has settings be recorded as set.
func (l *lab) tuned(all ...state.Tuned) {
	l.t.Helper()
	s, err := journal.Open(filepath.Join(l.dir, "state"), journal.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	lock, err := s.Lock("test", "test")
	if err == nil {
		defer lock.Release()
		err = state.Save(s, state.DocTuned, all)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// With a watch, what bulkhead made permissive is enforced after the rest was set, in a change of its own; where there
// is nothing to enforce nothing is changed.
func TestApplyWatch(t *testing.T) {
	l := newLab(t)
	l.logs(denials)
	if _, err := l.run("", "apply", "--watch", "1h"); err == nil || !strings.Contains(err.Error(),
		"bulkhead has made no domain permissive") || len(l.changed) > 0 {
		t.Errorf("nothing is permissive: %v, %+v", err, l.changed)
	}
	l.tuned(state.Tuned{Rule: state.RuleSELinux, Name: "selinux module permissive_mysqld_t",
		Value: "(typepermissive mysqld_t)"}, state.Tuned{Rule: state.RuleSELinux, Name: "selinux boolean third"})
	if out, err := l.run("", "apply", "--watch", "1h"); err != nil || len(l.changed) != 2 {
		t.Fatalf("%v, %+v\n%s", err, l.changed, out)
	}
	if q := l.changed[0]; q.Verb != "tune apply" || len(q.Tune) == 0 || q.EnforceFor != 0 {
		t.Errorf("first %+v", q)
	}
	if q := l.changed[1]; q.Verb != "tune rollback" || strings.Join(q.Enforce, " ") != "mysqld_t" ||
		q.EnforceFor != time.Hour || strings.Join(q.Rules, " ") != "selinux" {
		t.Errorf("then %+v", q)
	}
	l.logs("")
	if _, err := l.run("", "apply", "--watch", "1h"); err != nil || len(l.changed) != 3 ||
		l.changed[2].Verb != "tune rollback" {
		t.Errorf("with nothing to set: %v, %+v", err, l.changed)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "sys/fs/selinux/enforce"), []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run("", "apply", "--watch", "1h"); err == nil || !strings.Contains(err.Error(),
		"SELinux of this host is permissive") || len(l.changed) != 3 {
		t.Errorf("on a host that enforces nothing: %v", err)
	}
}

// Another team gets the module, the commands and every verdict; what is there already is not written over.
func TestExport(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.dir, "out")
	out, err := l.run(denials, "export", dir, "-", "--module", "site_db")
	if err != nil || !strings.Contains(out, "apply.sh, undo.sh, report.txt,") {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, part := range []string{"setsebool -P use_nfs on\n", "restorecon -R -v '/var/lib/mysql/a.ibd'\n"} {
		if !strings.Contains(read("apply.sh"), part) {
			t.Errorf("%q is missing in\n%s", part, read("apply.sh"))
		}
	}
	for _, part := range []string{"set     selinux boolean use_nfs = on", "LEFT TO YOU", "EVERY DENIAL",
		"own port: a server of that kind on this host would lose it", "  line "} {
		if !strings.Contains(read("report.txt"), part) {
			t.Errorf("%q is missing in\n%s", part, read("report.txt"))
		}
	}
	var report struct {
		Plan struct {
			Settings []struct{ Name string } `json:"settings"`
		} `json:"plan"`
		Explain struct {
			Groups []struct{ Verdict string } `json:"groups"`
		} `json:"explain"`
	}
	if err := json.Unmarshal([]byte(read("report.json")), &report); err != nil || len(report.Plan.Settings) != 2 ||
		len(report.Explain.Groups) != 5 {
		t.Errorf("%v: %+v", err, report)
	}
	if _, err := l.run(denials, "export", dir, "-"); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("once more: %v", err)
	}
	// The log is for root alone, and so is what stands in a report.
	if info, err := os.Stat(filepath.Join(dir, "report.txt")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("report.txt: %v, %v", info.Mode(), err)
	}
	open := filepath.Join(l.dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.run(denials, "export", open, "-"); err == nil || !strings.Contains(err.Error(),
		"others may write into it") {
		t.Errorf("where others may change the scripts: %v", err)
	}
	for _, args := range [][]string{{"export"}, {"export", dir + "2", "-", "--module", "1 x"}} {
		if _, err := l.run(denials, args...); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
