package engine

import (
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/terminal"
)

// The kinds of helpers, as a policy's `helper:` names them.
const (
	HelperAgent    = "agent"    // managers and monitors that stay
	HelperBackup   = "backup"   // whatever copies or dumps a database
	HelperExporter = "exporter" // answers a monitoring system
	HelperListener = "listener" // takes connections for instances, maybe for several
	HelperRestore  = "restore"  // whatever loads a dump
	HelperSave     = "save"     // the child of Redis that writes a snapshot
	HelperTool     = "tool"     // checks, repairs and changes of schema
)

// HelperKinds returns the kinds of helpers, sorted.
func HelperKinds() []string {
	return []string{HelperAgent, HelperBackup, HelperExporter, HelperListener, HelperRestore, HelperSave, HelperTool}
}

// Helper is a program that serves an instance.
type Helper struct {
	ID   procfs.ID `json:"id"`
	Kind string    `json:"kind"` // one of HelperKinds
	Tool string    `json:"tool"` // "pg_basebackup"
	// Sure says that it serves this instance. Else it may, and nothing tells which of several: it is in the
	// lists of all of them.
	Sure bool `json:"sure"`
	// How says what shows it: "--port=3306", "process 812, of the instance, started it".
	How string `json:"how"`
	// Serves is how many instances of this host it serves; more than one for a shared listener.
	Serves int  `json:"serves"`
	Rate   Rate `json:"rate"`
}

// Rate is what a helper can do by itself to go slower.
type Rate struct {
	Option string `json:"option,omitempty"` // "--max-rate"; "" for none
	// Given is the option as it was given on the command line or in the environment, "" when it was not seen there.
	Given string `json:"given,omitempty"`
}

// tool is one helper program.
type tool struct {
	name        string
	kind        string
	engines     []string // that it serves; nil: no instance in particular
	executables []string // base names of its file
	scripts     []string // of the file that an interpreter runs, for a script
	// words are arguments of which the program needs one to be this helper; nil: it always is.
	words []string
	ask   *dialect
	rate  rateOption
}

// rateOption is how a tool is told to go slower.
type rateOption struct {
	text    string   // for people
	options []string // as they are given: "--throttle", "-r"
	env     []string
}

var (
	mysqlOnly  = []string{MySQL}
	pgOnly     = []string{PostgreSQL}
	oracleOnly = []string{Oracle}
	cqlEngines = []string{ScyllaDB, Cassandra}
	innodbRate = rateOption{text: "--throttle", options: []string{"--throttle"}}
)

