package engine

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/procfs"
)

func (broken) ReadRootDir(int, string, int) ([]fs.DirEntry, error) { return nil, errBroken }
func (broken) OpenFiles(int) ([]string, error)                     { return nil, errBroken }

// filesIn lists the files of every instance of a host, one a line.
func filesIn(t *testing.T, h *host.Host) map[string][]string {
	t.Helper()
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, inst := range Recognise(procs, SourceOf(h)) {
		files, err := FilesOf(inst, procs, SourceOf(h))
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
		inst                             Instance
		want                             []string
	}{
		{
			"mysql", "mysqld --datadir=/var/lib/mysql", "/usr/sbin/mysqld", "/etc/my.cnf",
			"[mysqld]\ninnodb_log_group_home_dir=/redo\ninnodb_undo_directory=undo\nlog-bin=ON\nrelay_log=/relay/r\ntmpdir=/t1:/t2\ninnodb_tmpdir=/t3\ninnodb-data-home-dir=/sys1\n",
			Instance{Engine: MySQL, DataDir: data},
			[]string{"data /var/lib/mysql", "data /sys1", "redo log /redo", "undo /var/lib/mysql/undo",
				"relay log /relay", "temporary /t1", "temporary /t2", "temporary /t3"},
		},
		{
			"mysql without options", "mysqld", "/usr/sbin/mysqld", "/etc/my.cnf", "",
			Instance{Engine: MySQL, DataDir: data},
			[]string{"data /var/lib/mysql", "redo log /var/lib/mysql", "temporary /tmp"},
		},
		{
			"scylladb", "scylla", "/opt/scylladb/libexec/scylla", scyllaConfig,
			"data_file_directories:\n    - /d1/data\n    - '/d2/data'\ncommitlog_directory: " +
				"/fast/commitlog\nother:\n  - x\n",
			Instance{Engine: ScyllaDB, DataDir: "/var/lib/scylla", Config: scyllaConfig},
			[]string{"data /d1/data", "data /d2/data", "redo log /fast/commitlog"},
		},
		{
			"cassandra", "java -Dcassandra.storagedir=/srv/c " + cassandraClass, "/usr/bin/java", "/etc/c.yaml",
			"data_file_directories: [/d1, \"/d2\"]\n",
			Instance{Engine: Cassandra, DataDir: "/d1", Config: "/etc/c.yaml"},
			[]string{"data /d1", "data /d2", "redo log /srv/c/commitlog"},
		},
		{
			"sqlserver", "sqlservr", "/opt/mssql/bin/sqlservr", sqlserverConfig,
			"[filelocation]\ndefaultlogdir = /log\n",
			Instance{Engine: SQLServer, DataDir: "/var/opt/mssql", Config: sqlserverConfig},
			[]string{"data /var/opt/mssql", "redo log /log"},
		},
		{
			"clickhouse", "clickhouse-server", "/usr/bin/clickhouse", "/c.xml",
			"<clickhouse><tmp_path>/fast/tmp/</tmp_path></clickhouse>",
			Instance{Engine: ClickHouse, DataDir: "/var/lib/clickhouse", Config: "/c.xml"},
			[]string{"data /var/lib/clickhouse", "temporary /fast/tmp"},
		},
		{
			"etcd", "etcd --data-dir /e --wal-dir /w", "/usr/bin/etcd", "/none", "",
			Instance{Engine: Etcd, DataDir: "/e"}, []string{"data /e", "redo log /w"},
		},
		{
			"asm", "asm_pmon_+ASM", "/u01/bin/oracle", "/none", "", Instance{Engine: Oracle, Flavor: ASM, SID: "+ASM"},
			nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := process(100, 1, test.exe, "x", test.cmdline)
			test.inst.Main = p.ID
			src := struct {
				fake
				noLists
			}{fake{files: map[string]string{test.config: test.text}}, noLists{}}
			files, err := FilesOf(test.inst, []procfs.Process{p}, src)
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

// noLists lists nothing.
type noLists struct{}

func (noLists) ReadRootDir(int, string, int) ([]fs.DirEntry, error) { return nil, errBroken }
func (noLists) OpenFiles(int) ([]string, error)                     { return nil, errBroken }

func TestFilesOfAnother(t *testing.T) {
	inst := Instance{Engine: MySQL, Main: procfs.ID{PID: 100, Start: 7}}
	if _, err := FilesOf(inst, []procfs.Process{process(100, 1, "/usr/sbin/mysqld", "mysqld", "mysqld")},
		broken{}); err == nil {
		t.Error("the files of a process with a reused number are told")
	}
}

func TestKindOfFile(t *testing.T) {
	for _, test := range []struct {
		engine, name string
		want         FileKind
	}{
		{MySQL, "/d/ib_logfile0", FilesRedo},
		{MySQL, "/d/#innodb_redo/#ib_redo7", FilesRedo},
		{MySQL, "/d/ibdata1", FilesData},
		{MySQL, "/d/ibdata12", FilesData},
		{MySQL, "/d/ibtmp1", FilesTemp},
		{MySQL, "/tmp/ibXyZ123", FilesTemp},
		{MySQL, "/d/mysql-bin.000001", FilesBinlog},
		{MySQL, "/d/host-relay-bin.000001", FilesRelay},
		{MySQL, "/d/undo_001", FilesUndo},
		{MySQL, "/d/shop/t#P#p0.ibd", FilesData},
		{MySQL, "/var/log/mysql/error.log", ""},
		{PostgreSQL, "/d/pg_xlog/0001", FilesRedo},
		{PostgreSQL, "/ts/PG_15_202209061/16384/1", FilesTablespace},
		{PostgreSQL, "/ts/PG_15_202209061/pgsql_tmp/pgsql_tmp1.0", FilesTemp},
		{PostgreSQL, "/d/global/1262", FilesData},
		{Oracle, "/oradata/X/control01.ctl", FilesControl},
		{Oracle, "/oradata/X/onlinelog/o1_mf_1_abc_.log", FilesRedo},
		{Oracle, "/oradata/X/o1_mf_temp_abc_.tmp", FilesTemp},
		{Oracle, "/oradata/X/temp01.dbf", FilesTemp},
		{Oracle, "/fra/X/archivelog/2024_01_01/o1_mf_1_7_x_.arc", FilesArchive},
		{Oracle, "/oradata/X/users01.dbf", FilesData},
		{Oracle, "/u01/app/oracle/admin/X/trace/alert.trc", ""},
		{MongoDB, "/d/WiredTigerLog.0000000001", FilesRedo},
		{MongoDB, "/d/index-1--2.wt", FilesData},
		{SQLServer, "/d/tempdb.mdf", FilesTemp},
		{SQLServer, "/d/shop_log.ldf", FilesRedo},
		{Etcd, "/e/member/snap/db", FilesData},
		{"nosuch", "/x.ibd", ""},
	} {
		if got, known := kindOfFile(test.engine, test.name); got != test.want || known != (test.want != "") {
			t.Errorf("%s: %s is %q, want %q", test.engine, test.name, got, test.want)
		}
	}
}
