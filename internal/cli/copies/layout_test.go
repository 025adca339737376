package copies

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/zfslayout"
)

var update = flag.Bool("update", false, "write the golden files anew")

// captured is a host with a database: files with their text, and directories, whose names end with a slash. A name
// with " -> " is a symbolic link.
type captured map[string]string

func (c captured) Cwd(int) (string, error)       { return "/", nil }
func (c captured) Environ(int) ([]string, error) { return nil, nil }
func (c captured) UserName(int) string           { return "" }

func (c captured) ReadRootFile(_ int, name string, _ int64) ([]byte, error) {
	text, is := c[name]
	if !is {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

func (c captured) OpenFiles(int) ([]string, error) { return nil, nil }

func (c captured) ReadRootDir(_ int, dir string, _ int) ([]fs.DirEntry, error) {
	var found []fs.DirEntry
	for name := range c {
		name, _, link := strings.Cut(name, " -> ")
		if path.Dir(path.Clean(name)) == path.Clean(dir) {
			found = append(found, item{path.Base(path.Clean(name)), strings.HasSuffix(name, "/"), link})
		}
	}
	slices.SortFunc(found, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return found, nil
}

// real follows the symbolic links of the last part of a path.
func (c captured) real(name string) string {
	for entry := range c {
		if from, to, link := strings.Cut(entry, " -> "); link && from == name {
			return to
		}
	}
	return name
}

type item struct {
	name      string
	dir, link bool
}

func (i item) Name() string               { return i.name }
func (i item) IsDir() bool                { return i.dir }
func (i item) Info() (fs.FileInfo, error) { return nil, errors.New("none") }

func (i item) Type() fs.FileMode {
	switch {
	case i.link:
		return fs.ModeSymlink
	case i.dir:
		return fs.ModeDir
	}
	return 0
}

const gib = int64(1) << 30

// tank is a pool of two disks.
var tank = zfs.Pool{Name: "tank", State: "ONLINE", Size: 400 * gib, Used: 40 * gib, Free: 360 * gib,
	Vdevs: []zfs.Vdev{{Name: "mirror-0", Role: zfs.RoleData, State: "ONLINE", Parts: []string{"/dev/sdb1",
		"/dev/sdc1"}}}}

// factsOf are those of a captured host.
func factsOf(t *testing.T, c captured, inst engine.Instance, args ...string) zfslayout.Facts {
	t.Helper()
	p := procfs.Process{ID: procfs.ID{PID: 100, Start: 7}, Args: args, Exe: args[0]}
	inst.Main = p.ID
	files, err := datafiles.Of(inst, []procfs.Process{p}, c)
	if err != nil {
		t.Fatal(err)
	}
	f := zfslayout.Facts{Request: zfslayout.Request{Instance: inst.Name(), Pool: "tank"}, Found: inst, Memory: 16 * gib,
		Dirs: map[string]zfslayout.Dir{}, Pools: []zfs.Pool{tank}, Options: options.MySQLOptions{},
		Datasets: []zfs.Dataset{{Name: "tank",
			Properties: map[string]zfs.Property{"available": {Value: "300000000000"}}}},
		Start: zfslayout.Start{Unit: "mysql.service"}}
	if inst.Engine == engine.MySQL {
		f.Options = options.Reader{Source: c}.MySQLWith(&p, func(dir string) []string {
			entries, _ := c.ReadRootDir(0, dir, 0)
			names := []string{}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		})
	}
	for _, file := range files {
		real := c.real(file.Path)
		f.Files = append(f.Files, disks.PlacedFiles{Files: file,
			Place: blockdev.Place{Path: file.Path, Real: real, Layer: &blockdev.Layer{Type: "ext4"}}})
		d := zfslayout.Dir{Owner: inst.User, Bytes: 20 * gib}
		if real == "/tmp" {
			d = zfslayout.Dir{Owner: "root", Open: true}
		}
		f.Dirs[real] = d
	}
	return f
}

// hosts are databases as their packages set them up, and as administrators do.
var hosts = map[string]func(t *testing.T) zfslayout.Facts{
	// The packages of MySQL for Red Hat 7: the redo log is two files in the data directory, the binary log lies beside.
	"mysql-5.7": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/my.cnf": "[mysqld]\ndatadir=/var/lib/mysql\nsocket=/var/lib/mysql/mysql.sock\n\nlog-bin=" +
			"/var/lib/mysql-binlog/bin\nserver-id=1\ninnodb_buffer_pool_size=10G\ninnodb_page_size=8k\n",
			"/var/lib/mysql/ib_logfile0": "", "/var/lib/mysql/ib_logfile1": "", "/var/lib/mysql/shop/": ""}
		return factsOf(t, c, engine.Instance{Engine: engine.MySQL, Version: "5.7.44", User: "mysql", Port: 3306,
			Socket: "/var/lib/mysql/mysql.sock", DataDir: "/var/lib/mysql"}, "/usr/sbin/mysqld", "--daemonize")
	},
	// The packages of Ubuntu 22.04; 8.0.30 and later keep their redo log in a directory.
	"mysql-8.0": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/mysql/my.cnf": "!includedir /etc/mysql/mysql.conf.d/\n",
			"/etc/mysql/mysql.conf.d/mysqld.cnf": "#\n" +
				"[mysqld]\nuser\t\t= mysql\n# datadir\t= /var/lib/mysql\nbind-address\t\t= " +
				"127.0.0.1\nkey_buffer_size\t\t= 16M\n",
			"/etc/mysql/mysql.conf.d/mysql.cnf": "[mysql]\n", "/var/lib/mysql/#innodb_redo/": "",
			"/var/lib/mysql/shop/": ""}
		return factsOf(t, c, engine.Instance{Engine: engine.MySQL, Version: "8.0.39", User: "mysql", Port: 3306,
			Socket: "/run/mysqld/mysqld.sock", DataDir: "/var/lib/mysql"}, "/usr/sbin/mysqld")
	},
	// MySQL 8.4 whose redo log, temporary files and data have file systems of their own; a pool is to be made.
	"mysql-8.4": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/my.cnf": "[mysqld]\ndatadir=/db/mysql\nsocket=/db/mysql.sock\n" +
			"innodb-log-group-home-dir=/db/redo\ntmpdir=/db/tmp\ninnodb_undo_directory=/db/undo\nport=3307\n",
			"/db/redo/#innodb_redo/": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.MySQL, Version: "8.4.3", User: "mysql", Port: 3307,
			Socket: "/db/mysql.sock", DataDir: "/db/mysql"}, "/usr/sbin/mysqld")
		f.Dirs["/db/redo"] = zfslayout.Dir{Owner: "mysql", Bytes: gib}
		f.Pools, f.Datasets = nil, nil
		f.Request.Devices = []string{"/dev/disk/by-id/a", "/dev/disk/by-id/b"}
		f.Devices = []zfslayout.Device{{Path: "/dev/disk/by-id/a", Bytes: 500 * gib}, {Path: "/dev/disk/by-id/b",
			Bytes: 480 * gib}}
		return f
	},
	// Debian 12, with a policy of SELinux, started by its own command.
	"mariadb-10.11": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/mysql/my.cnf": "[client-server]\nsocket = /run/mysqld/mysqld.sock\n" +
			"!includedir /etc/mysql/conf.d/\n!includedir /etc/mysql/mariadb.conf.d/\n",
			"/etc/mysql/mariadb.conf.d/50-server.cnf": "" +
				"[mysqld]\npid-file                = /run/mysqld/mysqld.pid\nbasedir                 = /usr\n" +
				"log_bin = /var/log/mysql/mysql-bin.log\ninnodb_log_group_home_dir = ./\n",
			"/var/lib/mysql/ib_logfile0": "", "/var/lib/mysql/shop/": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.MySQL, Flavor: engine.MariaDB, Version: "10.11.6",
			User: "mysql",
			Port: 3306, Socket: "/run/mysqld/mysqld.sock", DataDir: "/var/lib/mysql"}, "/usr/sbin/mariadbd")
		f.SELinux = true
		f.Start = zfslayout.Start{}
		return f
	},
	// Red Hat 9, MariaDB's own packages: one redo log, and a socket in the data directory.
	"mariadb-11": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/my.cnf": "[client-server]\n!includedir /etc/my.cnf.d\n",
			"/etc/my.cnf.d/server.cnf": "[server]\n[mysqld]\n[galera]\n[mariadb]\ninnodb_buffer_pool_size = 2G\n" +
				"[mariadb-11.4]\nslow_query_log = 1\n",
			"/var/lib/mysql/ib_logfile0": "", "/var/lib/mysql/undo001": "", "/var/lib/mysql/shop/": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.MySQL, Flavor: engine.MariaDB, Version: "11.4.4",
			User: "mysql", Port: 3306, Socket: "/var/lib/mysql/mysql.sock", DataDir: "/var/lib/mysql"},
			"/usr/sbin/mariadbd")
		f.Start = zfslayout.Start{Unit: "mariadb.service"}
		return f
	},
	"postgresql-15": func(t *testing.T) zfslayout.Facts {
		c := captured{"/var/lib/postgresql/15/main/pg_wal/": "", "/var/lib/postgresql/15/main/base/": "",
			"/var/lib/postgresql/15/main/pg_tblspc/": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.PostgreSQL, Version: "15", User: "postgres", Port: 5432,
			Socket: "/run/postgresql/.s.PGSQL.5432", DataDir: "/var/lib/postgresql/15/main",
			Config: "/etc/postgresql/15/main/postgresql.conf"}, "/usr/lib/postgresql/15/bin/postgres", "-D",
			"/var/lib/postgresql/15/main")
		f.Start = zfslayout.Start{Unit: "postgresql@15-main.service"}
		return f
	},
	// Red Hat's packages of PostgreSQL 17, with a log that has a file system of its own already.
	"postgresql-17": func(t *testing.T) zfslayout.Facts {
		c := captured{"/var/lib/pgsql/17/data/pg_wal -> /wal/17": "", "/var/lib/pgsql/17/data/base/": "",
			"/var/lib/pgsql/17/data/pg_tblspc/": "", "/wal/17/": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.PostgreSQL, Version: "17", User: "postgres", Port: 5432,
			Socket: "/run/postgresql/.s.PGSQL.5432", DataDir: "/var/lib/pgsql/17/data",
			Config: "/var/lib/pgsql/17/data/postgresql.conf"}, "/usr/pgsql-17/bin/postgres", "-D",
			"/var/lib/pgsql/17/data/")
		f.Start = zfslayout.Start{Unit: "postgresql-17.service"}
		return f
	},
	// Nothing of this is moved.
	"refused": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/my.cnf": "[mysqld]\ndatadir=/var/lib/mysql\nrelay_log=/relay/r\n",
			"/var/lib/mysql/ib_logfile0": "", "/var/lib/mysql/shop/": "", "/var/lib/mysql/crm -> /archive/crm": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.MySQL, Version: "5.7.44", User: "mysql", Port: 3306,
			DataDir: "/var/lib/mysql"}, "/usr/sbin/mysqld", "--innodb-log-group-home-dir=/var/lib/mysql")
		f.Against = []zfslayout.Refusal{{What: "mysql3306 does not answer now", Hint: "let it"}}
		f.Replica, f.Cluster = "relay-log.info is in its data directory, and it was not asked",
			"wsrep_provider, set in /etc/my.cnf:9"
		f.Start = zfslayout.Start{Trouble: "mysql.service runs mysql3307, too"}
		f.Dirs["/var/lib/mysql"] = zfslayout.Dir{Owner: "mysql", Bytes: 900 * gib,
			Mounts: []string{"/var/lib/mysql", "/var/lib/mysql/big"}}
		f.Dirs["/relay"] = zfslayout.Dir{Owner: "root"}
		f.Dirs["/var/lib/mysql-log"], f.Dirs["/var/lib/mysql.before-zfs"] = zfslayout.Dir{}, zfslayout.Dir{}
		f.Pools = []zfs.Pool{{Name: "tank", State: "DEGRADED", Size: 10 * gib, Free: 2 * gib,
			Vdevs: []zfs.Vdev{{Name: "/mnt/zfs.img", Role: zfs.RoleData}}}}
		f.Datasets = []zfs.Dataset{{Name: "tank/mysql3306"}}
		return f
	},
	"too-small": func(t *testing.T) zfslayout.Facts {
		c := captured{"/etc/my.cnf": "[mysqld]\ndatadir=/var/lib/mysql\n", "/var/lib/mysql/ib_logfile0": ""}
		f := factsOf(t, c, engine.Instance{Engine: engine.MySQL, Version: "5.7.44", User: "mysql", Port: 3306,
			DataDir: "/var/lib/mysql"}, "/usr/sbin/mysqld")
		f.Pools, f.Datasets = nil, nil
		f.Request.Devices, f.Single, f.Request.Files = []string{"/mnt/zfs.img"}, true, true
		f.Devices = []zfslayout.Device{{Path: "/mnt/zfs.img", File: true, Bytes: 10 * gib}}
		return f
	},
}

