package gather

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// settingNames are the facts that come from an engine's settings.
var settingNames = []string{"instance.buffer", "instance.fsync", "instance.full_page_writes", "instance.huge_pages",
	"instance.doublewrite", "instance.io_method"}

// settingFacts are those that an instance's option files and arguments say. A value that was set while the server ran
// is not seen.
func settingFacts(h *host.Host, inst engine.Instance, v fact.Values) {
	for _, name := range settingNames {
		v[name] = fact.Unknown("bulkhead does not read this setting of %s", inst.Engine)
	}
	p, err := process(h, inst)
	if err != nil {
		for _, name := range settingNames {
			v[name] = because(err)
		}
		return
	}
	reader := options.Reader{Source: recognise.SourceOf(h)}
	switch inst.Engine {
	case engine.MySQL:
		mysqlFacts(h, reader, p, inst, v)
	case engine.PostgreSQL:
		postgresFacts(h, reader, p, inst, v)
	case engine.Redis:
		v["instance.buffer"] = fact.Unknown("the title of the process hides its configuration; " +
			"maxmemory has to be asked")
	}
}

func mysqlFacts(h *host.Host, reader options.Reader, p *procfs.Process, inst engine.Instance, v fact.Values) {
	o := reader.MySQLWith(p, lister(h, p.PID))
	persisted := string(reader.File(p.PID, path.Join(inst.DataDir, "mysqld-auto.cnf")))
	get := func(name, byDefault string) (options.Setting, error) {
		switch {
		case strings.Contains(persisted, strconv.Quote(name)):
			return options.Setting{}, errors.New("mysqld-auto.cnf (SET PERSIST) sets it; the server has to be asked")
		case o.From(name) == "" && o.Files.Path == "" && !hasNoDefaults(o):
			return options.Setting{}, errors.New("no option file could be read")
		case o.From(name) == "":
			return options.Setting{Value: byDefault, From: "default of the engine; not set in " + o.Files.Path}, nil
		}
		return options.Setting{Value: o.Value(name), From: o.From(name)}, nil
	}
	const buffer = "innodb_buffer_pool_size"
	v["instance.buffer"] = settingSize(get, buffer, "128M", 1)
	if d, err := get("innodb_dedicated_server", "OFF"); err == nil && isOn(d.Value) && o.From(buffer) == "" {
		v["instance.buffer"] = fact.Unknown("innodb_dedicated_server chooses it")
	}
	d, err := get("innodb_doublewrite", "ON")
	v["instance.doublewrite"] = fact.Known(!isOff(d.Value), d.From)
	if err != nil {
		v["instance.doublewrite"] = fact.Unknown("%v", err)
	}
}

func hasNoDefaults(o options.MySQLOptions) bool { _, none := o.Args["no_defaults"]; return none }

func isOn(v string) bool {
	return v == "" || v == "1" || strings.EqualFold(v, "on") || strings.EqualFold(v, "true") ||
		strings.EqualFold(v, "yes")
}

func isOff(v string) bool {
	return v == "0" || strings.EqualFold(v, "off") || strings.EqualFold(v, "false") || strings.EqualFold(v, "no")
}

func postgresFacts(h *host.Host, reader options.Reader, p *procfs.Process, inst engine.Instance, v fact.Values) {
	config := inst.Config
	if config == "" {
		config = path.Join(inst.DataDir, "postgresql.conf")
	}
	settings, unread := reader.PostgresSettings(p, config, inst.DataDir, lister(h, p.PID))
	get := func(name, byDefault string) (options.Setting, error) {
		s, set := settings[name]
		switch {
		case len(unread) > 0:
			return s, fmt.Errorf("could not read %s", strings.Join(unread, ", "))
		case !set:
			return options.Setting{Value: byDefault, From: "default of the engine; not set in " + config}, nil
		}
		return s, nil
	}
	const block = 8 << 10 // a number without a unit counts blocks
	v["instance.buffer"] = settingSize(get, "shared_buffers", "128MB", block)
	for _, name := range []string{"fsync", "full_page_writes"} {
		s, err := get(name, "on")
		v["instance."+name] = fact.Known(!isOff(s.Value), s.From)
		if err != nil {
			v["instance."+name] = fact.Unknown("%v", err)
		}
	}
	for name, byDefault := range map[string]string{"huge_pages": "try", "io_method": "worker"} {
		s, err := get(name, byDefault)
		v["instance."+name] = fact.Known(strings.ToLower(s.Value), s.From)
		if err != nil {
			v["instance."+name] = fact.Unknown("%v", err)
		}
	}
}

// settingSize reads a setting that is a size; plain is the unit of a number without one.
func settingSize(get func(name, byDefault string) (options.Setting, error), name, byDefault string,
	plain int64) fact.Value {
	s, err := get(name, byDefault)
	if err != nil {
		return fact.Unknown("%v", err)
	}
	n, ok := size(s.Value, plain)
	if !ok {
		return fact.Unknown("%s: %s = %q is no size", s.From, name, s.Value)
	}
	return fact.Known(n, s.From+" "+name)
}

// size reads "128M", "64MB", "16384".
func size(text string, plain int64) (int64, bool) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, false
	}
	units := map[string]int64{"": plain, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "kb": 1 << 10,
		"mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
	unit, known := units[strings.ToLower(strings.TrimSpace(text[len(digits):]))]
	if !known || n > (1<<62)/unit {
		return 0, false
	}
	return n * unit, true
}

// process is the main process of an instance.
func process(h *host.Host, inst engine.Instance) (*procfs.Process, error) {
	list, err := h.Proc.Processes(procfs.Options{PIDs: []int{inst.Main.PID}})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0].ID != inst.Main {
		return nil, procfs.ErrExited
	}
	return &list[0], nil
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
