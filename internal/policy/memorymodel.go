package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MemoryModel is what a person knows of the memory that one database instance of a group takes when it is busy: the
// values of its own configuration, and a rule for what they come to.
type MemoryModel struct {
	Values []ModelValue // in the order of the table
	// Huge says that the engine's large part lies in huge pages, which memory.max does not count.
	Huge bool
	Pos  Pos
}

// ModelValue is one input of a model: bytes, or a number, or a percentage.
type ModelValue struct {
	Name  string
	Value int64
	Pos   Pos
}

// ModelInput is a row of the table of inputs.
type ModelInput struct {
	Name   string
	Engine string // the family it belongs to; "" for all
	Large  bool   // the part that may lie in huge pages; each model has one, and tells its engine by it
	Count  bool   // a number; else bytes
	Share  bool   // a percentage
	Doc    string
}

// ModelInputs is the table of what a memory model is made from, by engine.
var ModelInputs = []ModelInput{
	{Name: "buffer_pool", Engine: "mysql", Large: true,
		Doc: "innodb_buffer_pool_size; a tenth more is counted for what InnoDB keeps of each page."},
	{Name: "per_connection", Engine: "mysql",
		Doc: "What one busy connection takes: thread stack, net, sort, join and read buffers, temporary tables."},
	{Name: "shared_buffers", Engine: "postgresql", Large: true, Doc: "shared_buffers."},
	{Name: "work_mem", Engine: "postgresql",
		Doc: "work_mem, times the sorts and hashes that one connection runs at a time; 10 MiB more are counted for " +
			"each backend."},
	{Name: "maintenance_work_mem", Engine: "postgresql",
		Doc: "maintenance_work_mem, or autovacuum_work_mem; counted for each of workers."},
	{Name: "workers", Engine: "postgresql", Count: true, Doc: "autovacuum_max_workers; 3 when not given."},
	{Name: "sga", Engine: "oracle", Large: true, Doc: "SGA_MAX_SIZE."},
	{Name: "pga", Engine: "oracle", Doc: "PGA_AGGREGATE_LIMIT."},
	{Name: "processes", Engine: "oracle", Count: true, Doc: "PROCESSES; 5 MiB are counted for each."},
	{Name: "cache", Engine: "mongodb", Large: true,
		Doc: "storage.wiredTiger.engineConfig.cacheSizeGB; 1 MiB is counted for each connection."},
	{Name: "maxmemory", Engine: "redis", Large: true, Doc: "maxmemory."},
	{Name: "fork_copy", Engine: "redis", Count: true, Share: true,
		Doc: "Percentage of maxmemory that is copied while a child saves, 0 to 100; 100 when not given."},
	{Name: "connections", Engine: "", Count: true,
		Doc: "Most connections at a time: max_connections, or as many as were ever used."},
	{Name: "other", Engine: "", Doc: "What else the instance takes: plugins, JIT, page cache that it must not lose."},
}

// families are the engines that a family of models is for, as match entries name them.
var families = map[string][]string{
	"mysql": {"mysql", "mariadb", "percona"}, "postgresql": {"postgresql"}, "oracle": {"oracle"},
	"mongodb": {"mongodb"}, "redis": {"redis", "valkey"},
}

// Get is an input of the model; given says whether it is there.
func (m *MemoryModel) Get(name string) (value int64, given bool) {
	i := slices.IndexFunc(m.Values, func(v ModelValue) bool { return v.Name == name })
	if i < 0 {
		return 0, false
	}
	return m.Values[i].Value, true
}

// Large is the part by which the model tells its engine; nil when there is none.
func (m *MemoryModel) Large() *ModelInput {
	for i := range ModelInputs {
		if _, given := m.Get(ModelInputs[i].Name); given && ModelInputs[i].Large {
			return &ModelInputs[i]
		}
	}
	return nil
}

