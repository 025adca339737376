//go:build root

// Package zfs tests copies of databases on real OpenZFS, in the lab's machine of that name: the module of the kernel
// is not everywhere, and pools are made on the machine's spare disks.
package zfs

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"bulkhead/internal/cli"
	"bulkhead/internal/testhost"
)

// TestMain makes this binary the program itself when it is called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "bulkhead" {
		os.Exit(cli.Main(os.Args[1:], os.Exit))
	}
	code := m.Run()
	if fresh != "" {
		_ = os.RemoveAll(fresh)
	}
	os.Exit(code)
}

// fresh is the data directory of a MariaDB that never ran: in emulation it takes a minute to make.
var fresh string

const pool = "bhlab"

// rig is a pool on two spare disks, and the program with a state directory of its own.
type rig struct {
	t       *testing.T
	dir     string
	program string
	policy  string
	copies  string // the directory of copies
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testhost.RequireRoot(t)
	if os.Getenv("BULKHEAD_LAB") != "1" {
		t.Skip("needs the module of OpenZFS, and disks for a pool: in the lab's machine `zfs` only")
	}
	dir, err := os.MkdirTemp("", "bhz")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, program: filepath.Join(dir, "bulkhead"), policy: filepath.Join(dir, "policy.yaml")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(self, r.program), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	r.makePool("/dev/vdc", "/dev/vdd")
	t.Cleanup(func() {
		r.must("zpool", "destroy", "-f", pool)
		_ = os.RemoveAll(dir)
	})
	return r
}

// makePool makes the pool, a mirror of two disks.
func (r *rig) makePool(disks ...string) {
	r.t.Helper()
	r.must("modprobe", "zfs")
	args := []string{"create", "-f", "-o", "ashift=12", "-O", "compression=lz4", "-O", "atime=off", "-O", "xattr=sa",
		"-O", "mountpoint=none", pool, "mirror"}
	for _, disk := range disks { // a whole disk takes udev
		r.must("sh", "-c", "[ -b "+disk+"1 ] || echo , | sfdisk -q "+disk+"; udevadm settle 2>/dev/null || true")
		args = append(args, disk+"1")
	}
	r.must("zpool", args...)
}

