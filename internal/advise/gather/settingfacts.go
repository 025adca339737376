package gather

import (
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
)

// setting is a setting of an engine that is a fact.
type setting struct {
	fact, name string
	byDefault  string // what the engine takes where nothing sets it; "" is not known here
	read       func(text string) (any, bool)
}

// The forms of values. A number without a unit counts bytes, but blocks of 8 KiB where PostgreSQL does so.
var (
	bytesForm  = func(text string) (any, bool) { n, ok := size(text, 1); return n, ok }
	blocksForm = func(text string) (any, bool) { n, ok := size(text, 8<<10); return n, ok }
	kilosForm  = func(text string) (any, bool) { n, ok := size(text, 1<<10); return n, ok }
	// Redis counts "1k" as 1,000 and "1kb" as 1,024 bytes.
	redisForm = func(text string) (any, bool) {
		lower := strings.ToLower(strings.TrimSpace(text))
		for unit, factor := range map[string]int64{"k": 1e3, "m": 1e6, "g": 1e9} {
			if digits, has := strings.CutSuffix(lower, unit); has {
				n, err := strconv.ParseInt(digits, 10, 32)
				return n * factor, err == nil && n >= 0
			}
		}
		n, ok := size(lower, 1)
		return n, ok
	}
	gigasForm = func(text string) (any, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return int64(f * (1 << 30)), err == nil && f > 0 && f < 1<<20
	}
	numberForm = func(text string) (any, bool) { n, err := strconv.ParseInt(text, 10, 64); return n, err == nil }
	flagForm   = func(text string) (any, bool) { return isOn(text), isOn(text) || isOff(text) }
	// setForm is yes for all but an off: log_bin in a file is a name.
	setForm  = func(text string) (any, bool) { return !isOff(text), true }
	wordForm = func(text string) (any, bool) { return strings.ToLower(text), text != "" }
)

func isOn(v string) bool {
	return v == "" || v == "1" || strings.EqualFold(v, "on") || strings.EqualFold(v, "true") ||
		strings.EqualFold(v, "yes")
}

func isOff(v string) bool {
	return v == "0" || strings.EqualFold(v, "off") || strings.EqualFold(v, "false") || strings.EqualFold(v, "no")
}

// tableOf are the settings that are read of an instance. Names that begin with "input." are no facts and go into sums.
func tableOf(inst engine.Instance) []setting {
	switch inst.Engine {
	case engine.MySQL:
		return mysqlTable(inst)
	case engine.PostgreSQL:
		return []setting{
			{"instance.buffer", "shared_buffers", "128MB", blocksForm},
			{"instance.fsync", "fsync", "on", flagForm},
			{"instance.full_page_writes", "full_page_writes", "on", flagForm},
			{"instance.huge_pages", "huge_pages", "try", wordForm},
			{"instance.huge_pages_status", "huge_pages_status", "", wordForm},
			{"instance.huge_pages_needed", "shared_memory_size_in_huge_pages", "", numberForm},
			{"instance.io_method", "io_method", "worker", wordForm},
			{"instance.connections", "max_connections", "100", numberForm},
			{"input.work_mem", "work_mem", "4MB", kilosForm},
			{"input.maintenance", "maintenance_work_mem", "64MB", kilosForm},
			{"input.workers", "autovacuum_max_workers", "3", numberForm},
		}
	case engine.Redis:
		return []setting{
			{"instance.buffer", "maxmemory", "", redisForm},
			{"instance.connections", "maxclients", "", numberForm},
			{"instance.backlog", "tcp-backlog", "", numberForm},
			{"input.save", "save", "", func(text string) (any, bool) { return text, true }},
			{"input.appendonly", "appendonly", "", flagForm},
		}
	case engine.MongoDB:
		return []setting{
			{"instance.buffer", "storage.wiredTiger.engineConfig.cacheSizeGB", "", gigasForm},
			{"instance.connections", "net.maxIncomingConnections", "", numberForm},
			{"instance.journal", "storage.journal.enabled", "true", flagForm},
		}
	}
	return nil
}

