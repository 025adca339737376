package engine

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/users"
)

// Files is one kind of an instance's files and a place where it keeps them.
type Files struct {
	Kind FileKind
	Path string // of the directory or file, as the server sees it; symbolic links are not followed
	How  string // what tells: an option, a name in the data directory, "open"
	Open int    // how many files of this kind are open there; 0 where Path is what was configured
}

// FileKind says what files are for.
type FileKind string

// The kinds of files told apart here.
const (
	FilesData       FileKind = "data"
	FilesRedo       FileKind = "redo log" // WAL, journal, commit log: what a commit waits for
	FilesBinlog     FileKind = "binary log"
	FilesRelay      FileKind = "relay log"
	FilesUndo       FileKind = "undo"
	FilesTemp       FileKind = "temporary"
	FilesTablespace FileKind = "tablespace" // data that was put elsewhere
	FilesControl    FileKind = "control file"
	FilesArchive    FileKind = "archived log"
)

// FileSource tells of the files of processes. *host.Host is one.
type FileSource interface {
	Source
	FileLister
}

// SourceOf returns the readers of a host.
func SourceOf(h *host.Host) FileSource {
	return struct {
		procfs.FS
		sockets.Tables
		*users.Names
	}{h.Proc, h.Sockets, h.Users}
}

