//go:build root

package zfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/testhost"
)

// governed puts a policy in force that has a class for developers. It lies where only root can write.
func (r *rig) governed(instance *server, engine string) {
	r.t.Helper()
	etc, err := os.MkdirTemp("", "bhe")
	if err != nil {
		r.t.Fatal(err)
	}
	r.policy, r.copies = filepath.Join(etc, "policy.yaml"), filepath.Join(etc, "copies")
	text := fmt.Sprintf("version: 1\ninclude: [policy.d/*.yaml]\nclasses:\n  developer: {role: helper, cpu: {limit: "+
		"1}, memory: {max: 512MiB}}\nsnapshots:\n  \"*\": {keep: 3}\ngroups:\n  production: {role: database, match: "+
		"[{engine: %s, port: %d}]}\n",
		engine, instance.port)
	if err := errors.Join(os.Chmod(etc, 0o755), os.Mkdir(filepath.Join(etc, "policy.d"), 0o755),
		os.WriteFile(r.policy, []byte(text), 0o644)); err != nil {
		r.t.Fatal(err)
	}
	r.does(nil, "apply")
	r.t.Cleanup(func() {
		for _, name := range r.names() {
			_, _, _ = r.bulkhead("zfs", "drop", name)
		}
		r.does(nil, "release", "--all", "--reason", "the end")
		_ = os.RemoveAll(etc)
	})
}

// underCommits is a MariaDB under a policy, and under a load.
func underCommits(t *testing.T) (*rig, *server, *load) {
	r := newRig(t)
	s := r.mariadb()
	r.governed(s, "mysql")
	s.exec("CREATE DATABASE load_test")
	s.in("load_test")
	l := s.load()
	r.waits(l)
	return r, s, l
}

// names are the copies that are recorded.
func (r *rig) names() (names []string) {
	found, _ := filepath.Glob(filepath.Join(r.dir, "state", "zfs-copies", "*.json"))
	for _, name := range found {
		names = append(names, strings.TrimSuffix(filepath.Base(name), ".json"))
	}
	return names
}

// copied is the copy of a name: its server, logged in to a database of the load.
func (r *rig) copied(name, engine string) *server {
	r.t.Helper()
	dir := filepath.Join(r.copies, name)
	s := &server{r: r}
	dsn, driver := "root@unix("+filepath.Join(dir, "run", "mysqld.sock")+")/load_test", "mysql"
	pidFile := filepath.Join(dir, "run", "mysqld.pid")
	if engine == "postgresql" {
		text, err := os.ReadFile(filepath.Join(dir, "postgresql.conf"))
		port := regexp.MustCompile(`(?m)^port = '(\d+)'`).FindSubmatch(text)
		if err != nil || port == nil {
			r.t.Fatalf("%v\n%s", err, text)
		}
		driver, dsn = "pgx", fmt.Sprintf("postgres://postgres@localhost:%s/postgres?host=%s/run", port[1], dir)
		pidFile = filepath.Join(dir, "run", "postmaster.pid")
	}
	if err := s.use(driver, dsn); err != nil {
		log, _ := exec.Command("tail", "-n", "30", filepath.Join(dir, "run", "error.log"),
			filepath.Join(dir, "start.log")).CombinedOutput()
		r.t.Fatalf("%s: %v\n%s", name, err, log)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		r.t.Fatal(err)
	}
	group, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/cgroup")
	if err != nil || !strings.Contains(string(group), "bulkhead."+name) {
		r.t.Errorf("%s is in %q: %v", name, group, err)
	}
	limit, err := os.ReadFile("/sys/fs/cgroup/bulkhead." + name + "/cpu.max")
	if err != nil || !strings.HasPrefix(string(limit), "100000 ") {
		r.t.Errorf("%s: cpu.max %q: %v", name, limit, err)
	}
	return s
}

