package recognise

import (
	"strconv"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// SQL Server: two processes of one program. The parent watches and restarts; the child, which looks the same,
// listens and opens the files. Never seen on a real one.
var sqlserverRecogniser = recogniser{
	engine:      engine.SQLServer,
	parts:       []string{engine.PartMain, engine.PartSupervisor},
	executables: []string{"sqlservr"},
	identity:    isSQLServer,
	forked:      true,
	inspect:     inspectSQLServer,
	members:     watcher(isSQLServer),
}

const (
	sqlserverPort   = 1433
	sqlserverConfig = "/var/opt/mssql/mssql.conf"
	sqlserverData   = "/var/opt/mssql"
)

func isSQLServer(p *procfs.Process) bool {
	return options.IsProgram(p, []string{"sqlservr"}, []string{"sqlservr"}) && !options.HasOption(p.Args, "--setup",
		"--reset-sa-password", "--version", "--help", "-h")
}

func inspectSQLServer(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	config := map[string]string{}
	if data := s.File(p.PID, sqlserverConfig); data != nil {
		inst.Config, config = sqlserverConfig, options.ParseINI(string(data))
		signals = append(signals, "has the configuration "+sqlserverConfig)
	}
	if parent := s.process(p.PPID); parent != nil && parent.Exe == p.Exe && isSQLServer(parent) {
		signals = append(signals, "was started by its watchdog")
	}
	inst.DataDir = sqlserverData
	if dir := config["filelocation.defaultdatadir"]; dir != "" {
		inst.DataDir = options.Clean(dir)
	}
	port, _ := strconv.Atoi(config["network.tcpport"])
	if port == 0 {
		port = sqlserverPort
	}
	return append(signals, s.listen(inst, endpoints{port: port}, sqlserverPort)...)
}
