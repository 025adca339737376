package engine

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// MySQL, MariaDB and Percona Server: one process, named mysqld or mariadbd, that works in its data
// directory. mysqld_safe is its parent, not a server.
var mysqlRecogniser = recogniser{
	engine:      MySQL,
	parts:       []string{PartMain, PartSupervisor},
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
	// mysqlServing are the options that a server is given and that nobody gives a one-shot call.
	mysqlServing = []string{"datadir", "defaults_file", "defaults_group_suffix", "port", "socket", "pid_file"}
	// mysqlUpgradeFiles hold the version that last upgraded the system tables: "10.11.19-MariaDB".
	mysqlUpgradeFiles = []string{"mariadb_upgrade_info", "mysql_upgrade_info"}
)

func isMySQL(p *procfs.Process) bool {
	if !isProgram(p, mysqlPrograms, mysqlPrograms) {
		return false
	}
	args := mysqlArgs(p.Args)
	return !slices.ContainsFunc(mysqlOneShot, func(name string) bool { _, ok := args[name]; return ok })
}

func inspectMySQL(s *scene, p *procfs.Process, inst *Instance) (signals []string) {
	opts := s.mysqlOptions(p)
	inst.Config = opts.files.path
	for _, name := range mysqlServing {
		if _, ok := opts.args[name]; ok {
			signals = append(signals, "was given --"+strings.ReplaceAll(name, "_", "-"))
			break
		}
	}
	cwd := s.cwd(p.PID)
	inst.DataDir = cwd // the server changes there when it starts
	if dir := opts.value("datadir"); path.IsAbs(dir) {
		inst.DataDir = path.Clean(dir)
	}
	for _, dir := range slices.Compact([]string{inst.DataDir, cwd}) {
		if name, ok := s.holds(p.PID, dir, mysqlFiles...); ok {
			signals = append(signals, dir+" holds "+name)
			break
		}
	}
	port, _ := strconv.Atoi(opts.value("port"))
	told := endpoints{port, absoluteIn(inst.DataDir, opts.value("socket"))}
	signals = append(signals, s.listen(inst, told, mysqlPort)...)
	if parent := s.process(p.PPID); parent != nil && isMySQLSafe(parent) {
		signals = append(signals, "was started by mysqld_safe")
	}
	inst.Flavor, inst.Version = s.mysqlRelease(p, inst.DataDir, opts)
	// Crash recovery may take hours before the server listens, and its group should hold it then. Without
	// a word about the port in the options it will be the usual one, unless somebody has that already.
	if len(signals) > 0 && !inst.Seen && inst.Port == 0 && !opts.offline() && s.claim(mysqlPort) {
		inst.Port = mysqlPort
		signals = append(signals, "does not listen yet, and no option names another port than 3306")
	}
	return signals
}

func mysqlMembers(s *scene, p *procfs.Process, _ *Instance) []Member {
	if parent := s.process(p.PPID); parent != nil && isMySQLSafe(parent) {
		return []Member{{parent.ID, PartSupervisor}}
	}
	return nil
}

// mysqlOptions are a server's options: of its command line, then of its files.
type mysqlOptions struct {
	args  map[string]string
	files mysqlConfig
}

func (s *scene) mysqlOptions(p *procfs.Process) mysqlOptions {
	args := mysqlArgs(p.Args)
	return mysqlOptions{args, readMySQLConfig(func(name string) []byte { return s.file(p.PID, name) }, args)}
}

// value returns an option, "" when it is not set.
func (o mysqlOptions) value(name string) string {
	if v, ok := o.args[name]; ok {
		return v
	}
	return o.files.values[name]
}

// offline says whether the server is told not to use TCP.
func (o mysqlOptions) offline() bool {
	_, onLine := o.args["skip_networking"]
	_, inFile := o.files.values["skip_networking"]
	v := o.value("skip_networking")
	return (onLine || inFile) && v != "0" && !strings.EqualFold(v, "off")
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
func (s *scene) mysqlRelease(p *procfs.Process, datadir string, opts mysqlOptions) (flavor, version string) {
	upgraded, basedir := "", opts.value("basedir")
	for _, name := range mysqlUpgradeFiles {
		if upgraded == "" && datadir != "" {
			upgraded = strings.TrimSpace(string(s.file(p.PID, path.Join(datadir, name))))
		}
	}
	paths := strings.ToLower(strings.Join(append([]string{p.Exe, basedir}, opts.files.includes...), "\n"))
	switch {
	case strings.HasPrefix(path.Base(p.Exe), "mariadbd"), strings.HasPrefix(programName(p), "mariadbd"),
		strings.Contains(upgraded, "MariaDB"), strings.Contains(paths, "mariadb"):
		flavor = MariaDB
	case strings.Contains(paths, "percona"):
		flavor = Percona
	}
	for _, dir := range []string{p.Exe, basedir} {
		if v := pathVersion(dir, "mysql", "mariadb", "percona"); v != "" {
			return flavor, v
		}
	}
	return flavor, leadingVersion.FindString(upgraded)
}

var leadingVersion = regexp.MustCompile(`^\d+(\.\d+)+`)

// pathVersion finds a version in a path: an element that is one ("/opt/mysql/8.0.36/bin"), or one that
// starts with a product's name ("mysql-8.0.36-linux-glibc2.28-x86_64").
func pathVersion(name string, products ...string) string {
	named := false
	for elem := range strings.SplitSeq(strings.ToLower(name), "/") {
		product := slices.ContainsFunc(products, func(p string) bool { return strings.HasPrefix(elem, p) })
		if product {
			_, elem, _ = strings.Cut(elem, "-")
			elem = strings.TrimLeft(elem, "abcdefghijklmnopqrstuvwxyz-") // percona-server-8.0.36
		}
		if v := elementVersion.FindStringSubmatch(elem); v != nil && (product || named) {
			return v[1]
		}
		named = named || product
	}
	return ""
}

var elementVersion = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)(?:-|$)`)

// mysqlArgs reads the options of the server's command line. Names come with "_" for "-" and without
// "--loose-"; a short option stands under its long name. The last one of a name wins, as in the server.
func mysqlArgs(args []string) map[string]string {
	opts := make(map[string]string)
	if len(args) == 0 {
		return opts
	}
	rest := args[1:]
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			name, value, given := strings.Cut(name, "=")
			name = mysqlOption(name)
			// "--port 3307" is one option with its value, as getopt_long has it.
			if !given && i+1 < len(rest) && slices.Contains(mysqlServing, name) && !strings.HasPrefix(rest[i+1], "-") {
				i++
				value = rest[i]
			}
			opts[name] = value
			continue
		}
		if len(arg) < 2 || arg[0] != '-' {
			continue
		}
		name, known := mysqlShort[arg[1]]
		if !known {
			continue
		}
		value := arg[2:]
		if value == "" && slices.Contains(mysqlServing, name) && i+1 < len(rest) {
			i++
			value = rest[i]
		}
		opts[name] = value
	}
	return opts
}

var mysqlShort = map[byte]string{'P': "port", 'h': "datadir", 'b': "basedir", 'u': "user", 'V': "version", '?': "help",
	'I': "help"}

func mysqlOption(name string) string {
	return strings.TrimPrefix(strings.ReplaceAll(name, "-", "_"), "loose_")
}
