package options

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// Bounds on the option files of one server: MySQL itself allows ten levels of inclusion.
const (
	maxMySQLDepth = 10
	maxMySQLFiles = 64
)

// mysqlDefaults are the option files that a server reads without --defaults-file, in its order.
var mysqlDefaults = []string{"/etc/my.cnf", "/etc/mysql/my.cnf", "/usr/local/mysql/etc/my.cnf"}

// mysqlIncluded are the file names tried for !includedir, in alphabetical order like the server's:
// directories cannot be listed through another process's root. They are what Debian, Red Hat, MySQL,
// MariaDB and Percona packages install for the server. A port or path that stands elsewhere is found from
// the server's sockets and working directory, which win anyway.
var mysqlIncluded = []string{"50-server.cnf", "60-galera.cnf", "mariadb-server.cnf", "my.cnf",
	"mysql-server.cnf", "mysql.cnf", "mysqld.cnf", "server.cnf"}

// mysqlConfig is what the option files say to the server.
type mysqlConfig struct {
	Path     string            // the first file that was there, "" if none
	values   map[string]string // names with "_"
	from     map[string]string // "FILE:LINE" of each value
	shared   map[string]bool   // those in a section that clients read, too
	lines    []string          // "FILE:LINE" of each line that sets something for the server
	Includes []string          // files and directories that were included
}

// readMySQLConfig reads the option files that a server with these arguments reads. read returns nil for
// a file that is not there; list returns the names in a directory, and nil list has mysqlIncluded tried.
func readMySQLConfig(read func(string) []byte, list func(string) []string, args map[string]string) mysqlConfig {
	r := mysqlConfigReader{read: read, list: list, suffix: args["defaults_group_suffix"]}
	r.config.values, r.config.from = make(map[string]string), make(map[string]string)
	r.config.shared = make(map[string]bool)
	if _, none := args["no_defaults"]; none {
		return r.config
	}
	files := mysqlDefaults
	if only := args["defaults_file"]; only != "" {
		files = []string{only}
	} else if extra := args["defaults_extra_file"]; extra != "" {
		files = append(files[:len(files):len(files)], extra)
	}
	for _, name := range files {
		if r.file(name, 0) && r.config.Path == "" {
			r.config.Path = name
		}
	}
	return r.config
}

type mysqlConfigReader struct {
	read   func(string) []byte
	list   func(string) []string
	suffix string // of --defaults-group-suffix: [mysqld@1] is read beside [mysqld]
	opened int
	config mysqlConfig
}

func (r *mysqlConfigReader) file(name string, depth int) (found bool) {
	if depth > maxMySQLDepth || r.opened >= maxMySQLFiles {
		return false
	}
	r.opened++
	data := r.read(name)
	if data == nil {
		return false
	}
	ours, shared := false, false // inside a section that the server reads, or that clients read, too
	number := 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		number++
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '!':
			r.include(line, path.Dir(name), depth)
		case line[0] == '[':
			section, _, _ := strings.Cut(line[1:], "]")
			ours = r.serverSection(strings.TrimSpace(section))
			shared = strings.HasPrefix(strings.TrimSpace(section), "client")
		case ours:
			key, value, _ := strings.Cut(line, "=")
			if name, _, comment := strings.Cut(key, "#"); comment {
				key, value = name, ""
			}
			option := mysqlOption(strings.TrimSpace(key))
			delete(r.config.from, otherForm(option))
			delete(r.config.values, otherForm(option))
			r.config.values[option], r.config.from[option] = mysqlValue(value), name+":"+strconv.Itoa(number)
			r.config.shared[option] = shared
			r.config.lines = append(r.config.lines, r.config.from[option])
		}
	}
	return true
}

func (r *mysqlConfigReader) include(line, dir string, depth int) {
	directive, name, _ := strings.Cut(strings.Replace(line, "\t", " ", 1), " ")
	name = Absolute(dir, strings.TrimSpace(name))
	switch directive {
	case "!include":
		r.config.Includes = append(r.config.Includes, name)
		r.file(name, depth+1)
	case "!includedir":
		r.config.Includes = append(r.config.Includes, name)
		names := mysqlIncluded
		if r.list != nil {
			names = slices.DeleteFunc(r.list(name), func(n string) bool { return path.Ext(n) != ".cnf" })
			slices.Sort(names)
		}
		for _, base := range names {
			r.file(path.Join(name, base), depth+1)
		}
	}
}

