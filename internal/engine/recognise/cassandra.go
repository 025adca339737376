package recognise

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// Cassandra: a Java virtual machine whose main class is CassandraDaemon. Seen on a real one of version 5.0.5
// (TestLiveCassandra).
var cassandraRecogniser = recogniser{
	engine:      engine.Cassandra,
	parts:       []string{engine.PartMain},
	executables: []string{"java"},
	identity:    isCassandra,
	inspect:     inspectCassandra,
	members:     alone,
}

const (
	cassandraPort  = 9042
	cassandraClass = "org.apache.cassandra.service.CassandraDaemon"
)

// cassandraConfigs are tried when neither an option nor the class path leads to the file.
var cassandraConfigs = []string{"/etc/cassandra/cassandra.yaml", "/etc/cassandra/conf/cassandra.yaml",
	"/etc/cassandra/default.conf/cassandra.yaml"}

// isCassandra asks for the main class as an argument of its own; what follows it are Cassandra's arguments.
func isCassandra(p *procfs.Process) bool {
	return path.Base(p.Exe) == "java" && slices.Contains(p.Args[1:], cassandraClass) ||
		p.Exe == "" && options.ProgramName(p) == "java" && slices.Contains(p.Args[1:], cassandraClass)
}

func inspectCassandra(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	props, classpath := options.JavaOptions(p.Args)
	var dirs []string
	for dir := range strings.SplitSeq(classpath, ":") {
		if len(dirs) < 8 && path.IsAbs(dir) && !strings.HasSuffix(dir, ".jar") && !strings.HasSuffix(dir, "*") {
			dirs = append(dirs, path.Join(dir, "cassandra.yaml"))
		}
	}
	given := strings.TrimPrefix(strings.TrimPrefix(props["cassandra.config"], "file://"), "file:")
	var config map[string]string
	for _, name := range append(append([]string{given}, dirs...), cassandraConfigs...) {
		if data := s.File(p.PID, name); data != nil {
			inst.Config, config = name, options.ParseYAML(string(data))
			signals = append(signals, "has the configuration "+name)
			break
		}
	}
	storage := props["cassandra.storagedir"]
	if storage != "" || props["cassandra.logdir"] != "" || props["cassandra-pidfile"] != "" {
		signals = append(signals, "was given Cassandra's properties")
	}
	data := strings.TrimSuffix(config["data_file_directories"], "/data")
	inst.DataDir = options.Clean(cmp.Or(data, storage))
	port, _ := strconv.Atoi(config["native_transport_port"])
	if port == 0 {
		port = cassandraPort
	}
	inst.Version = jarVersion(classpath, "apache-cassandra-")
	return append(signals, s.listen(inst, endpoints{port: port}, cassandraPort)...)
}

// jarVersion finds the version in the name of an archive: "…/apache-cassandra-4.1.3.jar".
func jarVersion(classpath, name string) string {
	_, rest, ok := strings.Cut(classpath, "/"+name)
	if !ok {
		return ""
	}
	rest, _, _ = strings.Cut(rest, ".jar")
	return options.LeadingVersion.FindString(rest)
}
