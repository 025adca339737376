package datafiles

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/procfs"
)

// filesIn lists the files of every instance of a host, one a line.
func filesIn(t *testing.T, h *host.Host) map[string][]string {
	t.Helper()
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, inst := range recognise.Instances(procs, recognise.SourceOf(h)) {
		files, err := Of(inst, procs, recognise.SourceOf(h))
		if err != nil {
			t.Errorf("%s: %v", inst.Name(), err)
		}
		for _, f := range files {
			line := fmt.Sprintf("%s %s (%s)", f.Kind, f.Path, f.How)
			if f.Open > 0 {
				line = fmt.Sprintf("%s %s: %d open", f.Kind, f.Path, f.Open)
			}
			all[inst.Name()] = append(all[inst.Name()], line)
		}
	}
	return all
}

func TestFilesOf(t *testing.T) {
	got := filesIn(t, hosttest.Load(t, "storage/dbhost"))
	for name, want := range map[string][]string{
		"mysql3306": {
			"data /var/lib/mysql (data directory)",
			"redo log /var/lib/mysql/#innodb_redo (without innodb_log_group_home_dir)",
			"binary log /fast/binlog (log_bin)",
			"temporary /tmp (tmpdir)",
			"tablespace /var/lib/mysql/crm (symbolic link)",
			"binary log /fast/binlog: 1 open",
			"data /var/lib/mysql: 1 open",
			"data /var/lib/mysql/shop: 2 open",
			"redo log /var/lib/mysql/#innodb_redo: 1 open",
			"tablespace /archive/old: 1 open",
			"tablespace /data2/shop: 1 open",
			"temporary /tmp: 1 open",
		},
		"postgresql5432": {
			"data /var/lib/postgresql/15/main (data directory)",
			"redo log /var/lib/postgresql/15/main/pg_wal (pg_wal)",
			"tablespace /var/lib/postgresql/15/main/pg_tblspc/16401 (pg_tblspc)",
			"tablespace /var/lib/postgresql/15/main/pg_tblspc/16477 (pg_tblspc)",
			"tablespace /var/lib/postgresql/15/main/pg_tblspc/16500 (pg_tblspc)",
			"temporary /var/lib/postgresql/15/main/base (without temp_tablespaces)",
			"data /var/lib/postgresql/15/main/base/16384: 1 open",
			"redo log /fast/pg_wal: 1 open",
			"tablespace /data2/pg/PG_15_202209061/16384: 1 open",
		},
		"oracle-BX1": {
			"control file /fast/oradata/BX1: 1 open",
			"data /archive/oradata/BX1: 1 open",
			"data /dev/dm-3: 1 open",
			"data /dev/dm-4: 1 open",
			"data /dev/null: 1 open",
			"redo log /fast/oradata/BX1: 2 open",
		},
		"mongodb27017": {
			"data /data/db (data directory)",
			"redo log /data/db/journal (journal)",
			"data /data/db: 1 open",
			"redo log /data/db/journal: 1 open",
		},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s:\n%s\nwant:\n%s", name, strings.Join(got[name], "\n"), strings.Join(want, "\n"))
		}
	}
}

