package recognise

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update to accept)\ngot:\n%s\nwant:\n%s", file, got, want)
	}
}

// captured returns the fixture with real servers.
func captured(t testing.TB) ([]procfs.Process, *host.Host) {
	t.Helper()
	return fixture(t, "testdata/debian12.txtar")
}

// fixture returns a captured host.
func fixture(t testing.TB, name string) ([]procfs.Process, *host.Host) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	h := hosttest.FromArchive(t, string(text))
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return procs, h
}

// describe writes every field of the instances for a person to check.
func describe(instances []engine.Instance, procs []procfs.Process) string {
	titles := make(map[procfs.ID]string)
	for i := range procs {
		titles[procs[i].ID] = options.Title(&procs[i])
	}
	var b strings.Builder
	for _, i := range instances {
		fmt.Fprintf(&b, "%s: %s\n", i.Name(), i)
		fmt.Fprintf(&b, "  engine %q flavor %q version %q user %q container %t\n", i.Engine, i.Flavor, i.Version,
			i.User, i.Container)
		fmt.Fprintf(&b, "  port %d of %v, socket %q\n  datadir %q\n  config %q cluster %q\n", i.Port, i.Ports, i.Socket,
			i.DataDir, i.Config, i.Cluster)
		for _, m := range i.Members {
			fmt.Fprintf(&b, "  %-12s %d %.60s\n", m.Part, m.ID.PID, titles[m.ID])
		}
		for _, h := range i.Helpers {
			serves := "serves it"
			if !h.Sure {
				serves = "may serve it"
			}
			fmt.Fprintf(&b, "  %-12s %d %s %s: %s (%q, %q)\n", h.Kind, h.ID.PID, h.Tool, serves, h.How, h.Rate.Option,
				h.Rate.Given)
		}
		for _, e := range i.Evidence {
			fmt.Fprintf(&b, "  - %s\n", e)
		}
	}
	return b.String()
}

func TestRecogniseRealServers(t *testing.T) {
	procs, h := captured(t)
	golden(t, "debian12.golden", describe(Instances(procs, SourceOf(h)), procs))
}

func TestRecogniseRealHelpers(t *testing.T) {
	procs, h := fixture(t, "testdata/debian12-helpers.txtar")
	golden(t, "debian12-helpers.golden", describe(Instances(procs, SourceOf(h)), procs))
}

// broken fails every question.
type broken struct{}

var errBroken = errors.New("permission denied")

func (broken) Listeners([]int) (map[int][]sockets.Listener, error)   { return nil, errBroken }
func (broken) Connections([]int) (map[int][]sockets.Listener, error) { return nil, errBroken }
func (broken) Environ(int) ([]string, error)                         { return nil, errBroken }
func (broken) Cwd(int) (string, error)                               { return "", errBroken }
func (broken) ReadRootFile(int, string, int64) ([]byte, error)       { return nil, errBroken }
func (broken) UserName(int) string                                   { return "" }

func TestRecogniseWithoutSource(t *testing.T) {
	procs, _ := captured(t)
	golden(t, "broken-source.golden", describe(Instances(procs, broken{}), procs))
}

// fake answers from tables; what is not there does not exist.
type fake struct {
	listeners map[int][]sockets.Listener
	connected map[int][]sockets.Listener
	cwd       map[int]string
	env       map[int][]string
	files     map[string]string
}

func (f fake) Connections([]int) (map[int][]sockets.Listener, error) { return f.connected, nil }
func (f fake) Environ(pid int) ([]string, error)                     { return f.env[pid], nil }

func (f fake) Listeners([]int) (map[int][]sockets.Listener, error) { return f.listeners, nil }
func (f fake) UserName(uid int) string                             { return map[int]string{27: "mysql"}[uid] }

func (f fake) Cwd(pid int) (string, error) {
	if dir, ok := f.cwd[pid]; ok {
		return dir, nil
	}
	return "", fs.ErrNotExist
}