// tools are the helper programs, by engine. Their names and options are those of their documentation; which were
// seen running stands in docs/engines.md.
var tools = []tool{
	{name: "mariabackup", kind: HelperBackup, engines: mysqlOnly,
		executables: []string{"mariabackup", "mariadb-backup"}, ask: &mysqlDialect, rate: innodbRate},
	{name: "xtrabackup", kind: HelperBackup, engines: mysqlOnly, executables: []string{"xtrabackup"},
		scripts: []string{"innobackupex"}, ask: &mysqlDialect, rate: innodbRate},
	{name: "mysqldump", kind: HelperBackup, engines: mysqlOnly, executables: []string{"mysqldump", "mariadb-dump"},
		ask: &mysqlDialect},
	{name: "mysqlpump", kind: HelperBackup, engines: mysqlOnly, executables: []string{"mysqlpump"}, ask: &mysqlDialect},
	{name: "mydumper", kind: HelperBackup, engines: mysqlOnly, executables: []string{"mydumper"}, ask: &mysqlDialect},
	{name: "mysqlbinlog", kind: HelperBackup, engines: mysqlOnly,
		executables: []string{"mysqlbinlog", "mariadb-binlog"}, ask: &mysqlDialect},
	{name: "myloader", kind: HelperRestore, engines: mysqlOnly, executables: []string{"myloader"}, ask: &mysqlDialect},
	{name: "mysqlimport", kind: HelperRestore, engines: mysqlOnly,
		executables: []string{"mysqlimport", "mariadb-import"}, ask: &mysqlDialect},
	{name: "mysqlcheck", kind: HelperTool, engines: mysqlOnly, executables: []string{"mysqlcheck", "mariadb-check"},
		ask: &mysqlDialect},
	{name: "gh-ost", kind: HelperTool, engines: mysqlOnly, executables: []string{"gh-ost"}, ask: &goMySQLDialect,
		rate: rateOption{text: "--max-load or --nice-ratio",
			options: []string{"--max-load", "-max-load", "--nice-ratio", "-nice-ratio"}}},
	{name: "mysqld_exporter", kind: HelperExporter, engines: mysqlOnly,
		executables: []string{"mysqld_exporter", "prometheus-mysqld-exporter", "mysqld_exporter-", "prometheus-mysq"},
		ask:         &goMySQLDialect},

	{name: "pg_dump", kind: HelperBackup, engines: pgOnly, executables: []string{"pg_dump", "pg_dumpall"},
		ask: &pgDialect},
	{name: "pg_basebackup", kind: HelperBackup, engines: pgOnly, executables: []string{"pg_basebackup"},
		ask:  &pgDialect,
		rate: rateOption{text: "--max-rate", options: []string{"--max-rate", "-r"}}},
	{name: "pg_receivewal", kind: HelperBackup, engines: pgOnly,
		executables: []string{"pg_receivewal", "pg_receivexlog"}, ask: &pgDialect},
	{name: "pgbackrest", kind: HelperBackup, engines: pgOnly, executables: []string{"pgbackrest"},
		ask: &pgbackrestDialect},
	{name: "wal-g", kind: HelperBackup, engines: []string{PostgreSQL, MySQL, MongoDB, Redis},
		executables: []string{"wal-g", "wal-g-pg", "wal-g-mysql", "wal-g-mongo", "wal-g-redis"}, ask: &walgDialect,
		rate: rateOption{text: "WALG_DISK_RATE_LIMIT or WALG_NETWORK_RATE_LIMIT",
			env: []string{"WALG_DISK_RATE_LIMIT", "WALG_NETWORK_RATE_LIMIT"}}},
	{name: "wal-e", kind: HelperBackup, engines: pgOnly, scripts: []string{"wal-e"}, ask: &walgDialect,
		rate: rateOption{text: "--cluster-read-rate-limit", options: []string{"--cluster-read-rate-limit"}}},
	{name: "barman", kind: HelperBackup, engines: pgOnly,
		scripts: []string{"barman", "barman-wal-archive", "barman-cloud-backup", "barman-cloud-wal-archive"},
		ask:     &barmanDialect,
		rate: rateOption{text: "--bwlimit, or bandwidth_limit in its configuration",
			options: []string{"--bwlimit"}}},
	{name: "pg_probackup", kind: HelperBackup, engines: pgOnly, executables: []string{"pg_probackup"}, ask: &pgDialect},
	{name: "pg_restore", kind: HelperRestore, engines: pgOnly, executables: []string{"pg_restore"}, ask: &pgDialect},
	{name: "pg_repack", kind: HelperTool, engines: pgOnly,
		executables: []string{"pg_repack", "vacuumdb", "reindexdb", "pg_amcheck"}, ask: &pgDialect},
	{name: "postgres_exporter", kind: HelperExporter, engines: pgOnly,
		executables: []string{"postgres_exporter", "prometheus-postgres-exporter", "postgres_export",
			"prometheus-post"}, ask: &pgDialect},

	{name: "rman", kind: HelperBackup, engines: oracleOnly, executables: []string{"rman"}, ask: &oracleDialect,
		rate: rateOption{text: "RATE of a channel, or BACKUP DURATION … MINIMIZE LOAD"}},
	{name: "expdp", kind: HelperBackup, engines: oracleOnly, executables: []string{"expdp", "exp"},
		ask: &oracleDialect},
	{name: "impdp", kind: HelperRestore, engines: oracleOnly, executables: []string{"impdp", "imp", "sqlldr"},
		ask: &oracleDialect},
	{name: "tnslsnr", kind: HelperListener, engines: oracleOnly, executables: []string{"tnslsnr"}, ask: &oracleDialect},
	{name: "oracledb_exporter", kind: HelperExporter, engines: oracleOnly,
		executables: []string{"oracledb_exporter", "oracledb_export"}, ask: &oracleDialect},

	{name: "mongodump", kind: HelperBackup, engines: []string{MongoDB},
		executables: []string{"mongodump", "mongoexport"}, ask: &mongoDialect},
	{name: "mongorestore", kind: HelperRestore, engines: []string{MongoDB},
		executables: []string{"mongorestore", "mongoimport"}, ask: &mongoDialect},
	{name: "pbm-agent", kind: HelperAgent, engines: []string{MongoDB}, executables: []string{"pbm-agent"},
		ask: &mongoDialect},
	{name: "mongodb_exporter", kind: HelperExporter, engines: []string{MongoDB},
		executables: []string{"mongodb_exporter", "mongodb_exporte"}, ask: &mongoDialect},
	{name: "mongodb-mms-automation-agent", kind: HelperAgent, engines: []string{MongoDB},
		executables: []string{"mongodb-mms-automation-agent", "mongodb-mms-aut"}, ask: &mongoDialect},

	{name: "redis-cli", kind: HelperBackup, engines: []string{Redis}, executables: []string{"redis-cli", "valkey-cli"},
		words: []string{"--rdb", "--functions-rdb"}, ask: &redisDialect},
	{name: "redis_exporter", kind: HelperExporter, engines: []string{Redis},
		executables: []string{"redis_exporter", "prometheus-redis-exporter", "prometheus-redi"}, ask: &redisDialect},

	{name: "scylla-jmx", kind: HelperAgent, engines: []string{ScyllaDB}, executables: []string{"scylla-jmx"},
		scripts: []string{"scylla-jmx", "scylla-jmx-1.0.jar"}},
	{name: "scylla-manager-agent", kind: HelperAgent, engines: []string{ScyllaDB},
		executables: []string{"scylla-manager-agent", "scylla-manager-"},
		rate:        rateOption{text: "rate limit of the backup task (sctool backup --rate-limit)"}},
	{name: "scylla-housekeeping", kind: HelperAgent, engines: []string{ScyllaDB},
		scripts: []string{"scylla-housekeeping", "scylla-housekeeping.py"}},
	{name: "nodetool", kind: HelperTool, engines: cqlEngines, scripts: []string{"org.apache.cassandra.tools.NodeTool"},
		ask: &cqlDialect},
	{name: "scylla nodetool", kind: HelperTool, engines: []string{ScyllaDB}, executables: []string{"scylla"},
		words: []string{"nodetool", "sstable"}},
	{name: "medusa", kind: HelperBackup, engines: []string{Cassandra}, scripts: []string{"medusa"}},

	{name: "clickhouse-backup", kind: HelperBackup, engines: []string{ClickHouse},
		executables: []string{"clickhouse-backup", "clickhouse-back"}, ask: &clickhouseDialect,
		rate: rateOption{text: "upload_max_bytes_per_second", env: []string{"UPLOAD_MAX_BYTES_PER_SECOND"}}},
	{name: "etcdctl", kind: HelperBackup, engines: []string{Etcd}, executables: []string{"etcdctl", "etcdutl"},
		words: []string{"snapshot", "backup"}, ask: &etcdDialect},
	{name: "etcdctl", kind: HelperTool, engines: []string{Etcd}, executables: []string{"etcdctl", "etcdutl"},
		words: []string{"defrag", "compact", "compaction", "check"}, ask: &etcdDialect},

	{name: "pmm-agent", kind: HelperAgent, executables: []string{"pmm-agent"}},
	{name: "node_exporter", kind: HelperExporter, executables: []string{"node_exporter", "prometheus-node-exporter",
		"prometheus-node"}},
}

