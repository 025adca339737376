package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MemoryModel is what a person knows of the memory that one database instance of a group takes when it is busy: the values of its own
// configuration, and a rule for what they come to.
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

// modelInput is a row of the table of inputs.
type modelInput struct {
	name   string
	engine string // the family it belongs to; "" for all
	large  bool   // the part that may lie in huge pages; each model has one, and tells its engine by it
	count  bool   // a number; else bytes
	share  bool   // a percentage
	doc    string
}

var modelInputs = []modelInput{
	{name: "buffer_pool", engine: "mysql", large: true, doc: "innodb_buffer_pool_size; a tenth more is counted for what InnoDB keeps of each page."},
	{name: "per_connection", engine: "mysql", doc: "What one busy connection takes: thread stack, net, sort, join and read buffers, temporary tables."},
	{name: "shared_buffers", engine: "postgresql", large: true, doc: "shared_buffers."},
	{name: "work_mem", engine: "postgresql", doc: "work_mem, times the sorts and hashes that one connection runs at a time; 10 MiB more are counted for each backend."},
	{name: "maintenance_work_mem", engine: "postgresql", doc: "maintenance_work_mem, or autovacuum_work_mem; counted for each of workers."},
	{name: "workers", engine: "postgresql", count: true, doc: "autovacuum_max_workers; 3 when not given."},
	{name: "sga", engine: "oracle", large: true, doc: "SGA_MAX_SIZE."},
	{name: "pga", engine: "oracle", doc: "PGA_AGGREGATE_LIMIT."},
	{name: "processes", engine: "oracle", count: true, doc: "PROCESSES; 5 MiB are counted for each."},
	{name: "cache", engine: "mongodb", large: true, doc: "storage.wiredTiger.engineConfig.cacheSizeGB; 1 MiB is counted for each connection."},
	{name: "maxmemory", engine: "redis", large: true, doc: "maxmemory."},
	{name: "fork_copy", engine: "redis", count: true, share: true, doc: "Percentage of maxmemory that is copied while a child saves, 0 to 100; 100 when not given."},
	{name: "connections", engine: "", count: true, doc: "Most connections at a time: max_connections, or as many as were ever used."},
	{name: "other", engine: "", doc: "What else the instance takes: plugins, JIT, page cache that it must not lose."},
}

// families are the engines that a family of models is for, as match entries name them.
var families = map[string][]string{
	"mysql": {"mysql", "mariadb", "percona"}, "postgresql": {"postgresql"}, "oracle": {"oracle"}, "mongodb": {"mongodb"}, "redis": {"redis", "valkey"},
}

// get is an input of the model; given says whether it is there.
func (m *MemoryModel) get(name string) (value int64, given bool) {
	i := slices.IndexFunc(m.Values, func(v ModelValue) bool { return v.Name == name })
	if i < 0 {
		return 0, false
	}
	return m.Values[i].Value, true
}

