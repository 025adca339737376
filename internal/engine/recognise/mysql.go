package recognise

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// MySQL, MariaDB and Percona Server: one process, named mysqld or mariadbd, that works in its data
// directory. mysqld_safe is its parent, not a server.
var mysqlRecogniser = recogniser{
	engine:      engine.MySQL,
	parts:       []string{engine.PartMain, engine.PartSupervisor},
	executables: mysqlPrograms,
	identity:    isMySQL,
	inspect:     inspectMySQL,
	members:     mysqlMembers,
}

const mysqlPort = 3306

var (
	mysqlPrograms = []string{"mysqld", "mariadbd"}
	// mysqlFiles are small files of a data directory: the server's UUID (MySQL 5.6 and later), Aria's
	// control file (MariaDB), the options of the system database (older ones).
	mysqlFiles = []string{"auto.cnf", "aria_log_control", "mysql/db.opt"}
	// mysqlOneShot are the options with which the program does one thing and ends.
	mysqlOneShot = []string{"help", "version", "initialize", "initialize_insecure", "bootstrap",
		"print_defaults", "validate_config"}
	// mysqlUpgradeFiles hold the version that last upgraded the system tables: "10.11.19-MariaDB".
	mysqlUpgradeFiles = []string{"mariadb_upgrade_info", "mysql_upgrade_info"}
)

func isMySQL(p *procfs.Process) bool {
	if !options.IsProgram(p, mysqlPrograms, mysqlPrograms) {
		return false
	}
	args := options.MySQLArgs(p.Args)
	return !slices.ContainsFunc(mysqlOneShot, func(name string) bool { _, ok := args[name]; return ok })
}

func inspectMySQL(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	opts := s.MySQL(p)
	inst.Config = opts.Files.Path
	for _, name := range options.MySQLServing {
		if _, ok := opts.Args[name]; ok {
			signals = append(signals, "was given --"+strings.ReplaceAll(name, "_", "-"))
			break
		}
	}
	cwd := s.Cwd(p.PID)
	inst.DataDir = cwd // the server changes there when it starts
	if dir := opts.Value("datadir"); path.IsAbs(dir) {
		inst.DataDir = path.Clean(dir)
	}
	for _, dir := range slices.Compact([]string{inst.DataDir, cwd}) {
		if name, ok := s.Holds(p.PID, dir, mysqlFiles...); ok {
			signals = append(signals, dir+" holds "+name)
			break
		}
	}
	port, _ := strconv.Atoi(opts.Value("port"))
	told := endpoints{port, options.Absolute(inst.DataDir, opts.Value("socket"))}
	signals = append(signals, s.listen(inst, told, mysqlPort)...)
	if parent := s.process(p.PPID); parent != nil && isMySQLSafe(parent) {
		signals = append(signals, "was started by mysqld_safe")
	}
	inst.Flavor, inst.Version = s.mysqlRelease(p, inst.DataDir, opts)
	// Crash recovery may take hours before the server listens, and its group should hold it then. Without
	// a word about the port in the options it will be the usual one, unless somebody has that already.
	if len(signals) > 0 && !inst.Seen && inst.Port == 0 && !opts.Offline() && s.claim(mysqlPort) {
		inst.Port = mysqlPort
		signals = append(signals, "does not listen yet, and no option names another port than 3306")
	}
	return signals
}

func mysqlMembers(s *scene, p *procfs.Process, _ *engine.Instance) []engine.Member {
	if parent := s.process(p.PPID); parent != nil && isMySQLSafe(parent) {
		return []engine.Member{{ID: parent.ID, Part: engine.PartSupervisor}}
	}
	return nil
}

// isMySQLSafe recognises the supervising shell script, which is an argument of its interpreter.
func isMySQLSafe(p *procfs.Process) bool {
	for _, arg := range p.Args[:min(2, len(p.Args))] {
		switch path.Base(arg) {
		case "mysqld_safe", "mariadbd-safe":
			return true
		}
	}
	return false
}

// mysqlRelease tells flavour and version from paths (/opt/mysql-8.0.36/bin/mysqld) and from the file that
// the upgrade of the system tables leaves.
func (s *scene) mysqlRelease(p *procfs.Process, datadir string, opts options.MySQLOptions) (flavor, version string) {
	upgraded, basedir := "", opts.Value("basedir")
	for _, name := range mysqlUpgradeFiles {
		if upgraded == "" && datadir != "" {
			upgraded = strings.TrimSpace(string(s.File(p.PID, path.Join(datadir, name))))
		}
	}
	paths := strings.ToLower(strings.Join(append([]string{p.Exe, basedir}, opts.Files.Includes...), "\n"))
	switch {
	case strings.HasPrefix(path.Base(p.Exe), "mariadbd"), strings.HasPrefix(options.ProgramName(p), "mariadbd"),
		strings.Contains(upgraded, "MariaDB"), strings.Contains(paths, "mariadb"):
		flavor = engine.MariaDB
	case strings.Contains(paths, "percona"):
		flavor = engine.Percona
	}
	for _, dir := range []string{p.Exe, basedir} {
		if v := options.PathVersion(dir, "mysql", "mariadb", "percona"); v != "" {
			return flavor, v
		}
	}
	return flavor, options.LeadingVersion.FindString(upgraded)
}