func (f fake) ReadRootFile(_ int, name string, limit int64) ([]byte, error) {
	if text, ok := f.files[name]; ok && int64(len(text)) <= limit {
		return []byte(text), nil
	}
	return nil, fs.ErrNotExist
}

// process makes a process from its executable and its command line, one argument per blank.
func process(pid, ppid int, exe, comm, cmdline string) procfs.Process {
	return procfs.Process{
		ID: procfs.ID{PID: pid, Start: uint64(pid)}, PPID: ppid, Exe: exe, Comm: comm, State: 'S',
		Args: strings.Fields(cmdline), UID: 27,
	}
}

// listening says that a process listens on addresses: a port or a path.
func listening(pid int, where ...any) map[int][]sockets.Listener {
	var list []sockets.Listener
	for _, w := range where {
		switch w := w.(type) {
		case int:
			list = append(list, sockets.Listener{Network: "tcp", Address: fmt.Sprintf("0.0.0.0:%d", w), Port: w})
		case string:
			list = append(list, sockets.Listener{Network: "unix", Address: w})
		}
	}
	return map[int][]sockets.Listener{pid: list}
}

// One signal is none: each of these shows a server's name, executable or directory, and is no server.
func TestRecogniseNoInstance(t *testing.T) {
	src := fake{
		cwd:   map[int]string{100: "/var/lib/mysql"},
		files: map[string]string{"/var/lib/mysql/auto.cnf": "", "/var/lib/mysql/PG_VERSION": "15"},
		// Whatever it is, it even listens on a database's port.
		listeners: listening(100, 3306, 5432, 6379),
	}
	for _, p := range []procfs.Process{
		process(100, 1, "/usr/bin/vim.basic", "vim", "vim mysqld"),
		process(100, 1, "/usr/bin/bash", "postgres", "/bin/bash /usr/local/bin/postgres -D /var/lib/mysql"),
		process(100, 1, "/usr/bin/python3.11", "mysqld", "python3 /opt/fake/mysqld --port=3306"),
		process(100, 1, "/usr/bin/grep", "grep", "grep redis-server"),
		process(100, 1, "/usr/bin/mariadb", "mysql", "mysql -h 127.0.0.1 -P 3306 mysqld"),
		process(100, 1, "/usr/bin/mariadb-dump", "mysqldump", "mysqldump --all-databases"),
		process(100, 1, "/usr/bin/mysqladmin", "mysqladmin", "mysqladmin ping"),
		process(100, 1, "/usr/lib/postgresql/15/bin/psql", "psql", "psql -D postgres"),
		process(100, 1, "/usr/lib/postgresql/15/bin/pg_dump", "pg_dump", "pg_dump -p 5432 postgres"),
		process(100, 1, "/usr/lib/postgresql/15/bin/pg_ctl", "pg_ctl", "pg_ctl -D /var/lib/mysql start"),
		process(100, 1, "/usr/bin/redis-cli", "redis-cli", "redis-cli -p 6379"),
		process(100, 1, "/usr/bin/redis-check-rdb", "redis-check-rdb", "redis-check-rdb dump.rdb"),
		process(100, 1, "/usr/bin/dash", "mysqld_safe", "/bin/sh /usr/bin/mysqld_safe --datadir=/var/lib/mysql"),
		process(100, 1, "/usr/bin/tail", "tail", "tail -f /var/log/mysql/mysqld.log"),
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --verbose --help"),
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld -V"),
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --initialize-insecure --datadir=/var/lib/mysql"),
		process(100, 1, "/usr/sbin/mariadbd", "mariadbd", "mariadbd --bootstrap --datadir=/var/lib/mysql"),
		process(100, 1, "/usr/lib/postgresql/15/bin/postgres", "postgres", "postgres -C port -D /var/lib/mysql"),
		process(100, 1, "/usr/lib/postgresql/15/bin/postgres", "postgres", "postgres --single -D /var/lib/mysql"),
		process(100, 1, "/usr/bin/sleep", "mysqld", "mysqld 1000"),
		process(100, 1, "/usr/bin/mysqld_exporter", "mysqld_exporter", "mysqld_exporter --port=3306"),
	} {
		if got := Instances([]procfs.Process{p}, src); len(got) != 0 {
			t.Errorf("%q is taken for %s: %q", options.Title(&p), got[0], got[0].Evidence)
		}
	}
}