// What was configured, of engines that keep files in several places: no process needs to have anything open.
func TestConfiguredFiles(t *testing.T) {
	const data = "/var/lib/mysql"
	for _, test := range []struct {
		name, cmdline, exe, config, text string
		inst                             engine.Instance
		want                             []string
	}{
		{
			"mysql", "mysqld --datadir=/var/lib/mysql", "/usr/sbin/mysqld", "/etc/my.cnf",
			"[mysqld]\ninnodb_log_group_home_dir=/redo\ninnodb_undo_directory=undo\nlog-bin=ON\n" +
				"relay_log=/relay/r\ntmpdir=/t1:/t2\ninnodb_tmpdir=/t3\ninnodb-data-home-dir=/sys1\n",
			engine.Instance{Engine: engine.MySQL, DataDir: data},
			[]string{"data /var/lib/mysql", "data /sys1", "redo log /redo", "undo /var/lib/mysql/undo",
				"relay log /relay", "temporary /t1", "temporary /t2", "temporary /t3"},
		},
		{
			"mysql without options", "mysqld", "/usr/sbin/mysqld", "/etc/my.cnf", "",
			engine.Instance{Engine: engine.MySQL, DataDir: data},
			[]string{"data /var/lib/mysql", "redo log /var/lib/mysql", "temporary /tmp"},
		},
		{
			"scylladb", "scylla", "/opt/scylladb/libexec/scylla", "/etc/scylla/scylla.yaml",
			"data_file_directories:\n    - /d1/data\n    - '/d2/data'\ncommitlog_directory: " +
				"/fast/commitlog\nother:\n  - x\n",
			engine.Instance{Engine: engine.ScyllaDB, DataDir: "/var/lib/scylla", Config: "/etc/scylla/scylla.yaml"},
			[]string{"data /d1/data", "data /d2/data", "redo log /fast/commitlog"},
		},
		{
			"cassandra", "java -Dcassandra.storagedir=/srv/c org.apache.cassandra.service.CassandraDaemon",
			"/usr/bin/java", "/etc/c.yaml",
			"data_file_directories: [/d1, \"/d2\"]\n",
			engine.Instance{Engine: engine.Cassandra, DataDir: "/d1", Config: "/etc/c.yaml"},
			[]string{"data /d1", "data /d2", "redo log /srv/c/commitlog"},
		},
		{
			"sqlserver", "sqlservr", "/opt/mssql/bin/sqlservr", "/var/opt/mssql/mssql.conf",
			"[filelocation]\ndefaultlogdir = /log\n",
			engine.Instance{Engine: engine.SQLServer, DataDir: "/var/opt/mssql", Config: "/var/opt/mssql/mssql.conf"},
			[]string{"data /var/opt/mssql", "redo log /log"},
		},
		{
			"clickhouse", "clickhouse-server", "/usr/bin/clickhouse", "/c.xml",
			"<clickhouse><tmp_path>/fast/tmp/</tmp_path></clickhouse>",
			engine.Instance{Engine: engine.ClickHouse, DataDir: "/var/lib/clickhouse", Config: "/c.xml"},
			[]string{"data /var/lib/clickhouse", "temporary /fast/tmp"},
		},
		{
			"etcd", "etcd --data-dir /e --wal-dir /w", "/usr/bin/etcd", "/none", "",
			engine.Instance{Engine: engine.Etcd, DataDir: "/e"}, []string{"data /e", "redo log /w"},
		},
		{
			"asm", "asm_pmon_+ASM", "/u01/bin/oracle", "/none", "",
			engine.Instance{Engine: engine.Oracle, Flavor: engine.ASM, SID: "+ASM"},
			nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := process(test.exe, test.cmdline)
			test.inst.Main = p.ID
			src := configured{test.config: test.text}
			files, err := Of(test.inst, []procfs.Process{p}, src)
			if err == nil {
				t.Error("nobody says that open files could not be read")
			}
			var got []string
			for _, f := range files {
				got = append(got, string(f.Kind)+" "+f.Path)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// configured has configuration files, and cannot list anything.
type configured map[string]string

func (configured) Cwd(int) (string, error)                             { return "", errNoList }
func (configured) Environ(int) ([]string, error)                       { return nil, errNoList }
func (configured) UserName(int) string                                 { return "" }
func (configured) ReadRootDir(int, string, int) ([]fs.DirEntry, error) { return nil, errNoList }
func (configured) OpenFiles(int) ([]string, error)                     { return nil, errNoList }

var errNoList = errors.New("no list")

func (c configured) ReadRootFile(_ int, name string, _ int64) ([]byte, error) {
	text, is := c[name]
	if !is {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

func process(exe, cmdline string) procfs.Process {
	return procfs.Process{ID: procfs.ID{PID: 100, Start: 100}, Exe: exe, Args: strings.Fields(cmdline)}
}

func TestFilesOfAnother(t *testing.T) {
	inst := engine.Instance{Engine: engine.MySQL, Main: procfs.ID{PID: 100, Start: 7}}
	if _, err := Of(inst, []procfs.Process{process("/usr/sbin/mysqld", "mysqld")}, configured{}); err == nil {
		t.Error("the files of a process with a reused number are told")
	}
}

func TestKindOfFile(t *testing.T) {
	for _, test := range []struct {
		engine, name string
		want         Kind
	}{
		{engine.MySQL, "/d/ib_logfile0", Redo},
		{engine.MySQL, "/d/#innodb_redo/#ib_redo7", Redo},
		{engine.MySQL, "/d/ibdata1", Data},
		{engine.MySQL, "/d/ibdata12", Data},
		{engine.MySQL, "/d/ibtmp1", Temp},
		{engine.MySQL, "/tmp/ibXyZ123", Temp},
		{engine.MySQL, "/d/mysql-bin.000001", Binlog}, {engine.MySQL, "/d/aria_log.00000001", Redo},
		{engine.MySQL, "/d/host-relay-bin.000001", Relay},
		{engine.MySQL, "/d/undo_001", Undo},
		{engine.MySQL, "/d/shop/t#P#p0.ibd", Data},
		{engine.MySQL, "/var/log/mysql/error.log", ""},
		{engine.PostgreSQL, "/d/pg_xlog/0001", Redo},
		{engine.PostgreSQL, "/ts/PG_15_202209061/16384/1", Tablespace},
		{engine.PostgreSQL, "/ts/PG_15_202209061/pgsql_tmp/pgsql_tmp1.0", Temp},
		{engine.PostgreSQL, "/d/global/1262", Data},
		{engine.Oracle, "/oradata/X/control01.ctl", Control},
		{engine.Oracle, "/oradata/X/onlinelog/o1_mf_1_abc_.log", Redo},
		{engine.Oracle, "/oradata/X/o1_mf_temp_abc_.tmp", Temp},
		{engine.Oracle, "/oradata/X/temp01.dbf", Temp},
		{engine.Oracle, "/fra/X/archivelog/2024_01_01/o1_mf_1_7_x_.arc", Archive},
		{engine.Oracle, "/oradata/X/users01.dbf", Data},
		{engine.Oracle, "/u01/app/oracle/admin/X/trace/alert.trc", ""},
		{engine.MongoDB, "/d/WiredTigerLog.0000000001", Redo},
		{engine.MongoDB, "/d/index-1--2.wt", Data},
		{engine.SQLServer, "/d/tempdb.mdf", Temp},
		{engine.SQLServer, "/d/shop_log.ldf", Redo},
		{engine.Etcd, "/e/member/snap/db", Data},
		{"nosuch", "/x.ibd", ""},
	} {
		if got, known := kindOf(test.engine, test.name); got != test.want || known != (test.want != "") {
			t.Errorf("%s: %s is %q, want %q", test.engine, test.name, got, test.want)
		}
	}
}
