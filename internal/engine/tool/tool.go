// Package tool knows the programs that serve databases: dumps, backups, exporters and tools. It says which of them a
// process runs, which server that was told to serve, and what it can do by itself to go slower.
//
// A new helper is a row of All. The dialect of its row says by which options and variables it is told its server.
package tool

import (
	"path"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/terminal"
)

// Tool is one helper program.
type Tool struct {
	Name        string
	Kind        string
	Engines     []string // that it serves; nil: no instance in particular
	Executables []string // base names of its file
	scripts     []string // of the file that an interpreter runs, for a script
	// words are arguments of which the program needs one to be this helper; nil: it always is.
	words []string
	ask   *dialect
	Rate  rateOption
}

// rateOption is how a tool is told to go slower.
type rateOption struct {
	text    string   // for people
	Options []string // as they are given: "--throttle", "-r"
	Env     []string
}

var (
	mysqlOnly  = []string{engine.MySQL}
	pgOnly     = []string{engine.PostgreSQL}
	oracleOnly = []string{engine.Oracle}
	cqlEngines = []string{engine.ScyllaDB, engine.Cassandra}
	innodbRate = rateOption{text: "--throttle", Options: []string{"--throttle"}}
)

// All are the helper programs, by engine. Their names and options are those of their documentation; which were
// seen running stands in docs/engines.md.
var All = []Tool{
	{Name: "mariabackup", Kind: engine.HelperBackup, Engines: mysqlOnly,
		Executables: []string{"mariabackup", "mariadb-backup"}, ask: &mysqlDialect, Rate: innodbRate},
	{Name: "xtrabackup", Kind: engine.HelperBackup, Engines: mysqlOnly, Executables: []string{"xtrabackup"},
		scripts: []string{"innobackupex"}, ask: &mysqlDialect, Rate: innodbRate},
	{Name: "mysqldump", Kind: engine.HelperBackup, Engines: mysqlOnly,
		Executables: []string{"mysqldump", "mariadb-dump"},
		ask:         &mysqlDialect},
	{Name: "mysqlpump", Kind: engine.HelperBackup, Engines: mysqlOnly, Executables: []string{"mysqlpump"},
		ask: &mysqlDialect},
	{Name: "mydumper", Kind: engine.HelperBackup, Engines: mysqlOnly, Executables: []string{"mydumper"},
		ask: &mysqlDialect},
	{Name: "mysqlbinlog", Kind: engine.HelperBackup, Engines: mysqlOnly,
		Executables: []string{"mysqlbinlog", "mariadb-binlog"}, ask: &mysqlDialect},
	{Name: "myloader", Kind: engine.HelperRestore, Engines: mysqlOnly, Executables: []string{"myloader"},
		ask: &mysqlDialect},
	{Name: "mysqlimport", Kind: engine.HelperRestore, Engines: mysqlOnly,
		Executables: []string{"mysqlimport", "mariadb-import"}, ask: &mysqlDialect},
	{Name: "mysqlcheck", Kind: engine.HelperTool, Engines: mysqlOnly,
		Executables: []string{"mysqlcheck", "mariadb-check"},
		ask:         &mysqlDialect},
	{Name: "gh-ost", Kind: engine.HelperTool, Engines: mysqlOnly, Executables: []string{"gh-ost"}, ask: &goMySQLDialect,
		Rate: rateOption{text: "--max-load or --nice-ratio",
			Options: []string{"--max-load", "-max-load", "--nice-ratio", "-nice-ratio"}}},
	{Name: "mysqld_exporter", Kind: engine.HelperExporter, Engines: mysqlOnly,
		Executables: []string{"mysqld_exporter", "prometheus-mysqld-exporter", "mysqld_exporter-", "prometheus-mysq"},
		ask:         &goMySQLDialect},

	{Name: "pg_dump", Kind: engine.HelperBackup, Engines: pgOnly, Executables: []string{"pg_dump", "pg_dumpall"},
		ask: &pgDialect},
	{Name: "pg_basebackup", Kind: engine.HelperBackup, Engines: pgOnly, Executables: []string{"pg_basebackup"},
		ask:  &pgDialect,
		Rate: rateOption{text: "--max-rate", Options: []string{"--max-rate", "-r"}}},
	{Name: "pg_receivewal", Kind: engine.HelperBackup, Engines: pgOnly,
		Executables: []string{"pg_receivewal", "pg_receivexlog"}, ask: &pgDialect},
	{Name: "pgbackrest", Kind: engine.HelperBackup, Engines: pgOnly, Executables: []string{"pgbackrest"},
		ask: &pgbackrestDialect},
	{Name: "wal-g", Kind: engine.HelperBackup,
		Engines:     []string{engine.PostgreSQL, engine.MySQL, engine.MongoDB, engine.Redis},
		Executables: []string{"wal-g", "wal-g-pg", "wal-g-mysql", "wal-g-mongo", "wal-g-redis"}, ask: &walgDialect,
		Rate: rateOption{text: "WALG_DISK_RATE_LIMIT or WALG_NETWORK_RATE_LIMIT",
			Env: []string{"WALG_DISK_RATE_LIMIT", "WALG_NETWORK_RATE_LIMIT"}}},
	{Name: "wal-e", Kind: engine.HelperBackup, Engines: pgOnly, scripts: []string{"wal-e"}, ask: &walgDialect,
		Rate: rateOption{text: "--cluster-read-rate-limit", Options: []string{"--cluster-read-rate-limit"}}},
	{Name: "barman", Kind: engine.HelperBackup, Engines: pgOnly,
		scripts: []string{"barman", "barman-wal-archive", "barman-cloud-backup", "barman-cloud-wal-archive"},
		ask:     &barmanDialect,
		Rate: rateOption{text: "--bwlimit, or bandwidth_limit in its configuration",
			Options: []string{"--bwlimit"}}},
	{Name: "pg_probackup", Kind: engine.HelperBackup, Engines: pgOnly, Executables: []string{"pg_probackup"},
		ask: &pgDialect},
	{Name: "pg_restore", Kind: engine.HelperRestore, Engines: pgOnly, Executables: []string{"pg_restore"},
		ask: &pgDialect},
	{Name: "pg_repack", Kind: engine.HelperTool, Engines: pgOnly,
		Executables: []string{"pg_repack", "vacuumdb", "reindexdb", "pg_amcheck"}, ask: &pgDialect},
	{Name: "postgres_exporter", Kind: engine.HelperExporter, Engines: pgOnly,
		Executables: []string{"postgres_exporter", "prometheus-postgres-exporter", "postgres_export",
			"prometheus-post"}, ask: &pgDialect},

	{Name: "rman", Kind: engine.HelperBackup, Engines: oracleOnly, Executables: []string{"rman"}, ask: &oracleDialect,
		Rate: rateOption{text: "RATE of a channel, or BACKUP DURATION … MINIMIZE LOAD"}},
	{Name: "expdp", Kind: engine.HelperBackup, Engines: oracleOnly, Executables: []string{"expdp", "exp"},
		ask: &oracleDialect},
	{Name: "impdp", Kind: engine.HelperRestore, Engines: oracleOnly, Executables: []string{"impdp", "imp", "sqlldr"},
		ask: &oracleDialect},
	{Name: "tnslsnr", Kind: engine.HelperListener, Engines: oracleOnly, Executables: []string{"tnslsnr"},
		ask: &oracleDialect},
	{Name: "oracledb_exporter", Kind: engine.HelperExporter, Engines: oracleOnly,
		Executables: []string{"oracledb_exporter", "oracledb_export"}, ask: &oracleDialect},

	{Name: "mongodump", Kind: engine.HelperBackup, Engines: []string{engine.MongoDB},
		Executables: []string{"mongodump", "mongoexport"}, ask: &mongoDialect},
	{Name: "mongorestore", Kind: engine.HelperRestore, Engines: []string{engine.MongoDB},
		Executables: []string{"mongorestore", "mongoimport"}, ask: &mongoDialect},
	{Name: "pbm-agent", Kind: engine.HelperAgent, Engines: []string{engine.MongoDB}, Executables: []string{"pbm-agent"},
		ask: &mongoDialect},
	{Name: "mongodb_exporter", Kind: engine.HelperExporter, Engines: []string{engine.MongoDB},
		Executables: []string{"mongodb_exporter", "mongodb_exporte"}, ask: &mongoDialect},
	{Name: "mongodb-mms-automation-agent", Kind: engine.HelperAgent, Engines: []string{engine.MongoDB},
		Executables: []string{"mongodb-mms-automation-agent", "mongodb-mms-aut"}, ask: &mongoDialect},

	{Name: "redis-cli", Kind: engine.HelperBackup, Engines: []string{engine.Redis},
		Executables: []string{"redis-cli", "valkey-cli"},
		words:       []string{"--rdb", "--functions-rdb"}, ask: &redisDialect},
	{Name: "redis_exporter", Kind: engine.HelperExporter, Engines: []string{engine.Redis},
		Executables: []string{"redis_exporter", "prometheus-redis-exporter", "prometheus-redi"}, ask: &redisDialect},

	{Name: "scylla-jmx", Kind: engine.HelperAgent, Engines: []string{engine.ScyllaDB},
		Executables: []string{"scylla-jmx"},
		scripts:     []string{"scylla-jmx", "scylla-jmx-1.0.jar"}},
	{Name: "scylla-manager-agent", Kind: engine.HelperAgent, Engines: []string{engine.ScyllaDB},
		Executables: []string{"scylla-manager-agent", "scylla-manager-"},
		Rate:        rateOption{text: "rate limit of the backup task (sctool backup --rate-limit)"}},
	{Name: "scylla-housekeeping", Kind: engine.HelperAgent, Engines: []string{engine.ScyllaDB},
		scripts: []string{"scylla-housekeeping", "scylla-housekeeping.py"}},
	{Name: "nodetool", Kind: engine.HelperTool, Engines: cqlEngines,
		scripts: []string{"org.apache.cassandra.tools.NodeTool"},
		ask:     &cqlDialect},
	{Name: "scylla nodetool", Kind: engine.HelperTool, Engines: []string{engine.ScyllaDB},
		Executables: []string{"scylla"},
		words:       []string{"nodetool", "sstable"}},
	{Name: "medusa", Kind: engine.HelperBackup, Engines: []string{engine.Cassandra}, scripts: []string{"medusa"}},

	{Name: "clickhouse-backup", Kind: engine.HelperBackup, Engines: []string{engine.ClickHouse},
		Executables: []string{"clickhouse-backup", "clickhouse-back"}, ask: &clickhouseDialect,
		Rate: rateOption{text: "upload_max_bytes_per_second", Env: []string{"UPLOAD_MAX_BYTES_PER_SECOND"}}},
	{Name: "etcdctl", Kind: engine.HelperBackup, Engines: []string{engine.Etcd},
		Executables: []string{"etcdctl", "etcdutl"},
		words:       []string{"snapshot", "backup"}, ask: &etcdDialect},
	{Name: "etcdctl", Kind: engine.HelperTool, Engines: []string{engine.Etcd},
		Executables: []string{"etcdctl", "etcdutl"},
		words:       []string{"defrag", "compact", "compaction", "check"}, ask: &etcdDialect},

	{Name: "pmm-agent", Kind: engine.HelperAgent, Executables: []string{"pmm-agent"}},
	{Name: "node_exporter", Kind: engine.HelperExporter,
		Executables: []string{"node_exporter", "prometheus-node-exporter",
			"prometheus-node"}},
}

