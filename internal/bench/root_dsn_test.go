//go:build root

package bench

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/progress"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/scenario"
	"bulkhead/internal/testhost/release"
)

// A password with what URLs, shells and files of settings make something of.
const secret = `Ge"heim#1:/@%\x`

// others are servers of somebody else: each with a password, and with tables or keys that bear the names load
// generators use.
type others struct {
	maria, postgres, redis *database.Instance
	sql                    *sql.DB
	keys                   *goredis.Client
}

func startOthers(t *testing.T) *others {
	t.Helper()
	n := process.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir := workArea(t)
	o := &others{}
	for _, s := range []struct {
		engine string
		to     **database.Instance
	}{{"mariadb", &o.maria}, {"postgresql", &o.postgres}, {"redis", &o.redis}} {
		d, paths := release.Database(t, s.engine)
		in, err := database.NewInstance(d, dir, 32, paths, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Kind.Install(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if *s.to = in; s.engine == "postgresql" {
			hba := "local all postgres trust\nlocal all app scram-sha-256\nhost all app 127.0.0.1/32 scram-sha-256\n"
			if err := os.WriteFile(filepath.Join(in.DataDir, "pg_hba.conf"), []byte(hba), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := in.Start(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Stop() })
	}
	o.fill(t)
	return o
}

// fill makes accounts, databases and tables.
func (o *others) fill(t *testing.T) {
	t.Helper()
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User = "unix", o.maria.Socket, "root"
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	o.sql = sql.OpenDB(connector)
	t.Cleanup(func() { _ = o.sql.Close() })
	quoted := "'" + strings.ReplaceAll(secret, `\`, `\\`) + "'"
	for _, s := range []string{
		"CREATE DATABASE shop", "CREATE TABLE shop.sbtest1 AS SELECT 7 AS precious",
		"CREATE USER app@'127.0.0.1' IDENTIFIED BY " + quoted, "CREATE USER app@localhost IDENTIFIED BY " + quoted,
		"GRANT ALL ON shop.* TO app@'127.0.0.1'", "GRANT ALL ON shop.* TO app@localhost",
		"GRANT ALL ON bulkhead_bench.* TO app@'127.0.0.1'", "GRANT ALL ON bulkhead_bench.* TO app@localhost",
	} {
		if _, err := o.sql.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	o.pg(t, "postgres", "CREATE ROLE app LOGIN PASSWORD '"+secret+"'", "CREATE DATABASE shop OWNER app")
	o.pg(t, "shop", "CREATE TABLE public.pgbench_accounts AS SELECT 7 AS precious",
		"ALTER TABLE pgbench_accounts OWNER TO app", "CREATE TABLE public.sbtest1 AS SELECT 7 AS precious")
	// logged in before there is a password
	o.keys = goredis.NewClient(&goredis.Options{Network: "unix", Addr: o.redis.Socket, PoolSize: 1})
	t.Cleanup(func() { _ = o.keys.Close() })
	if err := errors.Join(
		o.keys.MSet(t.Context(), "key:000000000001", "precious", "bulkhead", "precious").Err(),
		o.keys.ACLSetUser(t.Context(), "app", "on", ">"+secret, "~*", "+@all").Err(),
		o.keys.ConfigSet(t.Context(), "requirepass", "root"+secret).Err(),
	); err != nil {
		t.Fatal(err)
	}
}

// pg runs statements as the server's owner and returns the rows of the last, each as one text.
func (o *others) pg(t *testing.T, database string, statements ...string) (rows []string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=postgres database=%s", o.postgres.RunDir,
		o.postgres.Port, database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for _, s := range statements {
		results, err := c.PgConn().Exec(t.Context(), s).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		rows = nil
		for _, r := range results[0].Rows {
			rows = append(rows, string(bytes.Join(r, []byte(" "))))
		}
	}
	return rows
}

// holds is all that is in the servers: databases, schemas, tables, keys, accounts.
func (o *others) holds(t *testing.T) []string {
	t.Helper()
	found := append(o.pg(t, "shop", "SELECT datname FROM pg_database",
		"SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname "+
			"NOT IN ('pg_catalog', 'information_schema', 'pg_toast') UNION SELECT 'schema', nspname FROM "+
			"pg_namespace WHERE nspname NOT LIKE 'pg_t%'"),
		o.pg(t, "shop",
			"SELECT precious FROM public.pgbench_accounts UNION ALL SELECT precious FROM public.sbtest1")...)
	for _, s := range []string{
		"SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables WHERE table_schema NOT IN " +
			"('information_schema', 'performance_schema', 'mysql', 'sys')",
		"SHOW DATABASES", "SELECT CONCAT(user, '@', host) FROM mysql.user", "SELECT precious FROM shop.sbtest1",
	} {
		rows, err := o.sql.Query(s)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			found = append(found, "mariadb "+text)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := o.keys.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return append(found, keys...)
}

// dsns are how to log in, over TCP or over sockets.
func (o *others) dsns(sockets bool) map[string]string {
	who := url.UserPassword("app", secret)
	at := func(in *database.Instance) string { return "127.0.0.1:" + strconv.Itoa(in.Port) }
	all := map[string]url.URL{
		"maria": {Scheme: "mysql", User: who, Host: at(o.maria), Path: "/shop"},
		"pg":    {Scheme: "postgresql", User: who, Host: at(o.postgres), Path: "/shop"},
		"cache": {Scheme: "redis", User: who, Host: at(o.redis), Path: "/0"},
	}
	if sockets {
		all = map[string]url.URL{
			"maria": {Scheme: "mysql", User: who, Host: "localhost", Path: "/shop", RawQuery: "socket=" +
				o.maria.Socket},
			"pg": {Scheme: "postgresql", User: who, Host: at(o.postgres), Path: "/shop", RawQuery: "host=" +
				o.postgres.RunDir},
			"cache": {Scheme: "unix", User: who, Path: o.redis.Socket},
		}
	}
	texts := map[string]string{}
	for name, u := range all {
		texts[name] = u.String()
	}
	return texts
}

const existingScenario = `version: 1
name: existing
title: servers that exist
rounds: 1
seconds: 1
databases:
  maria: {engine: mariadb, group: data}
  pg: {engine: postgresql, group: data}
  cache: {engine: redis, group: data}
loads:
  sysbench: {program: sysbench, on: maria, threads: "2", tables: "2", rows: "500", group: data}
  pgbench: {program: pgbench, on: pg, threads: "2", rows: "1000", group: data}
  pgsys: {program: sysbench, on: pg, threads: "1", tables: "1", rows: "500", group: data}
  redis: {program: redis-benchmark, on: cache, script: set, threads: "2", rows: "500", group: data}
policies:
  ours: |
    version: 1
    groups:
      data:
        role: database
        match:
          - {engine: mariadb, port: ${port.maria}}
          - {engine: postgresql, port: ${port.pg}}
          - {engine: redis, port: ${port.cache}}
          - {cmdline: '${client.maria}'}
          - {cmdline: '${client.pg}'}
          - {cmdline: '${client.cache}'}
arms:
  held: {text: under the policy, policy: ours}
shape:
  - what: all are loaded
    measure: "min(min(held.sysbench.transactions, held.pgbench.transactions),
      min(held.pgsys.transactions, held.redis.transactions))"
    least: "1"
    smoke_least: "1"
`

// against starts the scenario on servers that exist; each DSN is in a file that only root reads.
func (o *others) against(t *testing.T, program, dir string, dsns map[string]string, more ...string) *running {
	t.Helper()
	files := t.TempDir()
	path := filepath.Join(files, "existing.yaml")
	if err := os.WriteFile(path, []byte(existingScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"bench", path, "--smoke", "--seconds", "1", "--dir", dir}, more...)
	for name, dsn := range dsns {
		file := filepath.Join(files, name)
		if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--dsn", name+"=@"+file)
	}
	return startProgram(t, dir, exec.Command(program, args...))
}

// overheard watches every command line of the machine until stop, and says which held the password.
func overheard(t *testing.T) (stop func() []string) {
	t.Helper()
	h, done, found := host.New("/"), make(chan struct{}), make(chan []string)
	go func() {
		seen := map[string]bool{}
		for {
			all, _ := h.Proc.Processes(procfs.Options{}) // one that ends meanwhile says nothing any more
			for _, p := range all {
				if line := strings.Join(p.Args, " "); strings.Contains(line, secret) {
					seen[line] = true
				}
			}
			select {
			case <-done:
				var lines []string
				for line := range seen {
					lines = append(lines, line)
				}
				found <- lines
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() []string { close(done); return <-found }
}

// A scenario runs against servers that exist, over TCP and over sockets, shows their password to nobody, and leaves
// them as they were: also when it is interrupted, and, after a kill, with the next run.
func TestExistingRoot(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes half a minute: LONG=1")
	}
	needRoot(t)
	program := buildProgram(t)
	o := startOthers(t)
	dir := workArea(t)
	before := o.holds(t)
	same := func(t *testing.T, what string) {
		t.Helper()
		if after := o.holds(t); !slices.Equal(before, after) {
			t.Errorf("%s: before there were\n%q\nafterwards\n%q", what, before, after)
		}
		nothingLeft(t, dir)
	}
	whole := func(sockets bool) {
		t.Run(fmt.Sprintf("sockets %t", sockets), func(t *testing.T) {
			stop := overheard(t)
			out := t.TempDir()
			r := o.against(t, program, dir, o.dsns(sockets), "--out", out)
			if err := r.end(t); err != nil {
				t.Errorf("it ended with %v:\n%s", err, r.all)
			}
			if lines := stop(); len(lines) > 0 {
				t.Errorf("the password was on the command lines\n%s", strings.Join(lines, "\n"))
			}
			r.silent(t, out)
			same(t, "after a whole run")
		})
	}
	whole(false)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		r := o.against(t, program, dir, o.dsns(s == syscall.SIGINT))
		r.await(t, "under the policy")
		if now := o.holds(t); !slices.Contains(now, "mariadb bulkhead_bench.sbtest1") ||
			!slices.Contains(now, "bulkhead_bench pgbench_accounts") {
			t.Errorf("in the middle of a run there are %q", now)
		}
		if err := r.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = r.end(t)
		if s == syscall.SIGINT {
			same(t, "interrupted")
		}
	}
	whole(true) // after a kill
	o.taken(t)
	same(t, "met by another run")
	o.refusals(t, program, dir, same)
}

// taken lets a run meet another one, of another machine for instance: it ends, and takes nothing of the other's away.
func (o *others) taken(t *testing.T) {
	t.Helper()
	for engine, dsn := range map[string]string{"mariadb": o.dsns(false)["maria"], "postgresql": o.dsns(false)["pg"],
		"redis": o.dsns(false)["cache"]} {
		enter := func() (*run, error) {
			in, err := database.NewInstance(scenario.Database{Name: "db", Engine: engine, DSN: dsn}, "", 0, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := &run{existing: []*database.Instance{in}, progress: progress.New(io.Discard, false)}
			return r, r.enter(t.Context(), "db")
		}
		one, err := enter()
		if err != nil {
			t.Fatalf("%s: %v", engine, err)
		}
		if engine == "redis" {
			if err := o.keys.Set(t.Context(), database.OwnKeys+"of one", "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		works := o.holds(t)
		two, err := enter()
		if !errors.Is(err, database.ErrTaken) {
			t.Errorf("%s: a second run enters: %v", engine, err)
		}
		if err := two.undo.Run(t.Context()); err != nil || !slices.Equal(works, o.holds(t)) {
			t.Errorf("%s: the second run ends with %v and leaves\n%q\nof\n%q", engine, err, o.holds(t), works)
		}
		if err := one.undo.Run(t.Context()); err != nil {
			t.Errorf("%s: %v", engine, err)
		}
	}
}

// silent checks that neither what a run said nor what it wrote holds the password.
func (r *running) silent(t *testing.T, out string) {
	t.Helper()
	forms := []string{secret, url.PathEscape(secret), url.QueryEscape(secret)}
	holds := func(text string) bool {
		return slices.ContainsFunc(forms, func(s string) bool { return strings.Contains(text, s) })
	}
	if holds(r.all.String()) {
		t.Errorf("it says the password:\n%s", r.all)
	}
	files, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if holds(string(text)) {
			t.Errorf("%s holds the password", f)
		}
	}
}

// refusals are DSNs that fail: each ends with its reason before anything is started or changed.
func (o *others) refusals(t *testing.T, program, dir string, same func(*testing.T, string)) {
	t.Helper()
	wrong := strings.NewReplacer(url.UserPassword("app", secret).String(),
		url.UserPassword("app", "wr"+secret).String())
	good := o.dsns(false)
	for _, tt := range []struct{ name, db, dsn, want, hint string }{
		{"nobody listens", "maria", "mysql://app:x@127.0.0.1:1/shop", `database "maria" does not answer at 127.0.0.1:1`,
			"is it running"},
		{"no such host", "cache", "redis://app:x@nowhere.invalid:1/0", "nowhere.invalid",
			"host in the DSN is not known"},
		{"no such socket", "pg", "postgres://app:x@localhost/shop?host=/nowhere",
			"does not answer at /nowhere/.s.PGSQL.5432", "is it running"},
		{"wrong password of MariaDB", "maria", wrong.Replace(good["maria"]), "Access denied for user 'app'",
			"user, password and database"},
		{"wrong password of PostgreSQL", "pg", wrong.Replace(good["pg"]), "password authentication failed",
			"user, password and database"},
		{"wrong password of Redis", "cache", wrong.Replace(good["cache"]), "WRONGPASS", "user, password and database"},
		{"unknown database of MariaDB", "maria", strings.Replace(good["maria"], "/shop", "/shoq", 1), "shoq",
			"the DSN"},
		{"unknown database of PostgreSQL", "pg", strings.Replace(good["pg"], "/shop", "/shoq", 1),
			`database "shoq" does not exist`, "is there already"},
		{"unknown database of Redis", "cache", strings.Replace(good["cache"], "/0", "/99", 1),
			"DB index is out of range", "user, password and database"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dsns := o.dsns(false)
			dsns[tt.db] = tt.dsn
			r := o.against(t, program, dir, dsns)
			err := r.end(t)
			var exit *exec.ExitError
			if text := r.all.String(); !errors.As(err, &exit) || !strings.Contains(text, tt.want) ||
				!strings.Contains(text, "hint: ") || !strings.Contains(text, tt.hint) ||
				strings.Contains(text, "starting") || strings.Contains(text, secret) {
				t.Errorf("it ended with %v and said\n%s\nwant %q and the hint %q", err, text, tt.want, tt.hint)
			}
			same(t, "refused")
		})
	}
	t.Run("a place of somebody else's", func(t *testing.T) {
		for _, s := range []string{"CREATE DATABASE bulkhead_bench",
			"CREATE TABLE bulkhead_bench.mine AS SELECT 7 AS precious"} {
			if _, err := o.sql.Exec(s); err != nil {
				t.Fatal(err)
			}
		}
		r := o.against(t, program, dir, o.dsns(false))
		_ = r.end(t)
		if !strings.Contains(r.all.String(), "that no proof made (mine): it is not touched") {
			t.Errorf("it says\n%s", r.all)
		}
		var n int
		if err := o.sql.QueryRow("SELECT precious FROM bulkhead_bench.mine").Scan(&n); err != nil || n != 7 {
			t.Errorf("%d, %v", n, err)
		}
		// Emptied, it is used and kept.
		if _, err := o.sql.Exec("DROP TABLE bulkhead_bench.mine"); err != nil {
			t.Fatal(err)
		}
		given := o.holds(t)
		r = o.against(t, program, dir, o.dsns(false))
		if err := r.end(t); err != nil || !slices.Equal(given, o.holds(t)) {
			t.Errorf("given an empty one it ended with %v, and there are %q:\n%s", err, o.holds(t), r.all)
		}
		if _, err := o.sql.Exec("DROP DATABASE bulkhead_bench"); err != nil {
			t.Fatal(err)
		}
		same(t, "at the end")
	})
}
