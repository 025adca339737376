//go:build root

package zfsclone

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/backuplock"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/testhost"
	"bulkhead/internal/zfslayout"
)

// realServer is a server's program on the files of the model.
type realServer struct {
	t       *testing.T
	as      *syscall.Credential
	argv    []string
	log     string
	answers func() error
	cmd     *exec.Cmd
	done    chan struct{}
}

func (s *realServer) Running(context.Context) (bool, error) {
	if s.cmd == nil {
		return false, nil
	}
	select {
	case <-s.done:
		return false, nil
	default:
		return true, nil
	}
}

func (s *realServer) Start(context.Context) error {
	out, err := os.OpenFile(s.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd, s.done = exec.Command(s.argv[0], s.argv[1:]...), make(chan struct{})
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = "/", out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: s.as}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	return nil
}

func (s *realServer) Stop(context.Context) error { return s.end(syscall.SIGINT) }

// end ends it by a signal, and waits until it is gone.
func (s *realServer) end(signal syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if s.argv[0] == mariadbd && signal == syscall.SIGINT {
		signal = syscall.SIGTERM
	}
	_ = s.cmd.Process.Signal(signal)
	select {
	case <-s.done:
		return nil
	case <-time.After(time.Minute):
		return errors.New("it is still there after a minute")
	}
}

func (s *realServer) Answers(ctx context.Context) error {
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = s.answers(); err == nil {
			return nil
		}
		if running, _ := s.Running(ctx); !running {
			return fmt.Errorf("it ended: %w", err)
		}
	}
	return err
}

const mariadbd = "/usr/sbin/mariadbd"

// origin is a server with a snapshot in the model, and a Maker of its copies.
type origin struct {
	*rig
	*realServer
	db   string // where its data sets are mounted
	port int
	as   *syscall.Credential
}

