package recognise

import (
	"cmp"
	"path"
	"strconv"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// ClickHouse: one binary for server, client and tools. A server that was not told otherwise forks: the parent
// calls itself clickhouse-watchdog, padded with blanks to the length of the old name, and restarts the child.
// Seen as 18.16 on Debian 12, which has no watchdog yet.
var clickhouseRecogniser = recogniser{
	engine:      engine.ClickHouse,
	parts:       []string{engine.PartMain, engine.PartSupervisor},
	executables: clickhouseExecutables,
	identity:    isClickHouse,
	inspect:     inspectClickHouse,
	members:     watcher(isClickHouseWatchdog),
}

const clickhousePort = 9000

// clickhouseExecutables ends with the kernel's names for the two processes, for want of an executable.
var clickhouseExecutables = []string{"clickhouse", "clickhouse-server", "clickhouse-serv", "clckhouse-watch"}

// clickhouseFiles are small files of a data directory: the server's pid and start, its identity.
var clickhouseFiles = []string{"status", "uuid"}

func isClickHouse(p *procfs.Process) bool {
	if !options.IsProgram(p, []string{"clickhouse-server", "clickhouse"}, clickhouseExecutables) ||
		options.HasOption(p.Args,
			"--version", "-V", "--help", "-h") {
		return false
	}
	return options.ProgramName(p) == "clickhouse-server" || len(p.Args) > 1 && p.Args[1] == "server"
}

func isClickHouseWatchdog(p *procfs.Process) bool {
	return options.ProgramName(p) == "clickhouse-watchdog"
}

func inspectClickHouse(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	args := options.LongOptions(p.Args, map[string]string{"-C": "config-file"})
	cwd := s.Cwd(p.PID)
	told := cmp.Or(args["config-file"], args["config"])
	if told != "" {
		signals = append(signals, "was given a configuration file")
	}
	inst.Config = cmp.Or(options.Absolute(cwd, told), "/etc/clickhouse-server/config.xml")
	config := options.ParseClickHouseConfig(string(s.File(p.PID, inst.Config)))
	inst.DataDir = options.Clean(cmp.Or(args["path"], config["path"], cwd))
	if path.IsAbs(inst.DataDir) { // what was merged from config.d is written here
		for name, value := range options.ParseClickHouseConfig(string(s.File(p.PID,
			path.Join(inst.DataDir, "preprocessed_configs/config.xml")))) {
			config[name] = value
		}
	}
	if name, ok := s.Holds(p.PID, inst.DataDir, clickhouseFiles...); ok {
		signals = append(signals, inst.DataDir+" holds "+name)
	}
	port, _ := strconv.Atoi(cmp.Or(args["tcp-port"], config["tcp_port"]))
	return append(signals, s.listen(inst, endpoints{port: port}, clickhousePort)...)
}
