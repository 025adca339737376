package engine

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// MongoDB: one process, mongod. Its data directory is given by option or configuration file; it works in "/".
// A router (mongos) holds no data and is no instance. Never seen on a real one.
var mongoRecogniser = recogniser{
	engine:      MongoDB,
	parts:       []string{PartMain},
	executables: []string{"mongod"},
	identity:    isMongo,
	inspect:     inspectMongo,
	members:     alone,
}

// alone is for engines whose instances are one process.
func alone(*scene, *procfs.Process, *Instance) []Member { return nil }

const mongoPort = 27017

// mongoFiles are small files of a data directory: the lock with the pid, WiredTiger's version, the storage engine.
var mongoFiles = []string{"mongod.lock", "WiredTiger", "storage.bson"}

func isMongo(p *procfs.Process) bool {
	return isProgram(p, []string{"mongod"}, []string{"mongod"}) && !hasOption(p.Args, "--version", "--help", "-h",
		"--shutdown", "--sysinfo", "--repair")
}

func inspectMongo(s *scene, p *procfs.Process, inst *Instance) (signals []string) {
	args := longOptions(p.Args, map[string]string{"-f": "config"})
	config := map[string]string{}
	if name := absoluteIn(s.cwd(p.PID), args["config"]); name != "" {
		signals = append(signals, "was given a configuration file")
		inst.Config = name
		config = parseMongoConfig(string(s.file(p.PID, name)))
	}
	inst.DataDir = cleanPath(firstOf(args["dbpath"], config["storage.dbPath"], config["dbpath"]))
	if args["dbpath"] != "" {
		signals = append(signals, "was given --dbpath")
	}
	if name, ok := s.holds(p.PID, inst.DataDir, mongoFiles...); ok {
		signals = append(signals, inst.DataDir+" holds "+name)
	}
	port, _ := strconv.Atoi(firstOf(args["port"], config["net.port"], config["port"]))
	if port == 0 {
		port = mongoUsualPort(args, config)
	}
	return append(signals, s.listen(inst, endpoints{port: port}, port)...)
}

// mongoUsualPort is the port without a word about it, which depends on the role in a sharded cluster.
func mongoUsualPort(args, config map[string]string) int {
	_, shard := args["shardsvr"]
	_, configServer := args["configsvr"]
	switch role := config["sharding.clusterRole"]; {
	case shard || role == "shardsvr":
		return 27018
	case configServer || role == "configsvr":
		return 27019
	}
	return mongoPort
}

// parseMongoConfig reads both forms of the file: YAML, and NAME=VALUE up to 2.4.
func parseMongoConfig(text string) map[string]string {
	values := yamlScalars(text)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); ok && name != "" && !strings.ContainsAny(name, "#: ") {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}

func hasOption(args []string, any ...string) bool {
	return len(args) > 1 && slices.ContainsFunc(args[1:], func(a string) bool { return slices.Contains(any, a) })
}

func cleanPath(name string) string {
	if name == "" {
		return ""
	}
	return path.Clean(name)
}
