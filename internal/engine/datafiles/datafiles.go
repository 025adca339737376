// Package datafiles finds where a database server keeps its files, by kind: data, redo log, temporary and others.
//
// It asks what the server was told, what its data directory shows, and which files its processes have open. A new
// engine has a function in finders, and its names of files in openKinds. Of reads and keeps nothing; it may be called
// from several goroutines.
package datafiles

import (
	"cmp"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// Files is one kind of an instance's files and a place where it keeps them.
type Files struct {
	Kind Kind
	Path string // of the directory or file, as the server sees it; symbolic links are not followed
	How  string // what tells: an option, a name in the data directory, "open"
	Open int    // how many files of this kind are open there; 0 where Path is what was configured
}

// Kind says what files are for.
type Kind string

// The kinds of files told apart here.
const (
	Data       Kind = "data"
	Redo       Kind = "redo log" // WAL, journal, commit log: what a commit waits for
	Binlog     Kind = "binary log"
	Relay      Kind = "relay log"
	Undo       Kind = "undo"
	Temp       Kind = "temporary"
	Tablespace Kind = "tablespace" // data that was put elsewhere
	Control    Kind = "control file"
	Archive    Kind = "archived log"
)

// Source tells of the files of processes. recognise.HostSource is one.
type Source interface {
	options.ProcessSource
	Lister
}

// Lister lists directories and open files.
type Lister interface {
	// ReadRootDir returns at most max entries of a directory as the process sees it.
	ReadRootDir(pid int, dir string, max int) ([]fs.DirEntry, error)
	// OpenFiles returns the paths of the files and devices that a process has open.
	OpenFiles(pid int) ([]string, error)
}

// Bounds on how far an instance's files are looked for.
const (
	maxEntries = 20000 // of one directory
	maxSchemas = 2000  // directories in a data directory
	maxHolders = 24    // processes of one instance whose open files are read
)

// Of finds where an instance keeps its files: what it was told, what its data directory shows, then what its
// processes have open. What cannot be read is left out; the error says that open files could not be read, as it is
// without root.
func Of(inst engine.Instance, procs []procfs.Process, src Source) ([]Files, error) {
	at, found := slices.BinarySearchFunc(procs, inst.Main.PID,
		func(p procfs.Process, pid int) int { return p.PID - pid })
	if !found || procs[at].ID != inst.Main {
		return nil, procfs.ErrExited
	}
	l := &search{Reader: options.Reader{Source: src}, src: src, p: &procs[at], inst: &inst}
	if inst.Flavor != engine.ASM && !inst.Sentinel() {
		l.add(Data, inst.DataDir, "data directory")
	}
	if find := finders[inst.Engine]; find != nil {
		find(l)
	}
	err := l.open()
	return l.found, err
}

var finders = map[string]func(*search){
	engine.Cassandra: cassandraPlaces, engine.ClickHouse: clickhousePlaces, engine.Etcd: etcdPlaces,
	engine.MongoDB: mongoPlaces, engine.MySQL: mysqlPlaces, engine.PostgreSQL: postgresPlaces,
	engine.SQLServer: sqlserverPlaces, engine.ScyllaDB: scyllaPlaces,
}

type search struct {
	options.Reader
	src   Lister
	p     *procfs.Process
	inst  *engine.Instance
	found []Files
}

// add notes a place once. A path that is not absolute cannot be found, and is none.
func (l *search) add(kind Kind, name, how string) {
	if !path.IsAbs(name) {
		return
	}
	name = path.Clean(name)
	if !slices.ContainsFunc(l.found, func(f Files) bool { return f.Kind == kind && f.Path == name }) {
		l.found = append(l.found, Files{Kind: kind, Path: name, How: how})
	}
}

// list returns the entries of a directory, none when it cannot be read.
func (l *search) list(dir string) []fs.DirEntry {
	if !path.IsAbs(dir) {
		return nil
	}
	entries, err := l.src.ReadRootDir(l.p.PID, dir, maxEntries)
	if err != nil {
		return nil
	}
	return entries
}

// has says whether a directory has an entry, and gives its path.
func (l *search) has(dir string, names ...string) (string, bool) {
	for _, e := range l.list(dir) {
		if slices.Contains(names, e.Name()) {
			return path.Join(dir, e.Name()), true
		}
	}
	return "", false
}

// links adds the symbolic links in a directory: data that was put elsewhere.
func (l *search) links(dir, how string) {
	for _, e := range l.list(dir) {
		if e.Type()&fs.ModeSymlink != 0 {
			l.add(Tablespace, path.Join(dir, e.Name()), how)
		}
	}
}

// mysqlPlaces: "Server System Variables" and "InnoDB Startup Options" of the MySQL 8.4 and MariaDB 11 manuals.
func mysqlPlaces(l *search) {
	opts := l.MySQL(l.p)
	dir := l.inst.DataDir
	in := func(name string) string { return options.Absolute(dir, opts.Value(name)) }
	l.add(Data, in("innodb_data_home_dir"), "innodb_data_home_dir")
	redo := cmp.Or(in("innodb_log_group_home_dir"), dir)
	if inner, ok := l.has(redo, "#innodb_redo"); ok { // 8.0.30 and later
		redo = inner
	}
	l.add(Redo, redo, told(opts.Value("innodb_log_group_home_dir"), "innodb_log_group_home_dir"))
	l.add(Undo, in("innodb_undo_directory"), "innodb_undo_directory")
	for _, log := range []struct {
		kind Kind
		name string
	}{{Binlog, "log_bin"}, {Relay, "relay_log"}} {
		if v := opts.Value(log.name); v != "" && v != "0" && v != "1" && !strings.EqualFold(v, "off") &&
			!strings.EqualFold(v, "on") {
			l.add(log.kind, path.Dir(options.Absolute(dir, v)), log.name)
		}
	}
	temp, how := opts.Value("tmpdir"), "tmpdir"
	if temp == "" {
		if temp, how = l.Env(l.p.PID)["TMPDIR"], "TMPDIR"; temp == "" {
			temp, how = "/tmp", "without tmpdir"
		}
	}
	for _, t := range strings.Split(temp, ":") { // taken in turn
		l.add(Temp, options.Absolute(dir, t), how)
	}
	l.add(Temp, in("innodb_temp_tablespaces_dir"), "innodb_temp_tablespaces_dir")
	l.add(Temp, in("innodb_tmpdir"), "innodb_tmpdir")
	mysqlTablespaces(l, dir)
}

func told(value, name string) string {
	if value == "" {
		return "without " + name
	}
	return name
}

// mysqlTablespaces finds what lies outside of the data directory: databases and tables behind symbolic links, and
// tables made with DATA DIRECTORY, whose place a file NAME.isl holds up to 5.7 and in MariaDB; 8.0 keeps it in its
// dictionary.
func mysqlTablespaces(l *search, dir string) {
	schemas := 0
	for _, e := range l.list(dir) {
		name := path.Join(dir, e.Name())
		switch {
		case e.Type()&fs.ModeSymlink != 0 && !strings.HasPrefix(e.Name(), "#") && !strings.Contains(e.Name(), "."):
			l.add(Tablespace, name, "symbolic link")
		case e.IsDir() && schemas < maxSchemas:
			schemas++
			for _, table := range l.list(name) {
				file := path.Join(name, table.Name())
				switch {
				case table.Type()&fs.ModeSymlink != 0:
					l.add(Tablespace, file, "symbolic link")
				case strings.HasSuffix(table.Name(), ".isl"):
					l.add(Tablespace, strings.TrimSpace(string(l.File(l.p.PID, file))), "DATA DIRECTORY")
				}
			}
		}
	}
}

// postgresPlaces: "Database File Layout" of the manual.
func postgresPlaces(l *search) {
	dir := l.inst.DataDir
	if wal, ok := l.has(dir, "pg_wal", "pg_xlog"); ok { // since and before 10
		l.add(Redo, wal, path.Base(wal))
	}
	l.links(options.Join(dir, "pg_tblspc"), "pg_tblspc")
	base := options.Join(dir, "base")
	if temp, ok := l.has(base, "pgsql_tmp"); ok {
		base = temp
	}
	l.add(Temp, base, "without temp_tablespaces")
	config := map[string]string{}
	options.ParsePostgresConfig(string(l.File(l.p.PID, l.inst.Config)), config)
	options.ParsePostgresConfig(string(l.File(l.p.PID, options.Join(dir, "postgresql.auto.conf"))), config)
	if config["temp_tablespaces"] != "" { // by name, which the catalog alone can turn into a directory
		for i := range l.found {
			if l.found[i].Kind == Temp {
				l.found[i].How = "temp_tablespaces names others, among the tablespaces"
			}
		}
	}
}

func mongoPlaces(l *search) {
	if journal, ok := l.has(l.inst.DataDir, "journal"); ok {
		l.add(Redo, journal, "journal")
	}
	l.links(l.inst.DataDir, "directoryPerDB")
}

// scyllaPlaces and cassandraPlaces: the comments in scylla.yaml and cassandra.yaml.
func scyllaPlaces(l *search) { yamlPlaces(l, l.inst.DataDir) }

func cassandraPlaces(l *search) {
	props, _ := options.JavaOptions(l.p.Args)
	yamlPlaces(l, cmp.Or(props["cassandra.storagedir"], l.inst.DataDir))
}

func yamlPlaces(l *search, home string) {
	text := string(l.File(l.p.PID, l.inst.Config))
	data := options.ParseYAMLList(text, "data_file_directories")
	if len(data) > 0 {
		l.found = slices.DeleteFunc(l.found, func(f Files) bool { return f.Kind == Data })
	}
	for _, dir := range data {
		l.add(Data, dir, "data_file_directories")
	}
	log := options.ParseYAML(text)["commitlog_directory"]
	l.add(Redo, cmp.Or(log, options.Join(home, "commitlog")), told(log, "commitlog_directory"))
}

func sqlserverPlaces(l *search) {
	config := options.ParseINI(string(l.File(l.p.PID, l.inst.Config)))
	l.add(Redo, config["filelocation.defaultlogdir"], "filelocation.defaultlogdir")
}

func clickhousePlaces(l *search) {
	config := options.ParseClickHouseConfig(string(l.File(l.p.PID, l.inst.Config)))
	l.add(Temp, config["tmp_path"], "tmp_path")
}

func etcdPlaces(l *search) {
	opts := options.LongOptions(l.p.Args, nil)
	wal := cmp.Or(opts["wal-dir"], l.Env(l.p.PID)["ETCD_WAL_DIR"])
	l.add(Redo, cmp.Or(options.Absolute(l.Cwd(l.p.PID), wal), options.Join(l.inst.DataDir, "member/wal")),
		told(wal, "wal-dir"))
}

// openKinds tell by its path what an open file is for. The first that fits counts; a file that none fits is not looked
// at. Sources are the engines' manuals on their files; Oracle's names are those of its own file management and of
// habit.
var openKinds = map[string][]struct {
	pattern *regexp.Regexp
	kind    Kind
}{
	engine.MySQL: {
		{regexp.MustCompile(`/#innodb_redo/|/ib_logfile\d+$|/aria_log\.\d+$`), Redo},
		{regexp.MustCompile(`/ibdata\d+$`), Data},
		{regexp.MustCompile(`/ibtmp\d*$|/#innodb_temp/|/(ib|ML|MY|MA)[A-Za-z0-9_]{6,8}$`), Temp},
		{regexp.MustCompile(`relay[^/]*\.\d{6,}$`), Relay},
		{regexp.MustCompile(`\.\d{6,}$`), Binlog},
		{regexp.MustCompile(`/undo_?\d+$|\.ibu$`), Undo},
		{regexp.MustCompile(`\.(ibd|MYD|MYI|MAD|MAI)$`), Data},
	},
	engine.PostgreSQL: {
		{regexp.MustCompile(`/pg_(wal|xlog)/`), Redo},
		{regexp.MustCompile(`/pgsql_tmp/`), Temp},
		{regexp.MustCompile(`/PG_\d+[^/]*/`), Tablespace},
		{regexp.MustCompile(`/(base|global)/`), Data},
	},
	engine.Oracle: {
		{regexp.MustCompile(`(?i)\.ctl$|/control[^/]*$`), Control},
		{regexp.MustCompile(`(?i)\.arc$|/archivelog/`), Archive},
		{regexp.MustCompile(`(?i)/temp[^/]*\.(dbf|ora)$|_temp_[^/]*\.tmp$|/tempfile/`), Temp},
		{regexp.MustCompile(`(?i)/redo[^/]*$|/onlinelog/|_\.log$`), Redo},
		{regexp.MustCompile(`(?i)\.(dbf|ora|bct)$|/datafile/`), Data},
		// disks of ASM, raw devices; what is no block device is left out later
		{regexp.MustCompile(`^/dev/`), Data},
	},
	engine.MongoDB: {{regexp.MustCompile(`/WiredTigerLog[^/]*$`), Redo}, {regexp.MustCompile(`\.wt$`), Data}},
	engine.Redis:   {{regexp.MustCompile(`\.(aof|rdb)$`), Data}},
	engine.ScyllaDB: {{regexp.MustCompile(`/CommitLog-[^/]*$`), Redo},
		{regexp.MustCompile(`-(Data|Index)\.db$`), Data}},
	engine.Cassandra: {{regexp.MustCompile(`/CommitLog-[^/]*$`), Redo},
		{regexp.MustCompile(`-(Data|Index)\.db$`), Data}},
	engine.SQLServer: {{regexp.MustCompile(`(?i)/temp[^/]*\.(mdf|ndf|ldf)$`), Temp},
		{regexp.MustCompile(`(?i)\.ldf$`), Redo}, {regexp.MustCompile(`(?i)\.(mdf|ndf)$`), Data}},
	engine.ClickHouse: {{regexp.MustCompile(`\.c?mrk\d?$|\.bin$`), Data}},
	engine.Etcd:       {{regexp.MustCompile(`\.wal$`), Redo}, {regexp.MustCompile(`/snap/db$`), Data}},
}

// open adds what the instance's processes have open, by kind and directory.
func (l *search) open() error {
	var failed error
	type place struct {
		kind Kind
		dir  string
	}
	count := map[place]int{}
	seen := map[string]bool{}
	for _, pid := range l.holders() {
		names, err := l.src.OpenFiles(pid)
		if err != nil {
			if pid == l.p.PID {
				failed = err
			}
			continue
		}
		for _, name := range names {
			kind, known := kindOf(l.inst.Engine, name)
			if !known || seen[name] {
				continue
			}
			seen[name] = true
			dir := path.Dir(name)
			switch {
			case strings.HasPrefix(name, "/dev/"):
				dir = name // the device is the place
			case kind == Data && l.inst.Engine == engine.MySQL && !below(name, l.inst.DataDir):
				kind = Tablespace
			}
			count[place{kind, dir}]++
		}
	}
	byKind := func(a, b place) int { return strings.Compare(string(a.kind)+a.dir, string(b.kind)+b.dir) }
	for _, p := range slices.SortedFunc(maps.Keys(count), byKind) {
		l.found = append(l.found, Files{Kind: p.kind, Path: p.dir, How: "open", Open: count[p]})
	}
	return failed
}

func below(name, dir string) bool {
	return dir != "" && strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func kindOf(engine, name string) (Kind, bool) {
	for _, k := range openKinds[engine] {
		if k.pattern.MatchString(name) {
			return k.kind, true
		}
	}
	return "", false
}

// holders are the processes whose open files tell: the main one first, then those that write, then others.
func (l *search) holders() []int {
	pids := []int{l.p.PID}
	for _, sessions := range []bool{false, true} {
		for _, m := range l.inst.Members {
			if is := slices.Contains([]string{"backends", "sessions", "local", "parallel", "shared"},
				m.Part); is != sessions || len(pids) >= maxHolders || m.ID == l.inst.Main {
				continue
			}
			pids = append(pids, m.ID.PID)
		}
	}
	return pids
}
