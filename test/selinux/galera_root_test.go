//go:build root

package selinux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/selinux/remedy"
)

const (
	clusterAt   = "/srv/bhgalera"
	clusterConf = "/etc/mysql/bhgalera"
	clusterUnit = "/etc/systemd/system/bhgalera@.service"
	// Debian's policy has 63132 to 63164 for MySQL.
	firstOwnPort, lastOwnPort = 63132, 63164
)

// member is a node of the cluster: group, transfer and state are its ports for Galera, for IST and for SST.
type member struct {
	name, donor                     string
	client, group, transfer, states int
}

// Two ports are none of MySQL's by the policy: one that has no type, and 4444, which is another service's, as in other
// policies. More would show no more, and each that is set takes the policy to be compiled twice.
var members = map[string]member{
	"one": {"one", "two", 63140, 14567, 63142, 63143},
	"two": {"two", "one", 63141, 63144, 63145, 4444},
}

func (m member) dir() string    { return filepath.Join(clusterAt, m.name) }
func (m member) socket() string { return "/run/mysqld/bh" + m.name + ".sock" }
func (m member) log() string    { return "/var/log/mysql/bh" + m.name + ".err" }

// cluster is two nodes of Galera on this machine, each a service of systemd.
type cluster struct{ *rig }

func (r *rig) cluster() cluster {
	r.t.Helper()
	c := cluster{r}
	r.must("systemctl", "stop", "mariadb")
	r.t.Cleanup(func() {
		_ = exec.Command("systemctl", "stop", "bhgalera@two", "bhgalera@one").Run()
		_ = exec.Command("systemctl", "reset-failed").Run()
		for _, m := range members {
			_ = os.Remove(m.log())
		}
		_, _, _ = os.RemoveAll(clusterAt), os.RemoveAll(clusterConf), os.Remove(clusterUnit)
		r.must("systemctl", "daemon-reload")
		r.must("systemctl", "start", "mariadb")
	})
	r.write(clusterUnit, `[Unit]
Description=Galera node %i
[Service]
Type=notify
User=mysql
Group=mysql
ExecStart=/usr/sbin/mariadbd --defaults-file=/etc/mysql/bhgalera/%i.cnf $BHGALERA
TimeoutStartSec=300
TimeoutStopSec=300
SendSIGKILL=no
UMask=007
`)
	r.must("systemctl", "daemon-reload")
	logs := filepath.Dir(members["one"].log()) // which other packages of MariaDB have
	r.must("install", "-d", "-o", "mysql", "-g", "adm", logs)
	r.must("restorecon", "-v", logs)
	for name, m := range members {
		c.configure(name, "mariabackup")
		r.must("mkdir", "-p", m.dir())
		r.must("chown", "mysql:mysql", m.dir())
	}
	r.must("mariadb-install-db", "--defaults-file="+clusterConf+"/one.cnf", "--user=mysql", "--skip-test-db",
		"--wsrep-on=OFF")
	c.up("one", true)
	c.sql("one", "create user sst@localhost identified by 'sst'; grant reload, process, lock tables, binlog monitor, "+
		"replication client on *.* to sst@localhost; create database t; "+
		"create table t.t (a int primary key auto_increment); insert into t.t values ()")
	c.down("one")
	return c
}

// configure writes a node's option file; method is that of SST.
func (c cluster) configure(name, method string) {
	c.t.Helper()
	m := members[name]
	c.write(clusterConf+"/"+name+".cnf", fmt.Sprintf(`[mariadbd]
datadir=%s
port=%d
socket=%s
pid-file=/run/mysqld/bh%s.pid
log-error=%s
bind-address=127.0.0.1
skip-name-resolve
binlog_format=ROW
innodb_autoinc_lock_mode=2
innodb_buffer_pool_size=32M
innodb_log_file_size=8M
innodb_data_file_path=ibdata1:4M:autoextend
wsrep_on=ON
wsrep_provider=/usr/lib/galera/libgalera_smm.so
wsrep_cluster_name=bulkhead
wsrep_cluster_address=gcomm://127.0.0.1:%d,127.0.0.1:%d
wsrep_node_name=%s
wsrep_node_address=127.0.0.1:%d
wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d;gcache.size=16M
wsrep_sst_receive_address=127.0.0.1:%d
wsrep_sst_method=%s
wsrep_sst_auth=sst:sst
wsrep_sst_donor=%s,
`, m.dir(), m.client, m.socket(), name, m.log(), members["one"].group, members["two"].group, name, m.group, m.group,
		m.transfer, m.states, method, m.donor))
}