// toolkit are the programs of Percona Toolkit, which are Perl scripts for MySQL that begin with "pt-". Those that
// look at the host and not at a server are no helpers.
var (
	toolkit = Tool{Name: "pt-*", Kind: engine.HelperTool, Engines: mysqlOnly, ask: &toolkitDialect,
		Rate: rateOption{text: "--max-load, --sleep or --chunk-time",
			Options: []string{"--max-load", "--sleep", "--chunk-time"}}}
	toolkitAgents = []string{"pt-heartbeat", "pt-kill", "pt-stalk", "pt-deadlock-logger", "pt-fk-error-logger",
		"pt-slave-delay", "pt-slave-restart"}
	toolkitOthers = []string{"pt-align", "pt-diskstats", "pt-fifo-split", "pt-ioprofile", "pt-mext", "pt-pmp",
		"pt-sift", "pt-summary", "pt-fingerprint",
		"pt-mongodb-query-digest", "pt-mongodb-summary", "pt-pg-summary"}
)

// byScript finds the tools that an interpreter runs.
var byScript = func() map[string]*Tool {
	m := make(map[string]*Tool)
	for i := range All {
		for _, name := range All[i].scripts {
			m[name] = &All[i]
		}
	}
	return m
}()

// IsInterpreter says whether an executable runs programs that are named by an argument: "python3.11", "perl",
// "bash". A version may follow the name.
func IsInterpreter(name string) bool {
	for _, known := range []string{"python", "perl", "java", "ruby", "bash", "dash", "sh"} {
		if rest, is := strings.CutPrefix(name, known); is && strings.Trim(rest, "0123456789.") == "" {
			return true
		}
	}
	return false
}

