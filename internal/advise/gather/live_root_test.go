//go:build root

package gather

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/bench/database"
	children "bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/host"
	"bulkhead/internal/testhost/release"
)

// The password of the accounts, with what URLs and SQL make something of.
const livePassword = `Ge"heim#1:/@%`

// live starts a server of an engine and gives it with the name that it has on the host.
func live(t *testing.T, n *children.Supervisor, dir, kind, prefix string) (*database.Instance, string) {
	t.Helper()
	d, paths := release.Database(t, kind)
	in, err := database.NewInstance(d, dir, 32, paths, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Kind.Install(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if kind == "postgresql" {
		hba := "local all postgres trust\nhost all app 127.0.0.1/32 scram-sha-256\n"
		if err := os.WriteFile(filepath.Join(in.DataDir, "pg_hba.conf"), []byte(hba), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Stop() })
	return in, fmt.Sprint(prefix, in.Port)
}

func login(t *testing.T, dsn string) *dblogin.Login {
	t.Helper()
	l, err := dblogin.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Real servers tell what is in force, also what was set while they ran; who refuses, hangs, or is another one costs
// nobody else anything.
func TestLiveServersRoot(t *testing.T) {
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	dir, err := os.MkdirTemp("/var/tmp", "bh-advise-") // servers of other users enter it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	maria, mariaName := live(t, n, dir, "mariadb", "mysql")
	pg, pgName := live(t, n, dir, "postgresql", "postgresql")
	red, redName := live(t, n, dir, "redis", "redis")
	db, err := login(t, "mysql://root@localhost/?socket="+maria.Socket).OpenMySQL("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, s := range []string{"SET GLOBAL max_connections = 77", "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
		"CREATE USER app@'127.0.0.1' IDENTIFIED BY '" + livePassword + "'"} {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	conn, err := login(t, fmt.Sprintf("postgres://postgres@localhost:%d/postgres?host=%s", pg.Port,
		filepath.Dir(pg.Socket))).OpenPostgres(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"CREATE ROLE app LOGIN PASSWORD '" + livePassword + "'",
		"ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	_ = conn.Close(t.Context())
	c := login(t, "unix://"+red.Socket).OpenRedis()
	defer c.Close()
	for name, value := range map[string]string{"maxmemory": "64mb", "maxclients": "321", "requirepass": livePassword} {
		if err := c.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}

	account := url.UserPassword("app", livePassword).String()
	dsn := map[string]string{
		mariaName: fmt.Sprintf("mysql://%s@127.0.0.1:%d/", account, maria.Port),
		pgName:    fmt.Sprintf("postgres://%s@127.0.0.1:%d/postgres", account, pg.Port),
		redName:   fmt.Sprintf("redis://:%s@127.0.0.1:%d", url.QueryEscape(livePassword), red.Port),
	}
	facts := func(change func(logins map[string]*dblogin.Login)) (*fact.Set, string) {
		logins := map[string]*dblogin.Login{}
		for name, d := range dsn {
			logins[name] = login(t, d)
		}
		change(logins)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		set := Facts(ctx, host.New("/"), Options{Logins: logins})
		if text := fmt.Sprintf("%+v", set); strings.Contains(text, "heim") {
			t.Error("the facts hold the password")
		}
		return set, strings.Join(set.Notes, "\n")
	}
	of := func(set *fact.Set, instance, name string) fact.Value {
		for _, o := range set.Instances {
			if o.Name == instance {
				return o.Values.Get(name)
			}
		}
		return fact.Unknown("there is no %s", instance)
	}
	fromServer := func(set *fact.Set, instance, name string, want any) {
		t.Helper()
		if v := of(set, instance, name); v.Is != want || !strings.Contains(v.From, "the server") {
			t.Errorf("%s of %s is %+v, want %v", name, instance, v, want)
		}
	}

	set, notes := facts(func(map[string]*dblogin.Login) {})
	if strings.Contains(notes, "not asked") {
		t.Errorf("notes: %s", notes)
	}
	fromServer(set, mariaName, "instance.connections", int64(77))
	fromServer(set, mariaName, "instance.flush_at_commit", int64(2))
	fromServer(set, mariaName, "instance.buffer", int64(32<<20))
	fromServer(set, pgName, "instance.full_page_writes", false)
	fromServer(set, pgName, "instance.buffer", int64(32<<20))
	fromServer(set, redName, "instance.buffer", int64(64<<20))
	fromServer(set, redName, "instance.connections", int64(321))
	flavour := "MariaDB"
	if release.Wanted() {
		flavour = "9.7."
	}
	if v := of(set, mariaName, "instance.version"); !strings.Contains(fmt.Sprint(v.Is), flavour) {
		t.Errorf("the version is %+v", v)
	}
	if v := of(set, redName, "instance.footprint"); v.Is != int64(64<<20) {
		t.Errorf("the footprint of Redis is %+v", v)
	}

	// One refuses, one is asked by the other's name, one hangs.
	pid := red.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	set, notes = facts(func(logins map[string]*dblogin.Login) {
		logins[mariaName] = login(t, fmt.Sprintf("mysql://app:wrong-heim@127.0.0.1:%d/", maria.Port))
		logins[pgName] = logins[redName]
	})
	for _, want := range []string{mariaName + " was not asked for its settings: Error 1045",
		pgName + " was not asked for its settings: the DSN is one of redis",
		redName + " was not asked for its settings: no answer within 3s"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes lack %q:\n%s", want, notes)
		}
	}
	for name, want := range map[string]int64{mariaName: 5000, pgName: 500} { // as their command lines say
		if v := of(set, name, "instance.connections"); v.Is != want || v.From != "the command line max_connections" {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if set.Host.Get("host.swappiness").Unknown != "" || len(set.Disks)+len(set.Mounts) == 0 {
		t.Error("the rest of the facts is gone")
	}
}
