package settings

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/yamlfile"
	"bulkhead/internal/linux/procfs"
)

// readYAML reads a file as a process sees it.
func readYAML(reader options.Reader, pid int, name string) *yamlfile.File {
	text := reader.File(pid, name)
	if text == nil {
		return &yamlfile.File{Err: fmt.Errorf("could not read %s", name)}
	}
	return yamlfile.Read(name, text)
}

// mongoNames are the names on the command line, and in files of 2.4, of the settings of the file.
var mongoNames = map[string]string{"storage.wiredTiger.engineConfig.cacheSizeGB": "wiredTigerCacheSizeGB",
	mongoPercent: "wiredTigerCacheSizePct", mongoInMemory: "inMemorySizeGB",
	"net.maxIncomingConnections": "maxConns", "storage.journal.enabled": "journal", "storage.engine": "storageEngine"}

// mongoFile reads the arguments, which win, and the file: YAML, or NAME = VALUE up to 2.4.
func mongoFile(reader options.Reader, p *procfs.Process, inst engine.Instance) source {
	args := options.LongOptions(p.Args, nil)
	y, old := &yamlfile.File{}, map[string]string{}
	if inst.Config != "" {
		y = readYAML(reader, p.PID, inst.Config)
	}
	if errors.Is(y.Err, yamlfile.ErrNoMapping) {
		y, old = &yamlfile.File{}, options.ParseMongoConfig(string(reader.File(p.PID, inst.Config)))
	}
	return func(name, byDefault string) (options.Setting, error) {
		if value, there := args[mongoNames[name]]; there {
			return options.Setting{Value: cmp.Or(value, "true"), From: "the command line"}, nil
		}
		if _, off := args["nojournal"]; off && mongoNames[name] == "journal" {
			return options.Setting{Value: "false", From: "--nojournal on the command line"}, nil
		}
		s, set, err := y.Get(name)
		if value := old[mongoNames[name]]; value != "" {
			s, set = options.Setting{Value: value, From: inst.Config}, true
		}
		switch {
		case err != nil || set:
			return s, err
		case byDefault == "":
			return s, fmt.Errorf("nothing sets %s", name)
		}
		return options.Setting{Value: byDefault, From: "default of the engine; nothing sets it"}, nil
	}
}

const (
	mongoInMemory = "storage.inMemory.engineConfig.inMemorySizeGB"
	mongoPercent  = "storage.wiredTiger.engineConfig.cacheSizePct" // 8.2
)

// mongoCache is the cache of the storage engine that mongod runs with.
func mongoCache(get source, version string, v fact.Values) {
	usual := "wiredTiger"
	if version != "" && !fact.Since(version, "3.2") {
		usual = "mmapv1"
	}
	limit, known := v.Get("instance.memory_limit").Is.(int64)
	one := setting{name: "storage.wiredTiger.engineConfig.cacheSizeGB", read: gigasForm}
	kind, err := get("storage.engine", usual)
	switch {
	case err != nil:
		v["instance.buffer"] = fact.Unknown("%v", err)
		return
	case strings.EqualFold(kind.Value, "inMemory"):
		one.name = mongoInMemory
		v["instance.buffer"] = one.value(get)
	case !strings.EqualFold(kind.Value, "wiredTiger"):
		v["instance.buffer"] = fact.Unknown("%s has %s, which has no cache of its own", kind.From, kind.Value)
		return
	}
	if v["instance.buffer"].Unknown == "" || !known {
		return
	}
	if _, err := get(mongoPercent, ""); err == nil && one.name != mongoInMemory {
		v["instance.buffer"] = setting{name: mongoPercent, read: func(text string) (any, bool) {
			n, err := strconv.ParseInt(text, 10, 64)
			return limit / 100 * n, err == nil && n > 0 && n <= 100
		}}.value(get)
		return
	}
	if s, err := get(one.name, "none"); err == nil && s.Value == "none" {
		v["instance.buffer"] = fact.Known(max(256<<20, (limit-1<<30)/2),
			"default of the engine: half of its memory less 1 GiB")
	}
}

// cassandraNames are the names before 4.1, whose values are in MiB.
var cassandraNames = map[string]string{"file_cache_size": "file_cache_size_in_mb",
	"networking_cache_size": "networking_cache_size_in_mb", "memtable_offheap_space": "memtable_offheap_space_in_mb"}

