//go:build root

package zfs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/testhost"
	"bulkhead/internal/zfslayout"
)

// unitRig is a pool on the two disks that the machine with systemd leaves to tests, and the program with a state
// directory and a policy that outlive a boot of the machine.
func unitRig(t *testing.T) *rig {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("needs the module of OpenZFS, systemd, and disks for a pool: in the lab's machine `zfs-systemd` only")
	}
	dir := "/var/lib/bhunit"
	r := &rig{t: t, dir: dir, program: filepath.Join(dir, "bulkhead"), policy: filepath.Join(dir, "policy.yaml"),
		copies: filepath.Join(dir, "copies")}
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(r.program)
	if err := os.Symlink(self, r.program); err != nil {
		t.Fatal(err)
	}
	return r
}

// withPool makes the pool, and takes it away in the end.
func (r *rig) withPool() {
	r.t.Helper()
	r.makePool("/dev/vdg", "/dev/vdh")
	r.t.Cleanup(func() {
		for _, name := range []string{"mysql3306", "postgresql5432"} { // what a test that failed left there
			if r.t.Failed() {
				out, said, _ := r.bulkhead("zfs", "rollback", name)
				r.t.Log(out, said)
			}
		}
		r.must("zpool", "destroy", "-f", pool)
	})
}

// mainPID is the main process of a unit that is active.
func (r *rig) mainPID(unit string) string {
	r.t.Helper()
	got := strings.Fields(r.must("systemctl", "show", "-p", "ActiveState", "-p", "MainPID", "--value", unit))
	if len(got) != 2 {
		r.t.Fatalf("%s: %q", unit, got)
	}
	pid, state := got[0], got[1]
	if state != "active" {
		pid, state = state, pid
	}
	if state != "active" || pid == "0" {
		r.t.Fatalf("%s is %s, process %s\n%s", unit, state, pid, r.must("systemctl", "--no-pager", "status", unit))
	}
	return pid
}

// mysqlUnit is the MariaDB of Debian's unit, with tables.
func (r *rig) mysqlUnit() *plain {
	r.t.Helper()
	p := &plain{server: &server{r: r, name: "mysql3306", socket: "/run/mysqld/mysqld.sock", port: 3306},
		data: "/var/lib/mysql"}
	r.must("touch", p.data+"/.hidden")
	p.login()
	defer p.db.close()
	p.exec("DROP DATABASE IF EXISTS shop")
	p.fill()
	return p
}

// planned gives the plan of a move, and keeps the option file that it edits.
func (p *plain) planned() *zfslayout.Plan {
	p.r.t.Helper()
	var plan zfslayout.Plan
	p.r.does(&plan, "zfs", "plan", p.name, "--pool", pool)
	if len(plan.Edits) != 1 {
		p.r.t.Fatalf("edits: %+v", plan.Edits)
	}
	text, err := os.ReadFile(plan.Edits[0].File)
	if err != nil {
		p.r.t.Fatal(err)
	}
	p.cnf, p.text = plan.Edits[0].File, text
	return &plan
}

// A MariaDB that systemd runs is stopped and started by its unit, and moved onto ZFS and back with every table.
func TestUnitMovesMariaDB(t *testing.T) {
	r := unitRig(t)
	r.withPool()
	p := r.mysqlUnit()
	was, pid := p.sums(), r.mainPID("mariadb.service")
	if plan := p.planned(); plan.Start.Unit != "mariadb.service" {
		t.Fatalf("it would be started by %+v", plan.Start)
	}
	t.Log(r.does(nil, "zfs", "plan", p.name, "--pool", pool))
	begun := time.Now()
	t.Log(r.does(nil, "zfs", "apply", p.name, "--pool", pool, "--reason", "test"))
	t.Logf("moved in %v", time.Since(begun).Round(time.Second))
	p.onZFS()
	on := r.mainPID("mariadb.service")
	if on == pid {
		t.Errorf("process %s was not stopped", pid)
	}
	if now := p.sums(); now != was {
		t.Errorf("checksums before:\n%s\nafter:\n%s", was, now)
	}
	t.Log(r.does(nil, "zfs", "check", p.name))
	p.write()
	r.must("systemctl", "restart", "mariadb.service") // the unit itself starts it on ZFS, too
	p.onZFS()
	if now := p.sums(); now != was {
		t.Errorf("checksums before:\n%s\nafter a restart of the unit:\n%s", was, now)
	}
	begun = time.Now()
	t.Log(r.does(nil, "zfs", "rollback", p.name))
	t.Logf("moved back in %v", time.Since(begun).Round(time.Second))
	p.before()
	r.mainPID("mariadb.service")
	if now := p.sums(); now != was {
		t.Errorf("checksums on ZFS:\n%s\nback:\n%s", was, now)
	}
}