// uncopied sees that nothing of copies is left.
func (r *rig) uncopied() {
	r.t.Helper()
	for _, name := range strings.Fields(r.must("zfs", "list", "-H", "-o", "name")) {
		if strings.HasPrefix(name, pool+"/dev") {
			r.t.Errorf("%s is left", name)
		}
	}
	for _, pattern := range []string{r.copies + "/*", filepath.Dir(r.policy) + "/policy.d/*",
		"/sys/fs/cgroup/bulkhead.dev*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			r.t.Errorf("left: %q", left)
		}
	}
	if names := r.names(); len(names) > 0 {
		r.t.Errorf("records are left: %q", names)
	}
}

// A copy has every commit that was acknowledged before its snapshot and no half transaction, runs in its group with the
// limits of its class, and is made anew from each later snapshot.
func TestCloneOfMariaDBUnderCommits(t *testing.T) {
	r, s, l := underCommits(t)
	for i := range rounds() {
		name := fmt.Sprintf("s%d", i)
		before := l.reached()
		r.does(nil, "zfs", "snapshot", s.name, name)
		after := l.reached()
		begun := time.Now()
		if i == 0 {
			t.Log(r.does(nil, "zfs", "clone", s.name+"@"+name, "--as", "dev1", "--class", "developer", "--dir",
				r.copies, "--memory", "32MiB", "--dry-run"))
			t.Log(r.does(nil, "zfs", "clone", s.name+"@"+name, "--as", "dev1", "--class", "developer", "--dir",
				r.copies, "--memory", "32MiB"))
		} else {
			r.does(nil, "zfs", "refresh", "dev1")
		}
		t.Logf("%s: made in %v", name, time.Since(begun).Round(time.Second))
		c := r.copied("dev1", "mysql")
		judge(t, c.db, before, after)
		var uuid, port string
		if err := c.db.row("SELECT @@server_id, @@port", &uuid, &port); err != nil || uuid == "1" ||
			port == strconv.Itoa(s.port) {
			t.Errorf("server_id %s, port %s: %v", uuid, port, err)
		}
		c.exec("INSERT INTO one VALUES (99, 1, 'of the copy')")
		c.db.close()
	}
	l.stop()
	t.Log(r.does(nil, "zfs", "snapshot", s.name, "last", "--retain"))
	var list struct{ Snapshots []dbsnapshot.Set }
	r.does(&list, "zfs", "list", s.name)
	if len(list.Snapshots) != 3 || list.Snapshots[0].Name != "last" {
		t.Errorf("the policy keeps three: %+v", list.Snapshots)
	}
	var n int
	if err := s.db.row("SELECT COUNT(*) FROM one WHERE writer = 99", &n); err != nil || n != 0 {
		t.Errorf("the origin has %d rows of the copy: %v", n, err)
	}
	t.Log(r.must("cat", filepath.Join(r.copies, "dev1", "my.cnf")))
	t.Log(r.must("zfs", "get", "-H", "-s", "local", "-o", "name,property,value", "all", pool+"/dev1/data"))
	if out := r.does(nil, "zfs", "prune", s.name, "--keep", "1", "--older", "1ns"); !strings.Contains(out, "stays") {
		t.Log(out)
	}
	r.must("zfs", "snapshot", pool+"/dev1/data@mine")
	if _, said, code := r.bulkhead("zfs", "drop", "dev1"); code != 5 || !strings.Contains(said, "@mine") {
		t.Errorf("a copy with a snapshot was dropped: %d, %s", code, said)
	}
	r.copied("dev1", "mysql").db.close()
	r.must("zfs", "destroy", pool+"/dev1/data@mine")
	t.Log(r.does(nil, "zfs", "drop", "dev1"))
	r.uncopied()
}

