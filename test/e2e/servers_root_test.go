//go:build root

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/api"
	bench "bulkhead/internal/bench/database"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
	"bulkhead/internal/testhost/release"
)

// database is a server of the test's own, in a directory of its own, under its usual account.
type database struct {
	t        *testing.T
	name     string // "redis40123"
	dir      string
	port     int
	credit   *syscall.Credential
	process  *os.Process
	exited   chan struct{}
	program  string
	args     []string
	children int // processes besides the main one
}

// startTimeout bounds the start of one server; a cold, busy machine takes some seconds for MariaDB.
const startTimeout = 60 * time.Second

func newDatabase(t *testing.T, engine, account, pkg string) *database {
	t.Helper()
	dir, _, as := testhost.AccountDir(t, account, pkg)
	port := testhost.FreePort(t)
	return &database{
		t: t, name: engine + strconv.Itoa(port), dir: dir, port: port,
		credit: as,
	}
}

func (d *database) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = d.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + d.dir, "TMPDIR=" + d.dir}
	// A test binary that is killed leaves no server behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: d.credit, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (d *database) must(name string, args ...string) {
	d.t.Helper()
	if out, err := d.command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// start starts the server and waits until it listens. It ends with the test.
func (d *database) start() {
	d.t.Helper()
	cmd := d.command(d.program, d.args...)
	log, err := os.Create(filepath.Join(d.dir, "test.log"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	exited := make(chan struct{})
	d.process, d.exited = cmd.Process, exited
	go func() { _ = cmd.Wait(); close(exited) }()
	d.t.Cleanup(d.stop)
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(20 * time.Millisecond) {
		if c, err := d.dial(); err == nil {
			_ = c.Close()
			return
		}
		ended := false
		select {
		case <-exited:
			ended = true
		default:
		}
		if ended || time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			d.t.Fatalf("%s does not listen on %d:\n%s", d.program, d.port, text)
		}
	}
}

// stop ends the server; SIGQUIT is PostgreSQL's immediate shutdown.
func (d *database) stop() {
	select {
	case <-d.exited:
		return
	default:
	}
	_ = syscall.Kill(-d.process.Pid, syscall.SIGQUIT)
	select {
	case <-d.exited:
	case <-time.After(5 * time.Second):
		_ = syscall.Kill(-d.process.Pid, syscall.SIGKILL)
		<-d.exited
	}
}

func (d *database) dial() (net.Conn, error) {
	return net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", d.port), time.Second)
}

func mariadb(t *testing.T) *database {
	const pkg = "mariadb-server"
	d := newDatabase(t, "mysql", "mysql", pkg)
	data := filepath.Join(d.dir, "data")
	if p := release.Programs(t, "mariadb"); p != nil {
		server := bench.MySQLServer(p, data)
		d.must(server[0], append(server[1:], "--initialize-insecure")...)
		d.program = server[0]
		d.args = append(server[1:], "--mysqlx=OFF")
	} else {
		d.must(testhost.Program(t, pkg, "/usr/bin/mariadb-install-db", "/usr/bin/mysql_install_db"),
			"--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
		d.program = testhost.Program(t, pkg, "/usr/sbin/mariadbd", "/usr/sbin/mysqld")
		d.args = []string{"--no-defaults", "--datadir=" + data}
	}
	d.args = append(d.args, "--port="+strconv.Itoa(d.port), "--socket="+filepath.Join(d.dir, "m.sock"),
		"--pid-file="+filepath.Join(d.dir, "m.pid"), "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=8M")
	return d
}

func postgresql(t *testing.T) *database {
	const pkg = "postgresql"
	d := newDatabase(t, "postgresql", "postgres", pkg)
	initdb := release.Programs(t, "postgresql")["initdb"]
	if initdb == "" {
		initdb = testhost.Program(t, pkg, "/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb",
			"/usr/bin/initdb")
	}
	data := filepath.Join(d.dir, "data")
	d.must(initdb, "-D", data, "-A", "trust", "--no-sync")
	d.program = testhost.Program(t, pkg, filepath.Join(filepath.Dir(initdb), "postgres"))
	d.args = []string{"-D", data, "-p", strconv.Itoa(d.port), "-k", d.dir, "-c", "listen_addresses=127.0.0.1", "-c",
		"shared_buffers=16MB",
		"-c", "autovacuum_naptime=1d"} // no worker comes and goes
	d.children = 5 // checkpointer, writers, autovacuum and logical replication launchers
	return d
}

// session opens a PostgreSQL session that stays, and gives the process that serves it.
func (d *database) session() int {
	d.t.Helper()
	before := d.family()
	psql := testhost.Program(d.t, "postgresql-client", filepath.Join(filepath.Dir(d.program), "psql"), "/usr/bin/psql")
	cmd := d.command(psql, "-h", d.dir, "-p", strconv.Itoa(d.port), "-U", "postgres", "-c", "select pg_sleep(3600)",
		"postgres")
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	backend := 0
	soon(d.t, "a backend", func() bool {
		for _, p := range d.processes() {
			if !slices.Contains(before, p.PID) && strings.Contains(strings.Join(p.Args, " "), "SELECT") {
				backend = p.PID
			}
		}
		return backend != 0
	})
	return backend
}

func redis(t *testing.T) *database {
	const pkg = "redis-server"
	d := newDatabase(t, "redis", "redis", pkg)
	if d.program = release.Programs(t, "redis")["redis-server"]; d.program == "" {
		d.program = testhost.Program(t, pkg, "/usr/bin/redis-server", "/usr/bin/valkey-server")
	}
	d.args = []string{"--port", strconv.Itoa(d.port), "--bind", "127.0.0.1", "--dir", d.dir, "--save", ""}
	return d
}

// processes are the main process and its children.
func (d *database) processes() []procfs.Process {
	d.t.Helper()
	all, err := host.New("/").Proc.Processes(procfs.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p procfs.Process) bool {
		return p.PID != d.process.Pid &&
			p.PPID != d.process.Pid
	})
}

func (d *database) family() []int {
	var pids []int
	for _, p := range d.processes() {
		pids = append(pids, p.PID)
	}
	return pids
}

// ids are the processes for a snapshot.
func ids(all ...*database) []procfs.ID {
	var found []procfs.ID
	for _, d := range all {
		for _, p := range d.processes() {
			found = append(found, p.ID)
		}
	}
	return found
}

// The main job: three real servers are found, governed by one policy, told apart, kept so by the agent,
// and given back.
func TestThreeServers(t *testing.T) {
	s := newSite(t)
	maria, postgres, red := mariadb(t), postgresql(t), redis(t)
	all := []*database{maria, postgres, red}
	for _, d := range all {
		d.start()
	}
	soon(t, "PostgreSQL's own processes", func() bool { return len(postgres.family()) > postgres.children })
	backend := postgres.session()
	t.Run("discover finds them", func(t *testing.T) { s.discovers(t, all) })
	t.Run("the starter policy stands", func(t *testing.T) {
		if err := os.WriteFile(s.policy, []byte(s.must("discover", "--as-policy")), 0o600); err != nil {
			t.Fatal(err)
		}
		r := s.exits(0, nil, "check")
		if !strings.Contains(r.out, "sound") {
			t.Error(r.out)
		}
	})
	before := s.snapshot(ids(all...)...)
	s.write(fmt.Sprintf(`classes:
  standard: {role: database, cpu: {weight: 800}, tasks: 4000}
groups:
  "mysql{port}":
    class: standard
    each: {engine: mysql, port: "%d"}
    cpu: {limit: 1.5}
    memory: {max: 2GiB}
  "postgresql{port}":
    class: standard
    each: {engine: postgresql, port: "%d"}
    memory: {max: 1GiB}
  "redis{port}":
    class: standard
    each: {engine: redis, port: "%d"}
    cpu: {limit: 50%%}
    memory: {max: 512MiB}
`, maria.port, postgres.port, red.port))
	s.must("check")
	s.must("apply", "--reason", "three servers")
	t.Run("every process is in its group", func(t *testing.T) { s.allInside(t, all) })
	t.Run("verify", func(t *testing.T) { s.exits(9, []string{"0 not enforced", "no agent is running"}, "verify") })
	t.Run("status", func(t *testing.T) { s.plausible(t, maria, postgres, red) })
	t.Run("explain a backend", func(t *testing.T) {
		s.exits(0, []string{"in group " + postgres.name + ", by the rule", "engine: postgresql", "memory.max"},
			"explain", strconv.Itoa(backend))
	})
	t.Run("a new session inherits", func(t *testing.T) {
		if in := s.inside(postgres.session()); in["cpu"] != postgres.name || in["memory"] != postgres.name ||
			in["pids"] != postgres.name {
			t.Errorf("the new backend is in %v", in)
		}
	})
	s.agent()
	t.Run("a restarted server is placed again", func(t *testing.T) {
		red.stop()
		// Its group goes with the last instance, and comes back with the next.
		soon(t, "the empty group to go", func() bool {
			return !slices.ContainsFunc(s.status().Groups,
				func(g api.GroupStatus) bool { return g.Group == red.name })
		})
		red.start()
		soon(t, "the agent to place it", func() bool { return len(s.outside(red)) == 0 })
		soon(t, "the agent to tell so", func() bool { return s.status().Agent.Moved > 0 })
		if a := s.status().Agent; a.Error != "" {
			t.Errorf("agent: %+v", a)
		}
	})
	s.must("release", "--all", "--reason", "the end")
	t.Run("everything is given back", func(t *testing.T) {
		for _, d := range all {
			for _, p := range d.processes() {
				if in := s.inside(p.PID); len(in) > 0 {
					t.Errorf("process %d (%s) is in %v", p.PID, p.Comm, in)
				}
			}
		}
		// The redis that was restarted is another process, and PostgreSQL has one session more.
		is := s.snapshot()
		if is != "" {
			t.Errorf("left behind:\n%s", is)
		}
		for _, line := range strings.Split(strings.TrimSpace(before), "\n") {
			pid, rest, _ := strings.Cut(strings.TrimPrefix(line, "process "), " ")
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			hierarchy, at, _ := strings.Cut(strings.TrimPrefix(rest, "in "), ": ")
			if slices.ContainsFunc(all, func(d *database) bool { return slices.Contains(d.family(), n) }) &&
				where(t, n)[hierarchy] != at {
				t.Errorf("process %d is in %s of %s, before it was in %s", n, where(t, n)[hierarchy], hierarchy, at)
			}
		}
	})
}

// discovers holds discover to finding the servers, for people and for programs.
func (s *site) discovers(t *testing.T, all []*database) {
	text := s.must("discover")
	var found struct {
		Instances []struct {
			Name     string   `json:"name"`
			PID      int      `json:"pid"`
			Port     int      `json:"port"`
			DataDir  string   `json:"data_dir"`
			Evidence []string `json:"evidence"`
		} `json:"instances"`
	}
	if err := json.Unmarshal([]byte(s.must("discover", "--json")), &found); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if !strings.Contains(text, d.name) {
			t.Errorf("discover does not show %s:\n%s", d.name, text)
		}
		known := false
		for _, i := range found.Instances {
			if i.Name == d.name {
				known = i.PID == d.process.Pid && i.Port == d.port && strings.HasPrefix(i.DataDir, d.dir) &&
					len(i.Evidence) > 1
			}
		}
		if !known {
			t.Errorf("%s, process %d, is not rightly among %+v", d.name, d.process.Pid, found.Instances)
		}
	}
	var disks struct {
		Databases []struct {
			Name  string `json:"name"`
			Files []struct {
				Kind, Layer string
			} `json:"files"`
		} `json:"databases"`
	}
	if err := json.Unmarshal([]byte(s.must("discover", "disks", "--json")), &disks); err != nil {
		t.Fatal(err)
	}
	landed := map[string]bool{}
	for _, db := range disks.Databases {
		for _, f := range db.Files {
			if f.Kind == "data" && f.Layer != "" {
				landed[db.Name] = true
			}
		}
	}
	for _, d := range all {
		if !landed[d.name] {
			t.Errorf("discover disks does not say where the data of %s is: %+v", d.name, disks)
		}
	}
}