// modelPart is one term of what a model comes to.
type modelPart struct {
	words string
	bytes Bytes
}

// Rules of thumb for what engines take beside what they are told to: see docs/policy.md.
const (
	innodbExtra     = 10       // per cent of the buffer pool
	backendBytes    = 10 << 20 // of a PostgreSQL backend
	oracleBytes     = 5 << 20  // of an Oracle server process
	mongodbBytes    = 1 << 20  // of a MongoDB connection
	postgresWorkers = 3        // autovacuum_max_workers
)

// parts are the terms, the large one first, which lies in huge pages where the model says so.
func (m *MemoryModel) parts() []modelPart {
	value := func(name string) int64 { n, _ := m.Get(name); return n }
	var parts []modelPart
	add := func(n int64, format string, args ...any) {
		if n > 0 {
			parts = append(parts, modelPart{fmt.Sprintf(format, args...), Bytes(n)})
		}
	}
	each := func(count, bytes int64, what string) {
		add(count*bytes, "%d %s of %s", count, what, Bytes(bytes).Human())
	}
	connections := value("connections")
	switch large := m.Large(); large.Name {
	case "buffer_pool":
		add(value("buffer_pool"), "buffer_pool %s", Bytes(value("buffer_pool")).Human())
		add(value("buffer_pool")/100*innodbExtra, "%d %% of it for its pages", innodbExtra)
		each(connections, value("per_connection"), "connections")
	case "shared_buffers":
		add(value("shared_buffers"), "shared_buffers %s", Bytes(value("shared_buffers")).Human())
		each(connections, backendBytes+value("work_mem"), "connections")
		workers, given := m.Get("workers")
		if !given {
			workers = postgresWorkers
		}
		each(workers, value("maintenance_work_mem"), "workers")
	case "sga":
		add(value("sga"), "sga %s", Bytes(value("sga")).Human())
		add(value("pga"), "pga %s", Bytes(value("pga")).Human())
		each(value("processes"), oracleBytes, "processes")
	case "cache":
		add(value("cache"), "cache %s", Bytes(value("cache")).Human())
		each(connections, mongodbBytes, "connections")
	case "maxmemory":
		add(value("maxmemory"), "maxmemory %s", Bytes(value("maxmemory")).Human())
		share, given := m.Get("fork_copy")
		if !given {
			share = 100
		}
		add(value("maxmemory")/100*share, "%d %% of it copied while a child saves", share)
	}
	add(value("other"), "other %s", Bytes(value("other")).Human())
	return parts
}

// Need is what memory.max has to hold, what huge pages have to, and how that comes about.
func (m *MemoryModel) Need() (need, huge Bytes, words string) {
	parts := m.parts()
	if m.Huge {
		huge, parts = parts[0].bytes, parts[1:]
	}
	var texts []string
	for _, p := range parts {
		need += p.bytes
		texts = append(texts, p.words)
	}
	return need, huge, strings.Join(texts, " + ")
}

// InputRank is the place of an input in the table, -1 for one that is not there.
func InputRank(name string) int {
	return slices.IndexFunc(ModelInputs, func(in ModelInput) bool { return in.Name == name })
}

// CheckEngine says what is wrong with a model in a template of another engine's instances; "" when nothing is.
func (m *MemoryModel) CheckEngine(engine string) string {
	large := m.Large()
	if slices.Contains(families[large.Engine], engine) {
		return ""
	}
	return fmt.Sprintf("model.%s is of %s, and the group's instances are of %s", large.Name, large.Engine, engine)
}

// Inputs are the model's inputs as the file has them.
func (m *MemoryModel) Inputs() (names, values []string) {
	for _, v := range m.Values {
		names = append(names, v.Name)
		if ModelInputs[InputRank(v.Name)].Count {
			values = append(values, strconv.FormatInt(v.Value, 10))
		} else {
			values = append(values, Bytes(v.Value).String())
		}
	}
	return names, values
}
