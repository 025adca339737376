package options

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestYAMLScalars(t *testing.T) {
	got := ParseYAML("a: 1\nb:\n  c: \"x: y\" # note\n  d:\n    e: 'f'\nlist:\n  - /one\n  - /two\nshort: [ " +
		"/three, /four ]\n# g: h\nk:\nm: n # o\nurl: http://x:1\n")
	want := map[string]string{"a": "1", "b.c": "x: y", "b.d.e": "f", "list": "/one", "short": "/three", "m": "n",
		"url": "http://x:1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMySQLArgs(t *testing.T) {
	for line, want := range map[string]map[string]string{
		"mysqld":                                    {},
		"mysqld --port=3307 --socket=/s":            {"port": "3307", "socket": "/s"},
		"mysqld --port 3307 --skip-networking":      {"port": "3307", "skip_networking": ""},
		"mysqld -P3307 -h /d":                       {"port": "3307", "datadir": "/d"},
		"mysqld --port=1 --port=2":                  {"port": "2"},
		"mysqld --loose-pid-file=/p --pid_file=/q":  {"pid_file": "/q"},
		"mysqld --datadir":                          {"datadir": ""},
		"mysqld --datadir --port=1":                 {"datadir": "", "port": "1"},
		"mysqld --defaults-file=/e --console word":  {"defaults_file": "/e", "console": ""},
		"mysqld -uroot --basedir=/usr -O foo=bar -": {"user": "root", "basedir": "/usr"},
	} {
		if got := MySQLArgs(strings.Fields(line)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
	if got := MySQLArgs(nil); len(got) != 0 {
		t.Errorf("no arguments: %v", got)
	}
}

func TestReadMySQLConfig(t *testing.T) {
	files := map[string]string{
		"/etc/my.cnf": "[mysqld]\nport=1\n",
		"/etc/mysql/my.cnf": "\ufeff\n[client-server]\nsocket=/cs\n[mysqld]\nport = 2\n!include " +
			"extra.cnf\n!includedir /etc/mysql/conf.d\n",
		"/etc/mysql/extra.cnf": "[mysqldump]\nport=3\n[mariadb-10.11]\ndatadir=\"/with # hash\"\n",
		"/etc/mysql/conf.d/50-server.cnf": "[mysqld]\nport=4 # four\n;port=5\n " +
			"skip_networking\n[mysqld-auto]\nport=9\n",
		"/etc/mysql/conf.d/zz-unknown.cnf": "[mysqld]\nport=6\n",
		"/only.cnf": "[server]\nport='7'\n[mysqld@b]\nport=8\nbroken line without section " +
			"end\n[mysqld\n",
		"/loop.cnf": "!include /loop.cnf\n!include /loop.cnf\n[mysqld]\nport=5\n",
	}
	read := func(name string) []byte {
		if text, ok := files[name]; ok {
			return []byte(text)
		}
		return nil
	}
	for _, test := range []struct {
		name, args, path string
		want             map[string]string
	}{
		{"usual files", "", "/etc/my.cnf", map[string]string{"port": "4", "socket": "/cs", "datadir": "/with # hash",
			"skip_networking": ""}},
		{"no defaults", "--no-defaults", "", map[string]string{}},
		{"one file", "--defaults-file=/only.cnf", "/only.cnf",
			map[string]string{"port": "7", "broken line without section end": ""}},
		{"group suffix", "--defaults-file=/only.cnf --defaults-group-suffix=@b", "/only.cnf",
			map[string]string{"port": "8", "broken line without section end": ""}},
		{"missing file", "--defaults-file=/missing", "", map[string]string{}},
		{"loop", "--defaults-file=/loop.cnf", "/loop.cnf", map[string]string{"port": "5"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := readMySQLConfig(read, nil, MySQLArgs(strings.Fields("mysqld "+test.args)))
			if test.name == "one file" {
				delete(test.want, "broken line without section end") // stands in [mysqld@b]
			}
			if got.Path != test.path || !maps.Equal(got.values, test.want) {
				t.Errorf("%q %v, want %q %v", got.Path, got.values, test.path, test.want)
			}
		})
	}
}

func TestPathVersion(t *testing.T) {
	for name, want := range map[string]string{
		"/opt/mysql-8.0.36-linux-glibc2.28-x86_64/bin/mysqld": "8.0.36",
		"/opt/mysql/8.4.2/bin/mysqld":                         "8.4.2",
		"/usr/local/mysql-community-8.0/bin/mysqld":           "8.0",
		"/usr/sbin/mysqld":                                    "",
		"/usr/sbin/mysqld-8.0.36":                             "8.0.36",
		"/opt/5/app/bin/mysqld":                               "",
		"":                                                    "",
	} {
		if got := PathVersion(name, "mysql"); got != want {
			t.Errorf("%s: version %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"/usr/lib/postgresql/15/bin/postgres": "15",
		"/usr/pgsql-9.6/bin/postmaster":       "9.6",
		"/usr/local/pgsql/bin/postgres":       "",
	} {
		if got := PathVersion(name, "postgresql", "pgsql", "postgres"); got != want {
			t.Errorf("%s: version %q, want %q", name, got, want)
		}
	}
}

func TestParsePostgresConfig(t *testing.T) {
	got := make(map[string]string)
	ParsePostgresConfig("# port = 1\nport = 5433\t# comment\nCluster_Name='it''s # one' # x\nlisten_addresses '*'\n"+
		"data_directory = '/d'\r\nshared_buffers = 128MB\n= 3\n'x' = 4\nport\ninclude 'other.conf'\n", got)
	want := map[string]string{"port": "5433", "cluster_name": "it's # one", "listen_addresses": "*",
		"data_directory": "/d", "shared_buffers": "128MB", "include": "other.conf"}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPostgresArgs(t *testing.T) {
	for line, want := range map[string]map[string]string{
		"postgres -D /d -p 5433 -k /run": {"data_directory": "/d", "port": "5433",
			"unix_socket_directories": "/run"},
		"postgres -D/d -p5433":                                 {"data_directory": "/d", "port": "5433"},
		"postgres -c config_file=/e/p.conf -ccluster_name=a":   {"config_file": "/e/p.conf", "cluster_name": "a"},
		"postgres --config-file=/e/p.conf --cluster_name=15/m": {"config_file": "/e/p.conf", "cluster_name": "15/m"},
		"postgres -i -N 100 -D":                                {"data_directory": ""},
		"postgres - -- x":                                      {"": ""},
	} {
		if got := PostgresArgs(strings.Fields(line)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}

func FuzzReadMySQLConfig(f *testing.F) {
	f.Add("[mysqld]\nport=1\n!include b\n", "@1")
	f.Add("!includedir /x\n[\n]\n='\"\n", "")
	f.Fuzz(func(t *testing.T, text, suffix string) {
		opened := 0
		config := readMySQLConfig(func(string) []byte { opened++; return []byte(text) }, nil,
			map[string]string{"defaults_file": "/f", "defaults_group_suffix": suffix})
		if opened > maxMySQLFiles {
			t.Errorf("read %d files", opened)
		}
		for name := range config.values {
			if strings.ContainsAny(name, "\n-") {
				t.Errorf("option name %q", name)
			}
		}
	})
}
