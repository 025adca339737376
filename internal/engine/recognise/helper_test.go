package recognise

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

func TestHelperOf(t *testing.T) {
	const python, perl, java = "/usr/bin/python3.11", "/usr/bin/perl", "/usr/lib/jvm/java-17-openjdk-amd64/bin/java"
	for _, test := range []struct{ exe, comm, cmdline, want string }{
		{"/usr/bin/mariadb-backup", "mariabackup", "mariabackup --backup", "backup mariabackup"},
		{"/usr/bin/mariadb-dump", "mysqldump", "mysqldump shop", "backup mysqldump"},
		{"", "mysqldump", "mysqldump shop", "backup mysqldump"}, // whose executable cannot be read
		{"/usr/lib/postgresql/15/bin/pg_dump", "pg_dump", "pg_dump shop", "backup pg_dump"},
		{"/usr/bin/prometheus-mysqld-exporter", "prometheus-mysq", "prometheus-mysqld-exporter",
			"exporter mysqld_exporter"},
		{python, "barman", "/usr/bin/python3 /usr/bin/barman backup main", "backup barman"},
		{python, "wal-e", "/usr/bin/python3 -u /usr/local/bin/wal-e backup-push /pg", "backup wal-e"},
		{perl, "pt-archiver", "/usr/bin/perl /usr/bin/pt-archiver --source h=localhost", "tool pt-archiver"},
		{perl, "pt-heartbeat", "perl -w /usr/bin/pt-heartbeat --update", "agent pt-heartbeat"},
		{java, "java", "java -Xmx128m -cp /etc/cassandra org.apache.cassandra.tools.NodeTool compact", "tool nodetool"},
		{java, "scylla-jmx", "/opt/scylladb/jmx/symlinks/scylla-jmx -jar /opt/scylladb/jmx/scylla-jmx-1.0.jar",
			"agent scylla-jmx"},
		{"/usr/bin/redis-cli", "redis-cli", "redis-cli --rdb /tmp/x.rdb", "backup redis-cli"},
		{"/usr/bin/etcdctl", "etcdctl", "etcdctl snapshot save /tmp/x", "backup etcdctl"},
		{"/usr/bin/etcdctl", "etcdctl", "etcdctl defrag", "tool etcdctl"},
		{"/u01/app/oracle/product/19/bin/tnslsnr", "tnslsnr", "tnslsnr LISTENER -inherit", "listener tnslsnr"},

		{"/usr/bin/redis-cli", "redis-cli", "redis-cli get x", ""},
		{"/usr/bin/etcdctl", "etcdctl", "etcdctl get x", ""},
		{"/usr/bin/vim.basic", "vim", "vim mysqldump", ""},
		{"/usr/bin/grep", "grep", "grep pg_dump", ""},
		{"/usr/bin/bash", "bash", "bash -c mysqldump", ""}, // its child is the helper
		{"/usr/bin/bash", "bash", "-bash", ""},
		{perl, "pt-summary", "perl /usr/bin/pt-summary", ""},
		{perl, "perl", "perl /usr/bin/top /usr/bin/pt-archiver", ""},
		{python, "python3", "python3 /opt/app.py barman", ""},
		{"/usr/sbin/mysqld", "mysqld", "mysqld --port=3306", ""},
		{"", "", "", ""},
	} {
		p := process(100, 1, test.exe, test.comm, test.cmdline)
		kind, name, _, ok := HelperOf(&p)
		if got := strings.TrimSpace(kind + " " + name); got != test.want || ok != (test.want != "") {
			t.Errorf("%q of %s is %q, want %q", test.cmdline, test.exe, got, test.want)
		}
	}
}