// mysqlTable has the defaults of the flavour and the version. Where they differ between versions and the version is not
// known, there is none.
func mysqlTable(inst engine.Instance) []setting {
	maria := inst.Flavor == engine.MariaDB
	since := func(version, then, before string) string {
		switch {
		case inst.Version == "":
			return ""
		case fact.Since(inst.Version, version):
			return then
		}
		return before
	}
	binlog, syncs, tables, numa, key := since("8.0", "ON", "OFF"), since("5.7.7", "1", "0"),
		since("8.0", "4000", "2000"), since("8.4", "", "OFF"), "8M"
	if maria {
		binlog, syncs, tables, key = "OFF", "0", "2000", "128M"
	}
	list := []setting{
		{"instance.buffer", "innodb_buffer_pool_size", "128M", bytesForm},
		{"instance.doublewrite", "innodb_doublewrite", "ON", setForm}, // also DETECT_AND_RECOVER
		{"instance.flush_at_commit", "innodb_flush_log_at_trx_commit", "1", numberForm},
		{"instance.binlog", "log_bin", binlog, setForm},
		{"instance.sync_binlog", "sync_binlog", syncs, numberForm},
		{"instance.connections", "max_connections", "151", numberForm},
		{"input.tables", "table_open_cache", tables, numberForm},
		{"instance.backlog", "back_log", "", numberForm},
		{"instance.large_pages", "large_pages", "OFF", flagForm},
		{"instance.native_aio", "innodb_use_native_aio", "ON", flagForm},
		{"input.key", "key_buffer_size", key, bytesForm},
		{"input.log", "innodb_log_buffer_size", since("8.4", "64M", "16M"), bytesForm},
		{"input.used", "max_used_connections", "", numberForm},
	}
	if maria {
		list[len(list)-2].byDefault = "16M"
		return list
	}
	return append(list, setting{"instance.numa_interleave", "innodb_numa_interleave", numa, flagForm})
}

// namesOf are the names of the settings of an instance.
func namesOf(inst engine.Instance) []string {
	var names []string
	for _, s := range tableOf(inst) {
		names = append(names, s.name)
	}
	if inst.Engine == engine.MySQL {
		names = append(names, "innodb_dedicated_server")
	}
	return names
}

// settingFacts are those that an instance's settings are, and what it wants by them.
func settingFacts(inst engine.Instance, s settings, v fact.Values) {
	inputs := fact.Values{}
	for _, one := range tableOf(inst) {
		into := v
		if strings.HasPrefix(one.fact, "input.") {
			into = inputs
		}
		into[one.fact] = one.value(s.get)
	}
	switch inst.Engine {
	case engine.MySQL:
		if inst.Flavor == engine.MariaDB {
			v["instance.numa_interleave"] = fact.Known(false, "MariaDB has no innodb_numa_interleave any more")
		}
		// The option is only in MySQL; where it is on and the server was not asked, it hides what the buffer is.
		d, err := s.get("innodb_dedicated_server", "OFF")
		b, _ := s.get("innodb_buffer_pool_size", "")
		if err == nil && isOn(d.Value) && b.Value == "" {
			v["instance.buffer"] = fact.Unknown("innodb_dedicated_server chooses it; %s", askHint)
		}
	case engine.MongoDB:
		v["instance.numa_interleave"] = fact.Known(false, "mongod has no such setting")
		limit, known := v.Get("instance.memory_limit").Is.(int64)
		if _, err := s.get("storage.wiredTiger.engineConfig.cacheSizeGB", "none"); err == nil && known &&
			v["instance.buffer"].Unknown != "" {
			v["instance.buffer"] = fact.Known(max(256<<20, (limit-1<<30)/2),
				"default of the engine: half of its memory less 1 GiB")
		}
	case engine.Redis:
		redisFacts(v, inputs)
	}
	footprint(inst, v, inputs)
	v["instance.files_needed"] = filesNeeded(inst, v, inputs)
	if s.version != "" {
		v["instance.version"] = fact.Known(s.version, "the server")
	}
}

func (one setting) value(get source) fact.Value {
	s, err := get(one.name, one.byDefault)
	if err != nil {
		return fact.Unknown("%v", err)
	}
	is, ok := one.read(s.Value)
	if !ok {
		return fact.Unknown("%s %s = %q cannot be read", s.From, one.name, s.Value)
	}
	return fact.Known(is, s.From+" "+one.name)
}

