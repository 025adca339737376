package dblogin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for dsn, want := range map[string]string{
		"mysql://me:p%40w@db.example/shop":               "mysql tcp db.example:3306 me p@w shop []",
		"mariadb://me@localhost/?socket=/run/a.sock":     "mysql unix /run/a.sock me   []",
		"mysql://me@h:3307/shop?charset=utf8":            "mysql tcp h:3307 me  shop [charset]",
		"postgresql://me@h:5433/shop?sslmode=disable":    "postgresql tcp h:5433 me  shop [sslmode]",
		"postgres://me:pw@localhost:5433/x?host=/run/pg": "postgresql unix /run/pg/.s.PGSQL.5433 me pw x []",
		"redis://:geheim@h/3":                            "redis tcp h:6379  geheim 3 []",
		"rediss://h":                                     "redis tcp h:6379    []",
		"unix://a:b@/run/r.sock?db=2":                    "redis unix /run/r.sock a b 2 []",
		"redis://localhost/4?socket=/run/r.sock":         "redis unix /run/r.sock   4 []",
	} {
		l, err := Parse(dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		network, address := l.Place()
		if got := fmt.Sprint(l.Engine, " ", network, " ", address, " ", l.User, " ", l.Password, " ", l.Database, " ",
			l.Others); got != want {
			t.Errorf("%s is %q, want %q", dsn, got, want)
		}
		if l.redis != nil && (l.redis.Addr != address || l.redis.Network != network || l.redis.Password != l.Password ||
			fmt.Sprint(l.redis.DB) != strings.TrimSpace(l.Database) && l.Database != "") {
			t.Errorf("%s: the driver goes to %s %s, database %d", dsn, l.redis.Network, l.redis.Addr, l.redis.DB)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                   "of the form ENGINE://",
		"mysql://u:geheim@[::1/":             "of the form ENGINE://",
		"oracle://u:geheim@h/":               `"oracle" are not known`,
		"mysql://u:geheim@h:99999/":          `port "99999"`,
		"mysql://u:geheim@/":                 "name a host, or a socket",
		"mysql://u:geheim@/?socket=run/a":    "no absolute path",
		"mysql://u:geheim%0a@h/":             "line break",
		"redis://u:geheim@h/nine":            "nine",
		"postgres://u:geheim@h/?sslmode=odd": "sslmode",
		"postgres://u@h/?password=geheim":    "option password",
		"mysql://u@h/?sslPassword=geheim":    "option sslPassword",
	} {
		if l, err := Parse(dsn); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %+v, %v", dsn, l, err)
		}
	}
}

func TestHide(t *testing.T) {
	const password = `Ge"heim#1:/@%\x`
	for _, text := range []string{password, `"Ge\"heim#1:/@%\\x"`, "Ge%22heim%231%3A%2F%40%25%5Cx"} {
		if got := Hide("login with "+text, password); strings.Contains(got, "heim") {
			t.Errorf("%q stays as %q", text, got)
		}
	}
	if got := Hide("a banana", "a"); got != "a banana" {
		t.Errorf("a short password takes words apart: %q", got)
	}
}

func TestSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(file, []byte(" mysql://u:p@h/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Secret("@" + file); got != "mysql://u:p@h/" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	var others *OpenFileError
	if _, err := Secret("@" + file); !errors.As(err, &others) {
		t.Errorf("a file that others may read: %v", err)
	}
	for _, name := range []string{file + "none", filepath.Dir(file)} {
		if _, err := Secret("@" + name); err == nil || errors.As(err, &others) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
