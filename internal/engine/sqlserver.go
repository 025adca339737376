package engine

import (
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// SQL Server: two processes of one program. The parent watches and restarts; the child, which looks the same,
// listens and opens the files. Never seen on a real one.
var sqlserverRecogniser = recogniser{
	engine:      SQLServer,
	parts:       []string{PartMain, PartSupervisor},
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
	return isProgram(p, []string{"sqlservr"}, []string{"sqlservr"}) && !hasOption(p.Args, "--setup",
		"--reset-sa-password", "--version", "--help", "-h")
}

// watcher finds the parent that restarts a server and runs the same program.
func watcher(is func(*procfs.Process) bool) func(*scene, *procfs.Process, *Instance) []Member {
	return func(s *scene, p *procfs.Process, _ *Instance) []Member {
		if parent := s.process(p.PPID); parent != nil && parent.Exe == p.Exe && is(parent) {
			return []Member{{parent.ID, PartSupervisor}}
		}
		return nil
	}
}

func inspectSQLServer(s *scene, p *procfs.Process, inst *Instance) (signals []string) {
	config := map[string]string{}
	if data := s.file(p.PID, sqlserverConfig); data != nil {
		inst.Config, config = sqlserverConfig, parseINI(string(data))
		signals = append(signals, "has the configuration "+sqlserverConfig)
	}
	if parent := s.process(p.PPID); parent != nil && parent.Exe == p.Exe && isSQLServer(parent) {
		signals = append(signals, "was started by its watchdog")
	}
	inst.DataDir = sqlserverData
	if dir := config["filelocation.defaultdatadir"]; dir != "" {
		inst.DataDir = cleanPath(dir)
	}
	port, _ := strconv.Atoi(config["network.tcpport"])
	if port == 0 {
		port = sqlserverPort
	}
	return append(signals, s.listen(inst, endpoints{port: port}, sqlserverPort)...)
}

// parseINI reads "name = value" below "[section]" as "section.name". The first of a name wins.
func parseINI(text string) map[string]string {
	values := make(map[string]string)
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			section, _, _ = strings.Cut(line[1:], "]")
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		name = strings.TrimSpace(section) + "." + strings.TrimSpace(name)
		if _, there := values[name]; !there {
			values[name] = mysqlValue(value)
		}
	}
	return values
}
