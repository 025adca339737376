package options

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// maxPostgresDepth is how deep configuration files may include others (CONF_FILE_MAX_DEPTH of the server).
const maxPostgresDepth = 10

// Setting is a value with where it is set: "/etc/postgresql/15/main/postgresql.conf:128", "the command line".
type Setting struct{ Value, From string }

// PostgresSettings reads the settings of a server with these files as the server does: the configuration file with what
// it includes, then postgresql.auto.conf of the data directory, then the command line. The last one of a name wins.
// Unread names the files that could not be read, whose settings are not known.
func (s Reader) PostgresSettings(p *procfs.Process, config, dataDir string, list func(dir string) []string) (
	settings map[string]Setting, unread []string) {
	r := postgresReader{read: func(name string) []byte { return s.File(p.PID, name) }, list: list,
		settings: map[string]Setting{}}
	r.file(config, 0, true)
	r.file(path.Join(dataDir, "postgresql.auto.conf"), 0, false)
	for name, value := range PostgresArgs(p.Args) {
		r.settings[name] = Setting{value, "the command line"}
	}
	return r.settings, r.unread
}

type postgresReader struct {
	read     func(string) []byte
	list     func(string) []string
	settings map[string]Setting
	unread   []string
}

func (r *postgresReader) file(name string, depth int, needed bool) {
	text := r.read(name)
	if text == nil || depth > maxPostgresDepth {
		if needed {
			r.unread = append(r.unread, name)
		}
		return
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		one := map[string]string{}
		ParsePostgresConfig(line, one)
		for key, value := range one {
			switch key {
			case "include", "include_if_exists":
				r.file(Absolute(path.Dir(name), value), depth+1, key == "include")
			case "include_dir":
				r.directory(Absolute(path.Dir(name), value), depth)
			default:
				r.settings[key] = Setting{value, name + ":" + strconv.Itoa(number)}
			}
		}
	}
}

// directory includes the *.conf files of a directory but those that begin with a dot, by name.
func (r *postgresReader) directory(dir string, depth int) {
	names := r.list(dir)
	slices.Sort(names)
	for _, n := range names {
		if path.Ext(n) == ".conf" && n[0] != '.' {
			r.file(path.Join(dir, n), depth+1, true)
		}
	}
}
