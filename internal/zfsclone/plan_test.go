package zfsclone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
)

// What cannot be copied is refused, with the reason.
func TestMakeRefuses(t *testing.T) {
	source := &Source{Host: "192.0.2.1", Port: 3306, User: "repl", Password: "p"}
	for name, c := range map[string]struct {
		spoil func(*Request)
		says  string
	}{
		"name":       {func(r *Request) { r.Name = "../x" }, "no name"},
		"long name":  {func(r *Request) { r.Base = "/" + strings.Repeat("x", 80) }, "too long"},
		"incomplete": {func(r *Request) { r.Snapshot.Complete = false }, "not complete"},
		"engine":     {func(r *Request) { r.Snapshot.Layout.Engine = engine.Redis }, "redis"},
		"replaced":   {func(r *Request) { r.Snapshot.Layout.Program = "/usr/sbin/mysqld (deleted)" }, "replaced"},
		"root":       {func(r *Request) { r.Snapshot.Layout.User = "root" }, "root"},
		"not asked":  {func(r *Request) { r.Snapshot.Layout.Settings = nil }, "nobody asked"},
		"bind mount": {func(r *Request) { r.Snapshot.Layout.Datasets[1].Point = "" }, "only a part"},
		"no data":    {func(r *Request) { r.Snapshot.Layout.DataDir = "/other" }, "does not hold"},
		"outside":    {func(r *Request) { r.Snapshot.Layout.Outside = []string{"/db/log/t.ibd"} }, "whole name"},
		"control":    {func(r *Request) { r.Snapshot.Layout.Settings["sql_mode"] = "x\ndatadir=/" }, "control"},
		"socket":     {func(r *Request) { r.Replica = &Source{User: "repl"} }, "TCP"},
		"account":    {func(r *Request) { r.Replica = &Source{"h", 1, "u", "p\nx"} }, "control"},
		"no position": {func(r *Request) {
			r.Replica, r.Snapshot.Position = source, backuplock.Position{}
		}, "no position"},
		"not exact": {func(r *Request) {
			r.Replica, r.Snapshot.Position.AtLeast, r.Snapshot.Layout.Flavor = source, true, ""
			r.Snapshot.Layout.Version = "8.0.36"
		}, "not exact"},
	} {
		r := request("/srv")
		c.spoil(&r)
		if _, err := Make(r); err == nil || !strings.Contains(err.Error(), c.says) ||
			api.CodeOf(err) != api.CodeRefused && name != "name" {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := request("/srv")
	r.Snapshot.Layout.Outside = []string{"/db/log/undo001"}
	r.Snapshot.Layout.Settings["innodb_undo_directory"] = "/db/log"
	if _, err := Make(r); err != nil {
		t.Errorf("a file that a setting names: %v", err)
	}
}

// A data set that is mounted in another one is so in the copy, and names that two data sets have are told apart.
func TestPlaces(t *testing.T) {
	r := request("/srv")
	r.Snapshot.Layout.Datasets = []dbsnapshot.Dataset{{Name: "tank/a/undo", Point: "/db/data/undo"},
		{Name: "tank/my/data", Point: "/db/data"}, {Name: "tank/b/data", Point: "/db/log"}}
	p := mustMake(t, r)
	for was, want := range map[string]string{"/db/data/undo/u1": "/srv/copies/dev1/data-2/undo/u1",
		"/db/data": "/srv/copies/dev1/data-2", "/db/data2": "", "/db/log/x": "/srv/copies/dev1/data/x", "/": ""} {
		if got, held := p.In(was); got != want || held != (want != "") {
			t.Errorf("%s: %q", was, got)
		}
	}
	names := []string{}
	for _, s := range p.Sets {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "tank/dev1 tank/dev1/data tank/dev1/data-2 tank/dev1/undo" {
		t.Error(got)
	}
}

// Option files and statements of each version, as a standing expectation.
func TestOptionFiles(t *testing.T) {
	for name, c := range map[string]struct {
		version, gtid string
		replica       bool
		position      backuplock.Position
	}{
		"mysql-5.7":         {version: "5.7.44-log"},
		"mysql-5.7-replica": {"5.7.44-log", "OFF", true, backuplock.Position{Binlog: "bin.000002:154", Replica: nil}},
		"mysql-8.0":         {version: "8.0.36", gtid: "ON"},
		"mysql-8.4-replica": {"8.4.3", "ON", true, backuplock.Position{GTID: "uuid:1-9", Binlog: "bin.2:1",
			AtLeast: true}},
		"mariadb-10.11":      {version: "10.11.19-MariaDB"},
		"mariadb-11-replica": {"11.4.2-MariaDB", "", true, backuplock.Position{Binlog: "bin.000002:6", GTID: "0-1-7"}},
		"mariadb-11-nogtid":  {"11.4.2-MariaDB", "", true, backuplock.Position{Binlog: "bin.000002:6"}},
	} {
		r := request("/srv")
		l := &r.Snapshot.Layout
		l.Version, l.Settings["gtid_mode"], r.Snapshot.Position = c.version, c.gtid, c.position
		if l.Flavor = ""; strings.Contains(c.version, "MariaDB") {
			l.Flavor = engine.MariaDB
		} else {
			delete(l.Settings, "aria_log_dir_path")
		}
		if c.replica {
			r.Replica = &Source{Host: "192.0.2.1", Port: 3306, User: "re'pl", Password: `a\b'c`}
		}
		files, err := mustMake(t, r).mysqlFiles(true)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, name, files)
	}
	for name, replica := range map[string]*Source{"postgresql": nil,
		"postgresql-standby": {Host: "192.0.2.1", Port: 5432, User: "re'pl", Password: `a\b'c`}} {
		r := request("/srv")
		l := &r.Snapshot.Layout
		l.Engine, l.Flavor, l.Version, l.User = engine.PostgreSQL, "", "15.18", "postgres"
		l.Program = "/usr/lib/postgresql/15/bin/postgres"
		r.Replica = replica
		golden(t, name, mustMake(t, r).postgresFiles("pg_control version number:            1300\n"+
			"max_connections setting:              100\nmax_prepared_xacts setting:           3\n"))
	}
}

func golden(t *testing.T, name string, files []file) {
	t.Helper()
	text := ""
	for _, f := range files {
		text += "== " + f.name + " " + f.mode.String() + "\n" + f.text
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != text {
		t.Errorf("%s: %v; -update writes it anew\n%s", file, err, text)
	}
}