// FileLister lists directories and open files.
type FileLister interface {
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

// FilesOf finds where an instance keeps its files: what it was told, what its data directory shows, then what its
// processes have open. What cannot be read is left out; the error says that open files could not be read, as it is
// without root.
func FilesOf(inst Instance, procs []procfs.Process, src FileSource) ([]Files, error) {
	at, found := slices.BinarySearchFunc(procs, inst.Main.PID,
		func(p procfs.Process, pid int) int { return p.PID - pid })
	if !found || procs[at].ID != inst.Main {
		return nil, procfs.ErrExited
	}
	l := &fileLook{scene: &scene{src: src}, src: src, p: &procs[at], inst: &inst}
	if inst.Flavor != ASM && !inst.Sentinel() {
		l.add(FilesData, inst.DataDir, "data directory")
	}
	if find := fileFinders[inst.Engine]; find != nil {
		find(l)
	}
	err := l.open()
	return l.found, err
}

var fileFinders = map[string]func(*fileLook){
	MySQL: mysqlPlaces, PostgreSQL: postgresPlaces, MongoDB: mongoPlaces, ScyllaDB: scyllaPlaces,
	Cassandra: cassandraPlaces,
	SQLServer: sqlserverPlaces, ClickHouse: clickhousePlaces, Etcd: etcdPlaces,
}

type fileLook struct {
	*scene
	src   FileLister
	p     *procfs.Process
	inst  *Instance
	found []Files
}

// add notes a place once. A path that is not absolute cannot be found, and is none.
func (l *fileLook) add(kind FileKind, name, how string) {
	if !path.IsAbs(name) {
		return
	}
	name = path.Clean(name)
	if !slices.ContainsFunc(l.found, func(f Files) bool { return f.Kind == kind && f.Path == name }) {
		l.found = append(l.found, Files{Kind: kind, Path: name, How: how})
	}
}

// list returns the entries of a directory, none when it cannot be read.
func (l *fileLook) list(dir string) []fs.DirEntry {
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
func (l *fileLook) has(dir string, names ...string) (string, bool) {
	for _, e := range l.list(dir) {
		if slices.Contains(names, e.Name()) {
			return path.Join(dir, e.Name()), true
		}
	}
	return "", false
}

// links adds the symbolic links in a directory: data that was put elsewhere.
func (l *fileLook) links(dir, how string) {
	for _, e := range l.list(dir) {
		if e.Type()&fs.ModeSymlink != 0 {
			l.add(FilesTablespace, path.Join(dir, e.Name()), how)
		}
	}
}

// mysqlPlaces: "Server System Variables" and "InnoDB Startup Options" of the MySQL 8.4 and MariaDB 11 manuals.
func mysqlPlaces(l *fileLook) {
	opts := l.mysqlOptions(l.p)
	dir := l.inst.DataDir
	in := func(name string) string { return absoluteIn(dir, opts.value(name)) }
	l.add(FilesData, in("innodb_data_home_dir"), "innodb_data_home_dir")
	redo := firstOf(in("innodb_log_group_home_dir"), dir)
	if inner, ok := l.has(redo, "#innodb_redo"); ok { // 8.0.30 and later
		redo = inner
	}
	l.add(FilesRedo, redo, told(opts.value("innodb_log_group_home_dir"), "innodb_log_group_home_dir"))
	l.add(FilesUndo, in("innodb_undo_directory"), "innodb_undo_directory")
	for _, log := range []struct {
		kind FileKind
		name string
	}{{FilesBinlog, "log_bin"}, {FilesRelay, "relay_log"}} {
		if v := opts.value(log.name); v != "" && v != "0" && v != "1" && !strings.EqualFold(v, "off") &&
			!strings.EqualFold(v, "on") {
			l.add(log.kind, path.Dir(absoluteIn(dir, v)), log.name)
		}
	}
	temp, how := opts.value("tmpdir"), "tmpdir"
	if temp == "" {
		if temp, how = l.env(l.p.PID)["TMPDIR"], "TMPDIR"; temp == "" {
			temp, how = "/tmp", "without tmpdir"
		}
	}
	for _, t := range strings.Split(temp, ":") { // taken in turn
		l.add(FilesTemp, absoluteIn(dir, t), how)
	}
	l.add(FilesTemp, in("innodb_temp_tablespaces_dir"), "innodb_temp_tablespaces_dir")
	l.add(FilesTemp, in("innodb_tmpdir"), "innodb_tmpdir")
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
func mysqlTablespaces(l *fileLook, dir string) {
	schemas := 0
	for _, e := range l.list(dir) {
		name := path.Join(dir, e.Name())
		switch {
		case e.Type()&fs.ModeSymlink != 0 && !strings.HasPrefix(e.Name(), "#") && !strings.Contains(e.Name(), "."):
			l.add(FilesTablespace, name, "symbolic link")
		case e.IsDir() && schemas < maxSchemas:
			schemas++
			for _, table := range l.list(name) {
				file := path.Join(name, table.Name())
				switch {
				case table.Type()&fs.ModeSymlink != 0:
					l.add(FilesTablespace, file, "symbolic link")
				case strings.HasSuffix(table.Name(), ".isl"):
					l.add(FilesTablespace, strings.TrimSpace(string(l.file(l.p.PID, file))), "DATA DIRECTORY")
				}
			}
		}
	}
}

// postgresPlaces: "Database File Layout" of the manual.
func postgresPlaces(l *fileLook) {
	dir := l.inst.DataDir
	if wal, ok := l.has(dir, "pg_wal", "pg_xlog"); ok { // since and before 10
		l.add(FilesRedo, wal, path.Base(wal))
	}
	l.links(inDir(dir, "pg_tblspc"), "pg_tblspc")
	base := inDir(dir, "base")
	if temp, ok := l.has(base, "pgsql_tmp"); ok {
		base = temp
	}
	l.add(FilesTemp, base, "without temp_tablespaces")
	config := map[string]string{}
	parsePostgresConfig(string(l.file(l.p.PID, l.inst.Config)), config)
	parsePostgresConfig(string(l.file(l.p.PID, inDir(dir, "postgresql.auto.conf"))), config)
	if config["temp_tablespaces"] != "" { // by name, which the catalog alone can turn into a directory
		for i := range l.found {
			if l.found[i].Kind == FilesTemp {
				l.found[i].How = "temp_tablespaces names others, among the tablespaces"
			}
		}
	}
}

func mongoPlaces(l *fileLook) {
	if journal, ok := l.has(l.inst.DataDir, "journal"); ok {
		l.add(FilesRedo, journal, "journal")
	}
	l.links(l.inst.DataDir, "directoryPerDB")
}

// scyllaPlaces and cassandraPlaces: the comments in scylla.yaml and cassandra.yaml.
func scyllaPlaces(l *fileLook) { yamlPlaces(l, l.inst.DataDir) }

func cassandraPlaces(l *fileLook) {
	props, _ := javaOptions(l.p.Args)
	yamlPlaces(l, firstOf(props["cassandra.storagedir"], l.inst.DataDir))
}

func yamlPlaces(l *fileLook, home string) {
	text := string(l.file(l.p.PID, l.inst.Config))
	data := yamlList(text, "data_file_directories")
	if len(data) > 0 {
		l.found = slices.DeleteFunc(l.found, func(f Files) bool { return f.Kind == FilesData })
	}
	for _, dir := range data {
		l.add(FilesData, dir, "data_file_directories")
	}
	log := yamlScalars(text)["commitlog_directory"]
	l.add(FilesRedo, firstOf(log, inDir(home, "commitlog")), told(log, "commitlog_directory"))
}

// yamlList reads the texts of a list at the top level of a YAML file.
func yamlList(text, name string) []string {
	var list []string
	inside := false
	for line := range strings.Lines(text) {
		body := strings.TrimSpace(line)
		item, isItem := strings.CutPrefix(body, "- ")
		switch {
		case inside && isItem:
			list = append(list, yamlText(item))
		case body == "" || body[0] == '#':
		default:
			key, rest, _ := strings.Cut(line, ":")
			inside = key == name
			if inner, flow := strings.CutPrefix(strings.TrimSpace(rest), "["); inside && flow {
				for item := range strings.SplitSeq(strings.TrimRight(inner, " ]"), ",") {
					list = append(list, yamlText(item))
				}
			}
		}
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

func sqlserverPlaces(l *fileLook) {
	config := parseINI(string(l.file(l.p.PID, l.inst.Config)))
	l.add(FilesRedo, config["filelocation.defaultlogdir"], "filelocation.defaultlogdir")
}

func clickhousePlaces(l *fileLook) {
	config := parseClickHouseConfig(string(l.file(l.p.PID, l.inst.Config)))
	l.add(FilesTemp, config["tmp_path"], "tmp_path")
}

func etcdPlaces(l *fileLook) {
	opts := longOptions(l.p.Args, nil)
	wal := firstOf(opts["wal-dir"], l.env(l.p.PID)["ETCD_WAL_DIR"])
	l.add(FilesRedo, firstOf(absoluteIn(l.cwd(l.p.PID), wal), inDir(l.inst.DataDir, "member/wal")),
		told(wal, "wal-dir"))
}

// openKinds tell by its path what an open file is for. The first that fits counts; a file that none fits is not looked
// at. Sources are the engines' manuals on their files; Oracle's names are those of its own file management and of
// habit.
var openKinds = map[string][]struct {
	pattern *regexp.Regexp
	kind    FileKind
}{
	MySQL: {
		{regexp.MustCompile(`/#innodb_redo/|/ib_logfile\d+$`), FilesRedo},
		{regexp.MustCompile(`/ibdata\d+$`), FilesData},
		{regexp.MustCompile(`/ibtmp\d*$|/#innodb_temp/|/(ib|ML|MY|MA)[A-Za-z0-9_]{6,8}$`), FilesTemp},
		{regexp.MustCompile(`relay[^/]*\.\d{6,}$`), FilesRelay},
		{regexp.MustCompile(`\.\d{6,}$`), FilesBinlog},
		{regexp.MustCompile(`/undo_?\d+$|\.ibu$`), FilesUndo},
		{regexp.MustCompile(`\.(ibd|MYD|MYI|MAD|MAI)$`), FilesData},
	},
	PostgreSQL: {
		{regexp.MustCompile(`/pg_(wal|xlog)/`), FilesRedo},
		{regexp.MustCompile(`/pgsql_tmp/`), FilesTemp},
		{regexp.MustCompile(`/PG_\d+[^/]*/`), FilesTablespace},
		{regexp.MustCompile(`/(base|global)/`), FilesData},
	},
	Oracle: {
		{regexp.MustCompile(`(?i)\.ctl$|/control[^/]*$`), FilesControl},
		{regexp.MustCompile(`(?i)\.arc$|/archivelog/`), FilesArchive},
		{regexp.MustCompile(`(?i)/temp[^/]*\.(dbf|ora)$|_temp_[^/]*\.tmp$|/tempfile/`), FilesTemp},
		{regexp.MustCompile(`(?i)/redo[^/]*$|/onlinelog/|_\.log$`), FilesRedo},
		{regexp.MustCompile(`(?i)\.(dbf|ora|bct)$|/datafile/`), FilesData},
		// disks of ASM, raw devices; what is no block device is left out later
		{regexp.MustCompile(`^/dev/`), FilesData},
	},
	MongoDB: {{regexp.MustCompile(`/WiredTigerLog[^/]*$`), FilesRedo}, {regexp.MustCompile(`\.wt$`), FilesData}},
	Redis:   {{regexp.MustCompile(`\.(aof|rdb)$`), FilesData}},
	ScyllaDB: {{regexp.MustCompile(`/CommitLog-[^/]*$`), FilesRedo},
		{regexp.MustCompile(`-(Data|Index)\.db$`), FilesData}},
	Cassandra: {{regexp.MustCompile(`/CommitLog-[^/]*$`), FilesRedo},
		{regexp.MustCompile(`-(Data|Index)\.db$`), FilesData}},
	SQLServer: {{regexp.MustCompile(`(?i)/temp[^/]*\.(mdf|ndf|ldf)$`), FilesTemp},
		{regexp.MustCompile(`(?i)\.ldf$`), FilesRedo}, {regexp.MustCompile(`(?i)\.(mdf|ndf)$`), FilesData}},
	ClickHouse: {{regexp.MustCompile(`\.c?mrk\d?$|\.bin$`), FilesData}},
	Etcd:       {{regexp.MustCompile(`\.wal$`), FilesRedo}, {regexp.MustCompile(`/snap/db$`), FilesData}},
}

// open adds what the instance's processes have open, by kind and directory.
func (l *fileLook) open() error {
	var failed error
	type place struct {
		kind FileKind
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
			kind, known := kindOfFile(l.inst.Engine, name)
			if !known || seen[name] {
				continue
			}
			seen[name] = true
			dir := path.Dir(name)
			switch {
			case strings.HasPrefix(name, "/dev/"):
				dir = name // the device is the place
			case kind == FilesData && l.inst.Engine == MySQL && !below(name, l.inst.DataDir):
				kind = FilesTablespace
			}
			count[place{kind, dir}]++
		}
	}
	places := make([]place, 0, len(count))
	for p := range count {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int { return strings.Compare(string(a.kind)+a.dir, string(b.kind)+b.dir) })
	for _, p := range places {
		l.found = append(l.found, Files{Kind: p.kind, Path: p.dir, How: "open", Open: count[p]})
	}
	return failed
}

func below(name, dir string) bool {
	return dir != "" && strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

func kindOfFile(engine, name string) (FileKind, bool) {
	for _, k := range openKinds[engine] {
		if k.pattern.MatchString(name) {
			return k.kind, true
		}
	}
	return "", false
}

// holders are the processes whose open files tell: the main one first, then those that write, then others.
func (l *fileLook) holders() []int {
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