func newOrigin(t *testing.T, account string) *origin {
	t.Helper()
	db, u, as := testhost.AccountDir(t, account, account)
	r := newRig(t)
	r.pools.uid, _ = strconv.Atoi(u.Uid)
	r.pools.gid, _ = strconv.Atoi(u.Gid)
	o := &origin{rig: r, db: db, port: testhost.FreePort(t), as: as}
	if err := os.RemoveAll(filepath.Join(r.pools.dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	servers := map[string]*realServer{}
	r.Server = func(p *Plan) zfslayout.Server {
		if servers[p.Name] == nil {
			s := &realServer{t: t, as: as, argv: p.Command(), log: p.StartLog(), answers: func() error {
				return o.alive(p.Socket(), p.Port)
			}}
			servers[p.Name] = s
			t.Cleanup(func() { _ = s.end(syscall.SIGKILL) })
		}
		return servers[p.Name]
	}
	return o
}

// alive says whether a server takes clients.
func (o *origin) alive(socket string, port int) error {
	if o.argv[0] != mariadbd {
		l, err := dblogin.Parse(fmt.Sprintf("postgres://postgres@localhost:%d/postgres?host=%s", port, socket))
		if err != nil {
			return err
		}
		conn, err := l.OpenPostgres(context.Background(), nil)
		if err != nil {
			return err
		}
		return conn.Close(context.Background())
	}
	db, err := mysqlAt(socket)
	if err == nil {
		err = errors.Join(db.Ping(), db.Close())
	}
	return err
}

func mysqlAt(socket string) (*sql.DB, error) {
	l, err := dblogin.Parse("mysql://root@localhost/?socket=" + url.QueryEscape(socket))
	if err != nil {
		return nil, err
	}
	return l.OpenMySQL("")
}

// mysql does statements, and gives the first column of the last one's first row.
func mysql(t *testing.T, socket string, statements ...string) (answer string) {
	t.Helper()
	db, err := mysqlAt(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for i, s := range statements {
		if i < len(statements)-1 || !strings.HasPrefix(s, "SELECT") {
			_, err = db.Exec(s)
		} else {
			err = db.QueryRow(s).Scan(&answer)
		}
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return answer
}

func postgres(t *testing.T, socket string, port int, statement string) string {
	t.Helper()
	l, err := dblogin.Parse(fmt.Sprintf("postgres://postgres@localhost:%d/postgres?host=%s", port, socket))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.OpenPostgres(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	results, err := conn.PgConn().Exec(t.Context(), statement).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		return ""
	}
	return string(last.Rows[0][0])
}

// must runs a program as the server's account.
func (o *origin) must(name string, args ...string) {
	o.pools.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: o.as}
	if out, err := cmd.CombinedOutput(); err != nil {
		o.pools.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// runs starts the origin.
func (o *origin) runs(socket string, argv ...string) {
	t := o.pools.t
	t.Helper()
	o.realServer = &realServer{t: t, as: o.as, argv: argv, log: filepath.Join(o.pools.dir, "origin.log"),
		answers: func() error { return o.alive(socket, o.port) }}
	t.Cleanup(func() { _ = o.end(syscall.SIGKILL) })
	o.again()
}

// again starts it once more.
func (o *origin) again() {
	t := o.pools.t
	t.Helper()
	if err := errors.Join(o.Start(t.Context()), o.Answers(t.Context())); err != nil {
		t.Fatalf("%v\n%s", err, tail(o.log, 4000))
	}
}

// crashes ends the origin as a crash does, and copies its files into the model's snapshot.
func (o *origin) crashes() {
	t := o.pools.t
	t.Helper()
	if err := o.end(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // what PostgreSQL left sees that and ends
	for _, set := range []string{"data", "log"} {
		to := filepath.Join(o.pools.dir, "snapshots", "tank,my,"+set+"@s")
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("cp", "-a", filepath.Join(o.db, set), to).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// afterCrash ends the server of a copy as a crash of the host does, and has Start start it again.
func (o *origin) afterCrash(p *Plan) {
	t := o.pools.t
	t.Helper()
	server, is := o.Server(p).(*realServer)
	if !is {
		t.Fatal("another kind of server")
	}
	if err := server.end(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // what PostgreSQL left sees that and ends
	for _, s := range p.Sets[1:] {
		if err := o.pools.unmount(s.Name); err != nil {
			t.Fatal(err)
		}
	}
	if started, err := o.Maker.Start(t.Context(), p.Name); err != nil || !started {
		t.Fatalf("%v, %v", started, err)
	}
}

// plan is one of a copy of the origin.
func (o *origin) plan(name string, l dbsnapshot.Layout, at backuplock.Position, replica *Source) *Plan {
	o.pools.t.Helper()
	l.Instance, l.DataDir = "origin", filepath.Join(o.db, "data")
	l.Datasets = []dbsnapshot.Dataset{{Name: "tank/my/data", Point: l.DataDir}, {Name: "tank/my/log",
		Point: filepath.Join(o.db, "log")}}
	return mustMake(o.pools.t, Request{Name: name, Base: filepath.Join(o.pools.dir, "copies"), Group: name,
		Port: testhost.FreePort(o.pools.t), ServerID: 7, Memory: 16 << 20, Replica: replica, Origins: []zfs.Dataset{},
		Snapshot: dbsnapshot.Set{Instance: "origin", Name: "s", Complete: true, Layout: l, Position: at}})
}

// A MariaDB on a copy has what its origin had, and touches nothing of it, not even where it removes its logs. One that
// replicates catches up, and goes on after a restart.
func TestMariaDBOnCopies(t *testing.T) {
	o := newOrigin(t, "mysql")
	data, log, socket := filepath.Join(o.db, "data"), filepath.Join(o.db, "log"), filepath.Join(o.db, "o.sock")
	o.must("mkdir", log)
	o.must("mariadb-install-db", "--no-defaults", "--datadir="+data, "--skip-test-db",
		"--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-name-resolve", "--force",
		"--innodb-log-file-size=8M")
	o.must("mv", data+"/ib_logfile0", log)
	o.runs(socket, mariadbd, "--no-defaults", "--datadir="+data, "--innodb-log-group-home-dir="+log,
		"--innodb-log-file-size=8M", "--log-bin="+log+"/bin", "--server-id=1", "--socket="+socket,
		"--port="+strconv.Itoa(o.port), "--bind-address=127.0.0.1", "--pid-file="+socket+".pid",
		"--innodb-buffer-pool-size=16M", "--skip-name-resolve")
	mysql(t, socket, "CREATE DATABASE shop", "CREATE TABLE shop.t (n INT PRIMARY KEY)",
		"INSERT INTO shop.t SELECT seq FROM shop.seq_1_to_100",
		"CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'it''s a \\\\ secret'", "GRANT REPLICATION SLAVE ON *.* TO "+
			"repl@'127.0.0.1'", "FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (101)")
	settings := map[string]string{}
	for _, name := range append([]string{"datadir", "log_bin", "log_bin_basename", "log_bin_index",
		"relay_log_basename", "relay_log_index", "server_id"}, append(unchanged, directories...)...) {
		if value := mysql(t, socket, "SELECT COALESCE(MAX(variable_value), '') FROM information_schema."+
			"global_variables WHERE variable_name = '"+name+"'"); value != "" {
			settings[name] = value
		}
	}
	at := backuplock.Position{GTID: mysql(t, socket, "SELECT @@gtid_binlog_pos"), Binlog: "bin.000002:1"}
	o.crashes()
	o.again()
	mysql(t, socket, "INSERT INTO shop.t SELECT seq FROM shop.seq_1000_to_1049")
	layout := dbsnapshot.Layout{Engine: engine.MySQL, Flavor: engine.MariaDB, Version: mysql(t, socket,
		"SELECT VERSION()"), Program: mariadbd, User: "mysql", Settings: settings}

	o.pools.gid = 0 // as mariadb-install-db leaves a directory
	p := o.plan("dev1", layout, at, nil)
	if _, err := o.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if n := mysql(t, p.Socket(), "SELECT COUNT(*) FROM shop.t"); n != "101" {
		t.Errorf("the copy has %s rows", n)
	}
	own := mysql(t, p.Socket(), "SELECT CONCAT_WS(' ', @@datadir, @@port, @@server_id, @@innodb_log_group_home_dir, "+
		"@@log_bin_index, @@event_scheduler)")
	if own != fmt.Sprintf("%s/ %d 7 %s/log %s/log/bin.index OFF", p.DataDir, p.Port, p.Dir(), p.Dir()) {
		t.Error(own)
	}
	logs := func() string {
		names, _ := filepath.Glob(log + "/bin.0*")
		return strings.Join(names, " ")
	}
	was := logs()
	mysql(t, p.Socket(), "INSERT INTO shop.t VALUES (5000)", "FLUSH BINARY LOGS", "PURGE BINARY LOGS BEFORE NOW()",
		"RESET MASTER")
	if logs() != was || was == "" {
		t.Errorf("logs of the origin before: %s, after: %s", was, logs())
	}

	q := o.plan("dev2", layout, at, &Source{Host: "127.0.0.1", Port: o.port, User: "repl", Password: `it's a \ secret`})
	if _, err := o.Clone(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	has := func(rows string) func() bool {
		return func() bool { return mysql(t, q.Socket(), "SELECT COUNT(*) FROM shop.t") == rows }
	}
	testhost.WaitLong(t, time.Minute, "the copy to catch up", has("151"))
	o.afterCrash(q)
	mysql(t, socket, "INSERT INTO shop.t VALUES (6000)")
	testhost.WaitLong(t, time.Minute, "replication after a crash of the host", has("152"))
	o.afterCrash(p)
	if n := mysql(t, p.Socket(), "SELECT COUNT(*) FROM shop.t"); n != "102" {
		t.Errorf("after a crash of the host the copy has %s rows", n)
	}
	for _, name := range []string{"dev1", "dev2"} {
		if err := o.Drop(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if n := mysql(t, socket, "SELECT COUNT(*) FROM shop.t"); n != "152" {
		t.Errorf("the origin has %s rows", n)
	}
	o.nothing(t)
}

// A PostgreSQL on a copy has what its origin had, with a WAL of its own; a standby catches up.
func TestPostgreSQLOnCopies(t *testing.T) {
	o := newOrigin(t, "postgres")
	bin := filepath.Dir(testhost.Program(t, "postgresql", "/usr/lib/postgresql/*/bin/postgres"))
	data := filepath.Join(o.db, "data")
	o.must("mkdir", filepath.Join(o.db, "log"))
	o.must(bin+"/initdb", "-D", data, "-X", filepath.Join(o.db, "log/wal"), "--auth=trust", "--no-sync")
	o.runs(o.db, bin+"/postgres", "-D", data, "-k", o.db, "-p", strconv.Itoa(o.port), "-c",
		"listen_addresses=127.0.0.1", "-c", "shared_buffers=16MB", "-c", "max_connections=37")
	ask := func(p *Plan, statement string) string { return postgres(t, p.Socket(), p.Port, statement) }
	of := func(statement string) string { return postgres(t, o.db, o.port, statement) }
	of("CREATE TABLE t (n INT PRIMARY KEY)")
	of("INSERT INTO t SELECT generate_series(1, 100)")
	of("SELECT pg_create_physical_replication_slot('theirs', true)")
	of("ALTER SYSTEM SET archive_command = 'false'")
	of("ALTER SYSTEM SET port = 1")
	o.crashes()
	_ = os.Remove(filepath.Join(data, "postmaster.pid"))
	o.again()
	of("INSERT INTO t SELECT generate_series(1000, 1049)")
	layout := dbsnapshot.Layout{Engine: engine.PostgreSQL, Version: "15", Program: bin + "/postgres", User: "postgres"}

	p := o.plan("dev1", layout, backuplock.Position{}, nil)
	if _, err := o.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{"SELECT COUNT(*) FROM t": "100", "SHOW port": strconv.Itoa(p.Port),
		"SHOW max_connections": "37", "SHOW archive_mode": "off", "SELECT COUNT(*) FROM pg_replication_slots": "0",
		"SHOW shared_buffers": "16MB", "SHOW data_directory": p.DataDir} {
		if got := ask(p, query); got != want {
			t.Errorf("%s: %s", query, got)
		}
	}
	ask(p, "INSERT INTO t VALUES (5000)")
	if to, err := os.Readlink(filepath.Join(p.DataDir, "pg_wal")); err != nil ||
		to != filepath.Join(p.Dir(), "log/wal") {
		t.Errorf("pg_wal leads to %s: %v", to, err)
	}
	q := o.plan("dev2", layout, backuplock.Position{}, &Source{Host: "127.0.0.1", Port: o.port, User: "postgres",
		Password: `it's \ none`})
	if _, err := o.Clone(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	testhost.WaitLong(t, time.Minute, "the standby to catch up", func() bool {
		return ask(q, "SELECT COUNT(*) FROM t") == "150"
	})
	o.afterCrash(q)
	if got := ask(q, "SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("a standby: %s", got)
	}
	o.afterCrash(p)
	if got := ask(p, "SELECT COUNT(*) FROM t"); got != "101" {
		t.Errorf("after a crash of the host the copy has %s rows", got)
	}
	for _, name := range []string{"dev1", "dev2"} {
		if err := o.Drop(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if n := of("SELECT COUNT(*) FROM t"); n != "150" {
		t.Errorf("the origin has %s rows", n)
	}
	o.nothing(t)
}