// serving says which instances list a helper: "mysql3306", or "mysql3306? mysql3307?" for one that may serve either.
func serving(found []engine.Instance, pid int) string {
	var names []string
	for _, i := range found {
		for _, h := range i.Helpers {
			if h.ID.PID == pid {
				name := i.Name()
				if !h.Sure {
					name += "?"
				}
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, " ")
}

// three servers: two of one engine, so that a helper must be told apart, and one whose user is another's.
func threeServers() ([]procfs.Process, fake) {
	pg := "/usr/lib/postgresql/15/bin/postgres"
	a, b := process(100, 1, pg, "postgres", pg+" -D /pg/a"), process(200, 1, pg, "postgres", pg+" -D /pg/b")
	b.UID = 28
	archiver := process(101, 100, pg, "postgres", "")
	archiver.Args = []string{"postgres: archiver "}
	src := fake{
		listeners: map[int][]sockets.Listener{
			100: listening(100, 5432, "/run/postgresql/.s.PGSQL.5432")[100],
			200: listening(200, 5433, "/srv/b/.s.PGSQL.5433")[200],
		},
		files: map[string]string{
			"/etc/pgbackrest.conf": "[global]\nrepo1-path=/b\n[main]\npg1-path=/pg/b\n[far]\npg1-host=db9\n" +
				"pg1-path=/pg/a\n",
			"/etc/barman.d/first.conf": "[first]\nconninfo = host=localhost port=5432 user=barman dbname=postgres\n",
			"/etc/pgbackrest/own.conf": "[main]\npg1-path=/pg/a\n",
			"/etc/barman.d/far.conf":   "[far]\nconninfo = host=db9 port=5432\n",
		},
	}
	return []procfs.Process{a, archiver, b}, src
}

func TestAttach(t *testing.T) {
	const both = "postgresql5432? postgresql5433?"
	bin := "/usr/lib/postgresql/15/bin/"
	for _, test := range []struct {
		name, exe, cmdline string
		env                []string
		connected          []any
		ppid, uid          int
		want               string
	}{
		{name: "nothing tells", exe: bin + "pg_dump", cmdline: "pg_dump shop", want: both},
		{name: "port", exe: bin + "pg_dump", cmdline: "pg_dump -p 5433 shop", want: "postgresql5433"},
		{name: "port, joined", exe: bin + "pg_dump", cmdline: "pg_dump -p5433 shop", want: "postgresql5433"},
		{name: "port, long", exe: bin + "pg_dump", cmdline: "pg_dump --port=5432 --host 127.0.0.1",
			want: "postgresql5432"},
		{name: "directory of the socket", exe: bin + "pg_dump", cmdline: "pg_dump -h /srv/b -p 5433",
			want: "postgresql5433"},
		{name: "another directory", exe: bin + "pg_dump", cmdline: "pg_dump -h /srv/c -p 5433", want: ""},
		{name: "connection string", exe: bin + "pg_basebackup",
			cmdline: "pg_basebackup -D /b -d postgresql://x@localhost:5433/shop", want: "postgresql5433"},
		{name: "port of nobody", exe: bin + "pg_dump", cmdline: "pg_dump -p 5499", want: ""},
		{name: "another host", exe: bin + "pg_dump", cmdline: "pg_dump -h db9.example.com -p 5432", want: ""},
		{name: "a name of this host", exe: bin + "pg_dump", cmdline: "pg_dump -h me.example.com -p 5433",
			connected: []any{5433}, want: "postgresql5433"},
		{name: "environment", exe: bin + "pg_dump", cmdline: "pg_dump", env: []string{"PGPORT=5433"},
			want: "postgresql5433"},
		{name: "arguments before environment", exe: bin + "pg_dump", cmdline: "pg_dump -p 5432",
			env: []string{"PGPORT=5433"}, want: "postgresql5432"},
		{name: "connected by TCP", exe: bin + "pg_dump", cmdline: "pg_dump", connected: []any{5433},
			want: "postgresql5433"},
		{name: "connected by a socket", exe: bin + "pg_dump", cmdline: "pg_dump",
			connected: []any{"/run/postgresql/.s.PGSQL.5432"}, want: "postgresql5432"},
		{name: "connected to both", exe: bin + "pg_dump", cmdline: "pg_dump", connected: []any{5432, 5433}, want: both},
		{name: "started by the archiver", exe: "/usr/bin/wal-g", cmdline: "wal-g wal-push /pg/x", ppid: 101,
			want: "postgresql5432"},
		{name: "its user", exe: bin + "pg_dump", cmdline: "pg_dump", uid: 28, want: "postgresql5433"},
		{name: "stanza", exe: "/usr/bin/pgbackrest", cmdline: "pgbackrest --stanza=main backup",
			want: "postgresql5433"},
		{name: "stanza of a file", exe: "/usr/bin/pgbackrest",
			cmdline: "pgbackrest --config=/etc/pgbackrest/own.conf --stanza=main backup", want: "postgresql5432"},
		{name: "stanza of another host", exe: "/usr/bin/pgbackrest", cmdline: "pgbackrest --stanza=far backup",
			want: ""},
		{name: "data directory", exe: "/usr/bin/pgbackrest",
			cmdline: "pgbackrest --pg1-path=/pg/a --process=1 backup:local", want: "postgresql5432"},
		{name: "barman", exe: "/usr/bin/python3.11", cmdline: "python3 /usr/bin/barman backup first",
			want: "postgresql5432"},
		{name: "barman for another host", exe: "/usr/bin/python3.11", cmdline: "python3 /usr/bin/barman backup far",
			want: ""},
		{name: "wal-g with its directory", exe: "/usr/bin/wal-g", cmdline: "wal-g backup-push /pg/b",
			want: "postgresql5433"},
		{name: "exporter", exe: "/usr/bin/postgres_exporter", cmdline: "postgres_exporter",
			env: []string{"DATA_SOURCE_NAME=user=x host=localhost port=5433"}, want: "postgresql5433"},
		{name: "exporter of both", exe: "/usr/bin/postgres_exporter", cmdline: "postgres_exporter",
			env:  []string{"DATA_SOURCE_NAME=postgresql://x:y@localhost:5432/a,postgresql://x:y@localhost:5433/a"},
			want: both},
		{name: "of another engine", exe: "/usr/bin/mysqldump", cmdline: "mysqldump", want: ""},
	} {
		procs, src := threeServers()
		h := process(300, 1, test.exe, "", test.cmdline)
		h.UID = 1000 + test.uid
		if test.uid != 0 {
			h.UID = test.uid
		}
		if test.ppid != 0 {
			// As the server does it: by a shell.
			h.PPID = 299
			procs = append(procs, process(299, test.ppid, "/usr/bin/dash", "sh", "sh -c archive"))
		}
		src.env = map[int][]string{300: test.env}
		src.connected = listening(300, test.connected...)
		found := Instances(append(procs, h), src)
		if got := serving(found, 300); got != test.want {
			t.Errorf("%s: %q serves %q, want %q", test.name, test.cmdline, got, test.want)
		}
	}
}

// With one instance there is nothing to guess, unless the helper was told another host; and a container is left alone.
func TestAttachToTheOnlyOne(t *testing.T) {
	server := process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --port=3306")
	inside := process(200, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --port=3307")
	inside.ForeignNamespace, inside.Cgroups = true, map[string]string{"unified": "/docker/" + strings.Repeat("a", 64)}
	plain := process(300, 1, "/usr/bin/mysqldump", "mysqldump", "mysqldump shop")
	far := process(301, 1, "/usr/bin/mysqldump", "mysqldump", "mysqldump -h db9 shop")
	in := process(302, 1, "/usr/bin/mysqldump", "mysqldump", "mysqldump -P 3307 -h 127.0.0.1")
	found := Instances([]procfs.Process{server, inside, plain, far, in}, fake{})
	if got := fmt.Sprint(serving(found, 300), "/", serving(found, 301), "/",
		serving(found, 302)); got != "mysql3306//" {
		t.Errorf("they serve %q", got)
	}
}

// That there is only one instance holds no longer than there is only one.
func TestAttachUntilThereIsAnother(t *testing.T) {
	procs, src := threeServers()
	dump := process(300, 1, "/usr/bin/pg_dump", "pg_dump", "pg_dump shop")
	dump.UID = 1000
	var tracker Tracker
	if got := serving(tracker.Recognise(append(procs[:2:2], dump), src), 300); got != "postgresql5432" {
		t.Errorf("serves %q", got)
	}
	if got := serving(tracker.Recognise(append(procs, dump), src), 300); got != "postgresql5432? postgresql5433?" {
		t.Errorf("serves %q", got)
	}
}

// Who may not read executables, as another user than root, sees Oracle's processes by their names.
func TestOracleWithoutExecutables(t *testing.T) {
	procs, src := published(t, "testdata/published/oracle.txt")
	for i := range procs {
		procs[i].Exe = ""
	}
	var names []string
	for _, i := range Instances(procs, src) {
		names = append(names, fmt.Sprint(i.Name(), " ", len(i.Members)))
	}
	if got := strings.Join(names, ", "); got != "oracle-ASM 3, oracle-BXTST01 15, oracle-BXTST02 9" {
		t.Errorf("found %s", got)
	}
}

// A listener serves those that registered with it, and those that are registered nowhere.
func TestListener(t *testing.T) {
	procs, src := published(t, "testdata/published/oracle.txt")
	other := process(2062, 1, "/u01/app/oracle/product/12.1.0/dbhome_1/bin/tnslsnr", "tnslsnr",
		"tnslsnr OTHER -inherit")
	procs = append(procs, other)
	src.listeners[2062] = listening(2062, 1522)[2062]
	if found := Instances(procs, src); serving(found, 2061) != "oracle-BXTST01 oracle-BXTST02" || serving(found,
		2062) != "" {
		t.Errorf("they serve %q and %q", serving(found, 2061), serving(found, 2062))
	}
	src.connected[5031] = listening(5031, 1522)[5031]
	if found := Instances(procs, src); serving(found, 2061) != "oracle-BXTST01" || serving(found,
		2062) != "oracle-BXTST02" {
		t.Errorf("they serve %q and %q", serving(found, 2061), serving(found, 2062))
	}
	src.connected = nil
	found := Instances(procs, src)
	if serving(found, 2062) != "oracle-BXTST01 oracle-BXTST02" {
		t.Errorf("an unknown listener serves %q", serving(found, 2062))
	}
	for _, i := range found {
		for _, h := range i.Helpers {
			if h.Kind == engine.HelperListener && h.Serves != 2 {
				t.Errorf("%+v", h)
			}
		}
	}
}

// What is known of a helper is not asked again, what is not known is at first, and a new instance changes everything.
func TestTrackerHelpers(t *testing.T) {
	procs, src := threeServers()
	known := process(300, 1, "/usr/bin/pg_dump", "pg_dump", "pg_dump -p 5433")
	open := process(301, 1, "/usr/bin/pg_dump", "pg_dump", "pg_dump shop")
	open.UID = 1000
	procs = append(procs, known, open)
	var tracker Tracker
	asked := func() int {
		c := &counting{Source: src}
		found := tracker.Recognise(procs, c)
		if got := serving(found, 300); got != "postgresql5433" {
			t.Errorf("serves %q", got)
		}
		return c.asked
	}
	asked()
	if n := asked(); n == 0 {
		t.Error("a helper without an instance is not asked again")
	}
	for range freshLooks {
		asked()
	}
	if n := asked(); n != 0 {
		t.Errorf("%d questions about what is known", n)
	}
	src.connected = listening(301, 5432)
	tracker = Tracker{}
	if got := serving(tracker.Recognise(procs, src), 301); got != "postgresql5432" {
		t.Errorf("serves %q", got)
	}
	// A connection that was seen has shown it for good: an exporter has one only now and then.
	src.connected = nil
	tracker.Keep = 1
	for range 4 {
		if got := serving(tracker.Recognise(procs, src), 301); got != "postgresql5432" {
			t.Errorf("without its connection it serves %q", got)
		}
	}
	// The instance of a known helper ends: whoever has its port now is another one.
	procs = slices.DeleteFunc(procs, func(p procfs.Process) bool { return p.PID == 200 })
	if got := serving(tracker.Recognise(procs, src), 300); got != "" {
		t.Errorf("serves %q", got)
	}
}

func TestJoins(t *testing.T) {
	instances := []engine.Instance{{Engine: engine.Oracle, SID: "BX1"}, {Engine: engine.MySQL, Port: 3306}}
	for _, test := range []struct {
		exe, cmdline string
		want         bool
	}{
		{"/u01/bin/oracle", "oracleBX1 (LOCAL=NO)", true},
		{"/u01/bin/oracle", "ora_p000_BX1", true},
		{"/u01/bin/oracle", "oracle --help", false},
		{"/usr/bin/mysqldump", "mysqldump", true},
		{"/usr/bin/pg_dump", "pg_dump", false}, // there is no such instance
		{"/usr/bin/bash", "bash", false},
	} {
		p := process(1, 1, test.exe, "", test.cmdline)
		if got := Joins(&p, instances); got != test.want {
			t.Errorf("%q: %t", test.cmdline, got)
		}
	}
}
