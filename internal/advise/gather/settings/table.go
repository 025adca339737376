package settings

import (
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
)

// setting is a setting of an engine that is a fact.
type setting struct {
	fact, name string
	byDefault  string // what the engine takes where nothing sets it; "" is not known here
	read       func(text string) (any, bool)
}

// source gives a setting with where it was read. byDefault is what the engine takes where nothing sets it; "" is not
// known here.
type source func(name, byDefault string) (options.Setting, error)

// value is what a source has of it.
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

// The forms of values. A number without a unit counts bytes, but blocks of 8 KiB where PostgreSQL does so.
var (
	bytesForm  = func(text string) (any, bool) { n, ok := Size(text, 1); return n, ok }
	blocksForm = func(text string) (any, bool) { n, ok := Size(text, 8<<10); return n, ok }
	kilosForm  = func(text string) (any, bool) { n, ok := Size(text, 1<<10); return n, ok }
	// Redis counts "1k" as 1,000 and "1kb" as 1,024 bytes.
	redisForm = func(text string) (any, bool) {
		lower := strings.ToLower(strings.TrimSpace(text))
		for unit, factor := range map[string]int64{"k": 1e3, "m": 1e6, "g": 1e9} {
			if digits, has := strings.CutSuffix(lower, unit); has {
				n, err := strconv.ParseInt(digits, 10, 32)
				return n * factor, err == nil && n >= 0
			}
		}
		n, ok := Size(lower, 1)
		return n, ok
	}
	gigasForm = func(text string) (any, bool) {
		f, err := strconv.ParseFloat(text, 64)
		return int64(f * (1 << 30)), err == nil && f > 0 && f < 1<<20
	}
	numberForm = func(text string) (any, bool) { n, err := strconv.ParseInt(text, 10, 64); return n, err == nil }
	flagForm   = func(text string) (any, bool) { return IsOn(text), IsOn(text) || isOff(text) }
	// setForm is yes for all but an off: log_bin in a file is a name.
	setForm  = func(text string) (any, bool) { return !isOff(text), true }
	wordForm = func(text string) (any, bool) { return strings.ToLower(text), text != "" }
)

// IsOn says whether a value switches something on, as MySQL, PostgreSQL and systemd write it; "" does.
func IsOn(v string) bool {
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
			{"instance.page_size", "block_size", "8192", numberForm},
			{"instance.huge_pages", "huge_pages", "try", wordForm},
			hugePageSize,
			{"instance.huge_pages_status", "huge_pages_status", "", wordForm},
			hugeNeeded,
			{"instance.io_method", "io_method", "worker", wordForm},
			{"instance.connections", "max_connections", "100", numberForm},
			{"instance.log_statement", "log_statement", "none", wordForm},
			{"instance.log_after", "log_min_duration_statement", "-1", wordForm},
			{"input.work_mem", "work_mem", "4MB", kilosForm},
			{"input.maintenance", "maintenance_work_mem", "64MB", kilosForm},
			{"input.vacuum", "autovacuum_work_mem", "-1", kilosForm},
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
	case engine.Cassandra:
		return []setting{{"instance.connections", "native_transport_max_concurrent_connections", "-1", numberForm}}
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
		{"instance.page_size", "innodb_page_size", "16K", bytesForm},
		{"instance.checksum", "innodb_checksum_algorithm", "crc32", wordForm},
		{"instance.flush_at_commit", "innodb_flush_log_at_trx_commit", "1", numberForm},
		{"instance.binlog", "log_bin", binlog, setForm},
		{"instance.sync_binlog", "sync_binlog", syncs, numberForm},
		{"instance.connections", "max_connections", "151", numberForm},
		{"input.tables", "table_open_cache", tables, numberForm},
		{"instance.backlog", "back_log", "", numberForm},
		{"instance.large_pages", "large_pages", "OFF", flagForm},
		{"instance.general_log", "general_log", "OFF", flagForm},
		{"instance.slow_log", "slow_query_log", "OFF", flagForm},
		{"instance.slow_after", "long_query_time", "10", wordForm},
		{"instance.native_aio", "innodb_use_native_aio", "ON", flagForm},
		{"input.rocks", "rocksdb_block_cache_size", "0", bytesForm},
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
		for _, s := range largeTable {
			names = append(names, s.name)
		}
	}
	return names
}

// Size reads "128M", "64MB", "16384", "1GiB"; plain is the unit of a number without one.
func Size(text string, plain int64) (int64, bool) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, false
	}
	units := map[string]int64{"": plain, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "kb": 1 << 10,
		"mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
	unit, known := units[strings.ToLower(strings.TrimSpace(text[len(digits):]))]
	if !known || n > (1<<62)/unit {
		return 0, false
	}
	return n * unit, true
}
