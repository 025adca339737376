package settings

import (
	"cmp"
	"fmt"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
)

// Facts adds to the facts of an instance those that its settings are, and what it wants by them.
func (s Settings) Facts(inst engine.Instance, v fact.Values) {
	if s.get == nil {
		footprint(inst, v, nil)
		return
	}
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
		rocksCache(v, inputs)
		if inst.Flavor == engine.MariaDB {
			v["instance.numa_interleave"] = fact.Known(false, "MariaDB has no innodb_numa_interleave any more")
		}
		dedicated(s.get, v)
	case engine.MongoDB:
		v["instance.numa_interleave"] = fact.Known(false, "mongod has no such setting")
		mongoCache(s.get, inst.Version, v)
		mongoMappings(s.get, v)
	case engine.Cassandra:
		cassandraFacts(s.get, inst, v, inputs)
	case engine.ScyllaDB:
		scyllaMemory(s.get, v)
	case engine.Redis:
		redisFacts(v, inputs)
		if inst.Flavor == "" {
			redisPages(cmp.Or(s.version, inst.Version), v)
		}
	}
	footprint(inst, v, inputs)
	v["instance.files_needed"] = filesNeeded(inst, v, inputs)
	if s.version != "" {
		v["instance.version"] = fact.Known(s.version, "the server")
	}
}

// dedicated: the option is only in MySQL; where it is on and the server was not asked, it hides what the buffer is.
func dedicated(get source, v fact.Values) {
	d, err := get("innodb_dedicated_server", "OFF")
	b, _ := get("innodb_buffer_pool_size", "")
	if err == nil && IsOn(d.Value) && b.Value == "" {
		v["instance.buffer"] = fact.Unknown("innodb_dedicated_server chooses it; %s", askHint)
	}
}

// redisPages: kernels before 5.0 do not tell whether a process switched huge pages off, but its version can.
func redisPages(version string, v fact.Values) {
	if v["instance.thp_off"].Unknown != "" && version != "" && !fact.Since(version, "6.2") {
		v["instance.thp_off"] = fact.Known(false, "version "+version+"; Redis does so since 6.2")
	}
}

// rocksCache adds the cache of MyRocks to the main buffer, where one is set.
func rocksCache(v, inputs fact.Values) {
	pool, known := v["instance.buffer"].Is.(int64)
	if cache, set := inputs["input.rocks"].Is.(int64); set && cache > 0 && known {
		v["instance.buffer"] = fact.Known(pool+cache, v["instance.buffer"].From+", "+inputs["input.rocks"].From)
	}
}

// mongoMappings: two for each connection. Without a setting mongod takes 80 % of its open files, at most a million.
func mongoMappings(get source, v fact.Values) {
	const most = 1_000_000
	connections := v["instance.connections"]
	_, err := get("net.maxIncomingConnections", "none")
	if files, known := v.Get("instance.open_files").Is.(int64); connections.Unknown != "" && err == nil && known {
		connections = fact.Known(min(files*8/10, most),
			"80 % of its open files, as nothing sets net.maxIncomingConnections")
	}
	v["instance.mappings_wanted"] = connections
	if n, known := connections.Is.(int64); known {
		v["instance.mappings_wanted"] = fact.Known(2*n, fmt.Sprintf("2 * %d (%s)", n, connections.From))
	}
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
		each, name := inputs["input.maintenance"], "maintenance_work_mem"
		if own := inputs["input.vacuum"]; own.Unknown == "" { // -1, the default, is no size
			each, name = own, "autovacuum_work_mem"
		}
		add(name+" for each autovacuum worker", each, func(n int64) int64 { return n * workers })
	case engine.Redis:
		add("maxmemory", v["instance.buffer"], plain)
		if inputs["input.forks"].Is == true && len(missing) == 0 {
			add("as much for a save", v["instance.buffer"], plain)
		}
	case engine.MongoDB:
		add("cache of WiredTiger", v["instance.buffer"], plain)
	case engine.Cassandra:
		add("heap", v.Get("instance.buffer"), plain)
		add("memtables off the heap", inputs.Get("input.memtables"), plain)
		add("file cache", inputs.Get("input.file_cache"), plain)
		add("network cache", inputs.Get("input.network_cache"), plain)
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
