package recognise

import (
	"slices"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// MySQL's client library takes the default Unix socket, and no port, where no host is given or "localhost".
func TestAttachMySQLPort(t *testing.T) {
	const both, dump = "mysql3306? mysql3307?", "/usr/bin/mysqldump"
	for _, test := range []struct {
		exe, cmdline, env, connected, want string
	}{
		{exe: dump, cmdline: "mysqldump -P 3307", want: both},
		{exe: dump, cmdline: "mysqldump --host=localhost --port=3307", want: both},
		{exe: dump, cmdline: "mysqldump -P 3307", connected: "/run/a.sock", want: "mysql3306"},
		{exe: dump, cmdline: "mysqldump -h localhost -P 3307", connected: "/run/b.sock", want: "mysql3307"},
		{exe: dump, cmdline: "mysqldump -P 3399", connected: "/run/a.sock", want: "mysql3306"},
		{exe: dump, cmdline: "mysqldump --protocol=TCP -P 3307", want: "mysql3307"},
		{exe: dump, cmdline: "mysqldump -h 127.0.0.1 -P 3307", want: "mysql3307"},
		{exe: dump, cmdline: "mysqldump -S /run/b.sock -P 3306", want: "mysql3307"},
		{exe: dump, cmdline: "mysqldump", env: "MYSQL_TCP_PORT=3307", want: both},
		{exe: dump, cmdline: "mysqldump --defaults-file=/port.cnf", want: both},
		{exe: dump, cmdline: "mysqldump --defaults-file=/tcp.cnf", want: "mysql3307"},
		{exe: "/usr/bin/perl", cmdline: "perl /usr/bin/pt-archiver --source h=localhost,P=3307", want: both},
		{exe: "/usr/bin/perl", cmdline: "perl /usr/bin/pt-archiver --source h=127.0.0.1,P=3307", want: "mysql3307"},
		{exe: "/usr/bin/gh-ost", cmdline: "gh-ost --host=localhost --port=3307", want: "mysql3307"}, // Go takes TCP
	} {
		src := fake{
			listeners: map[int][]sockets.Listener{
				100: listening(100, 3306, "/run/a.sock")[100],
				200: listening(200, 3307, "/run/b.sock")[200],
			},
			files: map[string]string{"/port.cnf": "[client]\nport=3307\n",
				"/tcp.cnf": "[client]\nport=3307\nprotocol=tcp\n"},
			env: map[int][]string{300: {test.env}},
		}
		if test.connected != "" {
			src.connected = listening(300, test.connected)
		}
		h := process(300, 1, test.exe, "", test.cmdline)
		h.UID = 1000
		found := Instances([]procfs.Process{
			process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --port=3306"),
			process(200, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --port=3307"), h}, src)
		if got := serving(found, 300); got != test.want {
			t.Errorf("%q %s, connected to %q, serves %q, want %q", test.cmdline, test.env, test.connected, got,
				test.want)
		}
	}
}

// A data directory may be told by another name than the server has it.
func TestAttachByAnotherNameOfTheDirectory(t *testing.T) {
	const cmdline = "pgbackrest --pg1-path=/link/to/a --process=1 backup:local"
	for _, test := range []struct {
		name, cmdline, connected, want string
		ppid                           int
	}{
		{"nothing else tells", cmdline, "", "postgresql5432? postgresql5433?", 1},
		{"connected", cmdline, "/srv/b/.s.PGSQL.5433", "postgresql5433", 1},
		{"started by the archiver", cmdline, "", "postgresql5432", 101},
		{"a port, too", cmdline + " --pg1-port=5433", "", "postgresql5433", 1},
	} {
		procs, src := threeServers()
		h := process(300, test.ppid, "/usr/bin/pgbackrest", "", test.cmdline)
		h.UID = 1000
		if test.connected != "" {
			src.connected = listening(300, test.connected)
		}
		if got := serving(Instances(append(procs, h), src), 300); got != test.want {
			t.Errorf("%s: serves %q, want %q", test.name, got, test.want)
		}
	}
	// That there is one instance alone does not make it the one of that directory.
	alone := fake{listeners: map[int][]sockets.Listener{100: listening(100, 3306, "/run/a.sock")[100]}}
	h := process(300, 1, "/usr/bin/mariadb-backup", "", "mariadb-backup --copy-back --datadir=/restore/mysql")
	if got := serving(Instances([]procfs.Process{
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/a"), h}, alone), 300); got != "mysql3306?" {
		t.Errorf("a restore of another directory serves %q", got)
	}
}

// Two servers have the same port at different addresses.
func TestAttachByAddress(t *testing.T) {
	at := func(addresses ...string) (all []sockets.Listener) {
		for _, a := range addresses {
			all = append(all, sockets.Listener{Network: "tcp", Address: a, Port: 3306})
		}
		return all
	}
	src := fake{
		listeners: map[int][]sockets.Listener{100: at("10.0.0.5:3306"), 200: at("[::ffff:10.0.0.6]:3306")},
		connected: map[int][]sockets.Listener{303: at("10.0.0.6:3306")},
	}
	procs := []procfs.Process{
		process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/a"),
		process(200, 1, "/usr/sbin/mysqld", "mysqld", "mysqld --datadir=/b"),
	}
	want := map[int]string{300: "/a", 301: "/b", 302: "", 303: "/b", 304: "", 305: "/a? /b?"}
	for i, options := range []string{"-h 10.0.0.5 -P 3306", "-h 10.0.0.6 -P 3306", "-h 10.0.0.7 -P 3306",
		"-h db -P 3306", "-h 127.0.0.1 -P 3306", "--protocol=tcp -P 3306"} {
		h := process(300+i, 1, "/usr/bin/mysqldump", "", "mysqldump "+options)
		h.UID = 1000
		procs = append(procs, h)
	}
	got := make(map[int]string)
	for _, i := range Instances(procs, src) {
		for _, h := range i.Helpers {
			name := i.DataDir
			if !h.Sure {
				name += "?"
			}
			if got[h.ID.PID] != "" {
				name = got[h.ID.PID] + " " + name
			}
			got[h.ID.PID] = name
		}
	}
	for pid, want := range want {
		if got[pid] != want {
			t.Errorf("%q serves %q, want %q", procs[pid-300+2].Args, got[pid], want)
		}
	}
	// An address in a container's network is none of this host's instances'.
	src.listeners[100] = at("0.0.0.0:3306")
	procs[1].ForeignNamespace, procs[1].Cgroups = true, map[string]string{"memory": "/docker/4f5e"}
	for _, i := range Instances(procs, src) {
		if slices.ContainsFunc(i.Helpers, func(h engine.Helper) bool { return h.ID.PID == 301 }) {
			t.Errorf("%s has the helper of a container", i.DataDir)
		}
	}
}