func (r *rig) must(name string, args ...string) string {
	r.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// datasets makes data and log of a server, in records that suit it.
func (r *rig) datasets(name, owner, record string) (data, log string) {
	r.t.Helper()
	r.must("zfs", "create", "-o", "canmount=off", pool+"/"+name)
	u, err := user.Lookup(owner)
	if err != nil {
		r.t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	for set, size := range map[string]string{"data": record, "log": "128K"} {
		point := filepath.Join(r.dir, name, set)
		r.must("zfs", "create", "-o", "recordsize="+size, "-o", "mountpoint="+point, pool+"/"+name+"/"+set)
		if err := errors.Join(os.Chown(point, uid, gid), os.Chmod(point, 0o700)); err != nil {
			r.t.Fatal(err)
		}
	}
	return filepath.Join(r.dir, name, "data"), filepath.Join(r.dir, name, "log")
}

// bulkhead runs the program; code is its exit status.
func (r *rig) bulkhead(args ...string) (out, said string, code int) {
	r.t.Helper()
	cmd := r.command(args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		r.t.Fatal(err)
	}
	if strings.Contains(e.String(), "goroutine ") {
		r.t.Fatalf("bulkhead %q panicked:\n%s", args, e.String())
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func (r *rig) command(args ...string) *exec.Cmd {
	return exec.Command(r.program, append([]string{"--state", filepath.Join(r.dir, "state"), "--policy",
		r.policy, "--socket", filepath.Join(r.dir, "none")}, args...)...)
}

// does runs it and expects success; v, if not nil, takes its JSON.
func (r *rig) does(v any, args ...string) string {
	r.t.Helper()
	if v != nil {
		args = append([]string{"--json"}, args...)
	}
	out, said, code := r.bulkhead(args...)
	if code != 0 {
		r.t.Fatalf("bulkhead %q: exit status %d\n%s%s", args, code, out, said)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(out), v); err != nil {
			r.t.Fatalf("bulkhead %q: %v\n%s", args, err, out)
		}
	}
	return out + said
}

// server is a database server of the test.
type server struct {
	r      *rig
	cmd    *exec.Cmd
	done   chan struct{}
	db     client
	log    string
	name   string // of the instance
	socket string
	port   int
}

// start runs a server's program as its user until the test ends, and waits until it answers.
func (r *rig) start(owner, driver, dsn string, argv ...string) *server {
	r.t.Helper()
	u, err := user.Lookup(owner)
	if err != nil {
		r.t.Fatal(err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	s := &server{r: r, log: filepath.Join(r.dir, fmt.Sprintf("log%d", time.Now().UnixNano())),
		done: make(chan struct{})}
	out, err := os.Create(s.log)
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = "/", out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	r.t.Cleanup(s.stop)
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err = s.use(driver, dsn); err == nil {
			return s
		}
		select {
		case <-s.done:
			text, _ := os.ReadFile(s.log)
			r.t.Fatalf("%s ended: %v\n%s", argv[0], err, text)
		default:
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(s.log)
			r.t.Fatalf("%s does not answer: %v\n%s", argv[0], err, text)
		}
	}
}

// stop ends the server at once, as a crash does.
func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

func (s *server) exec(statement string) {
	s.r.t.Helper()
	if err := s.db.exec(statement); err != nil {
		s.r.t.Fatalf("%s: %v", statement, err)
	}
}

// freshMariaDB makes the data directory of a MariaDB that never ran.
func (r *rig) freshMariaDB() {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "bhz-fresh")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.must("mariadb-install-db", "--no-defaults", "--user=mysql", "--datadir="+dir, "--skip-test-db",
		"--auth-root-authentication-method=socket", "--auth-root-socket-user=root", "--skip-name-resolve",
		"--force", "--innodb-log-file-size=32M")
	fresh = dir
}

// mariadb starts a MariaDB on two datasets: data, and redo log with binary log.
func (r *rig) mariadb() *server {
	r.t.Helper()
	data, log := r.datasets("my", "mysql", "16K")
	if fresh == "" {
		r.freshMariaDB()
	}
	r.must("cp", "-a", fresh+"/.", data)
	r.must("mv", data+"/ib_logfile0", log)
	socket := filepath.Join(r.dir, "my.sock")
	port := testhost.FreePort(r.t)
	if err := os.Chmod(r.dir, 0o777); err != nil {
		r.t.Fatal(err)
	}
	s := r.start("mysql", "mysql", "root@unix("+socket+")/", "/usr/sbin/mariadbd", "--no-defaults", "--datadir="+data,
		"--innodb-log-group-home-dir="+log, "--log-bin="+log+"/bin", "--server-id=1", "--socket="+socket,
		"--port="+strconv.Itoa(port), "--bind-address=127.0.0.1", "--pid-file="+socket+".pid",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--skip-name-resolve")
	s.name, s.socket, s.port = "mysql"+strconv.Itoa(port), socket, port
	return s
}

// postgresql starts a PostgreSQL whose WAL lies on a dataset of its own.
func (r *rig) postgresql() *server {
	r.t.Helper()
	data, log := r.datasets("pg", "postgres", "8K")
	if err := os.Chmod(r.dir, 0o777); err != nil {
		r.t.Fatal(err)
	}
	bin := filepath.Dir(testhost.Program(r.t, "postgresql", "/usr/lib/postgresql/*/bin/postgres"))
	r.must("runuser", "-u", "postgres", "--", bin+"/initdb", "-D", data, "-X", log+"/wal", "--auth=trust", "--no-sync")
	port := testhost.FreePort(r.t)
	dsn := fmt.Sprintf("postgres://postgres@localhost:%d/postgres?host=%s", port, r.dir)
	s := r.start("postgres", "pgx", dsn, bin+"/postgres", "-D", data, "-k", r.dir, "-p", strconv.Itoa(port), "-c",
		"listen_addresses=127.0.0.1", "-c", "shared_buffers=32MB")
	s.name, s.port = "postgresql"+strconv.Itoa(port), port
	return s
}

// writers is how many commit at a time.
const writers = 4

// load are writers that commit one transaction after the other: a row in each of two tables.
type load struct {
	acknowledged [writers]atomic.Int64 // number of the last one that was acknowledged
	slowest      atomic.Int64          // longest wait for one, in ns, since it was read
	stop         func()
}

func (s *server) load() *load {
	s.r.t.Helper()
	for _, table := range []string{"one", "two"} {
		s.exec("CREATE TABLE " + table + " (writer INT, n BIGINT, filler VARCHAR(200), PRIMARY KEY (writer, n))")
	}
	ctx, cancel := context.WithCancel(s.r.t.Context())
	var wg sync.WaitGroup
	l := &load{stop: sync.OnceFunc(func() { cancel(); wg.Wait() })}
	filler := strings.Repeat("x", 150)
	for w := range writers {
		wg.Go(func() {
			for n := int64(1); ctx.Err() == nil; n++ {
				begun := time.Now()
				err := s.db.commit(w, fmt.Sprintf("INSERT INTO one VALUES (%d, %d, '%s')", w, n, filler),
					fmt.Sprintf("INSERT INTO two VALUES (%d, %d, '%s')", w, n, filler))
				if err != nil {
					if ctx.Err() == nil {
						s.r.t.Errorf("writer %d, transaction %d: %v", w, n, err)
					}
					return
				}
				l.acknowledged[w].Store(n)
				took, was := int64(time.Since(begun)), l.slowest.Load()
				for took > was && !l.slowest.CompareAndSwap(was, took) {
					was = l.slowest.Load()
				}
			}
		})
	}
	s.r.t.Cleanup(l.stop)
	return l
}

// reached is what each writer has acknowledged now.
func (l *load) reached() (n [writers]int64) {
	for w := range n {
		n[w] = l.acknowledged[w].Load()
	}
	return n
}

// judge holds a copy against what was acknowledged before its snapshot: each of these transactions, whole, none without
// those before it, and none that was not begun yet when the snapshot was done.
func judge(t *testing.T, copied client, before, after [writers]int64) {
	t.Helper()
	for w := range before {
		var counts, last [2]int64
		for i, table := range []string{"one", "two"} {
			q := fmt.Sprintf("SELECT COUNT(*), COALESCE(MAX(n), 0) FROM %s WHERE writer = %d", table, w)
			if err := copied.row(q, &counts[i], &last[i]); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case counts[0] != counts[1] || last[0] != last[1]:
			t.Errorf("writer %d: half a transaction: %v rows, up to %v", w, counts, last)
		case counts[0] != last[0]:
			t.Errorf("writer %d: %d rows up to number %d: some are missing", w, counts[0], last[0])
		case last[0] < before[w]:
			t.Errorf("writer %d: acknowledged %d before the snapshot, and the copy has %d", w, before[w], last[0])
		case last[0] > after[w]+1:
			t.Errorf("writer %d: the copy has %d, which is behind the snapshot: %d", w, last[0], after[w])
		}
	}
}

// client is a login to a server, from each of the writers and one more.
type client interface {
	exec(statement string) error
	row(query string, into ...any) error
	// commit is one transaction of a writer, on the writer's own connection.
	commit(writer int, statements ...string) error
	close()
}

// use logs in.
func (s *server) use(driver, dsn string) error {
	var c client
	if driver == "mysql" {
		db, err := sql.Open(driver, dsn)
		if err == nil {
			err = db.Ping()
		}
		if err != nil {
			return err
		}
		c = mysqlClient{db}
	} else {
		var p postgresClient
		for range writers + 1 {
			conn, err := pgx.Connect(s.r.t.Context(), dsn)
			if err != nil {
				p.close()
				return err
			}
			p = append(p, conn)
		}
		c = p
	}
	s.db = c
	s.r.t.Cleanup(c.close)
	return nil
}

type mysqlClient struct{ *sql.DB }

func (c mysqlClient) exec(statement string) error {
	_, err := c.Exec(statement)
	return err
}

func (c mysqlClient) row(query string, into ...any) error { return c.QueryRow(query).Scan(into...) }

func (c mysqlClient) commit(_ int, statements ...string) error {
	tx, err := c.Begin()
	for _, s := range statements {
		if err == nil {
			_, err = tx.Exec(s)
		}
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (c mysqlClient) close() { _ = c.Close() }

// postgresClient has the connection of each writer, and one that is for one call at a time.
type postgresClient []*pgx.Conn

func (c postgresClient) exec(statement string) error {
	_, err := c[writers].Exec(context.Background(), statement)
	return err
}

func (c postgresClient) row(query string, into ...any) error {
	return c[writers].QueryRow(context.Background(), query).Scan(into...)
}

func (c postgresClient) commit(writer int, statements ...string) error {
	_, err := c[writer].Exec(context.Background(), "BEGIN; "+strings.Join(statements, "; ")+"; COMMIT")
	return err
}

func (c postgresClient) close() {
	for _, conn := range c {
		_ = conn.Close(context.Background())
	}
}

// waits has each writer commit some first.
func (r *rig) waits(l *load) {
	r.t.Helper()
	testhost.WaitLong(r.t, time.Minute, "commits of each writer", func() bool {
		for _, n := range l.reached() {
			if n < 5 {
				return false
			}
		}
		return true
	})
}

// in logs in to a database of MariaDB.
func (s *server) in(database string) {
	s.r.t.Helper()
	if err := s.use("mysql", "root@unix("+s.socket+")/"+database); err != nil {
		s.r.t.Fatal(err)
	}
}
