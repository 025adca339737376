//go:build root

package recognise

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/dbstat"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/testhost/release"
)

// startTimeout bounds the start of one server; a cold machine takes some seconds for MariaDB.
const startTimeout = 60 * time.Second

// server is a database that the test started itself, in a directory of its own.
type server struct {
	pid, port    int
	dir, socket  string
	account      *user.User
	sysproc      *syscall.SysProcAttr
	instanceName string
}

// newServer makes the directory of a server that runs as an ordinary account.
func newServer(t *testing.T, name, pkg string) *server {
	t.Helper()
	dir, account, as := testhost.AccountDir(t, name, pkg)
	return &server{
		port: testhost.FreePort(t), dir: dir, account: account,
		sysproc: &syscall.SysProcAttr{Setpgid: true, Credential: as},
	}
}

// command makes a command that runs as the server's account in its directory.
func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, s.sysproc
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=" + s.dir, "TMPDIR=" + s.dir}
	return cmd
}

func (s *server) must(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("run %s: %v\n%s", name, err, out)
	}
}

// start runs the server until the test ends and waits for its port.
func (s *server) start(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "test.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := s.command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() {
		// SIGQUIT is PostgreSQL's immediate shutdown; the group takes children along.
		_ = syscall.Kill(-s.pid, syscall.SIGQUIT)
		select {
		case <-exited:
		case <-time.After(5 * time.Second):
			_ = syscall.Kill(-s.pid, syscall.SIGKILL)
			<-exited
		}
	})
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.port), time.Second); err == nil {
			c.Close()
			return
		}
		select {
		case err := <-exited:
			exited <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s ended: %v\n%s", name, err, text)
		default:
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not listen on %d after %s\n%s", name, s.port, startTimeout, text)
		}
	}
}

