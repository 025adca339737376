package engine

import (
	"path"
	"strings"
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
	path     string            // the first file that was there, "" if none
	values   map[string]string // names with "_"
	includes []string          // files and directories that were included
}

// readMySQLConfig reads the option files that a server with these arguments reads. read returns nil for
// a file that is not there.
func readMySQLConfig(read func(string) []byte, args map[string]string) mysqlConfig {
	r := mysqlConfigReader{read: read, suffix: args["defaults_group_suffix"]}
	r.config.values = make(map[string]string)
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
		if r.file(name, 0) && r.config.path == "" {
			r.config.path = name
		}
	}
	return r.config
}

type mysqlConfigReader struct {
	read   func(string) []byte
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
	ours := false // inside a section that the server reads
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '!':
			r.include(line, path.Dir(name), depth)
		case line[0] == '[':
			section, _, _ := strings.Cut(line[1:], "]")
			ours = r.serverSection(strings.TrimSpace(section))
		case ours:
			key, value, _ := strings.Cut(line, "=")
			r.config.values[mysqlOption(strings.TrimSpace(key))] = mysqlValue(value)
		}
	}
	return true
}

func (r *mysqlConfigReader) include(line, dir string, depth int) {
	directive, name, _ := strings.Cut(line, " ")
	name = absoluteIn(dir, strings.TrimSpace(name))
	switch directive {
	case "!include":
		r.config.includes = append(r.config.includes, name)
		r.file(name, depth+1)
	case "!includedir":
		r.config.includes = append(r.config.includes, name)
		for _, base := range mysqlIncluded {
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
	switch baseProgram(name) {
	case "mysqld", "server", "mariadb", "mariadbd", "client-server":
		return true
	}
	return false
}

// mysqlValue takes a value's blanks, quotes and comment away.
func mysqlValue(v string) string {
	v = strings.TrimSpace(v)
	if len(v) >= 2 && (v[0] == '"' || v[0] == '\'') {
		if end := strings.IndexByte(v[1:], v[0]); end >= 0 {
			return v[1 : 1+end]
		}
	}
	if before, _, ok := strings.Cut(v, "#"); ok {
		v = strings.TrimSpace(before)
	}
	return v
}
