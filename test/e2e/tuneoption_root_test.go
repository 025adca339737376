//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/dblogin"
)

// asks gives the answer of a server to a question for one value. One that starts still is asked again.
func (d *database) asks(question string) (value string) {
	d.t.Helper()
	dsn := fmt.Sprintf("mysql://root@127.0.0.1:%d/", d.port)
	if strings.HasPrefix(d.name, "postgresql") {
		dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", d.port)
	}
	l, err := dblogin.Parse(dsn)
	if err != nil {
		d.t.Fatal(err)
	}
	soon(d.t, "an answer of "+d.name, func() bool {
		if l.Engine == dblogin.PostgreSQL {
			conn, err := l.OpenPostgres(d.t.Context(), nil)
			if err == nil {
				err = conn.QueryRow(d.t.Context(), question).Scan(&value)
				_ = conn.Close(d.t.Context())
			}
			return err == nil
		}
		db, err := l.OpenMySQL("")
		if err == nil {
			err = db.QueryRow(question).Scan(&value)
			_ = db.Close()
		}
		return err == nil
	})
	return value
}

// PostgreSQL has a setting of an option file at once, and MariaDB when it starts next; both as before after a rollback.
// What wins over the file is named, and left to the DBA.
func TestTuneOptionsOfServers(t *testing.T) {
	s, maria, pg := newSite(t), mariadb(t), postgresql(t)
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(maria.dir, "my.cnf")
	write(conf, "[mysqld]\ninnodb_flush_log_at_trx_commit = 2\n!includedir "+filepath.Join(maria.dir, "conf.d")+"\n")
	at := slices.Index(maria.args, "--no-defaults")
	maria.args[at] = "--defaults-file=" + conf
	own := filepath.Join(maria.dir, "conf.d", "zz-bulkhead.cnf")
	write(filepath.Join(filepath.Dir(own), "a.cnf"), "[mysqld]\n")
	data := filepath.Join(pg.dir, "data")
	text, err := os.ReadFile(filepath.Join(data, "postgresql.conf"))
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(data, "postgresql.conf"), string(text)+"\nfsync = off\ninclude_dir = 'conf.d'\n")
	ownPG := filepath.Join(data, "conf.d", "zz-bulkhead.conf")
	write(filepath.Join(filepath.Dir(ownPG), "10.conf"), "fsync = off\n")
	maria.start()
	pg.start()
	const commits, fsync = "SELECT @@innodb_flush_log_at_trx_commit", "SHOW fsync"
	if m, p := maria.asks(commits), pg.asks(fsync); m != "2" || p != "off" {
		t.Fatalf("before: %s, %s", m, p)
	}
	s.write("")
	s.must("apply")
	plan := s.must("tune", "plan", "OPS-20", "OPS-22")
	for _, want := range []string{"option " + own + "/innodb_flush_log_at_trx_commit = 1",
		"option " + ownPG + "/fsync = on", "SET GLOBAL innodb_flush_log_at_trx_commit = 1"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan has no %q:\n%s", want, plan)
		}
	}
	t.Log(s.must("tune", "apply", "OPS-20", "OPS-22"))
	soon(t, "fsync to be on", func() bool { return pg.asks(fsync) == "on" })
	if m := maria.asks(commits); m != "2" {
		t.Errorf("a MariaDB that runs has %s", m)
	}
	maria.stop()
	maria.start()
	if m := maria.asks(commits); m != "1" {
		t.Errorf("after its start MariaDB has %s", m)
	}
	t.Log(s.must("tune", "status"))
	s.verified()
	s.must("tune", "rollback")
	soon(t, "fsync to be off", func() bool { return pg.asks(fsync) == "off" })
	maria.stop()
	maria.start()
	if m := maria.asks(commits); m != "2" {
		t.Errorf("after the rollback MariaDB has %s", m)
	}
	for _, file := range []string{own, ownPG} {
		if _, err := os.Lstat(file); !os.IsNotExist(err) {
			t.Errorf("%s: %v", file, err)
		}
	}
	write(filepath.Join(filepath.Dir(own), "zzz.cnf"), "[mysqld]\ninnodb_flush_log_at_trx_commit = 2\n")
	s.exits(int(api.CodeRefused), []string{"zzz.cnf:2 sets it"}, "tune", "apply", "OPS-22")
}
