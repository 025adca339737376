//go:build root

package selinux

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// permits is a domain that is permissive.
type permits struct {
	Domain string `json:"domain"`
	Ours   bool   `json:"by_bulkhead"`
}

// soaked is what `soak status` says, as far as it is needed here.
type soaked struct {
	Permissive  []permits `json:"permissive"`
	Checkpoints []struct {
		Name    string `json:"checkpoint"`
		Denials int    `json:"denials"`
		// Rebooted says that the host was started anew in it.
		Rebooted bool `json:"rebooted"`
		Groups   []struct {
			Rule     string   `json:"rule"`
			Commands []string `json:"commands"`
		} `json:"groups"`
	} `json:"checkpoints"`
}

// permissive says whether mysqld_t is, by bulkhead.
func (s soaked) permissive() bool {
	for _, p := range s.Permissive {
		if p.Domain == "mysqld_t" {
			return p.Ours
		}
	}
	return false
}

func (r *rig) soak(args ...string) (s soaked) {
	r.t.Helper()
	r.does(&s, append([]string{"selinux", "soak"}, args...)...)
	return s
}

// Under an enforcing kernel a MariaDB whose data is elsewhere runs while its domain is permissive; the same denials are
// logged at each checkpoint anew. Another team's files build and suffice. What apply sets is enforced and watched: a
// denial makes the domain permissive again though the caller is gone, and without one it stays enforced. In the end all
// of the policy is as it was.
func TestSoakWatchExport(t *testing.T) {
	r := newRig(t)
	r.elsewhere()
	if !r.starts() { // once, so that all its files are there
		t.Fatalf("it does not start in permissive mode:\n%s", r.must("journalctl", "-u", "mariadb", "-n", "30"))
	}
	r.stop()
	odd := "/srv/bhodd"
	t.Cleanup(func() { _ = os.RemoveAll(odd) })
	r.write(odd+"/x", "1\n")
	r.must("chcon", "-R", "-t", "shadow_t", odd+"/x")
	was := r.policy(tree)
	r.enforce()
	if r.starts() {
		t.Fatal("it starts although its domain is enforced")
	}
	time.Sleep(1100 * time.Millisecond)
	since := time.Now().Format("2006-01-02 15:04:05")
	r.soak("begin", "--domain", "mysqld_t", "--reason", "lab")
	for _, name := range []string{"stop-start", "again"} {
		r.soak("checkpoint", name)
		if !r.starts() {
			t.Fatalf("%s: it does not start though its domain is permissive:\n%s", name,
				r.must("sh", "-c", "ausearch -m AVC --raw | tail -10"))
		}
		r.stop()
	}
	s := r.soak("status")
	if !s.permissive() || len(s.Checkpoints) != 3 {
		t.Fatalf("%+v", s)
	}
	first := s.Checkpoints[1]
	for _, g := range first.Groups {
		at := slices.IndexFunc(s.Checkpoints[2].Groups, func(o struct {
			Rule     string   `json:"rule"`
			Commands []string `json:"commands"`
		}) bool {
			return o.Rule == g.Rule
		})
		if strings.Contains(g.Rule, "mysqld_t var_t:file") && at < 0 || len(g.Commands) == 0 {
			t.Errorf("%+v was denied at %s and not at %s", g, first.Name, s.Checkpoints[2].Name)
		}
	}
	if len(first.Groups) == 0 || s.Checkpoints[2].Denials == 0 {
		t.Errorf("nothing was denied: %+v", s.Checkpoints)
	}
	r.does(nil, "selinux", "soak", "status")
	if marks := r.must("ausearch", "-m", "USER", "--raw"); !strings.Contains(marks, "bulkhead selinux soak checkpoint "+
		"again") {
		t.Errorf("the log of audit has no mark:\n%s", marks)
	}
	t.Run("export", func(t *testing.T) {
		e := *r
		e.t = t
		e.exported(since)
	})
	r.does(nil, "selinux", "apply", "--since", since, "--watch", "10m", "--reason", "enforced")
	if r.soak("status").permissive() {
		t.Fatal("it is not enforced")
	}
	if !r.starts() {
		t.Fatalf("enforced with what apply set it does not start:\n%s\n%s",
			r.must("journalctl", "-u", "mariadb", "-n", "30"), r.must("sh", "-c", "ausearch -m AVC --raw | tail -10"))
	}
	r.does(nil, "status")
	const load = "create table if not exists test.odd (a int); load data infile '/srv/bhodd/x' into table test.odd"
	r.must("mariadb", "-e", "create database if not exists test")
	out, err := exec.Command("mariadb", "-e", load).CombinedOutput()
	if err == nil {
		t.Fatalf("SELinux does not deny it: %s", out)
	}
	began := time.Now()
	for !r.soak("status").permissive() {
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("denied, it stays enforced:\n%s\n%s", out, r.must("sh", "-c", "ausearch -m AVC --raw | tail -10"))
		}
		time.Sleep(2 * time.Second)
	}
	t.Logf("permissive again %s after the denial", time.Since(began).Round(time.Second))
	r.must("mariadb", "-e", load)
	if said := r.does(nil, "history"); !strings.Contains(said, "SELinux denied") {
		t.Errorf("the history does not say why:\n%s", said)
	}
	// Nothing is denied: it stays enforced.
	time.Sleep(2 * time.Second) // the log has whole seconds
	r.does(nil, "selinux", "apply", "--since", time.Now().Format(time.DateTime), "--watch", "20s")
	time.Sleep(40 * time.Second)
	if said := r.does(nil, "status"); r.soak("status").permissive() || strings.Contains(said, "ON TRIAL") {
		t.Errorf("undenied, it is\n%s", said)
	}
	r.stop()
	r.does(nil, "selinux", "soak", "end")
	r.does(nil, "selinux", "rollback")
	is := r.policy(tree)
	r.same("after the rollback", labelsOfOld(tree, was, is), is)
}

// exported has another team's files built, installed and taken back: with them the server starts though its domain is
// enforced.
func (r *rig) exported(since string) {
	r.t.Helper()
	was := r.policy(tree)
	dir := filepath.Join(r.dir, "out")
	r.does(nil, "selinux", "export", dir, "--since", since, "--module", "lab_databases")
	r.t.Logf("%s", r.must("sh", "-c", "cd "+dir+" && head -50 *.te *.fc *.sh"))
	r.t.Logf("%s", r.must("sh", dir+"/apply.sh"))
	r.must("semodule", "-X", "400", "-r", "permissive_mysqld_t")
	if !r.starts() {
		r.t.Errorf("with what was exported it does not start:\n%s", r.must("sh", "-c",
			"ausearch -m AVC --raw | tail -10"))
	}
	r.stop()
	r.must("semanage", "permissive", "-a", "mysqld_t")
	r.t.Logf("%s", r.must("sh", dir+"/undo.sh"))
	is := r.policy(tree)
	r.same("after undo.sh", labelsOfOld(tree, was, is), is)
}