// A copy that replicates its origin from where the snapshot was taken catches up with it, and has each row once.
func TestCloneReplicates(t *testing.T) {
	r, s, l := underCommits(t)
	s.exec("CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'it''s secret'")
	s.exec("GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'")
	r.does(nil, "zfs", "snapshot", s.name, "s")
	file := filepath.Join(r.dir, "dsn")
	if err := os.WriteFile(file, fmt.Appendf(nil, "mysql://repl:it%%27s%%20secret@127.0.0.1:%d/", s.port),
		0o600); err != nil {
		t.Fatal(err)
	}
	r.does(nil, "zfs", "clone", s.name+"@s", "--as", "dev1", "--class", "developer", "--dir", r.copies, "--memory",
		"32MiB", "--replica", "--source", "@"+file)
	c := r.copied("dev1", "mysql")
	l.stop()
	r.caughtUp(l, c)
	var only string
	if err := c.db.row("SELECT @@read_only", &only); err != nil || only != "1" {
		t.Errorf("read_only %s: %v", only, err)
	}
	c.db.close()
	r.does(nil, "zfs", "drop", "dev1", "--origin")
	r.uncopied()
	if left := r.must("zfs", "list", "-H", "-t", "snapshot", "-o", "name"); left != "" {
		t.Errorf("snapshots are left: %s", left)
	}
}

// caughtUp waits until a replica has what its source has.
func (r *rig) caughtUp(l *load, c *server) {
	r.t.Helper()
	reached := l.reached()
	testhost.WaitLong(r.t, 3*time.Minute, "the copy to catch up", func() bool {
		for w, n := range reached {
			var last int64
			query := fmt.Sprintf("SELECT COALESCE(MAX(n), 0) FROM two WHERE writer = %d", w)
			if err := c.db.row(query, &last); err != nil || last < n {
				return false
			}
		}
		return true
	})
	judge(r.t, c.db, reached, reached)
}

// Copies of PostgreSQL: for a developer, and as a standby that catches up.
func TestCloneOfPostgreSQL(t *testing.T) {
	r := newRig(t)
	s := r.postgresql()
	r.governed(s, "postgresql")
	l := s.load()
	r.waits(l)
	file, source := filepath.Join(r.dir, "dsn"), filepath.Join(r.dir, "source")
	if err := errors.Join(os.WriteFile(file, fmt.Appendf(nil, "postgres://postgres@localhost:%d/postgres?host=%s",
		s.port, r.dir), 0o600), os.WriteFile(source, fmt.Appendf(nil, "postgres://postgres@127.0.0.1:%d/", s.port),
		0o600)); err != nil {
		t.Fatal(err)
	}
	before := l.reached()
	r.does(nil, "zfs", "snapshot", s.name, "s", "--dsn", s.name+"=@"+file)
	after := l.reached()
	r.does(nil, "zfs", "clone", s.name+"@s", "--as", "dev1", "--class", "developer", "--dir", r.copies, "--memory",
		"32MiB")
	c := r.copied("dev1", "postgresql")
	judge(t, c.db, before, after)
	c.db.close()
	r.does(nil, "zfs", "clone", s.name+"@s", "--as", "dev2", "--class", "developer", "--dir", r.copies, "--memory",
		"32MiB", "--replica", "--source", "@"+source)
	c = r.copied("dev2", "postgresql")
	l.stop()
	r.caughtUp(l, c)
	var standby bool
	if err := c.db.row("SELECT pg_is_in_recovery()", &standby); err != nil || !standby {
		t.Errorf("a standby: %v, %v", standby, err)
	}
	c.db.close()
	t.Log(r.must("cat", filepath.Join(r.copies, "dev2", "postgresql.conf")))
	r.does(nil, "zfs", "drop", "dev1")
	r.does(nil, "zfs", "drop", "dev2")
	r.uncopied()
}