// cassandraFile reads cassandra.yaml. The heap and what else is Java's is on the command line.
func cassandraFile(reader options.Reader, p *procfs.Process, inst engine.Instance) source {
	props, _ := options.JavaOptions(p.Args)
	y := &yamlfile.File{Err: errors.New("its cassandra.yaml was not found")}
	if inst.Config != "" {
		y = readYAML(reader, p.PID, inst.Config)
	}
	return func(name, byDefault string) (options.Setting, error) {
		if _, given := props["cassandra.settings."+name]; given {
			return options.Setting{}, fmt.Errorf("-Dcassandra.settings.%s may win over %s", name, inst.Config)
		}
		s, set, err := y.Get(name)
		if old := cassandraNames[name]; old != "" && !set && err == nil {
			if s, set, err = y.Get(old); set {
				s.Value += "MiB"
			}
		}
		switch {
		case err != nil || set:
			return s, err
		case byDefault == "":
			return s, fmt.Errorf("%s does not set %s", inst.Config, name)
		}
		return options.Setting{Value: byDefault, From: "default of the engine; not set in " + inst.Config}, nil
	}
}

// cassandraFacts are what a Cassandra takes beside its heap. Defaults are parts of the heap (DatabaseDescriptor.java).
func cassandraFacts(get source, inst engine.Instance, v, inputs fact.Values) {
	if n, known := v["instance.connections"].Is.(int64); known && n < 1 {
		v["instance.connections"] = fact.Unknown("%s: as many as come", v["instance.connections"].From)
	}
	heap := v.Get("instance.buffer")
	part := func(name string, of, most int64) fact.Value {
		s, err := get(name, "auto")
		size, ok := Size(s.Value, 1)
		bytes, known := heap.Is.(int64)
		switch {
		case err != nil:
			return fact.Unknown("%v", err)
		case ok:
			return fact.Known(size, s.From+" "+name)
		case s.Value != "auto":
			return fact.Unknown("%s %s = %q cannot be read", s.From, name, s.Value)
		case !known:
			return heap
		}
		return fact.Known(min(bytes/of, most), fmt.Sprintf("%s: 1/%d of the heap", s.From, of))
	}
	const mib = 1 << 20
	inputs["input.file_cache"] = part("file_cache_size", 4, 512*mib)
	inputs["input.network_cache"] = part("networking_cache_size", 16, 128*mib)
	if inst.Version != "" && !fact.Since(inst.Version, "4.0") {
		inputs["input.network_cache"] = fact.Known(int64(0), "version "+inst.Version+" has none")
	}
	s, err := get("memtable_allocation_type", "heap_buffers")
	switch {
	case err != nil:
		inputs["input.memtables"] = fact.Unknown("%v", err)
	case strings.HasPrefix(s.Value, "offheap"):
		inputs["input.memtables"] = part("memtable_offheap_space", 4, 1<<62)
	default:
		inputs["input.memtables"] = fact.Known(int64(0), s.From+" memtable_allocation_type = "+s.Value)
	}
}

// scyllaArguments are those of ScyllaDB. Its memory is said there alone (Seastar), and no rule asks for a setting of
// scylla.yaml.
func scyllaArguments(p *procfs.Process) source {
	args := options.LongOptions(p.Args, map[string]string{"-m": "memory"})
	return func(name, byDefault string) (options.Setting, error) {
		if value, there := args[name]; there {
			return options.Setting{Value: value, From: "the command line"}, nil
		}
		if byDefault == "" {
			return options.Setting{}, fmt.Errorf("--%s is not on its command line", name)
		}
		return options.Setting{Value: byDefault, From: "default of the engine; not on its command line"}, nil
	}
}

// scyllaMemory is what a ScyllaDB takes: --memory, or all that it may have but what it leaves to others
// (calculate_memory in core/resource.cc of Seastar).
func scyllaMemory(get source, v fact.Values) {
	const least = 500_000_000
	limit, known := v.Get("instance.memory_limit").Is.(int64)
	if s, _ := get("memory", "auto"); s.Value != "auto" || !known {
		v["instance.buffer"] = setting{name: "memory", read: bytesForm}.value(get)
		return
	}
	left := fact.Known(max(1536<<20, limit/100*7), "1.5 GiB, or 7 %")
	if s, _ := get("reserve-memory", "auto"); s.Value != "auto" {
		left = setting{name: "reserve-memory", read: bytesForm}.value(get)
	}
	v["instance.buffer"] = left
	if n, ok := left.Is.(int64); ok {
		v["instance.buffer"] = fact.Known(max(least, limit-n), "no --memory on its command line: its memory less "+
			left.From)
	}
}
