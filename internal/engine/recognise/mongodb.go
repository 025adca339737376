package recognise

import (
	"cmp"
	"strconv"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// MongoDB: one process, mongod. Its data directory is given by option or configuration file; it works in "/".
// A router (mongos) holds no data and is no instance. Never seen on a real one.
var mongoRecogniser = recogniser{
	engine:      engine.MongoDB,
	parts:       []string{engine.PartMain},
	executables: []string{"mongod"},
	identity:    isMongo,
	inspect:     inspectMongo,
	members:     alone,
}

const mongoPort = 27017

// mongoFiles are small files of a data directory: the lock with the pid, WiredTiger's version, the storage engine.
var mongoFiles = []string{"mongod.lock", "WiredTiger", "storage.bson"}

func isMongo(p *procfs.Process) bool {
	return options.IsProgram(p, []string{"mongod"}, []string{"mongod"}) &&
		!options.HasOption(p.Args, "--version", "--help", "-h",
			"--shutdown", "--sysinfo", "--repair")
}

func inspectMongo(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	args := options.LongOptions(p.Args, map[string]string{"-f": "config"})
	config := map[string]string{}
	if name := options.Absolute(s.Cwd(p.PID), args["config"]); name != "" {
		signals = append(signals, "was given a configuration file")
		inst.Config = name
		config = options.ParseMongoConfig(string(s.File(p.PID, name)))
	}
	inst.DataDir = options.Clean(cmp.Or(args["dbpath"], config["storage.dbPath"], config["dbpath"]))
	if args["dbpath"] != "" {
		signals = append(signals, "was given --dbpath")
	}
	if name, ok := s.Holds(p.PID, inst.DataDir, mongoFiles...); ok {
		signals = append(signals, inst.DataDir+" holds "+name)
	}
	port, _ := strconv.Atoi(cmp.Or(args["port"], config["net.port"], config["port"]))
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