// The plan of each engine and version is as it was read by a person.
func TestLayoutPlans(t *testing.T) {
	for name, facts := range hosts {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			printLayoutPlan(render.Printable(&out, 0), zfslayout.Make(facts(t)))
			golden := filepath.Join("testdata", "plan-"+name+".golden")
			if *update {
				if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(golden, out.Bytes(),
					0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || out.String() != string(want) {
				t.Errorf("%v\ngot\n%s\nwant\n%s", err, out.String(), want)
			}
		})
	}
}

// A line that another server reads, too, would have both write into one redo log.
func TestPlanOfSharedSection(t *testing.T) {
	f := hosts["mysql-8.0"](t)
	if p := zfslayout.Make(f); len(p.Refused) != 0 || len(p.Edits) != 1 {
		t.Fatalf("%+v", p)
	}
	for line, refused := range map[string]bool{"/etc/mysql/mysql.conf.d/mysqld.cnf:3": true,
		"/etc/mysql/mysql.conf.d/mysqld.cnf:5": false} {
		f.AlsoRead = map[string]string{line: "mysql3307"}
		p := zfslayout.Make(f)
		if refused != (len(p.Refused) == 1 && strings.Contains(p.Refused[0].What, "is read by mysql3307")) {
			t.Errorf("%s: %+v", line, p.Refused)
		}
	}
}

// What a dry run says of a move that was begun says which files count.
func TestPrintRecord(t *testing.T) {
	plan := zfslayout.Make(hosts["mysql-5.7"](t))
	for want, rec := range map[string]zfslayout.Record{
		"The old directories count":     {Phase: zfslayout.Applying},
		"The data sets count":           {Phase: zfslayout.Applied, Newer: true},
		"New data is being copied back": {Phase: zfslayout.Back, Newer: true, CopyingBack: true},
		"The old directories are whole": {Phase: zfslayout.Back, Newer: true, CopyingBack: true, Restored: true},
	} {
		var out bytes.Buffer
		rec.Plan, rec.Begun = plan, time.Unix(0, 0)
		printRecord(render.Printable(&out, 0), &rec)
		if !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "/var/lib/mysql.before-zfs") {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
