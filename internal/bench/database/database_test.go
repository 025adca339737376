package database

import (
	"strings"
	"testing"

	"bulkhead/internal/scenario"
)

func TestGreeting(t *testing.T) {
	version, err := greeting(strings.NewReader("\x4a\x00\x00\x00\x0a5.5.5-10.11.19-MariaDB-0+deb12u1\x00rest"))
	if err != nil || version != "10.11.19-MariaDB" {
		t.Errorf("greeted by %q, %v", version, err)
	}
	for _, bad := range []string{"", "abc", "\x4a\x00\x00\x00\x09old\x00"} {
		if _, err := greeting(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is a greeting", bad)
		}
	}
}

func TestDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://me:pw@db.example/shop":      "",
		"mysql://me@127.0.0.1:3307/shop":     "",
		"postgresql://me@127.0.0.1:1/shop":   "begins with \"postgresql\", not with mysql or mariadb",
		"mysql://me:geheim@/shop":            "name a host",
		"mysql://db.example/shop":            "names no user or no database",
		"mysql://me@db.example:99999/shop":   "has port \"99999\"",
		"mysql://me:geheim@db.example:x/sho": "not a data source name",
	} {
		in := &Instance{Database: scenario.Database{Name: "db", Engine: "mariadb", DSN: dsn}, Kind: MariaDB}
		err := in.ReadDSN()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "geheim") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestCleanVersion(t *testing.T) {
	for in, want := range map[string]string{
		"5.5.5-10.11.19-MariaDB-0+deb12u1": "10.11.19-MariaDB",
		"11.8.2-MariaDB":                   "11.8.2-MariaDB",
		"8.0.35":                           "8.0.35",
	} {
		if got := cleanVersion(in); got != want {
			t.Errorf("version %q is read as %q, want %q", in, got, want)
		}
	}
}
