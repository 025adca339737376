package recognise

import (
	"path"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

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
		// Users called like background processes.
		"archiver_app shop 10.0.0.7(51234) SELECT": "backends",
		"archiver shop 10.0.0.7(51234) SELECT":     "backends",
		"logger logger [local] idle":               "backends",
		"startup_etl shop [local] INSERT":          "backends",
		"walsender_app shop ::1(40000) SELECT":     "backends",
		"wal sender [local] idle":                  "backends",
		"autovacuum shop 10.0.0.7(51234) SELECT":   "backends",
		"x: checkpointer shop 10.0.0.7(5) SELECT":  "backends",
		// A worker of an extension.
		"archivers": "workers",
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
		if !slices.Contains(Parts(engine.PostgreSQL), want) {
			t.Errorf("part %q is not known", want)
		}
	}
}

// A session whose user is called like a background process of a cluster names no cluster.
func TestClusterFromTitles(t *testing.T) {
	session := &procfs.Process{Args: []string{"postgres: 9/x: checkpointer shop 10.0.0.7(51234) SELECT"}}
	real := &procfs.Process{Args: []string{"postgres: 15/main: checkpointer "}}
	if got := clusterFromTitles([]*procfs.Process{session, real}); got != "15/main" {
		t.Errorf("cluster %q", got)
	}
	if got := clusterFromTitles([]*procfs.Process{session}); got != "" {
		t.Errorf("cluster %q", got)
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
		want  engine.Instance
		part  string
	}{
		{
			name: "Valkey cluster node with its own file",
			args: []string{"/usr/bin/valkey-server 192.0.2.1:7000 [cluster]"}, exe: "/usr/bin/valkey-server",
			files: map[string]string{"/d/nodes.conf": "", "/etc/valkey/valkey.conf": "port 7001\ndir /d\n",
				"/etc/redis/7000.conf": "# x\nport 7000\ndir \"/d\"\n"},
			where: []any{7000, 17000},
			want: engine.Instance{Flavor: engine.Valkey, Port: 7000, Ports: []int{7000, 17000}, DataDir: "/d",
				Config: "/etc/redis/7000.conf"}, part: engine.PartMain,
		},
		{
			name: "title switched off", args: []string{"redis-server", "redis.conf", "--port", "6390", "--unixsocket",
				"/r.sock"}, exe: "/opt/redis-7.2.4/src/redis-server",
			want: engine.Instance{Version: "7.2.4", Port: 6390, Socket: "/r.sock", DataDir: "/d",
				Config: "/d/redis.conf"},
			part: engine.PartMain,
		},
		{
			name: "only a socket", args: []string{"redis-server /run/r.sock"}, exe: "/usr/bin/redis-server",
			where: []any{"/run/r.sock"},
			want:  engine.Instance{Socket: "/run/r.sock", DataDir: "/d"}, part: engine.PartMain,
		},
		{
			name: "sentinel before its title", args: []string{"/usr/bin/redis-sentinel", "/etc/s.conf"},
			exe: "/usr/bin/redis-check-rdb", where: []any{26379},
			want: engine.Instance{Port: 26379, Ports: []int{26379}, DataDir: "/d", Config: "/etc/s.conf"},
			part: engine.PartSentinel,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := process(100, 1, test.exe, path.Base(test.exe), "")
			p.Args = test.args
			found := Instances([]procfs.Process{p}, fake{cwd: map[int]string{100: "/d"}, files: test.files,
				listeners: listening(100, test.where...)})
			if len(found) != 1 {
				t.Fatalf("found %v", found)
			}
			test.want.Engine = engine.Redis
			if a, b := withoutProcess(found[0]), withoutProcess(test.want); a != b {
				t.Errorf("\ngot  %s\nwant %s", a, b)
			}
			if got := found[0].Members[0].Part; got != test.part {
				t.Errorf("part %q, want %q", got, test.part)
			}
		})
	}
}

func FuzzParsePostgres(f *testing.F) {
	f.Add("1\n/d\n2\n5432\n/run\n")
	f.Add("port = 'it''s' # x\nport=")
	f.Fuzz(func(t *testing.T, text string) {
		if file, pid := parsePostmasterPID(text); pid < 0 || file.port < 0 || file.port >= 1<<16 {
			t.Errorf("pid %d port %d", pid, file.port)
		}
		options.ParsePostgresConfig(text, make(map[string]string))
		p := &procfs.Process{Args: []string{"postgres: " + text}}
		if part := postgresPart(p, clusterFromTitles([]*procfs.Process{p})); !slices.Contains(Parts(engine.PostgreSQL),
			part) {
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
		for _, i := range Instances([]procfs.Process{p}, fake{}) {
			if i.Port < 0 || i.Port >= 1<<16 || len(i.Evidence) < 2 {
				t.Errorf("%q gives port %d, evidence %q", p.Args, i.Port, i.Evidence)
			}
		}
	})
}