// serverSection says whether a server reads a section: [mysqld], [server], MariaDB's [mariadb],
// [mariadbd] and [client-server], those with a version behind ("mysqld-8.0", "mariadb-10.11"), and all
// of them with the group suffix.
func (r *mysqlConfigReader) serverSection(name string) bool {
	if r.suffix != "" {
		name = strings.TrimSuffix(name, r.suffix)
	}
	switch BaseProgram(name) {
	case "mysqld", "server", "mariadb", "mariadbd", "client-server":
		return true
	}
	return false
}

// MySQLServing are the options that a server is given and that nobody gives a one-shot call.
var MySQLServing = []string{"datadir", "defaults_file", "defaults_group_suffix", "port", "socket", "pid_file"}

// MySQLOptions are a server's options: of its command line, then of its files.
type MySQLOptions struct {
	Args  map[string]string
	Files mysqlConfig
}

// MySQL returns the options of a MySQL or MariaDB server: of its command line and of the files that it names.
func (s Reader) MySQL(p *procfs.Process) MySQLOptions {
	args := MySQLArgs(p.Args)
	read := func(name string) []byte { return s.File(p.PID, name) }
	return MySQLOptions{args, readMySQLConfig(read, nil, args)}
}

// MySQLWith is MySQL with the directories that option files include listed, where the names that packages give are not
// enough.
func (s Reader) MySQLWith(p *procfs.Process, list func(dir string) []string) MySQLOptions {
	args := MySQLArgs(p.Args)
	read := func(name string) []byte { return s.File(p.PID, name) }
	return MySQLOptions{args, readMySQLConfig(read, list, args)}
}

// From is where an option is set: "the command line", "/etc/my.cnf:12"; "" when it is not set.
func (o MySQLOptions) From(name string) string {
	if _, ok := o.Args[name]; ok {
		return "the command line"
	}
	return o.Files.from[name]
}

// Lines are those of option files that the server reads settings from, "/etc/my.cnf:12", also where a later one or the
// command line has the last word.
func (o MySQLOptions) Lines() []string { return o.Files.lines }

// Shared says whether an option is set in a section of a file that clients read, too.
func (o MySQLOptions) Shared(name string) bool {
	_, ok := o.Args[name]
	return !ok && o.Files.shared[name]
}

// Value returns an option, "" when it is not set.
func (o MySQLOptions) Value(name string) string {
	if v, ok := o.Args[name]; ok {
		return v
	}
	return o.Files.values[name]
}

// Switched is where an option is set that skip-NAME switches off, and its value: the form that the server reads last
// has the word, and skip-NAME=0 switches it on (my_getopt.cc). From is "" where it is not set.
func (o MySQLOptions) Switched(name string) (value, from string) {
	_, on := o.Args[name]
	if _, off := o.Args[skip+name]; !on && (off || o.Files.from[skip+name] != "") {
		value = "OFF"
		if o.Value(skip+name) == "0" {
			value = "ON"
		}
		return value, o.From(skip + name)
	}
	return o.Value(name), o.From(name)
}

const skip = "skip_"

// otherForm is the name under which an option is switched off, or on, where skip-NAME does so.
func otherForm(option string) string {
	if name, off := strings.CutPrefix(option, skip); off {
		return name
	}
	return skip + option
}

// Offline says whether the server is told not to use TCP.
func (o MySQLOptions) Offline() bool {
	_, onLine := o.Args["skip_networking"]
	_, inFile := o.Files.values["skip_networking"]
	v := o.Value("skip_networking")
	return (onLine || inFile) && v != "0" && !strings.EqualFold(v, "off")
}

// MySQLArgs reads the options of the server's command line. Names come with "_" for "-" and without
// "--loose-"; a short option stands under its long name. The last one of a name wins, as in the server.
func MySQLArgs(args []string) map[string]string {
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
			if !given && i+1 < len(rest) && slices.Contains(MySQLServing, name) && !strings.HasPrefix(rest[i+1], "-") {
				i++
				value = rest[i]
			}
			delete(opts, otherForm(name))
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
		if value == "" && slices.Contains(MySQLServing, name) && i+1 < len(rest) {
			i++
			value = rest[i]
		}
		opts[name] = value
	}
	return opts
}

var mysqlShort = map[byte]string{'P': "port", 'h': "datadir", 'b': "basedir", 'u': "user", 'V': "version", '?': "help",
	'I': "help"}

// mysqlOption is an option's name with "_", without what the server reads past, and skip_NAME for disable-NAME.
func mysqlOption(name string) string {
	name = strings.TrimPrefix(strings.ReplaceAll(name, "-", "_"), "loose_")
	if option, off := strings.CutPrefix(name, "disable_"); off {
		return skip + option
	}
	return strings.TrimPrefix(name, "enable_")
}