// A move of a server that systemd runs, killed on the way, is ended by a second call or taken back.
func TestUnitMoveKilled(t *testing.T) {
	r := unitRig(t)
	r.withPool()
	p := r.mysqlUnit()
	was := p.sums()
	p.planned()
	p.killedMoves(was, 3, 11) // few: internal/zfslayout is killed at each step of a model, TestLayoutKilled at all here
	r.mainPID("mariadb.service")
}

// psql asks the cluster of Debian as its owner.
func (r *rig) psql(database, statement string) string {
	r.t.Helper()
	return r.must("runuser", "-u", "postgres", "--", "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", database,
		"-c", statement)
}

// clusterSums are the checksums of every table of a cluster, those of the catalogue too, but for what the server writes
// by itself as it runs.
func (r *rig) clusterSums() string {
	r.t.Helper()
	const question = "SELECT format('SELECT %L, %L, count(*), md5(COALESCE(string_agg(md5(t::text), '''' ORDER BY " +
		"md5(t::text)), '''')) FROM %s t', current_database(), c.oid::regclass, c.oid::regclass) FROM pg_class c " +
		"WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.relname NOT IN ('pg_class', 'pg_statistic', " +
		"'pg_database', 'written') ORDER BY c.oid::regclass::text \\gexec\n"
	text := ""
	for _, database := range []string{"postgres", "shop"} {
		cmd := exec.Command("runuser", "-u", "postgres", "--", "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d",
			database)
		cmd.Stdin, cmd.Dir = strings.NewReader(question), "/"
		out, err := cmd.CombinedOutput()
		if err != nil {
			r.t.Fatalf("%v\n%s", err, out)
		}
		text += string(out)
	}
	if strings.Count(text, "\n") < 100 || !strings.Contains(text, "shop|numbers|5000|") {
		r.t.Fatalf("only these tables were read:\n%s", text)
	}
	return text
}

