package settings

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
)

const (
	gib      = 1 << 30
	mongoAt  = "/etc/mongod.conf"
	cassAt   = "/etc/cassandra/cassandra.yaml"
	mongoIs  = "storage:\n  dbPath: /var/lib/mongodb\n"
	java     = "java -Xmx8G -cp /opt/lib/apache-cassandra-4.1.3.jar"
	heapOnly = 8*gib + 512<<20 + 128<<20 // with the file cache and the network cache
)

// Settings of engines with YAML files, as arguments and files have them; what is not understood is unknown and says so.
func TestYAMLFiles(t *testing.T) {
	for name, c := range map[string]struct {
		engine, file, args, fact string
		want                     any    // nil is unknown
		from                     string // a part of where it was read, or of why it is unknown
	}{
		"MongoDB": {engine.MongoDB, mongoIs + "  wiredTiger:\n    engineConfig:\n      cacheSizeGB: 2.5 # of 16\n",
			"mongod", "instance.buffer", int64(5 * gib / 2), mongoAt + ":5"},
		"in one line": {engine.MongoDB, "storage: {wiredTiger: {engineConfig: {cacheSizeGB: 2}}}\n", "mongod",
			"instance.buffer", int64(2 * gib), mongoAt + ":1"},
		"a dotted name": {engine.MongoDB, "storage.wiredTiger.engineConfig.cacheSizeGB: 2\n", "mongod",
			"instance.buffer", int64(2 * gib), mongoAt + ":1"},
		"an argument wins": {engine.MongoDB, "storage: {wiredTiger: {engineConfig: {cacheSizeGB: 2}}}\n",
			"mongod --wiredTigerCacheSizeGB 3", "instance.buffer", int64(3 * gib), "the command line"},
		"its default": {engine.MongoDB, mongoIs, "mongod", "instance.buffer", int64(15 * gib / 2),
			"default of the engine"},
		"a percentage": {engine.MongoDB, "storage: {wiredTiger: {engineConfig: {cacheSizePct: 25}}}\n", "mongod",
			"instance.buffer", int64(16 * gib / 100 * 25), mongoAt + ":1"},
		"in memory": {engine.MongoDB, "storage:\n  engine: inMemory\n  inMemory: {engineConfig: {inMemorySizeGB: 4}}\n",
			"mongod", "instance.buffer", int64(4 * gib), mongoAt + ":3"},
		"in memory, its default": {engine.MongoDB, "storage:\n  engine: inMemory\n", "mongod", "instance.buffer",
			int64(15 * gib / 2), "default"},
		"mmapv1": {engine.MongoDB, mongoIs, "mongod --storageEngine mmapv1", "instance.buffer", nil,
			"no cache of its own"},
		"read when it starts": {engine.MongoDB, "net:\n  maxIncomingConnections:\n    __exec: /usr/bin/ask\n", "mongod",
			"instance.connections", nil, "in a form that is not read"},
		"an alias": {engine.MongoDB, "a: &a {enabled: false}\nstorage:\n  journal: *a\n", "mongod",
			"instance.journal", nil, "storage.journal in a form that is not read"},
		"an alias of more": {engine.MongoDB, "a: &a {journal: {enabled: false}}\nstorage: *a\n", "mongod",
			"instance.journal", nil, "storage in a form that is not read"},
		"of another program": {engine.MongoDB, "__exec: /usr/bin/ask\ntype: yaml\n", "mongod", "instance.buffer", nil,
			"in a form that is not read"},
		"twice": {engine.MongoDB, "storage: {journal: {enabled: true}}\nstorage: {journal: {enabled: false}}\n",
			"mongod", "instance.journal", nil, "storage in a form that is not read"},
		"a tab": {engine.MongoDB, "storage:\n\tjournal: {enabled: false}\n", "mongod", "instance.journal", nil,
			mongoAt},
		"too large": {engine.MongoDB, mongoIs + strings.Repeat("# as the document says\n", 16<<10), "mongod",
			"instance.journal", nil, "could not read " + mongoAt},
		"a file of 2.4": {engine.MongoDB, "dbpath = /var/lib/mongodb\n\n# for the night\nmaxConns = 300\n", "mongod",
			"instance.connections", int64(300), mongoAt},
		"before WiredTiger": {engine.MongoDB, mongoIs, "mongod-3.0", "instance.buffer", nil, "no cache of its own"},
		"no YAML":           {engine.MongoDB, "storage: [\n", "mongod", "instance.journal", nil, mongoAt},
		"a file that is not there": {engine.MongoDB, "", "mongod", "instance.journal", nil,
			"could not read " + mongoAt},
		"comments alone": {engine.MongoDB, "# nothing\n", "mongod", "instance.journal", true,
			"default of the engine"},

		"Cassandra": {engine.Cassandra, "cluster_name: a\n", java, "instance.footprint", int64(heapOnly), "heap 8 GiB"},
		"memtables off the heap": {engine.Cassandra, "memtable_allocation_type: offheap_objects\n", java,
			"instance.footprint", int64(heapOnly + 2*gib), "memtables off the heap 2 GiB"},
		"sizes of 4.1": {engine.Cassandra, "memtable_allocation_type: offheap_buffers\nmemtable_offheap_space: 3GiB\n" +
			"file_cache_size: 1024MiB\nnetworking_cache_size: 64MiB\n", java, "instance.footprint",
			int64(8*gib + 3*gib + gib + 64<<20), "file cache 1 GiB"},
		"sizes before": {engine.Cassandra, "file_cache_size_in_mb: 1024\n", strings.Replace(java, "4.1.3", "3.11.6", 1),
			"instance.footprint", int64(9 * gib), "network cache 0 bytes"},
		"a size that is none": {engine.Cassandra, "file_cache_size: plenty\n", java, "instance.footprint", nil,
			`file_cache_size = "plenty" cannot be read`},
		"without a heap": {engine.Cassandra, "cluster_name: a\n", "java", "instance.footprint", nil, "heap"},
		"a part of another mapping": {engine.Cassandra, "a: &a {memtable_allocation_type: offheap_objects}\n<<: *a\n",
			java, "instance.footprint", nil, "in a form that is not read"},
		"connections": {engine.Cassandra, "native_transport_max_concurrent_connections: 500\n", java,
			"instance.connections", int64(500), cassAt + ":1"},
		"as many as come": {engine.Cassandra, "cluster_name: a\n", java, "instance.connections", nil,
			"as many as come"},
		"another source": {engine.Cassandra, "cluster_name: a\n",
			java + " -Dcassandra.settings.native_transport_max_concurrent_connections=9", "instance.connections", nil,
			"may win over"},
		"no cassandra.yaml": {engine.Cassandra, "", java, "instance.footprint", nil, "could not read " + cassAt},

		"ScyllaDB": {engine.ScyllaDB, "", "scylla -m 4G", "instance.buffer", int64(4 * gib), "the command line"},
		"all but a part": {engine.ScyllaDB, "", "scylla --smp 2", "instance.footprint", int64(16*gib - 1536<<20),
			"buffer 14.5 GiB"},
		"all but what is said": {engine.ScyllaDB, "", "scylla --reserve-memory 2G", "instance.buffer", int64(14 * gib),
			"reserve-memory"},
		"a size of another kind": {engine.ScyllaDB, "", "scylla --memory much", "instance.buffer", nil, `"much"`},
	} {
		tree := linuxtest.Text(t, "storage/dbhost")
		inst := engine.Instance{Engine: c.engine, Version: "7.0"}
		switch c.engine {
		case engine.MongoDB:
			inst.Config = mongoAt
			if strings.Contains(c.args, "3.0") {
				inst.Version = "3.0.15"
			}
		case engine.Cassandra:
			inst.Config, inst.Version = cassAt, "4.1.3"
			if strings.Contains(c.args, "3.11.6") {
				inst.Version = "3.11.6"
			}
		}
		if c.file != "" {
			tree += "-- " + strings.TrimPrefix(inst.Config, "/") + " --\n" + c.file
		}
		h := host.New(linuxtest.Unpack(t, tree))
		p := &procfs.Process{ID: procfs.ID{PID: 1700}, Args: strings.Fields(c.args)}
		v := fact.Values{"instance.memory_limit": fact.Known(int64(16*gib), "its groups"),
			"instance.buffer": fact.Unknown("its heap is not known")}
		if c.engine == engine.Cassandra && strings.Contains(c.args, "-Xmx8G") {
			v["instance.buffer"] = fact.Known(int64(8*gib), "-Xmx8G")
		}
		s, trouble := Of(t.Context(), h, inst, p, nil)
		if trouble != nil {
			t.Fatal(trouble)
		}
		s.Facts(inst, v)
		got := v.Get(c.fact)
		if said := got.From + got.Unknown; got.Is != c.want || !strings.Contains(said, c.from) {
			t.Errorf("%s: %s is %s, want %v with %q", name, c.fact, fmt.Sprintf("%+v", got), c.want, c.from)
		}
	}
}