// begin starts a node and says whether systemd was told that it serves: after its state was transferred.
func (c cluster) begin(name string, first bool) bool {
	c.t.Helper()
	began := time.Now()
	if first {
		c.must("systemctl", "set-environment", "BHGALERA=--wsrep-new-cluster")
		defer c.must("systemctl", "unset-environment", "BHGALERA")
	}
	_ = exec.Command("systemctl", "reset-failed", "bhgalera@"+name).Run()
	out, err := exec.Command("systemctl", "start", "bhgalera@"+name).CombinedOutput()
	c.t.Logf("node %s: start took %s, %v %s", name, time.Since(began).Round(time.Second), err, out)
	return err == nil
}

func (c cluster) up(name string, first bool) {
	c.t.Helper()
	if !c.begin(name, first) {
		donor := members[members[name].donor]
		c.t.Fatalf("node %s does not start:\n%s\n%s\n%s\n%s", name, c.must("tail", "-n", "60", members[name].log()),
			c.must("tail", "-n", "30", donor.log()),
			c.must("sh", "-c", "tail -n 30 "+donor.dir()+"/*backup*.log || true"),
			c.must("sh", "-c", "ausearch -m AVC,SELINUX_ERR --raw | grep -E 'type=(AVC|SELINUX)' | tail -20"))
	}
	for end := time.Now().Add(2 * time.Minute); c.sql(name, "show status like 'wsrep_local_state_comment'") !=
		"wsrep_local_state_comment\tSynced"; time.Sleep(time.Second) {
		if time.Now().After(end) {
			c.t.Fatalf("node %s is not synced", name)
		}
	}
}

func (c cluster) down(name string) {
	c.t.Helper()
	c.must("systemctl", "stop", "bhgalera@"+name)
}

func (c cluster) sql(name, text string) string {
	c.t.Helper()
	return c.must("mariadb", "-S", members[name].socket(), "-N", "-e", text)
}

// joins has a node stopped, the other write a row meanwhile, and the node started again, which has to get its state as
// said says of its log. Empty has it begin with nothing.
func (c cluster) joins(name, method string, empty bool, said string) {
	c.t.Helper()
	m := members[name]
	_ = exec.Command("systemctl", "stop", "bhgalera@"+name).Run() // the first time it does not run yet
	c.configure(name, method)
	if empty {
		c.must("sh", "-c", "find "+m.dir()+" -mindepth 1 -delete")
	}
	c.sql(m.donor, "insert into t.t values ()")
	before, _ := os.ReadFile(m.log())
	c.up(name, false)
	after, err := os.ReadFile(m.log())
	if err != nil || !strings.Contains(strings.TrimPrefix(string(after), string(before)), said) {
		c.t.Errorf("the log of node %s does not say %q: %v\n%s", name, said, err, c.must("tail", "-n", "60", m.log()))
	}
	rows := "select count(*) from t.t"
	if here, there := c.sql(name, rows), c.sql(m.donor, rows); here != there {
		c.t.Errorf("node %s has %s rows, the other %s", name, here, there)
	}
}

// cases are those of a cluster, as node one has them: both ways of SST, and both roles of SST and IST.
func (c cluster) cases() []struct {
	name string
	do   func()
} {
	return []struct {
		name string
		do   func()
	}{
		{"stop-start", func() { c.up("one", true); c.down("one"); c.up("one", true) }},
		{"sst-donor", func() { c.joins("two", "mariabackup", true, "mariabackup SST completed on joiner") }},
		{"ist-donor", func() { c.joins("two", "mariabackup", false, "mariabackup IST completed on joiner") }},
		{"sst-joiner", func() { c.joins("one", "rsync", true, "rsync SST completed on joiner") }},
		{"ist-joiner", func() { c.joins("one", "rsync", false, "rsync IST completed on joiner") }},
	}
}

