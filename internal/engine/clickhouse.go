package engine

import (
	"encoding/xml"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
)

// ClickHouse: one binary for server, client and tools. A server that was not told otherwise forks: the parent
// calls itself clickhouse-watchdog, padded with blanks to the length of the old name, and restarts the child.
// Seen as 18.16 on Debian 12, which has no watchdog yet.
var clickhouseRecogniser = recogniser{
	engine:      ClickHouse,
	parts:       []string{PartMain, PartSupervisor},
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
	if !isProgram(p, []string{"clickhouse-server", "clickhouse"}, clickhouseExecutables) || hasOption(p.Args,
		"--version", "-V", "--help", "-h") {
		return false
	}
	return programName(p) == "clickhouse-server" || len(p.Args) > 1 && p.Args[1] == "server"
}

func isClickHouseWatchdog(p *procfs.Process) bool { return programName(p) == "clickhouse-watchdog" }

func inspectClickHouse(s *scene, p *procfs.Process, inst *Instance) (signals []string) {
	args := longOptions(p.Args, map[string]string{"-C": "config-file"})
	cwd := s.cwd(p.PID)
	told := firstOf(args["config-file"], args["config"])
	if told != "" {
		signals = append(signals, "was given a configuration file")
	}
	inst.Config = firstOf(absoluteIn(cwd, told), "/etc/clickhouse-server/config.xml")
	config := parseClickHouseConfig(string(s.file(p.PID, inst.Config)))
	inst.DataDir = cleanPath(firstOf(args["path"], config["path"], cwd))
	if path.IsAbs(inst.DataDir) { // what was merged from config.d is written here
		for name, value := range parseClickHouseConfig(string(s.file(p.PID,
			path.Join(inst.DataDir, "preprocessed_configs/config.xml")))) {
			config[name] = value
		}
	}
	if name, ok := s.holds(p.PID, inst.DataDir, clickhouseFiles...); ok {
		signals = append(signals, inst.DataDir+" holds "+name)
	}
	port, _ := strconv.Atoi(firstOf(args["tcp-port"], config["tcp_port"]))
	return append(signals, s.listen(inst, endpoints{port: port}, clickhousePort)...)
}

// parseClickHouseConfig reads the texts right below the root of the file, <clickhouse> or before 21.10 <yandex>.
func parseClickHouseConfig(text string) map[string]string {
	values := make(map[string]string)
	d := xml.NewDecoder(strings.NewReader(text))
	depth, name := 0, ""
	for {
		token, err := d.Token()
		if err != nil {
			return values // the end, or what was understood so far
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth++; depth == 2 {
				name = t.Name.Local
			}
		case xml.EndElement:
			depth--
			name = ""
		case xml.CharData:
			if value := strings.TrimSpace(string(t)); depth == 2 && name != "" && value != "" {
				values[name] = value
			}
		}
	}
}