// Five copies are made and made anew inside their groups, and that takes less time than plain copies of the files.
func TestFiveClones(t *testing.T) {
	r, s, l := underCommits(t)
	r.does(nil, "zfs", "snapshot", s.name, "one")
	begun := time.Now()
	for i := range 5 {
		r.does(nil, "zfs", "clone", s.name+"@one", "--as", "dev"+strconv.Itoa(i), "--class", "developer", "--dir",
			r.copies, "--memory", "16MiB")
	}
	made := time.Since(begun)
	r.does(nil, "zfs", "snapshot", s.name, "two")
	begun = time.Now()
	for i := range 5 {
		r.does(nil, "zfs", "refresh", "dev"+strconv.Itoa(i))
	}
	anew := time.Since(begun)
	for i := range 5 {
		c := r.copied("dev"+strconv.Itoa(i), "mysql")
		judge(t, c.db, [writers]int64{}, l.reached())
		c.db.close()
	}
	used := r.must("zfs", "list", "-H", "-o", "name,used,refer", "-r", pool)
	was := l.reached()
	testhost.WaitFor(t, "commits of the origin beside five copies", func() bool { return l.reached() != was })
	l.stop()
	begun = time.Now()
	for _, set := range []string{"data", "log"} {
		r.must("cp", "-a", filepath.Join(r.dir, "my", set, ".zfs/snapshot/two")+"/.",
			filepath.Join(r.dir, "plain-"+set))
	}
	r.must("sync", "-f", r.dir)
	plain := time.Since(begun)
	for i := range 5 {
		r.does(nil, "zfs", "drop", "dev"+strconv.Itoa(i))
	}
	r.uncopied()
	t.Logf("five copies made in %v, made anew in %v; one plain copy of the files, no server started, took %v: one "+
		"copy anew, with its server stopped and started, takes %.1f times as long\n%s", made.Round(time.Second),
		anew.Round(time.Second), plain.Round(100*time.Millisecond), anew.Seconds()/5/plain.Seconds(), used)
	if anew > 10*time.Minute {
		t.Errorf("five copies were made anew in %v", anew)
	}
}

// Killed at steps of clone, refresh and drop, the same again ends it, or drop removes what is there; the origin goes
// on.
func TestCloneKilled(t *testing.T) {
	r, s, l := underCommits(t)
	before := l.reached()
	r.does(nil, "zfs", "snapshot", s.name, "s")
	after := l.reached()
	every := 1
	if testing.Short() {
		every = 6
	}
	clone := []string{"zfs", "clone", s.name + "@s", "--as", "dev1", "--class", "developer", "--dir", r.copies,
		"--memory", "16MiB"}
	seen := []string{}
	whole := func(at string) {
		t.Helper()
		c := r.copied("dev1", "mysql")
		judge(t, c.db, before, after)
		c.db.close()
		if t.Failed() {
			t.Fatalf("killed at %q", at)
		}
	}
	for step := 0; ; step += every {
		at := r.killed("BULKHEAD_TEST_CLONE", step, clone...)
		if at == "" {
			break
		}
		seen = append(seen, "clone: "+at)
		if step/every%2 == 0 {
			r.does(nil, clone...)
			whole(at)
		}
		r.does(nil, "zfs", "drop", "dev1")
		r.uncopied()
	}
	whole("no step")
	for step := 0; ; step += 2 * every {
		at := r.killed("BULKHEAD_TEST_CLONE", step, "zfs", "refresh", "dev1")
		if at == "" {
			break
		}
		seen = append(seen, "refresh: "+at)
		r.does(nil, "zfs", "refresh", "dev1")
		whole(at)
	}
	for step := 0; ; step += every {
		at := r.killed("BULKHEAD_TEST_CLONE", step, "zfs", "drop", "dev1")
		if at == "" {
			break
		}
		seen = append(seen, "drop: "+at)
		r.does(nil, "zfs", "drop", "dev1")
		r.uncopied()
		r.does(nil, clone...)
	}
	r.uncopied()
	was := l.reached()
	testhost.WaitFor(t, "commits of the origin", func() bool { return l.reached() != was })
	l.stop()
	t.Logf("killed at %d steps:\n%s", len(seen), strings.Join(seen, "\n"))
	if len(seen) < 8 {
		t.Error("hardly any step was seen")
	}
}
