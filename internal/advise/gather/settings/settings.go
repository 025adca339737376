// Package settings gives the settings of a database server as facts: in force, where the server was asked, else as its
// option files and arguments say, read as the server reads them.
package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/advise/ask"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// Settings are what is known of one server's settings. The zero value knows none.
type Settings struct {
	get     source
	version string // as the server says; "" where it was not asked
}

// Get gives a setting by its name, with where it was read. The error says why it is not known; nothing stands for what
// the engine takes where nothing sets it.
func (s Settings) Get(name string) (options.Setting, error) {
	if s.get == nil {
		return options.Setting{}, errors.New("bulkhead does not read the settings of this engine")
	}
	return s.get(name, "")
}

const askHint = "the server has to be asked (--dsn)"

// AskTime is how long one server may take to answer, where the caller says nothing else.
const AskTime = 3 * time.Second

// Of gives the settings of an instance: in force, where it was asked and answered, else as its option files and
// arguments say. A server is asked for the settings that are facts and for more. What asking failed of is trouble.
func Of(ctx context.Context, h *host.Host, inst engine.Instance, p *procfs.Process, l *dblogin.Login,
	more ...string) (s Settings, trouble error) {
	return Within(ctx, AskTime, h, inst, p, l, more...)
}

// Within is Of with a time for the server to answer.
func Within(ctx context.Context, limit time.Duration, h *host.Host, inst engine.Instance, p *procfs.Process,
	l *dblogin.Login, more ...string) (s Settings, trouble error) {
	if l != nil {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		var a *ask.Answer
		err := fmt.Errorf("the DSN is one of %s", l.Engine)
		if l.Engine == inst.Engine {
			a, err = ask.Settings(ctx, l, append(namesOf(inst), more...), func(a *ask.Answer) error {
				return isIt(h, inst, a)
			})
		}
		if err == nil {
			return Settings{get: answered(a), version: a.Version}, nil
		}
		if errors.Is(err, ask.ErrNoAnswer) {
			err = fmt.Errorf("no answer within %s", limit)
		}
		trouble = fmt.Errorf("%s was not asked for its settings: %w", inst.Name(), err)
	}
	reader := options.Reader{Source: recognise.SourceOf(h)}
	switch inst.Engine {
	case engine.MySQL:
		s.get = mysqlFiles(h, reader, p, inst)
	case engine.PostgreSQL:
		s.get = postgresFiles(h, reader, p, inst)
	case engine.Redis:
		s.get = redisFile(reader, p, inst)
	case engine.MongoDB:
		s.get = mongoFile(reader, p, inst)
	case engine.Cassandra:
		s.get = cassandraFile(reader, p, inst)
	case engine.ScyllaDB:
		s.get = scyllaArguments(p)
	}
	return s, trouble
}

// isIt says whether the server that answered is the instance: the DSN may name another one.
func isIt(h *host.Host, inst engine.Instance, a *ask.Answer) error {
	other := func(what, its string) error {
		return fmt.Errorf("the DSN leads to another server: its %s is %s", what, its)
	}
	switch {
	case a.Port != 0 && inst.Port != 0 && a.Port != inst.Port && !slices.Contains(inst.Ports, a.Port):
		return other("port", strconv.Itoa(a.Port))
	case inst.Container: // it knows other names and other numbers of processes
		return nil
	case a.DataDir != "" && inst.DataDir != "" && !samePlace(h, a.DataDir, inst.DataDir):
		return other("data directory", a.DataDir)
	case a.Hostname != "":
		own, err := h.Root.ReadText("/proc/sys/kernel/hostname")
		if err == nil && own != a.Hostname {
			return other("host", a.Hostname)
		}
	case a.PID != 0 && inst.Engine == engine.Redis && a.PID != inst.Main.PID:
		return other("process", strconv.Itoa(a.PID))
	case a.PID != 0 && inst.Engine == engine.PostgreSQL && !isChild(h, a.PID, inst.Main.PID):
		return other("process", strconv.Itoa(a.PID))
	}
	return nil
}

// isChild says whether a process is a child of another one: that of a session of PostgreSQL is one of the postmaster.
// One that is not there is on another host.
func isChild(h *host.Host, pid, parent int) bool {
	stat, err := h.Root.ReadText(path.Join("/proc", strconv.Itoa(pid), "stat"))
	_, rest, _ := strings.Cut(stat, ") ")
	fields := strings.Fields(rest)
	return err == nil && len(fields) > 1 && fields[1] == strconv.Itoa(parent)
}