// toolkit are the programs of Percona Toolkit, which are Perl scripts for MySQL that begin with "pt-". Those that
// look at the host and not at a server are no helpers.
var (
	toolkit = tool{name: "pt-*", kind: HelperTool, engines: mysqlOnly, ask: &toolkitDialect,
		rate: rateOption{text: "--max-load, --sleep or --chunk-time",
			options: []string{"--max-load", "--sleep", "--chunk-time"}}}
	toolkitAgents = []string{"pt-heartbeat", "pt-kill", "pt-stalk", "pt-deadlock-logger", "pt-fk-error-logger",
		"pt-slave-delay", "pt-slave-restart"}
	toolkitOthers = []string{"pt-align", "pt-diskstats", "pt-fifo-split", "pt-ioprofile", "pt-mext", "pt-pmp",
		"pt-sift", "pt-summary", "pt-fingerprint",
		"pt-mongodb-query-digest", "pt-mongodb-summary", "pt-pg-summary"}
)

// byScript finds the tools that an interpreter runs.
var byScript = func() map[string]*tool {
	m := make(map[string]*tool)
	for i := range tools {
		for _, name := range tools[i].scripts {
			m[name] = &tools[i]
		}
	}
	return m
}()

// interpreter says whether an executable runs programs that are named by an argument: "python3.11", "perl",
// "bash". A version may follow the name.
func interpreter(name string) bool {
	for _, known := range []string{"python", "perl", "java", "ruby", "bash", "dash", "sh"} {
		if rest, is := strings.CutPrefix(name, known); is && strings.Trim(rest, "0123456789.") == "" {
			return true
		}
	}
	return false
}