func startMariaDB(t *testing.T) *server {
	const pkg = "mariadb-server"
	s := newServer(t, "mysql", pkg)
	if p := release.Programs(t, "mariadb"); p != nil {
		return s.startMySQL(t, p)
	}
	install := testhost.Program(t, pkg, "/usr/bin/mariadb-install-db", "/usr/bin/mysql_install_db")
	daemon := testhost.Program(t, pkg, "/usr/sbin/mariadbd", "/usr/sbin/mysqld")
	data := filepath.Join(s.dir, "data")
	s.must(t, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	s.socket = filepath.Join(s.dir, "m.sock")
	config := filepath.Join(s.dir, "my.cnf")
	text := fmt.Sprintf("[mysqld]\ndatadir=%s\nport=%d\nsocket=%s\nbind-address=127.0.0.1\n"+
		"innodb_buffer_pool_size=8M\n", data, s.port, s.socket)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start(t, daemon, "--defaults-file="+config)
	s.instanceName = "mysql" + strconv.Itoa(s.port)
	return s
}

// startMySQL starts a release, with its X plugin.
func (s *server) startMySQL(t *testing.T, p children.Programs) *server {
	t.Helper()
	server := database.MySQLServer(p, filepath.Join(s.dir, "data"))
	s.must(t, server[0], append(server[1:], "--initialize-insecure")...)
	s.socket = filepath.Join(s.dir, "m.sock")
	config := filepath.Join(s.dir, "my.cnf")
	text := fmt.Sprintf("[mysqld]\nport=%d\nsocket=%s\nbind-address=127.0.0.1\ninnodb_buffer_pool_size=8M\n"+
		"mysqlx_port=%d\nmysqlx_bind_address=127.0.0.1\n", s.port, s.socket, testhost.FreePort(t))
	for _, option := range server[2:] {
		text += strings.TrimPrefix(option, "--") + "\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s.start(t, server[0], "--defaults-file="+config)
	s.instanceName = "mysql" + strconv.Itoa(s.port)
	return s
}

func startPostgreSQL(t *testing.T) *server {
	const pkg = "postgresql"
	s := newServer(t, "postgres", pkg)
	initdb := release.Programs(t, "postgresql")["initdb"]
	if initdb == "" {
		initdb = testhost.Program(t, pkg, "/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb",
			"/usr/bin/initdb")
	}
	daemon := testhost.Program(t, pkg, filepath.Join(filepath.Dir(initdb), "postgres"))
	data := filepath.Join(s.dir, "data")
	s.must(t, initdb, "-D", data, "-A", "trust", "--no-sync")
	s.socket = filepath.Join(s.dir, fmt.Sprintf(".s.PGSQL.%d", s.port))
	s.start(t, daemon, "-D", data, "-p", strconv.Itoa(s.port), "-k", s.dir, "-c", "cluster_name=test/one", "-c",
		"listen_addresses=127.0.0.1", "-c", "shared_buffers=1MB")
	s.instanceName = "postgresql" + strconv.Itoa(s.port)
	return s
}

func startRedis(t *testing.T) *server {
	const pkg = "redis-server"
	s := newServer(t, "redis", pkg)
	daemon := release.Programs(t, "redis")["redis-server"]
	if daemon == "" {
		daemon = testhost.Program(t, pkg, "/usr/bin/redis-server", "/usr/bin/valkey-server")
	}
	s.socket = filepath.Join(s.dir, "r.sock")
	s.start(t, daemon, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--unixsocket", s.socket,
		"--save", "")
	s.instanceName = "redis" + strconv.Itoa(s.port)
	return s
}

func startEtcd(t *testing.T) *server {
	const pkg = "etcd-server"
	s := newServer(t, "nobody", pkg)
	daemon := testhost.Program(t, pkg, "/usr/bin/etcd")
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", s.port), fmt.Sprintf("http://127.0.0.1:%d", testhost.FreePort(t))
	s.start(t, daemon, "--name", "test", "--data-dir", filepath.Join(s.dir, "data"), "--listen-client-urls", client,
		"--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "test="+peer,
		"--log-level", "error")
	s.instanceName = "etcd" + strconv.Itoa(s.port)
	return s
}

// Real MariaDB, PostgreSQL, Redis and etcd servers, found by a look at the whole live host.
func TestLiveServers(t *testing.T) {
	t.Parallel()
	servers := map[string]*server{engine.MySQL: startMariaDB(t), engine.PostgreSQL: startPostgreSQL(t),
		engine.Redis: startRedis(t),
		engine.Etcd:  startEtcd(t)}
	h := host.New("/")
	for engine, s := range servers {
		t.Run(engine, func(t *testing.T) {
			i := waitForInstance(t, h, s)
			if i.Engine != engine || i.Name() != s.instanceName || i.Port != s.port || !slices.Contains(i.Ports,
				s.port) {
				t.Errorf("engine %q, name %q, port %d of %v; want %q %q %d", i.Engine, i.Name(), i.Port, i.Ports,
					engine, s.instanceName, s.port)
			}
			if i.Socket != s.socket || !strings.HasPrefix(i.DataDir, s.dir) || i.User != s.account.Username ||
				i.Container {
				t.Errorf("socket %q, data directory %q, user %q, container %t", i.Socket, i.DataDir, i.User,
					i.Container)
			}
			if len(i.Evidence) < 3 {
				t.Errorf("evidence %q", i.Evidence)
			}
			if !i.Matches(policy.Match{Engine: engine, Port: strconv.Itoa(s.port), Socket: s.socket,
				DataDir: i.DataDir}) {
				t.Error("the instance does not match its own keys")
			}
			checkEngine(t, i)
			checkWork(t, engine, s)
		})
	}
}

// checkWork asks a server for its own counter, by TCP and by its socket: it rises, since the question counts.
func checkWork(t *testing.T, kind string, s *server) {
	t.Helper()
	names := map[string][]string{
		engine.MySQL: {fmt.Sprintf("mysql://root@127.0.0.1:%d/", s.port), "mysql://root@localhost/?socket=" + s.socket},
		engine.PostgreSQL: {fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", s.port),
			fmt.Sprintf("postgres:///postgres?user=postgres&host=%s&port=%d", s.dir, s.port)},
		engine.Redis: {fmt.Sprintf("redis://127.0.0.1:%d", s.port), "unix://" + s.socket},
	}
	for _, dsn := range names[kind] {
		db, err := dbstat.Parse(dsn)
		if err != nil {
			t.Fatalf("%s: %v", dsn, err)
		}
		first, err := db.Work(t.Context())
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
		testhost.WaitFor(t, db.Counter+" of "+dsn+" to rise", func() bool {
			now, err := db.Work(t.Context())
			if err != nil {
				t.Error(err)
			}
			return err != nil || now > first
		})
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

// waitForInstance looks at the live host until the server is there with its children, which PostgreSQL
// starts after it listens.
func waitForInstance(t *testing.T, h *host.Host, s *server) engine.Instance {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		procs, err := h.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		found := Instances(procs, SourceOf(h))
		n := slices.IndexFunc(found, func(i engine.Instance) bool { return i.Main.PID == s.pid })
		if n >= 0 && (found[n].Engine != engine.PostgreSQL || len(found[n].Members) >= 6 && found[n].Cluster != "") {
			return found[n]
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d of %s is not among the instances %v", s.pid, s.instanceName, found)
		}
	}
}

// checkEngine checks what is particular to an engine.
func checkEngine(t *testing.T, i engine.Instance) {
	t.Helper()
	var parts []string
	for _, m := range i.Members {
		parts = append(parts, m.Part)
	}
	want := []string{engine.PartMain}
	switch i.Engine {
	case engine.MySQL:
		if !strings.HasSuffix(i.Config, "my.cnf") || i.Version == "" || strings.Contains(i.Evidence[0], "mariadbd") &&
			i.Flavor != engine.MariaDB {
			t.Errorf("config %q, version %q, flavor %q", i.Config, i.Version, i.Flavor)
		}
	case engine.PostgreSQL:
		want = []string{engine.PartMain, "checkpointer", "bgwriter", "walwriter", "autovacuum", "replication"}
		if i.Cluster != "test/one" || i.Version == "" || !strings.HasSuffix(i.Config, "postgresql.conf") {
			t.Errorf("cluster %q, version %q, config %q", i.Cluster, i.Version, i.Config)
		}
	}
	for _, part := range want {
		if !slices.Contains(parts, part) {
			t.Errorf("no part %q among %v", part, parts)
		}
	}
}

// helper starts a program that writes more than a pipe takes and is not read: it stays until the test ends.
func (s *server) helper(t *testing.T, env []string, name string, args ...string) int {
	t.Helper()
	unread, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unread.Close() })
	defer out.Close()
	cmd := s.command(name, args...)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return cmd.Process.Pid
}

// Real helpers of two servers of one engine, each told in another way which of them it serves, and one told by nothing
// but the file in its home directory, which only its connection shows.
func TestLiveHelpers(t *testing.T) {
	t.Parallel()
	first, second, pg := startMariaDB(t), startMariaDB(t), startPostgreSQL(t)
	dump, base := release.Programs(t, "mariadb")["mysqldump"], release.Programs(t, "postgresql")["pg_basebackup"]
	if !release.Wanted() {
		dump = testhost.Program(t, "mariadb-client", "/usr/bin/mariadb-dump", "/usr/bin/mysqldump")
		base = testhost.Program(t, "postgresql-client", "/usr/lib/postgresql/*/bin/pg_basebackup")
	}
	config := filepath.Join(second.dir, ".my.cnf")
	if err := os.WriteFile(config, []byte("[client]\nuser=root\nsocket="+second.socket+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tcp := fmt.Sprint(second.port)
	want := map[int]string{
		first.helper(t, nil, dump, "--no-defaults", "-uroot", "--socket="+first.socket,
			"--all-databases"): first.instanceName + " --socket=" + first.socket,
		first.helper(t, []string{"MYSQL_UNIX_PORT=" + first.socket}, dump, "--no-defaults", "-uroot",
			"--all-databases"): first.instanceName + " MYSQL_UNIX_PORT of its environment",
		second.helper(t, nil, dump, "--no-defaults", "-uroot", "-h", "127.0.0.1", "-P", tcp,
			"--all-databases"): second.instanceName + " --host=127.0.0.1 --port=" + tcp,
		second.helper(t, nil, dump,
			"--all-databases"): second.instanceName + " it is connected to " + second.socket,
		pg.helper(t, nil, base, "-h", pg.dir, "-p", strconv.Itoa(pg.port), "-D", "-", "-Ft", "-X", "none", "-c", "fast",
			"--max-rate=32k"): pg.instanceName + " --host=" + pg.dir + " --port=" + strconv.Itoa(pg.port),
	}
	h := host.New("/")
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		procs, err := h.Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[int]string)
		for _, i := range Instances(procs, SourceOf(h)) {
			for _, x := range i.Helpers {
				if _, is := want[x.ID.PID]; !is {
					continue
				}
				got[x.ID.PID] = i.Name() + " " + x.How
				if !x.Sure || x.Kind != engine.HelperBackup || x.Tool == "pg_basebackup" &&
					x.Rate.Given != "--max-rate=32k" {
					got[x.ID.PID] += fmt.Sprintf(" %+v", x)
				}
			}
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got\n%v\nwant\n%v", got, want)
		}
	}
}
