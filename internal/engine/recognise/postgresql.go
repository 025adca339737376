package recognise

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// PostgreSQL: the postmaster, started as postgres or postmaster, works in its data directory; every
// other process is its direct child and has a title, "postgres: walwriter" or, with a cluster name,
// "postgres: 15/main: walwriter".
var postgresRecogniser = recogniser{
	engine: engine.PostgreSQL,
	parts: []string{engine.PartMain, "archiver", "autovacuum", "backends", "bgwriter", "checkpointer", "io", "logger",
		"parallel", "replication", "starting", "startup", "stats", "summarizer", "walreceiver", "walsender",
		"walwriter", "workers"},
	executables: postgresPrograms,
	identity:    isPostmaster,
	inspect:     inspectPostgres,
	members:     postgresMembers,
}

const postgresPort = 5432

var postgresPrograms = []string{"postgres", "postmaster"}

func isPostmaster(p *procfs.Process) bool {
	if !options.IsProgram(p, postgresPrograms, postgresPrograms) || strings.HasPrefix(p.Args[0], "postgres: ") {
		return false
	}
	for _, arg := range p.Args[1:] {
		switch arg {
		case "--single", "--boot", "--check", "--describe-config", "--version", "-V", "--help", "-?", "-C":
			return false
		}
	}
	return true
}

func inspectPostgres(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	args := options.PostgresArgs(p.Args)
	cwd := s.Cwd(p.PID)
	dir := options.Absolute(cwd, args["data_directory"])
	if dir != "" {
		signals = append(signals, "was given a data directory")
	}
	pidFile, named := s.postmasterPID(p, cwd, dir)
	if named {
		signals = append(signals, pidFile.file+" names it")
	}
	inst.DataDir = cmp.Or(pidFile.dataDir, cwd, dir)
	for _, d := range slices.Compact([]string{inst.DataDir, dir}) {
		if v := strings.TrimSpace(string(s.File(p.PID, path.Join(d, "PG_VERSION")))); v != "" {
			signals = append(signals, d+" holds PG_VERSION")
			inst.Version = v
			break
		}
	}
	if inst.Version == "" {
		inst.Version = options.PathVersion(p.Exe, "postgresql", "pgsql", "postgres")
	}

	config := s.postgresConfig(p, inst, args, dir)
	told := endpoints{port: pidFile.port, socket: pidFile.socket()}
	if told.port == 0 {
		told.port, _ = strconv.Atoi(cmp.Or(args["port"], config["port"]))
	}
	signals = append(signals, s.listen(inst, told, postgresPort)...)

	if len(s.postgresChildren(p)) > 0 {
		signals = append(signals, "has child processes of PostgreSQL")
	}
	inst.Cluster = cmp.Or(args["cluster_name"], config["cluster_name"])
	return signals
}

// postgresMembers also learns the cluster's name, which the children show.
func postgresMembers(s *scene, p *procfs.Process, inst *engine.Instance) (members []engine.Member) {
	children := s.postgresChildren(p)
	inst.Cluster = cmp.Or(clusterFromTitles(children), inst.Cluster)
	for _, c := range children {
		members = append(members, engine.Member{ID: c.ID, Part: postgresPart(c, inst.Cluster)})
	}
	return members
}

// postgresChildren returns the server's own children: those with a title, and those that were forked
// just now and still look like the postmaster. A shell of an archive_command is a grandchild.
func (s *scene) postgresChildren(p *procfs.Process) []*procfs.Process {
	var own []*procfs.Process
	for _, c := range s.children[p.PID] {
		if c.State == 'Z' || c.Kernel || len(c.Args) == 0 || (c.Exe != "" && p.Exe != "" && c.Exe != p.Exe) {
			continue
		}
		if strings.HasPrefix(c.Args[0], "postgres: ") || slices.Equal(c.Args, p.Args) {
			own = append(own, c)
		}
	}
	return own
}

// postmasterPID is the file of that name in the data directory ("Internals" of pg_ctl, miscadmin.h): its
// lines are pid, data directory, start time, port, socket directory, listen address, shared memory key.
type postmasterPID struct {
	file      string
	dataDir   string
	port      int
	socketDir string
}

func (f postmasterPID) socket() string {
	if f.socketDir == "" || f.port == 0 {
		return ""
	}
	return path.Join(f.socketDir, ".s.PGSQL."+strconv.Itoa(f.port))
}

// postmasterPID reads the file of this very process. In a container the file holds the pid that the
// process has there, so it is not compared.
func (s *scene) postmasterPID(p *procfs.Process, dirs ...string) (postmasterPID, bool) {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		name := path.Join(dir, "postmaster.pid")
		if f, pid := parsePostmasterPID(string(s.File(p.PID, name))); pid == p.PID || (pid != 0 && p.ForeignNamespace) {
			f.file = name
			return f, true
		}
	}
	return postmasterPID{}, false
}

