package tool

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

func TestParsePoints(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"localhost:3306", "localhost 3306 "},
		{"[::1]:3306", "::1 3306 "},
		{"redis://:word@10.0.0.1:6380/0", "10.0.0.1 6380 "},
		{"mongodb://u:p@a:27017,b:27018/db?x=y", "a 27017 ;b 27018 "},
		{"user:p(w@tcp(db:3307)/shop?x=1", "db 3307 "},
		{"user:pw@(localhost:3306)/", "localhost 3306 "},
		{"root@unix(/run/m.sock)/", " 0 /run/m.sock"},
		{"postgresql:///shop?host=/run/pg&port=5433", "/run/pg 5433 "},
		{"host=db port=5433 user=x password=y", "db 5433 "},
		{"unix:///run/r.sock", " 0 /run/r.sock"},
		{"/run/r.sock", " 0 /run/r.sock"},
		{"http://127.0.0.1:2379", "127.0.0.1 2379 "},
		{"localhost:99999", ""},
		{"shop", ""},
		{"", ""},
		{"://", ""},
		{"user@tcp(", ""},
	} {
		var got []string
		for _, p := range parsePoints(test.text) {
			got = append(got, fmt.Sprintf("%s %d %s", p.Host, p.Port, p.Socket))
		}
		if strings.Join(got, ";") != test.want {
			t.Errorf("%q is %q, want %q", test.text, got, test.want)
		}
	}
}

// Whatever is written into arguments, environment and files, reading it ends and stays within bounds.
func FuzzTarget(f *testing.F) {
	f.Add("-p\x00-h\x00host=x", "postgresql://%zz@[::1/")
	f.Add("--port=1\x00--dbname\x00host=a port=b,host=", "a(b)c@unix(")
	f.Add("h=1,P=2,S=/\x00-F", "[section\nname = value\nport=1")
	f.Fuzz(func(t *testing.T, args, text string) {
		p := procfs.Process{Args: append([]string{"x"}, strings.Split(args, "\x00")...), Exe: "/x"}
		r := options.Reader{Source: fileSource{"/etc/pgbackrest.conf": text, "/etc/barman.conf": text}}
		for _, d := range []*dialect{&mysqlDialect, &toolkitDialect, &pgDialect, &pgbackrestDialect, &walgDialect,
			&barmanDialect, &mongoDialect} {
			target := d.target(r, &p, func() map[string]string {
				return map[string]string{"MONGODB_URI": text,
					"PGPORT": text}
			})
			for _, pt := range target.Points {
				if pt.Port < 0 || pt.Port > 65535 {
					t.Errorf("port %d", pt.Port)
				}
			}
			if len(target.Points) > 16 {
				t.Errorf("%d addresses", len(target.Points))
			}
		}
		_, _ = options.ParseMongoConfig(text), options.ParseClickHouseConfig(text)
		Of(&p, nil, true)
	})
}

// fileSource holds the files of a host by their names.
type fileSource map[string]string

func (fileSource) Cwd(int) (string, error)       { return "/", nil }
func (fileSource) Environ(int) ([]string, error) { return nil, nil }
func (fileSource) UserName(int) string           { return "" }

func (f fileSource) ReadRootFile(_ int, name string, _ int64) ([]byte, error) {
	if text, is := f[name]; is {
		return []byte(text), nil
	}
	return nil, fs.ErrNotExist
}