// treeSum is of the names and contents of the files below a directory.
func (r *rig) treeSum(dir string) string {
	r.t.Helper()
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(sum, "%s %d %s\n", name, len(text), text)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// The cluster of Debian's PostgreSQL is stopped and started by its unit, and moved onto ZFS and back with every table.
func TestUnitMovesPostgreSQL(t *testing.T) {
	r := unitRig(t)
	r.withPool()
	const unit, data, name = "postgresql@15-main.service", "/var/lib/postgresql/15/main", "postgresql5432"
	r.psql("postgres", "DROP DATABASE IF EXISTS shop")
	r.psql("postgres", "CREATE DATABASE shop")
	r.psql("shop", "CREATE TABLE numbers AS SELECT n, repeat('x', 90) AS t FROM generate_series(1, 5000) n")
	r.psql("shop", "ALTER TABLE numbers ADD PRIMARY KEY (n)")
	r.psql("shop", "CREATE TABLE large AS SELECT n, repeat(md5(n::text), 300) AS t FROM generate_series(1, 50) n")
	r.psql("shop", "CREATE TABLE written (n SERIAL PRIMARY KEY)")
	rows := 0
	write := func() {
		t.Helper()
		r.psql("shop", "INSERT INTO written DEFAULT VALUES")
		rows++
	}
	write()
	was, settings, pid := r.clusterSums(), r.treeSum("/etc/postgresql"), r.mainPID(unit)
	same := func(when string) {
		t.Helper()
		if now := r.clusterSums(); now != was {
			t.Errorf("checksums before:\n%s\n%s:\n%s", was, when, now)
		}
		if n := r.psql("shop", "SELECT count(*) FROM written"); n != fmt.Sprint(rows) {
			t.Errorf("%s %s of %d rows are there", when, n, rows)
		}
	}
	var plan zfslayout.Plan
	r.does(&plan, "zfs", "plan", name, "--pool", pool)
	if plan.Start.Unit != unit {
		t.Fatalf("it would be started by %+v", plan.Start)
	}
	t.Log(r.does(nil, "zfs", "plan", name, "--pool", pool))
	begun := time.Now()
	t.Log(r.does(nil, "zfs", "apply", name, "--pool", pool, "--reason", "test"))
	t.Logf("moved in %v", time.Since(begun).Round(time.Second))
	if r.mainPID(unit) == pid {
		t.Errorf("process %s was not stopped", pid)
	}
	same("on ZFS")
	for _, s := range plan.Sets[1:] {
		if got := r.must("zfs", "get", "-H", "-o", "value", "mounted,mountpoint", s.Name); got != "yes\n"+s.Point {
			t.Errorf("%s: %q", s.Name, got)
		}
	}
	wal, err := os.Readlink(filepath.Join(data, "pg_wal"))
	if err != nil || r.must("stat", "-f", "-c", "%T", wal) != "zfs" {
		t.Errorf("pg_wal is %q: %v", wal, err)
	}
	write()
	r.must("pg_ctlcluster", "15", "main", "restart") // as Debian has it, which asks systemd
	same("after a restart")
	begun = time.Now()
	t.Log(r.does(nil, "zfs", "rollback", name))
	t.Logf("moved back in %v", time.Since(begun).Round(time.Second))
	r.mainPID(unit)
	same("back")
	if r.treeSum("/etc/postgresql") != settings {
		t.Error("/etc/postgresql was changed")
	}
	if got := r.must("zfs", "list", "-H", "-o", "name"); got != pool {
		t.Errorf("data sets are left: %s", got)
	}
	if info, err := os.Lstat(filepath.Join(data, "pg_wal")); err != nil || !info.IsDir() {
		t.Errorf("pg_wal: %v, %v", info, err)
	}
	if _, err := os.Lstat(data + zfslayout.Suffix); err == nil {
		t.Errorf("%s is left", data+zfslayout.Suffix)
	}
	r.psql("postgres", "DROP DATABASE shop")
}

// What a boot has to find: a MariaDB that was moved, and a copy of it in a group. systemd imports the pool and mounts.
func TestUnitCopy(t *testing.T) {
	r := unitRig(t)
	r.makePool("/dev/vdg", "/dev/vdh")
	if err := os.WriteFile("/etc/modules-load.d/zfs.conf", []byte("zfs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.must("systemctl", "unmask", "zfs-import-cache.service", "zfs-mount.service")
	r.must("systemctl", "enable", "zfs-import-cache.service", "zfs-mount.service", "zfs.target", "zfs-import.target")
	p := r.mysqlUnit()
	was := p.sums()
	r.does(nil, "zfs", "apply", p.name, "--pool", pool)
	p.write()
	text := "version: 1\ninclude: [policy.d/*.yaml]\nclasses:\n  developer: {role: helper, cpu: {limit: 1}, memory: " +
		"{max: 512MiB}}\ngroups:\n  reports: {role: helper}\n"
	if err := errors.Join(os.MkdirAll(filepath.Join(r.dir, "policy.d"), 0o755),
		os.WriteFile(r.policy, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	r.does(nil, "apply")
	r.does(nil, "zfs", "snapshot", p.name, "s")
	t.Log(r.does(nil, "zfs", "clone", p.name+"@s", "--as", "dev1", "--class", "developer", "--dir", r.copies,
		"--memory", "32MiB"))
	c := &server{r: r}
	if err := c.use("mysql", "root@unix("+r.copySocket()+")/"); err != nil {
		t.Fatal(err)
	}
	c.exec("CREATE DATABASE own")
	c.exec("CREATE TABLE own.t (n INT)")
	c.exec("INSERT INTO own.t VALUES (1)")
	c.db.close()
	r.inScope()
	if err := os.WriteFile(filepath.Join(r.dir, "sums"), []byte(was), 0o600); err != nil {
		t.Fatal(err)
	}
	r.must("zpool", "sync", pool)
}

func (r *rig) copySocket() string { return filepath.Join(r.copies, "dev1", "run", "mysqld.sock") }

// inScope sees that the server of the copy is in a scope of its group's slice, which has the limit of its class.
func (r *rig) inScope() {
	r.t.Helper()
	pid, err := os.ReadFile(filepath.Join(r.copies, "dev1", "run", "mysqld.pid"))
	if err != nil {
		r.t.Fatal(err)
	}
	group, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cgroup")
	at := strings.TrimPrefix(strings.TrimSpace(string(group)), "0::")
	if err != nil || !strings.Contains(at, "dev1") || !strings.HasSuffix(at, ".scope") {
		r.t.Fatalf("the copy is in %q: %v", group, err)
	}
	limit, err := os.ReadFile("/sys/fs/cgroup" + filepath.Dir(at) + "/cpu.max")
	if err != nil || !strings.HasPrefix(string(limit), "100000 ") {
		r.t.Errorf("%s: cpu.max %q: %v", at, limit, err)
	}
	r.t.Logf("the copy is in %s, cpu.max %s", at, strings.TrimSpace(string(limit)))
}

// After a boot the database is on ZFS again, and the copy is mounted. Its server does not run, which is said with the
// command that starts it: it has what was written in it, and is in its group.
func TestUnitCopyAfterReboot(t *testing.T) {
	r := unitRig(t)
	was, err := os.ReadFile(filepath.Join(r.dir, "sums"))
	if err != nil {
		t.Fatal(err)
	}
	p := &plain{server: &server{r: r, name: "mysql3306", socket: "/run/mysqld/mysqld.sock", port: 3306},
		data: "/var/lib/mysql", rows: 1}
	t.Log(r.must("systemctl", "--no-pager", "show", "-p", "Id", "-p", "ActiveState", "zfs-import-cache.service",
		"zfs-mount.service", "mariadb.service"))
	p.onZFS()
	if now := p.sums(); now != string(was) {
		t.Errorf("checksums before the boot:\n%s\nafter:\n%s", was, now)
	}
	if got := r.must("stat", "-f", "-c", "%T", filepath.Join(r.copies, "dev1", "data")); got != "zfs" {
		t.Errorf("the copy's data is on %s", got)
	}
	out := r.does(nil, "zfs", "list")
	if !strings.Contains(out, "bulkhead zfs start dev1") {
		t.Errorf("nothing says that the copy does not run:\n%s", out)
	}
	t.Log(out)
	r.does(nil, "apply") // what the agent does at its start
	begun := time.Now()
	// As a unit does that the host starts: what it leaves behind in its own group would be killed with it.
	t.Log(r.must("systemd-run", append([]string{"--wait", "--pipe", "--collect"},
		r.command("zfs", "start").Args...)...))
	t.Logf("started in %v", time.Since(begun).Round(time.Second))
	c := &server{r: r}
	if err := c.use("mysql", "root@unix("+r.copySocket()+")/"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := c.db.row("SELECT COUNT(*) FROM own.t", &n); err != nil || n != 1 {
		t.Errorf("what was written in the copy: %d rows, %v", n, err)
	}
	c.db.close()
	r.inScope()
	if out := r.does(nil, "zfs", "list"); strings.Contains(out, "zfs start") {
		t.Errorf("it runs, and is said not to:\n%s", out)
	}
	t.Log(r.does(nil, "zfs", "start", "dev1")) // which runs already
	t.Log(r.does(nil, "zfs", "drop", "dev1"))
	for _, set := range []string{"data", "log"} {
		r.must("zfs", "destroy", pool+"/mysql3306/"+set+"@s")
	}
	t.Log(r.does(nil, "zfs", "rollback", p.name))
	if now := p.sums(); now != string(was) {
		t.Errorf("checksums before the boot:\n%s\nmoved back:\n%s", was, now)
	}
	r.does(nil, "release", "--all", "--reason", "the end")
	r.must("zpool", "destroy", pool)
}