// parsePostmasterPID returns what the file says and its pid, 0 when it is not one. The server writes the
// file line by line: what is missing is empty.
func parsePostmasterPID(text string) (f postmasterPID, pid int) {
	lines := strings.Split(text, "\n")
	line := func(n int) string {
		if n >= len(lines) {
			return ""
		}
		return strings.TrimSpace(lines[n])
	}
	pid, err := strconv.Atoi(line(0))
	if err != nil || pid <= 0 {
		return postmasterPID{}, 0
	}
	if path.IsAbs(line(1)) {
		f.dataDir = path.Clean(line(1))
	}
	if port, err := strconv.Atoi(line(3)); err == nil && port > 0 && port < 1<<16 {
		f.port = port
	}
	f.socketDir = line(4)
	return f, pid
}

// postgresConfig finds the configuration file and returns the few settings that matter here. ALTER SYSTEM's
// file comes after it and wins.
func (s *scene) postgresConfig(p *procfs.Process, inst *engine.Instance, args map[string]string,
	dir string) map[string]string {
	config := make(map[string]string)
	for _, name := range []string{options.Absolute(inst.DataDir, args["config_file"]),
		options.Join(dir, "postgresql.conf"),
		options.Join(inst.DataDir, "postgresql.conf")} {
		if data := s.File(p.PID, name); data != nil {
			inst.Config = name
			options.ParsePostgresConfig(string(data), config)
			break
		}
	}
	options.ParsePostgresConfig(string(s.File(p.PID, options.Join(inst.DataDir, "postgresql.auto.conf"))), config)
	return config
}

// postgresAlways are titles that every running server has, so that what stands before them is the
// cluster's name.
var postgresAlways = regexp.MustCompile(`^postgres: (.+): (?:checkpointer|background ` +
	`writer|walwriter|logger|startup)\b`)

func clusterFromTitles(children []*procfs.Process) string {
	for _, c := range children {
		// Most are sessions, whose titles have no second colon: the expression is not tried on thousands.
		if len(c.Args) == 0 || strings.Count(c.Args[0], ": ") < 2 {
			continue
		}
		title := options.Title(c)
		if m := postgresAlways.FindStringSubmatch(title); m != nil && !isPostgresBackend(title) {
			return m[1]
		}
	}
	return ""
}

// postgresParts maps the first words of a title, "postgres: " and the cluster's name taken off, to the part.
// Titles up to version 10 say "writer process" and the like. Source: proctypelist.h of PostgreSQL 18 and
// the init_ps_display calls of 9.6 to 18.
var postgresParts = []struct{ words, part string }{
	{"walwriter", "walwriter"}, {"wal writer", "walwriter"},
	{"checkpointer", "checkpointer"},
	{"background writer", "bgwriter"}, {"writer process", "bgwriter"},
	{"autovacuum", "autovacuum"},
	{"walreceiver", "walreceiver"}, {"wal receiver", "walreceiver"},
	{"walsummarizer", "summarizer"},
	{"archiver", "archiver"},
	{"logger", "logger"},
	{"stats collector", "stats"},
	{"startup", "startup"},
	{"parallel worker", "parallel"},
	{"logical replication", "replication"}, {"slotsync worker", "replication"},
	{"io worker", "io"},
	{"bgworker:", "workers"},
}

// isPostgresBackend finds the client in a session's title: "app shop [local] idle", "app shop
// 192.0.2.7(51234) SELECT". User and database may hold blanks. It is asked for every session of every look.
func isPostgresBackend(text string) bool {
	_, rest, _ := strings.Cut(text, " ")
	for word := range strings.SplitSeq(rest, " ") {
		if word == "[local]" {
			return true
		}
		address, port, ok := strings.Cut(word, "(")
		if digits, closed := strings.CutSuffix(port, ")"); ok && closed && address != "" && digits != "" &&
			strings.Trim(digits, "0123456789") == "" {
			return true
		}
	}
	return false
}

// postgresPart returns the part of a child. A title with a client's address is a session's, whatever its user is
// called, or a WAL sender's, which a session of a user called "walsender" cannot be told from. A title that is not
// known belongs to a background worker of an extension.
func postgresPart(p *procfs.Process, cluster string) string {
	text, titled := strings.CutPrefix(options.Title(p), "postgres: ")
	if !titled {
		return "starting"
	}
	if cluster != "" {
		text = strings.TrimPrefix(text, cluster+": ")
	}
	text = strings.TrimSpace(text)
	begins := func(words string) bool {
		rest, is := strings.CutPrefix(text, words)
		return is && (rest == "" || rest[0] == ' ')
	}
	switch {
	case begins("walsender"), begins("wal sender process"):
		return "walsender"
	case isPostgresBackend(text):
		return "backends"
	}
	for _, known := range postgresParts {
		if begins(known.words) {
			return known.part
		}
	}
	return "workers"
}
