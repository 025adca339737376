package engine

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/procfs"
)

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
		if got := mysqlArgs(strings.Fields(line)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
	if got := mysqlArgs(nil); len(got) != 0 {
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
			got := readMySQLConfig(read, mysqlArgs(strings.Fields("mysqld "+test.args)))
			if test.name == "one file" {
				delete(test.want, "broken line without section end") // stands in [mysqld@b]
			}
			if got.path != test.path || !maps.Equal(got.values, test.want) {
				t.Errorf("%q %v, want %q %v", got.path, got.values, test.path, test.want)
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
		if got := pathVersion(name, "mysql"); got != want {
			t.Errorf("%s: version %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"/usr/lib/postgresql/15/bin/postgres": "15",
		"/usr/pgsql-9.6/bin/postmaster":       "9.6",
		"/usr/local/pgsql/bin/postgres":       "",
	} {
		if got := pathVersion(name, "postgresql", "pgsql", "postgres"); got != want {
			t.Errorf("%s: version %q, want %q", name, got, want)
		}
	}
}

func TestParsePostmasterPID(t *testing.T) {
	for _, test := range []struct {
		text string
		want postmasterPID
		pid  int
	}{
		{"15492\n/pg\n1795193659\n25432\n/run/pg\nlocalhost\n  9977947         4\nready   \n",
			postmasterPID{dataDir: "/pg", port: 25432, socketDir: "/run/pg"}, 15492},
		{"15492\n/pg/\n1795193659\n", postmasterPID{dataDir: "/pg"}, 15492}, // half written
		{"7\nrelative\nx\n99999\n\n", postmasterPID{}, 7},
		{"", postmasterPID{}, 0},
		{"-5\n/pg\n", postmasterPID{}, 0}, // a standalone backend writes its pid negated
		{"x", postmasterPID{}, 0},
	} {
		got, pid := parsePostmasterPID(test.text)
		if got != test.want || pid != test.pid {
			t.Errorf("%q: %+v of %d, want %+v of %d", test.text, got, pid, test.want, test.pid)
		}
	}
	socketless := postmasterPID{port: 5432}
	if got := socketless.socket(); got != "" {
		t.Errorf("socket %q without a directory", got)
	}
}

func TestParsePostgresConfig(t *testing.T) {
	got := make(map[string]string)
	parsePostgresConfig("# port = 1\nport = 5433\t# comment\nCluster_Name='it''s # one' # x\nlisten_addresses '*'\n"+
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
		if got := postgresArgs(strings.Fields(line)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}

// Titles of PostgreSQL 9.6 to 18.
func TestPostgresPart(t *testing.T) {
	for text, want := range map[string]string{
		"checkpointer":                "checkpointer",
		"checkpointer process  ":      "checkpointer",
		"writer process":              "bgwriter",
		"background writer":           "bgwriter",
		"walwriter":                   "walwriter",
		"wal writer process":          "walwriter",
		"autovacuum launcher process": "autovacuum",
		"autovacuum worker shop":      "autovacuum",
		"stats collector process":     "stats",
		"logger":                      "logger",
		"archiver failed on 000000010000000000000003":             "archiver",
		"startup recovering 000000010000000000000004":             "startup",
		"walsender rep 192.0.2.2(5433) streaming 0/3":             "walsender",
		"wal sender process rep 192.0.2.2(5433) idle":             "walsender",
		"walreceiver streaming 0/42737A0":                         "walreceiver",
		"walsummarizer":                                           "summarizer",
		"io worker 2":                                             "io",
		"slotsync worker":                                         "replication",
		"logical replication launcher":                            "replication",
		"logical replication apply worker for subscription 16394": "replication",
		"parallel worker for PID 16335":                           "parallel",
		"bgworker: logical replication launcher":                  "workers",
		"pg_cron launcher":                                        "workers",
		"TimescaleDB Background Worker Launcher":                  "workers",
		"app shop [local] idle in transaction":                    "backends",
		"app my shop 192.0.2.7(51234) SELECT waiting":             "backends",
		"app shop db.example.com(51234) idle":                     "backends",
		"app shop ::1(40000) authentication":                      "backends",
		"[unknown] [unknown] [local] startup":                     "backends",
	} {
		for _, cluster := range []string{"", "15/main", "a: b"} {
			shown := "postgres: " + text
			if cluster != "" {
				shown = "postgres: " + cluster + ": " + text
			}
			p := &procfs.Process{Args: []string{shown + " ", "", "", ""}}
			if got := postgresPart(p, cluster); got != want {
				t.Errorf("%q with cluster %q is part %q, want %q", shown, cluster, got, want)
			}
		}
		if !slices.Contains(Parts(PostgreSQL), want) {
			t.Errorf("part %q is not known", want)
		}
	}
}

func TestParseRedisTitle(t *testing.T) {
	for text, want := range map[string]redisTitle{
		"redis-server *:6379":                       {endpoints: endpoints{port: 6379}},
		"/usr/bin/redis-server 127.0.0.1:6380":      {endpoints: endpoints{port: 6380}},
		"redis-server ::1:7000 [cluster]":           {endpoints: endpoints{port: 7000}, mode: "cluster"},
		"/usr/bin/redis-server *:26379 [sentinel]":  {endpoints: endpoints{port: 26379}, mode: "sentinel"},
		"valkey-server unixsocket:/run/valkey.sock": {endpoints: endpoints{socket: "/run/valkey.sock"}},
		"redis-server /run/redis.sock":              {endpoints: endpoints{socket: "/run/redis.sock"}},
		"redis-server /etc/redis.conf --port 6379":  {mode: "none"},
		"redis-server *:99999":                      {mode: "none"},
		"redis-server":                              {mode: "none"},
		"redis-rdb-bgsave *:6379":                   {mode: "none"},
		"my-redis-server-wrapper *:6379":            {mode: "none"},
	} {
		got, ok := parseRedisTitle(text)
		if none := want.mode == "none"; ok == none || !none && got != want {
			t.Errorf("%q: %+v %t, want %+v", text, got, ok, want)
		}
	}
}

func TestInspectRedis(t *testing.T) {
	for _, test := range []struct {
		name  string
		args  []string
		exe   string
		files map[string]string
		where []any
		want  Instance
		part  string
	}{
		{
			name: "Valkey cluster node with its own file",
			args: []string{"/usr/bin/valkey-server 192.0.2.1:7000 [cluster]"}, exe: "/usr/bin/valkey-server",
			files: map[string]string{"/d/nodes.conf": "", "/etc/valkey/valkey.conf": "port 7001\ndir /d\n",
				"/etc/redis/7000.conf": "# x\nport 7000\ndir \"/d\"\n"},
			where: []any{7000, 17000},
			want: Instance{Flavor: Valkey, Port: 7000, Ports: []int{7000, 17000}, DataDir: "/d",
				Config: "/etc/redis/7000.conf"}, part: PartMain,
		},
		{
			name: "title switched off", args: []string{"redis-server", "redis.conf", "--port", "6390", "--unixsocket",
				"/r.sock"}, exe: "/opt/redis-7.2.4/src/redis-server",
			want: Instance{Version: "7.2.4", Port: 6390, Socket: "/r.sock", DataDir: "/d", Config: "/d/redis.conf"},
			part: PartMain,
		},
		{
			name: "only a socket", args: []string{"redis-server /run/r.sock"}, exe: "/usr/bin/redis-server",
			where: []any{"/run/r.sock"},
			want:  Instance{Socket: "/run/r.sock", DataDir: "/d"}, part: PartMain,
		},
		{
			name: "sentinel before its title", args: []string{"/usr/bin/redis-sentinel", "/etc/s.conf"},
			exe: "/usr/bin/redis-check-rdb", where: []any{26379},
			want: Instance{Port: 26379, Ports: []int{26379}, DataDir: "/d", Config: "/etc/s.conf"}, part: PartSentinel,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := process(100, 1, test.exe, path.Base(test.exe), "")
			p.Args = test.args
			found := Recognise([]procfs.Process{p}, fake{cwd: map[int]string{100: "/d"}, files: test.files,
				listeners: listening(100, test.where...)})
			if len(found) != 1 {
				t.Fatalf("found %v", found)
			}
			test.want.Engine = Redis
			if a, b := withoutProcess(found[0]), withoutProcess(test.want); a != b {
				t.Errorf("\ngot  %s\nwant %s", a, b)
			}
			if got := found[0].Members[0].Part; got != test.part {
				t.Errorf("part %q, want %q", got, test.part)
			}
		})
	}
}

func FuzzReadMySQLConfig(f *testing.F) {
	f.Add("[mysqld]\nport=1\n!include b\n", "@1")
	f.Add("!includedir /x\n[\n]\n='\"\n", "")
	f.Fuzz(func(t *testing.T, text, suffix string) {
		opened := 0
		config := readMySQLConfig(func(string) []byte { opened++; return []byte(text) },
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

func FuzzParsePostgres(f *testing.F) {
	f.Add("1\n/d\n2\n5432\n/run\n")
	f.Add("port = 'it''s' # x\nport=")
	f.Fuzz(func(t *testing.T, text string) {
		if file, pid := parsePostmasterPID(text); pid < 0 || file.port < 0 || file.port >= 1<<16 {
			t.Errorf("pid %d port %d", pid, file.port)
		}
		parsePostgresConfig(text, make(map[string]string))
		p := &procfs.Process{Args: []string{"postgres: " + text}}
		if part := postgresPart(p, clusterFromTitles([]*procfs.Process{p})); !slices.Contains(Parts(PostgreSQL), part) {
			t.Errorf("part %q", part)
		}
	})
}

// Whatever stands on a command line, recognising survives it and reports ports that exist.
func FuzzRecognise(f *testing.F) {
	f.Add("mysqld\x00--port=3306\x00-P", "mysqld")
	f.Add("postgres\x00-D\x00/d\x00-c", "postgres")
	f.Add("redis-server *:6379 [cluster]\x00\x00\x00", "redis-server")
	f.Fuzz(func(t *testing.T, line, program string) {
		p := process(100, 100, "/usr/bin/"+program, program, "")
		p.Args = strings.Split(line, "\x00")
		for _, i := range Recognise([]procfs.Process{p}, fake{}) {
			if i.Port < 0 || i.Port >= 1<<16 || len(i.Evidence) < 2 {
				t.Errorf("%q gives port %d, evidence %q", p.Args, i.Port, i.Evidence)
			}
		}
	})
}