// samePlace says whether two paths may be one directory.
func samePlace(h *host.Host, a, b string) bool {
	if path.Clean(a) == path.Clean(b) {
		return true
	}
	realA, errA := h.Root.EvalSymlinks(a)
	realB, errB := h.Root.EvalSymlinks(b)
	return errA != nil || errB != nil || realA == realB
}

func answered(a *ask.Answer) source {
	return func(name, _ string) (options.Setting, error) {
		value, told := a.Values[name]
		if !told {
			return options.Setting{}, fmt.Errorf("the server, asked at %s, tells no %s", a.Place, name)
		}
		return options.Setting{Value: value, From: "the server, asked at " + a.Place + ":"}, nil
	}
}

// aliases are other names that MariaDB has for settings since 10.11.
var aliases = map[string]string{"slow_query_log": "log_slow_query", "long_query_time": "log_slow_query_time"}

func mysqlFiles(h *host.Host, reader options.Reader, p *procfs.Process, inst engine.Instance) source {
	o := reader.MySQLWith(p, lister(h, p.PID))
	persisted := string(reader.File(p.PID, path.Join(inst.DataDir, "mysqld-auto.cnf")))
	_, noFiles := o.Args["no_defaults"]
	return func(name, byDefault string) (options.Setting, error) {
		value, from := o.Switched(name)
		if from == "" && aliases[name] != "" {
			value, from = o.Switched(aliases[name])
		}
		switch {
		case strings.Contains(persisted, strconv.Quote(name)):
			return options.Setting{}, errors.New("mysqld-auto.cnf (SET PERSIST) sets it; " + askHint)
		case from != "":
			return options.Setting{Value: value, From: from}, nil
		case o.Files.Path == "" && !noFiles:
			return options.Setting{}, errors.New("no option file could be read")
		case byDefault == "":
			return options.Setting{}, fmt.Errorf("nothing sets %s, and its default differs; %s", name, askHint)
		}
		return options.Setting{Value: byDefault, From: "default of the engine; not set in " +
			cmp.Or(o.Files.Path, "its arguments")}, nil
	}
}

func postgresFiles(h *host.Host, reader options.Reader, p *procfs.Process, inst engine.Instance) source {
	config := cmp.Or(inst.Config, path.Join(inst.DataDir, "postgresql.conf"))
	set, unread := reader.PostgresSettings(p, config, inst.DataDir, lister(h, p.PID))
	return func(name, byDefault string) (options.Setting, error) {
		s, there := set[name]
		switch {
		case len(unread) > 0:
			return s, fmt.Errorf("could not read %s", strings.Join(unread, ", "))
		case there:
			return s, nil
		case byDefault == "":
			return s, errors.New("only the server knows it; " + askHint)
		}
		return options.Setting{Value: byDefault, From: "default of the engine; not set in " + config}, nil
	}
}

// redisFile reads the configuration file that fits the instance. The title of the process hides its arguments, which
// win over the file: what the file does not say is not known.
func redisFile(reader options.Reader, p *procfs.Process, inst engine.Instance) source {
	set := map[string]options.Setting{}
	number := 0
	for line := range strings.Lines(string(reader.File(p.PID, inst.Config))) {
		number++
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' {
			continue
		}
		set[strings.ToLower(name)] = options.Setting{Value: strings.Trim(strings.TrimSpace(value), `"'`),
			From: inst.Config + ":" + strconv.Itoa(number)}
	}
	return func(name, _ string) (options.Setting, error) {
		if s, there := set[name]; there {
			return s, nil
		}
		const hint = "its title hides the command line; " + askHint
		if inst.Config == "" {
			return options.Setting{}, errors.New("its configuration file was not found, and " + hint)
		}
		return options.Setting{}, fmt.Errorf("%s does not set %s, and %s", inst.Config, name, hint)
	}
}

// lister lists directories as a process sees them.
func lister(h *host.Host, pid int) func(dir string) []string {
	return func(dir string) []string {
		const most = 1000
		entries, err := recognise.SourceOf(h).ReadRootDir(pid, dir, most)
		if err != nil {
			return nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
}