// redisFacts: a maxmemory of 0 is no bound, and a fork for a save may double what is used.
func redisFacts(v, inputs fact.Values) {
	v["instance.bounded"] = v["instance.buffer"]
	if n, known := v["instance.buffer"].Is.(int64); known {
		v["instance.bounded"] = fact.Known(n > 0, v["instance.buffer"].From)
		if n == 0 {
			v["instance.buffer"] = fact.Unknown("maxmemory is 0, so that it takes what it can get")
		}
	}
	save, appends := inputs["input.save"], inputs["input.appendonly"]
	saves, _ := save.Is.(string)
	switch {
	case saves != "" || appends.Is == true:
		inputs["input.forks"] = fact.Known(true, save.From+appends.From)
	case save.Unknown != "":
		inputs["input.forks"] = save
	case appends.Unknown != "":
		inputs["input.forks"] = appends
	default:
		inputs["input.forks"] = fact.Known(false, save.From)
	}
}

// What one connection may take, by engine, beside what settings say. A choice of bulkhead.
const (
	perMySQL    = 1 << 20
	perPostgres = 5 << 20
)

// footprint is the memory that an instance wants with all its connections: the formulas are in docs/advise.md, and the
// inputs are shown.
func footprint(inst engine.Instance, v, inputs fact.Values) {
	var sum int64
	var shown, missing []string
	add := func(what string, value fact.Value, times func(int64) int64) {
		n, known := value.Is.(int64)
		if !known {
			missing = append(missing, what+": "+value.Unknown)
			return
		}
		sum += times(n)
		shown = append(shown, what+" "+fact.Size(times(n)))
	}
	plain := func(n int64) int64 { return n }
	switch inst.Engine {
	case engine.MySQL:
		connections := v["instance.connections"]
		if used := inputs["input.used"]; used.Unknown == "" {
			connections = used
		}
		add("buffer pool and 5 %", v["instance.buffer"], func(n int64) int64 { return n + n/20 })
		add("key buffer", inputs["input.key"], plain)
		add("log buffer", inputs["input.log"], plain)
		add("1 MiB for each of the connections", connections, func(n int64) int64 { return n * perMySQL })
	case engine.PostgreSQL:
		work, _ := inputs["input.work_mem"].Is.(int64)
		workers, _ := inputs["input.workers"].Is.(int64)
		if inputs["input.work_mem"].Unknown != "" || inputs["input.workers"].Unknown != "" {
			missing = append(missing, "work_mem or autovacuum_max_workers is not known")
		}
		add("shared_buffers and 5 %", v["instance.buffer"], func(n int64) int64 { return n + n/20 })
		add("work_mem and 5 MiB for each connection", v["instance.connections"], func(n int64) int64 {
			return n * (work + perPostgres)
		})
		add("maintenance_work_mem for each autovacuum worker", inputs["input.maintenance"], func(n int64) int64 {
			return n * workers
		})
	case engine.Redis:
		add("maxmemory", v["instance.buffer"], plain)
		if inputs["input.forks"].Is == true && len(missing) == 0 {
			add("as much for a save", v["instance.buffer"], plain)
		}
	case engine.MongoDB:
		add("cache of WiredTiger", v["instance.buffer"], plain)
	default:
		add("buffer", v.Get("instance.buffer"), plain)
	}
	v["instance.footprint"] = fact.Known(sum, strings.Join(shown, ", "))
	if len(missing) > 0 {
		v["instance.footprint"] = fact.Unknown("%s", strings.Join(missing, "; "))
	}
}

// filesNeeded are the files that an instance opens with all its connections in use.
func filesNeeded(inst engine.Instance, v, inputs fact.Values) fact.Value {
	connections, tables := v.Get("instance.connections"), inputs.Get("input.tables")
	n, known := connections.Is.(int64)
	if !known {
		return connections
	}
	switch inst.Engine {
	case engine.MySQL: // as the server computes open_files_limit
		t, known := tables.Is.(int64)
		if !known {
			return tables
		}
		return fact.Known(10+n+2*t, fmt.Sprintf("10 + %d (%s) + 2 * %d (%s)", n, connections.From, t, tables.From))
	case engine.Redis:
		return fact.Known(n+32, fmt.Sprintf("32 + %d (%s)", n, connections.From))
	}
	return fact.Unknown("bulkhead does not know how many files %s needs", inst.Engine)
}

// size reads "128M", "64MB", "16384", "1GiB"; plain is the unit of a number without one.
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