// A program of the right name and executable that does nothing a server does.
func TestRecogniseNeedsBehaviour(t *testing.T) {
	for _, p := range []procfs.Process{
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "/usr/sbin/mysqld"),
		process(100, 1, "/usr/lib/postgresql/15/bin/postgres", "postgres", "postgres"),
		process(100, 1, "/usr/bin/redis-server", "redis-server", "redis-server"),
		process(100, 1, "/usr/bin/redis-server", "redis-server", "redis-server --version"),
	} {
		if got := Instances([]procfs.Process{p}, fake{}); len(got) != 0 {
			t.Errorf("%q is taken for %s: %q", options.Title(&p), got[0], got[0].Evidence)
		}
		if got := Instances([]procfs.Process{p}, fake{listeners: listening(100, 7777)}); len(got) != 1 ||
			got[0].Port != 7777 {
			t.Errorf("%q that listens on 7777 is taken for %v", options.Title(&p), got)
		}
	}
}

func TestRecogniseMySQL(t *testing.T) {
	for _, test := range []struct {
		name  string
		procs []procfs.Process
		src   fake
		want  engine.Instance // compared without Main, User, Members, Evidence
	}{
		{
			name:  "bare mysqld under systemd, configuration from files",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld", "/usr/sbin/mysqld")},
			src: fake{
				listeners: listening(100, 33060, 3306, "/var/run/mysqld/mysqlx.sock", "/var/run/mysqld/mysqld.sock"),
				cwd:       map[int]string{100: "/var/lib/mysql"},
				files: map[string]string{
					"/etc/mysql/my.cnf": "!includedir /etc/mysql/conf.d/\n!includedir " +
						"/etc/mysql/mysql.conf.d/\n",
					"/etc/mysql/mysql.conf.d/mysqld.cnf": "[mysqld]\nsocket = /var/run/mysqld/mysqld.sock\n# port " +
						"= 4000\nuser = mysql\n",
					"/var/lib/mysql/auto.cnf":              "[auto]\n",
					"/etc/mysql/conf.d/mysql.cnf":          "[mysql]\nport=9\n",
					"/var/lib/mysql/mysql_upgrade_history": "{}",
				},
			},
			want: engine.Instance{Port: 3306, Ports: []int{3306, 33060}, Socket: "/var/run/mysqld/mysqld.sock",
				DataDir: "/var/lib/mysql", Config: "/etc/mysql/my.cnf"},
		},
		{
			name: "mysqld_multi, tarball",
			procs: []procfs.Process{process(100, 1, "/opt/mysql-8.0.36-linux-glibc2.28-x86_64/bin/mysqld", "mysqld",
				"/opt/mysql/bin/mysqld --defaults-file=/etc/multi.cnf --defaults-group-suffix=2")},
			src: fake{
				listeners: listening(100, 3307, 33062, "/data/2/my.sock"),
				files: map[string]string{"/etc/multi.cnf": "[mysqld1]\nport=3306\n[mysqld2]\nport=\"3307\"\n" +
					"datadir='/data/2'\nsocket=my.sock # relative\n[client]\nport=1\n"},
			},
			want: engine.Instance{Version: "8.0.36", Port: 3307, Ports: []int{3307, 33062}, Socket: "/data/2/my.sock",
				DataDir: "/data/2", Config: "/etc/multi.cnf"},
		},
		{
			name: "what it listens on wins over what it was told",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld",
				"mysqld --port=3306 --socket=/a.sock")},
			src:  fake{listeners: listening(100, 4406, "/b.sock")},
			want: engine.Instance{Port: 4406, Ports: []int{4406}, Socket: "/b.sock"},
		},
		{
			name: "Galera: the client port, not the lowest",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mariadbd", "mariadbd",
				"/usr/sbin/mariadbd -P 5306 -h /data")},
			src:  fake{listeners: listening(100, 4567, 5306)},
			want: engine.Instance{Flavor: engine.MariaDB, Port: 5306, Ports: []int{4567, 5306}, DataDir: "/data"},
		},
		{
			name: "skip-networking: no port, whatever it was told",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld",
				"mysqld --skip-networking --port 3306 --datadir /d/orders")},
			src:  fake{listeners: listening(100, "/run/orders.sock")},
			want: engine.Instance{Socket: "/run/orders.sock", DataDir: "/d/orders"},
		},
		{
			name: "starting: believes its options",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld",
				"mysqld --port=3310 --loose-socket=s.sock --datadir=/d")},
			src:  fake{listeners: listening(100)},
			want: engine.Instance{Port: 3310, DataDir: "/d", Socket: "/d/s.sock"},
		},
		{
			name:  "starting without a word about the port",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/d")},
			src:   fake{listeners: listening(100)},
			want:  engine.Instance{Port: 3306, DataDir: "/d"},
		},
		{
			name: "starting with a word about the socket alone, as Debian's configuration has it",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld",
				"mysqld --datadir=/d --socket=/d/s.sock")},
			src:  fake{listeners: listening(100)},
			want: engine.Instance{Port: 3306, Socket: "/d/s.sock", DataDir: "/d"},
		},
		{
			name:  "starting without TCP",
			procs: []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/d")},
			src: fake{listeners: listening(100),
				files: map[string]string{"/etc/my.cnf": "[mysqld]\nskip-networking\n"}},
			want: engine.Instance{DataDir: "/d", Config: "/etc/my.cnf"},
		},
		{
			name: "Percona Server by its base directory, include loop",
			procs: []procfs.Process{process(100, 1, "/opt/percona-server-8.4.2-2/bin/mysqld", "mysqld",
				"mysqld --defaults-file=/etc/p.cnf")},
			src: fake{
				listeners: listening(100, 3306),
				files:     map[string]string{"/etc/p.cnf": "!include /etc/p.cnf\n[mysqld-8.4]\ndatadir = /p\n"},
			},
			want: engine.Instance{Flavor: engine.Percona, Version: "8.4.2", Port: 3306, Ports: []int{3306},
				DataDir: "/p",
				Config:  "/etc/p.cnf"},
		},
		{
			name:  "debug build whose executable cannot be read",
			procs: []procfs.Process{process(100, 1, "", "mysqld-debug", "/usr/sbin/mysqld-debug --port=3306")},
			want:  engine.Instance{Port: 3306},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := Instances(test.procs, test.src)
			if len(found) != 1 {
				t.Fatalf("found %v", found)
			}
			got := found[0]
			if len(got.Evidence) < 2 || got.User != "mysql" {
				t.Errorf("evidence %q, user %q", got.Evidence, got.User)
			}
			test.want.Engine = engine.MySQL
			if a, b := withoutProcess(got), withoutProcess(test.want); a != b {
				t.Errorf("\ngot  %s\nwant %s", a, b)
			}
		})
	}
}