// toolOf returns the helper program that a process runs, nil when it runs none.
func toolOf(p *procfs.Process, what program) *tool {
	if what.script {
		return scriptOf(p)
	}
	for _, t := range what.tools {
		if t.words == nil || slices.ContainsFunc(p.Args[1:],
			func(a string) bool { return slices.Contains(t.words, a) }) {
			return t
		}
	}
	return nil
}

// scriptOf looks at the file that an interpreter was given: its first argument that is no option. A Java virtual
// machine has many options; its main class or archive is looked for among all of them.
func scriptOf(p *procfs.Process) *tool {
	java := strings.HasPrefix(programName(p), "java") || strings.HasPrefix(path.Base(p.Exe), "java")
	for i, arg := range p.Args {
		if i == 0 && !java {
			continue // its own name; Scylla's JMX server runs Java under a name of its own
		}
		if arg == "" || arg[0] == '-' {
			continue
		}
		name := path.Base(arg)
		if t := byScript[name]; t != nil {
			return t
		}
		if !java {
			if strings.HasPrefix(name, "pt-") && !slices.Contains(toolkitOthers, name) {
				return toolkitTool(name)
			}
			return nil
		}
	}
	return nil
}

// toolkitTool is a tool of Percona Toolkit under its own name.
func toolkitTool(name string) *tool {
	t := toolkit
	t.name = terminal.Printable(name[:min(len(name), 40)]) // it is whatever a script is called
	if slices.Contains(toolkitAgents, name) {
		t.kind, t.rate = HelperAgent, rateOption{}
	}
	return &t
}

// HelperOf says what helper a process is by itself, whomever it serves: its kind, its program and the engines that
// this may serve (nil for none in particular). ok is false for a process that is none.
func HelperOf(p *procfs.Process) (kind, name string, engines []string, ok bool) {
	t := toolOf(p, programOf(p))
	if t == nil {
		return "", "", nil, false
	}
	return t.kind, t.name, t.engines, true
}

// Joins says whether a process that has just come may belong to one of the instances although none of their
// processes started it: a helper program, or a process of an engine whose processes are known by name.
func Joins(p *procfs.Process, instances []Instance) bool {
	what := programOf(p)
	of := func(engines []string) bool {
		return slices.ContainsFunc(instances, func(i Instance) bool { return slices.Contains(engines, i.Engine) })
	}
	if r := what.server; r != nil && r.belongs != nil && r.belongs(p) {
		return of([]string{r.engine})
	}
	t := toolOf(p, what)
	return t != nil && of(t.engines)
}

// of finds how a helper was told to go slower.
func (r rateOption) of(p *procfs.Process, env map[string]string) Rate {
	rate := Rate{Option: r.text}
	for i, arg := range p.Args {
		name, value, joined := strings.Cut(arg, "=")
		if !slices.Contains(r.options, name) {
			continue
		}
		if !joined && i+1 < len(p.Args) {
			value = p.Args[i+1]
		}
		rate.Given = strings.TrimSuffix(name+" "+value, " ")
		if joined {
			rate.Given = arg
		}
	}
	for _, name := range r.env {
		if value := env[name]; value != "" {
			rate.Given = name + "=" + value
		}
	}
	rate.Given = terminal.Printable(rate.Given[:min(len(rate.Given), 80)])
	return rate
}
