//go:build root

package selinux

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	tree   = "/srv/bhdb"
	data   = tree + "/data"
	port   = "23306"
	config = "/etc/mysql/mariadb.conf.d/zz-bulkhead-lab.cnf"
)

// elsewhere sets MariaDB's service up with a data directory and a port that the policy knows nothing of.
func (r *rig) elsewhere() {
	r.t.Helper()
	r.must("systemctl", "stop", "mariadb")
	r.t.Cleanup(func() {
		r.must("systemctl", "stop", "mariadb")
		_ = os.RemoveAll(tree)
		_ = os.Remove(config)
		_ = exec.Command("systemctl", "reset-failed", "mariadb").Run()
		r.must("systemctl", "start", "mariadb")
	})
	r.must("mkdir", "-p", data)
	r.must("chown", "mysql:mysql", data)
	r.must("mariadb-install-db", "--user=mysql", "--datadir="+data, "--skip-test-db")
	r.write(config, "[mariadbd]\ndatadir="+data+"\nport="+port+"\nbind-address=127.0.0.1\n")
}

// starts starts the server and says whether it serves.
func (r *rig) starts() bool {
	r.t.Helper()
	_ = exec.Command("systemctl", "reset-failed", "mariadb").Run()
	out, err := exec.Command("systemctl", "start", "mariadb").CombinedOutput()
	if err != nil {
		r.t.Logf("it does not start: %v %s", err, out)
		return false
	}
	got := r.must("mariadb", "-N", "-e", "select @@datadir, @@port")
	return strings.Contains(got, data) && strings.Contains(got, port)
}

func (r *rig) stop() {
	r.t.Helper()
	r.must("systemctl", "stop", "mariadb")
}

// A MariaDB whose data and port are elsewhere does not start under the policy. The plan names label and port, with them
// it starts, and once they are taken back all of the policy is as it was.
func TestMariaDBElsewhere(t *testing.T) {
	r := newRig(t)
	r.elsewhere()
	// What it is denied is logged while this machine is permissive.
	since := time.Now().Format("2006-01-02 15:04:05")
	if !r.starts() {
		t.Fatalf("it does not start in permissive mode:\n%s", r.must("journalctl", "-u", "mariadb", "-n", "30"))
	}
	if domain := r.must("ps", "-o", "label=", "-C", "mariadbd"); !strings.Contains(domain, ":mysqld_t:") {
		t.Fatalf("it runs as %s", domain)
	}
	r.stop()
	t.Logf("%s", r.must("sh", "-c", "ausearch -m AVC --raw | tail -40"))
	was := r.policy(tree)
	r.enforce()
	if r.starts() {
		t.Fatal("it starts although nothing was set")
	}
	r.does(nil, "selinux", "explain", "--since", since)
	r.does(nil, "selinux", "plan", "--since", since)
	r.plans(since, map[string]string{"selinux context " + data: "mysqld_db_t",
		"selinux port tcp/" + port: "mysqld_port_t"})
	r.does(nil, "selinux", "apply", "--since", since, "--reason", "data elsewhere")
	r.does(nil, "tune", "status")
	if !r.starts() {
		t.Errorf("with what apply set it does not start:\n%s\n%s", r.must("journalctl", "-u", "mariadb", "-n", "30"),
			r.must("sh", "-c", "ausearch -m AVC --raw | tail -10"))
	}
	r.stop()
	r.does(nil, "selinux", "rollback")
	is := r.policy(tree)
	r.same("after the rollback", labelsOfOld(tree, was, is), is)
	if r.starts() {
		t.Error("it starts after the rollback")
	}
	t.Run("killed", func(t *testing.T) {
		k := *r
		k.t = t
		k.killed(since, is)
	})
}

// labelsOfOld leaves files out that the server has removed or made since: these have the label of their directory.
func labelsOfOld(tree string, was, is map[string]string) map[string]string {
	what := "labels of " + tree
	there := map[string]bool{}
	for line := range strings.Lines(is[what]) {
		_, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		there[file] = true
	}
	var kept []string
	had := map[string]bool{}
	for line := range strings.Lines(was[what]) {
		line = strings.TrimSpace(line)
		_, file, _ := strings.Cut(line, " ")
		had[file] = true
		if there[file] {
			kept = append(kept, line)
		}
	}
	for line := range strings.Lines(is[what]) {
		line = strings.TrimSpace(line)
		if label, file, _ := strings.Cut(line, " "); !had[file] && strings.Contains(label, ":var_t:") {
			kept = append(kept, line)
		}
	}
	copied := map[string]string{}
	for k, v := range was {
		copied[k] = v
	}
	copied[what] = sorted(kept)
	is[what] = sorted(strings.Split(is[what], "\n"))
	return copied
}

// killed kills an apply while it works; a rollback ends it, and so does another apply.
func (r *rig) killed(since string, was map[string]string) {
	r.t.Helper()
	was["labels of "+tree] = r.policy(tree)["labels of "+tree]
	kill := func(program string) {
		r.t.Helper()
		cmd := r.command("selinux", "apply", "--since", since)
		if err := cmd.Start(); err != nil {
			r.t.Fatal(err)
		}
		end := time.Now().Add(5 * time.Minute)
		for !r.child(cmd.Process.Pid, program) {
			if time.Now().After(end) {
				r.t.Fatalf("apply never started %s", program)
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = cmd.Process.Signal(syscall.SIGKILL)
		if err := cmd.Wait(); err == nil {
			r.t.Fatal("apply was done before it was killed")
		}
	}
	kill("fcontext")
	r.does(nil, "selinux", "rollback")
	r.same("killed, and rolled back", was, r.policy(tree))
	kill("port")
	r.does(nil, "selinux", "apply", "--since", since)
	if !r.starts() {
		r.t.Error("killed, and applied again: it does not start")
	}
	r.stop()
	r.does(nil, "selinux", "rollback")
	is := r.policy(tree)
	r.same("killed, applied again and rolled back", labelsOfOld(tree, was, is), is)
}

// child says whether a process has a child with a word in its command line.
func (r *rig) child(pid int, word string) bool {
	out, _ := exec.Command("ps", "-o", "args=", "--ppid", strconv.Itoa(pid)).Output() // none is no error of ours
	return strings.Contains(string(out), " "+word+" ")
}