// withoutProcess prints an instance without what the test table leaves out.
func withoutProcess(i engine.Instance) string {
	i.Main, i.User, i.Members, i.Evidence, i.Seen, i.Addresses = procfs.ID{}, "", nil, nil, false, nil
	type plain engine.Instance // without its String method
	return fmt.Sprintf("%+v", plain(i))
}

// Two servers that have just been started cannot both get the usual port, and one that listens keeps it.
func TestRecogniseClaimsUsualPortOnce(t *testing.T) {
	procs := []procfs.Process{
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/a"),
		process(101, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/b"),
	}
	ports := func(src Source) (ports []int) {
		for _, i := range Instances(procs, src) {
			ports = append(ports, i.Port)
		}
		return ports
	}
	if got := ports(fake{}); !slices.Equal(got, []int{0, 3306}) {
		t.Errorf("two starting servers have ports %v", got)
	}
	if got := ports(fake{listeners: listening(101, 3306)}); !slices.Equal(got, []int{0, 3306}) {
		t.Errorf("beside one that listens on 3306: %v", got)
	}
}

func TestRecogniseContainer(t *testing.T) {
	p := process(100, 1, "/usr/local/bin/postgres", "postgres", "postgres")
	p.ForeignNamespace = true
	p.Cgroups = map[string]string{"memory": "/docker/4f5e"}
	src := fake{
		cwd: map[int]string{100: "/var/lib/postgresql/data"},
		// In the container it is process 1.
		files: map[string]string{"/var/lib/postgresql/data/postmaster.pid": "1\n/var/lib/postgresql/data\n" +
			"1700000000\n5432\n/var/run/postgresql\n*\n"},
	}
	found := Instances([]procfs.Process{p}, src)
	if len(found) != 1 || !found[0].Container || found[0].Port != 5432 {
		t.Fatalf("found %+v", found)
	}
}

// Anybody may give a server a pid namespace of its own: that makes no container of it.
func TestRecogniseOwnNamespace(t *testing.T) {
	p := process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --port=3306")
	p.ForeignNamespace = true
	if found := Instances([]procfs.Process{p}, fake{}); len(found) != 1 || found[0].Container {
		t.Fatalf("found %+v", found)
	}
}

// A port that there cannot be is none.
func TestRecogniseImpossiblePorts(t *testing.T) {
	for _, port := range []string{"65536", "99999999", "-1"} {
		found := Instances([]procfs.Process{
			process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --socket=/s --port="+port),
			process(200, 1, "/usr/bin/postgres", "postgres", "postgres -D /pg -p "+port),
			process(300, 1, "/usr/bin/redis-server", "redis-server", "redis-server --dir /r --port "+port),
		}, fake{})
		if len(found) != 3 {
			t.Fatalf("found %v", found)
		}
		for _, i := range found {
			if i.Port < 0 || i.Port > 65535 {
				t.Errorf("%s has port %d", i, i.Port)
			}
		}
	}
}

// What a server names itself cannot steer a terminal.
func TestInstanceIsPrintable(t *testing.T) {
	found := Instances([]procfs.Process{process(100, 1, "/usr/sbin/mysqld\x1b[2J", "mysqld",
		"mysqld --port=3306 --datadir=/d\x1b[31m")}, fake{})
	found = append(found, Instances([]procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld",
		"mysqld --port=3306 --datadir=/d\x1b[31m")}, fake{})...)
	if len(found) == 0 {
		t.Fatal("nothing found")
	}
	for _, i := range found {
		if text := i.String() + strings.Join(i.Evidence, ""); strings.Contains(text, "\x1b") ||
			i.DataDir != "/d\x1b[31m" {
			t.Errorf("%q", text)
		}
	}
}