// allInside holds every process of the servers to its group, in every hierarchy that the policy needs.
func (s *site) allInside(t *testing.T, all []*database) {
	t.Helper()
	for _, d := range all {
		if n := len(d.processes()); n <= d.children {
			t.Errorf("%s has only %d processes", d.name, n)
		}
		for _, line := range s.outside(d) {
			t.Error(line)
		}
	}
}

// outside names the processes of a server that are not in its group, in each hierarchy that the policy needs.
func (s *site) outside(d *database) (lines []string) {
	for _, p := range d.processes() {
		in := s.inside(p.PID)
		for _, hierarchy := range []string{"cpu", "cpuacct", "memory", "pids"} {
			if in[hierarchy] != d.name {
				lines = append(lines, fmt.Sprintf("process %d (%s) of %s is in %q of %s", p.PID, p.Comm, d.name,
					in[hierarchy], hierarchy))
			}
		}
	}
	return lines
}

// plausible gives each server some work and holds the figures of status to it.
func (s *site) plausible(t *testing.T, maria, postgres, red *database) {
	t.Helper()
	// 32 MiB of values are anonymous memory of redis, charged to its group because it is there already.
	c, err := red.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	value := strings.Repeat("x", 1<<20)
	for i := range 32 {
		fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$2\r\n%02d\r\n$%d\r\n%s\r\n", i, len(value), value)
	}
	answer := make([]byte, len("+OK\r\n")*32)
	if n, err := readFull(c, answer); err != nil || bytes.Count(answer[:n], []byte("+OK")) != 32 {
		t.Fatalf("redis answered %q, %v", answer[:n], err)
	}
	psql := testhost.Program(t, "postgresql-client", filepath.Join(filepath.Dir(postgres.program), "psql"),
		"/usr/bin/psql")
	before := postgres.family()
	postgres.must(psql, "-h", postgres.dir, "-p", strconv.Itoa(postgres.port), "-U", "postgres", "-c",
		"create table t as select g, md5(g::text) from generate_series(1,100000) g; select count(*) from t a join t "+
			"b using (md5)", "postgres")
	// psql does not wait for its backend.
	soon(t, "the session to end", func() bool { return slices.Equal(postgres.family(), before) })
	byName := map[string]api.GroupStatus{}
	for _, g := range s.status().Groups {
		byName[g.Group] = g
	}
	for _, d := range []*database{maria, postgres, red} {
		g := byName[d.name]
		if len(g.Members) != len(d.processes()) {
			t.Errorf("%s: %d members, %d processes", d.name, len(g.Members), len(d.processes()))
		}
		for _, m := range g.Members {
			if !m.Placed || m.User == "root" {
				t.Errorf("%s: member %+v", d.name, m)
			}
		}
		if !strings.Contains(g.Instance, " "+strconv.Itoa(d.port)+" ") || g.Role != "database" ||
			g.MemorySource != "cgroup" || g.Tasks.Total < len(g.Members) {
			t.Errorf("%s: instance %q, role %q, memory from %q, tasks %+v", d.name, g.Instance, g.Role, g.MemorySource,
				g.Tasks)
		}
		m, cpu := g.Usage.Memory, g.Usage.CPU
		if m.Anonymous == nil || m.File == nil || m.Shared == nil || m.Current == nil || m.Peak == nil ||
			cpu.User == nil || cpu.System == nil {
			t.Errorf("%s: figures are missing: %+v %+v", d.name, m, cpu)
			continue
		}
		if *m.Peak < *m.Current || *m.Current < *m.Anonymous {
			t.Errorf("%s: current %d, peak %d, anonymous %d", d.name, *m.Current, *m.Peak, *m.Anonymous)
		}
		if g.Share.Guaranteed <= 0 {
			t.Errorf("%s: share %+v", d.name, g.Share)
		}
		for _, l := range g.Limits {
			if !l.OK && !l.Default {
				t.Errorf("%s: %s: %+v", d.name, l.Key, l)
			}
		}
	}
	if g := byName[red.name]; g.Usage.Memory.Anonymous == nil || *g.Usage.Memory.Anonymous < 30<<20 ||
		*g.Usage.Memory.Anonymous > 200<<20 {
		t.Errorf("redis holds 32 MiB of values: %+v", g.Usage.Memory)
	}
	if g := byName[postgres.name]; g.Usage.CPU.User == nil || *g.Usage.CPU.User < 20_000 {
		t.Errorf("PostgreSQL worked: %+v", g.Usage.CPU)
	}
}

func readFull(c net.Conn, b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	n := 0
	for n < len(b) {
		m, err := c.Read(b[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