// Of returns the helper program that a process runs, nil when it runs none.
//
// candidates are the tools that its executable stands for; with script the executable is an interpreter.
func Of(p *procfs.Process, candidates []*Tool, script bool) *Tool {
	if script {
		return scriptOf(p)
	}
	for _, t := range candidates {
		if t.words == nil || slices.ContainsFunc(p.Args[1:],
			func(a string) bool { return slices.Contains(t.words, a) }) {
			return t
		}
	}
	return nil
}

// scriptOf looks at the file that an interpreter was given: its first argument that is no option. A Java virtual
// machine has many options; its main class or archive is looked for among all of them.
func scriptOf(p *procfs.Process) *Tool {
	java := strings.HasPrefix(options.ProgramName(p), "java") || strings.HasPrefix(path.Base(p.Exe), "java")
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
func toolkitTool(name string) *Tool {
	t := toolkit
	t.Name = terminal.Printable(name[:min(len(name), 40)]) // it is whatever a script is called
	if slices.Contains(toolkitAgents, name) {
		t.Kind, t.Rate = engine.HelperAgent, rateOption{}
	}
	return &t
}

// RateOf finds how a helper was told to go slower. env is called only for a tool that is told by a variable.
func (t *Tool) RateOf(p *procfs.Process, env func() map[string]string) engine.Rate {
	r := t.Rate
	rate := engine.Rate{Option: r.text}
	for i, arg := range p.Args {
		name, value, joined := strings.Cut(arg, "=")
		if !slices.Contains(r.Options, name) {
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
	for _, name := range r.Env {
		if value := env()[name]; value != "" {
			rate.Given = name + "=" + value
		}
	}
	rate.Given = terminal.Printable(rate.Given[:min(len(rate.Given), 80)])
	return rate
}

// Target reads what a helper was told: by its command line, else by its environment. env is called only when
// the command line says nothing.
func (t *Tool) Target(r options.Reader, p *procfs.Process, env func() map[string]string) Target {
	if t.ask == nil {
		return Target{}
	}
	return t.ask.target(r, p, env)
}