// A fork that has not written its title yet is a member, never a second instance.
func TestRecogniseFreshFork(t *testing.T) {
	pg := "/usr/lib/postgresql/15/bin/postgres"
	rd := "/usr/bin/redis-check-rdb"
	procs := []procfs.Process{
		process(100, 1, pg, "postgres", pg+" -D /pg"),
		process(101, 100, pg, "postgres", pg+" -D /pg"),
		process(200, 1, rd, "redis-server", "redis-server --port 6380"),
		process(201, 200, rd, "redis-server", "redis-server --port 6380"),
	}
	found := Instances(procs, fake{})
	if len(found) != 2 {
		t.Fatalf("found %v", found)
	}
	for n, want := range []string{"starting", "save"} {
		if len(found[n].Members) != 2 || found[n].Members[1].Part != want {
			t.Errorf("%s has members %v", found[n], found[n].Members)
		}
	}
}

// The order in which processes are listed changes nothing.
func TestRecogniseOrder(t *testing.T) {
	procs, h := captured(t)
	want := describe(Instances(procs, SourceOf(h)), procs)
	rapid.Check(t, func(t *rapid.T) {
		shuffled := rapid.Permutation(procs).Draw(t, "processes")
		if got := describe(Instances(shuffled, SourceOf(h)), procs); got != want {
			t.Fatalf("another order gives\n%s", got)
		}
	})
}
