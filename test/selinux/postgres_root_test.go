//go:build root

package selinux

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const (
	pgTree = "/srv/bhpg"
	pgData = pgTree + "/data"
	pgPort = "25432"
	pgUnit = "postgresql@15-bhlab"
)

// pgStarts starts the cluster and says whether it serves from there.
func (r *rig) pgStarts() bool {
	r.t.Helper()
	_ = exec.Command("systemctl", "reset-failed", pgUnit).Run()
	out, err := exec.Command("systemctl", "start", pgUnit).CombinedOutput()
	for try := 0; err == nil && try < 10; try++ { // the unit takes a start that failed for one that did not
		asked := exec.Command("runuser", "-u", "postgres", "--", "psql", "-p", pgPort, "-At", "-c",
			"show data_directory")
		if out, _ = asked.CombinedOutput(); strings.TrimSpace(string(out)) == pgData {
			return true
		}
		time.Sleep(time.Second)
	}
	r.t.Logf("it does not start: %v %s", err, out)
	_ = exec.Command("systemctl", "stop", pgUnit).Run()
	return false
}

func (r *rig) pgStop() {
	r.t.Helper()
	r.must("systemctl", "stop", pgUnit)
}

// A PostgreSQL whose data and port are elsewhere does not start under the policy. In a soak it does; with the label and
// the port that the plan names it starts though its domain is enforced, and once they are taken back all of the policy
// is as it was.
func TestPostgreSQLElsewhere(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() {
		r.must("pg_dropcluster", "--stop", "15", "bhlab")
		_ = os.RemoveAll(pgTree)
		r.must("systemctl", "daemon-reload")
	})
	r.must("pg_createcluster", "15", "bhlab", "-d", pgData, "-p", pgPort)
	r.must("systemctl", "daemon-reload")
	if !r.pgStarts() {
		t.Fatalf("it does not start in permissive mode:\n%s", r.must("journalctl", "-u", pgUnit, "-n", "30"))
	}
	if domain := r.must("sh", "-c", "ps -o label= -p $(head -1 "+pgData+"/postmaster.pid)"); !strings.Contains(domain,
		":postgresql_t:") {
		t.Fatalf("it runs as %s", domain)
	}
	r.pgStop()
	was := r.policy(pgTree)
	r.enforce()
	if r.pgStarts() {
		t.Fatal("it starts although nothing was set")
	}
	since := r.moment()
	r.soak("begin", "--domain", "postgresql_t", "--reason", "lab")
	r.soak("checkpoint", "stop-start")
	if !r.pgStarts() {
		t.Fatalf("it does not start though its domain is permissive:\n%s", r.must("sh", "-c",
			"ausearch -m AVC --raw | tail -10"))
	}
	r.denied(since, "postgresql_t", "postgresql")
	r.pgStop()
	if s := r.soak("status"); len(s.Checkpoints) != 2 || s.Checkpoints[1].Denials == 0 {
		t.Errorf("%+v", s)
	}
	r.does(nil, "selinux", "plan", "--since", since)
	r.plans(since, map[string]string{"selinux context " + pgData: "postgresql_db_t",
		"selinux port tcp/" + pgPort: "postgresql_port_t"})
	r.does(nil, "selinux", "apply", "--since", since, "--reason", "data elsewhere")
	r.does(nil, "selinux", "soak", "end")
	if s := r.soak("status"); len(s.Permissive) > 0 && s.Permissive[0].Domain == "postgresql_t" ||
		r.must("getenforce") != "Enforcing" {
		t.Fatalf("it is not enforced: %+v", s)
	}
	if !r.pgStarts() {
		t.Errorf("with what apply set it does not start:\n%s\n%s", r.must("journalctl", "-u", pgUnit, "-n", "30"),
			r.must("sh", "-c", "ausearch -m AVC --raw | tail -10"))
	}
	r.pgStop()
	r.does(nil, "selinux", "rollback")
	is := r.policy(pgTree)
	r.same("after the rollback", labelsOfOld(pgTree, was, is), is)
	if r.pgStarts() {
		t.Error("it starts after the rollback")
	}
	r.enforcedSince(since)
}