// large is the part by which the model tells its engine; nil when there is none.
func (m *MemoryModel) large() *modelInput {
	for i := range modelInputs {
		if _, given := m.get(modelInputs[i].name); given && modelInputs[i].large {
			return &modelInputs[i]
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
	value := func(name string) int64 { n, _ := m.get(name); return n }
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
	switch large := m.large(); large.name {
	case "buffer_pool":
		add(value("buffer_pool"), "buffer_pool %s", Bytes(value("buffer_pool")).Human())
		add(value("buffer_pool")/100*innodbExtra, "%d %% of it for its pages", innodbExtra)
		each(connections, value("per_connection"), "connections")
	case "shared_buffers":
		add(value("shared_buffers"), "shared_buffers %s", Bytes(value("shared_buffers")).Human())
		each(connections, backendBytes+value("work_mem"), "connections")
		workers, given := m.get("workers")
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
		share, given := m.get("fork_copy")
		if !given {
			share = 100
		}
		add(value("maxmemory")/100*share, "%d %% of it copied while a child saves", share)
	}
	add(value("other"), "other %s", Bytes(value("other")).Human())
	return parts
}

// need is what memory.max has to hold, what huge pages have to, and how that comes about.
func (m *MemoryModel) need() (need, huge Bytes, words string) {
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

// memoryModelField is `model:` of a group.
func memoryModelField() FormKey[Group] {
	o := Form[MemoryModel]{Name: "a model", Elsewhere: map[string]string{"max": "it belongs to the group's memory", "innodb_buffer_pool_size": "write buffer_pool"}}
	for _, in := range modelInputs {
		o.Keys = append(o.Keys, in.field())
	}
	o.Keys = append(o.Keys, FormKey[MemoryModel]{
		Name: "huge", Doc: "The buffer pool, shared_buffers, SGA or cache lies in huge pages, which memory.max does not count.", Schema: JSONSchema{"type": "boolean"},
		Read: func(v Item, m *MemoryModel) { m.Huge, _ = v.Flag() },
	})
	return FormKey[Group]{
		Name: "model", Doc: "What one instance's own configuration lets it take of memory; check holds memory.max against it.", Schema: o.Schema(),
		Read: func(v Item, g *Group) {
			m := &MemoryModel{Pos: v.Pos()}
			if o.Read(v, "model.", m) && readCheckModel(v, m) {
				g.Model = m
			}
		},
	}
}

// field is how an input is written.
func (in modelInput) field() FormKey[MemoryModel] {
	size := &limit{key: Key("model." + in.name), unit: sizeUnit(false), zero: true}
	shape := size.Schema()
	most := int64(1000000)
	if in.share {
		most = 100
	}
	if in.count {
		shape = JSONSchema{"type": "integer", "minimum": 0, "maximum": most}
	}
	return FormKey[MemoryModel]{
		Name: in.name, Doc: in.doc, Schema: shape,
		Read: func(v Item, m *MemoryModel) {
			at := ModelValue{Name: in.name, Pos: v.Pos()}
			if in.count {
				n, ok := v.Number("a number", 0, most)
				if !ok {
					return
				}
				at.Value = n
			} else {
				s, ok := v.Limit(size)
				if !ok {
					return
				}
				at.Value = int64(s.Value.(Bytes))
			}
			m.Values = append(m.Values, at)
		},
	}
}

// checkModel sees that the inputs belong together.
func readCheckModel(v Item, m *MemoryModel) bool {
	before := v.Problems()
	slices.SortStableFunc(m.Values, func(a, b ModelValue) int { return inputRank(a.Name) - inputRank(b.Name) })
	large := m.large()
	if large == nil {
		var names []string
		for _, in := range modelInputs {
			if in.large {
				names = append(names, in.name)
			}
		}
		v.Fail("write one of "+joinWords(names), "model: it does not say how large the engine's own cache is")
		return false
	}
	for _, at := range m.Values {
		in := modelInputs[inputRank(at.Name)]
		if in.engine != "" && in.engine != large.engine {
			v.FailAt(at.Pos, "one model is for one instance", "model.%s is of %s, and %s of %s", in.name, in.engine, large.name, large.engine)
		}
	}
	_, connections := m.get("connections")
	_, each := m.get("per_connection")
	if large.engine == "mysql" && connections != each {
		v.Fail("write both: `connections: 200, per_connection: 3MiB`", "model: connections and per_connection of a MySQL belong together")
	}
	return v.Problems() == before
}

func inputRank(name string) int {
	return slices.IndexFunc(modelInputs, func(in modelInput) bool { return in.name == name })
}

// checkEngine says what is wrong with a model in a template of another engine's instances; "" when nothing is.
func (m *MemoryModel) checkEngine(engine string) string {
	large := m.large()
	if slices.Contains(families[large.engine], engine) {
		return ""
	}
	return fmt.Sprintf("model.%s is of %s, and the group's instances are of %s", large.name, large.engine, engine)
}

// checkModels holds what instances take by their models against the limits of their groups, and against the host where there is none.
func (r *resolution) checkModels(groups []Limits) {
	type held struct {
		Setting
		group string // whose limit it is
	}
	most := map[string]held{} // by group, its own limit or the nearest above
	sums, inside := map[string]Bytes{}, map[string][]string{}
	for _, g := range groups {
		limit, bounded := most[g.Parent]
		if s, ok := g.Settings.Get(KeyMemoryMax, ""); ok {
			if _, limited := s.Value.(Bytes); limited || !bounded {
				limit, bounded = held{s, g.Group}, limited
			}
		}
		if bounded {
			most[g.Group] = limit
		}
		if g.Model == nil {
			continue
		}
		r.checkMemoryModel(g, limit.Setting, bounded)
		if bounded {
			need, _, _ := g.Model.need()
			sums[limit.group] += need
			inside[limit.group] = append(inside[limit.group], g.Group)
		}
	}
	for _, g := range groups {
		limit := most[g.Group]
		if b, _ := limit.Value.(Bytes); len(inside[g.Group]) > 1 && sums[g.Group] > b {
			r.Fail(limit.Pos, fmt.Sprintf("raise memory.max to %s or more", upMiB(sums[g.Group])), "by their models %s take %s together, and %s of %s is less",
				strings.Join(inside[g.Group], " and "), sums[g.Group].Human(), sized(limit.Setting), g.Group)
		}
	}
}

// upMiB is a size in whole MiB that holds another.
func upMiB(b Bytes) Bytes { return (b + 1<<20 - 1) >> 20 << 20 }

func (r *resolution) checkMemoryModel(g Limits, limit Setting, bounded bool) {
	need, huge, words := g.Model.need()
	by := fmt.Sprintf("by its model %s takes %s (%s)", g.Group, need.Human(), words)
	if g.Model.Huge {
		by += fmt.Sprintf(" beside %s in huge pages", huge.Human())
	}
	most, _ := limit.Value.(Bytes)
	switch {
	case bounded && need > most:
		at := limit.Pos
		if at.File == "" {
			at = g.Model.Pos
		}
		r.Fail(at, fmt.Sprintf("raise memory.max to %s or more, or have the engine take less", upMiB(need)), "%s, and %s is less: its processes would be killed", by, sized(limit))
		r.Also(g.Model.Pos)
	case bounded:
		r.note(g.Model.Pos, g.Group, "%s of the %s of %s: %d %%", by, most.Human(), limit.Key, int64(need)*100/max(int64(most), 1))
	case need > r.memory():
		r.Fail(g.Model.Pos, "have the engine take less", "%s, and the host has %s", by, r.memory().Human())
	default:
		r.note(g.Model.Pos, g.Group, "%s, and no memory.max holds it", by)
	}
	if high, ok := g.Settings.Get(KeyMemoryHigh, ""); ok {
		if b, limited := high.Value.(Bytes); limited && b < need {
			r.note(high.Pos, g.Group, "%s is less than the %s that the group takes by its model: it will be slowed down", sized(high), need.Human())
		}
	}
	r.checkHugeModel(g, huge)
}

// checkHugeModel holds the part in huge pages against the group's limit of them.
func (r *resolution) checkHugeModel(g Limits, huge Bytes) {
	if !g.Model.Huge {
		return
	}
	var sum Bytes
	var last Setting
	for _, s := range g.Settings {
		b, limited := s.Value.(Bytes)
		if s.Key != KeyMemoryHuge {
			continue
		}
		if !limited {
			return
		}
		sum, last = sum+b, s
	}
	if last.Key != "" && sum < huge {
		r.Fail(last.Pos, "raise memory.huge, or take `huge` out of the model", "memory.huge of %s is %s, and its model puts %s into huge pages", g.Group, sum.Human(), huge.Human())
		r.Also(g.Model.Pos)
	}
}

// sized is a setting in words with a size that people read.
func sized(s Setting) string {
	text := string(s.Key)
	if b, ok := s.Value.(Bytes); ok {
		text += " " + b.Human()
	}
	if s.Raw != "" {
		text += " (" + s.Raw + ")"
	}
	return text
}

// Inputs are the model's inputs as the file has them.
func (m *MemoryModel) Inputs() (names, values []string) {
	for _, v := range m.Values {
		names = append(names, v.Name)
		if modelInputs[inputRank(v.Name)].count {
			values = append(values, strconv.FormatInt(v.Value, 10))
		} else {
			values = append(values, Bytes(v.Value).String())
		}
	}
	return names, values
}