// Two nodes of Galera, with data and ports of which the policy knows nothing: enforced, the first does not start. With
// their domain permissive each case works and is denied something. With what apply sets of that, each works though the
// domain is enforced; no rule allows too much, and in the end all of the policy is as it was.
func TestGalera(t *testing.T) {
	r := newRig(t)
	c := r.cluster()
	was := r.policy()
	r.enforce()
	if c.begin("one", true) {
		t.Fatal("a node starts though nothing was set")
	}
	since := r.moment()
	r.soak("begin", "--domain", "mysqld_t", "--reason", "Galera")
	for _, one := range c.cases() {
		r.soak("checkpoint", one.name)
		one.do()
	}
	r.denied(since, "mysqld_t", "galera")
	var s soaked
	r.silently(&s, "selinux", "soak", "status")
	for _, p := range s.Checkpoints[1:] {
		if p.Denials == 0 {
			t.Errorf("nothing was denied at %s", p.Name)
		}
	}
	t.Logf("denied at\n%s", checkpointsOf(s))
	asked := []string{"--since", since, "--check", "--take-port", "tcp/4444"}
	var plan remedy.Plan
	r.silently(&plan, append([]string{"selinux", "plan"}, asked...)...)
	t.Logf("the plan has %+v", plan)
	planned := map[string]string{}
	for _, s := range plan.Settings {
		planned[strings.TrimPrefix(s.Name, "selinux ")] = s.Value
	}
	for _, m := range members {
		want := map[string]string{"context " + m.dir(): "mysqld_db_t"}
		for _, port := range []int{m.group, m.transfer, m.states} {
			if port < firstOwnPort || port > lastOwnPort {
				want[fmt.Sprintf("port tcp/%d", port)] = "mysqld_port_t"
			}
		}
		for name, value := range want {
			if !strings.HasPrefix(planned[name], value) {
				t.Errorf("the plan has %q for %s, want %s", planned[name], name, value)
			}
		}
	}
	narrow(t, planned["module bulkhead_mysqld_t"])
	r.does(nil, append([]string{"selinux", "apply", "--reason", "what the cases need"}, asked...)...)
	c.down("two")
	c.down("one")
	r.silently(nil, "selinux", "soak", "end")
	if r.silently(&s, "selinux", "soak", "status"); s.permissive() || r.must("getenforce") != "Enforcing" {
		t.Fatalf("it is not enforced: %+v", s)
	}
	enforced := r.moment()
	for _, one := range c.cases() {
		one.do()
		t.Logf("enforced: %s passed", one.name)
	}
	t.Logf("denied meanwhile, and not needed:\n%s", r.must("sh", "-c", "audit2allow -i "+
		r.captured(enforced, "mysqld_t")+" || true"))
	c.down("two")
	c.down("one")
	r.does(nil, "selinux", "rollback")
	r.same("after the rollback", was, r.policy())
	for line := range strings.Lines(r.must("find", clusterAt, "-printf", "%Z %p\n")) {
		if !strings.Contains(line, ":var_t:") {
			t.Errorf("after the rollback %s", line)
		}
	}
	if c.begin("one", true) {
		t.Error("a node starts after the rollback")
	}
	r.enforcedSince(since)
}

var moduleRule = regexp.MustCompile(`\(allow (\S+) (\S+) \((\S+) \(([^)]*)\)\)\)`)

// A reviewer's list, apart from the flags of package verdict: types of no program in particular, what no rule should be
// about, and permissions that go round what the rest holds back.
var (
	general = strings.Fields("tmp_t var_t var_lib_t var_run_t var_log_t etc_t usr_t default_t unlabeled_t file_t " +
		"root_t boot_t home_root_t user_home_t mnt_t nfs_t unreserved_port_t port_t ephemeral_port_t reserved_port_t " +
		"hi_reserved_port_t bin_t shell_exec_t cert_t passwd_file_t")
	never = strings.Fields("security_t shadow_t sshd_key_t fixed_disk_device_t nvram_device_t memory_device_t domain " +
		"file_type port_type unconfined_t")
	tooMuch = strings.Fields("execmem execstack execheap execmod dac_override dac_read_search sys_admin sys_ptrace " +
		"sys_module setuid setgid mac_admin mac_override sys_rawio module_load ptrace relabelto relabelfrom " +
		"load_policy setenforce")
)

// narrow holds the rules of a module against the list.
func narrow(t *testing.T, module string) {
	t.Helper()
	rules := moduleRule.FindAllStringSubmatch(module, -1)
	if rest := moduleRule.ReplaceAllString(module, ""); strings.TrimSpace(rest) != "" || len(rules) == 0 {
		t.Errorf("the module has %d rules, and %q: %s", len(rules), rest, module)
	}
	for _, r := range rules {
		if r[1] != "mysqld_t" || slices.Contains(never, r[2]) || slices.Contains(general, r[2]) ||
			slices.ContainsFunc(strings.Fields(r[4]), func(p string) bool { return slices.Contains(tooMuch, p) }) {
			t.Errorf("the module has %s", r[0])
		}
	}
}
