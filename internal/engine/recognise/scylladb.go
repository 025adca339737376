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

// ScyllaDB: one process, scylla, with a thread per CPU. Its package brings its own libraries: the file that
// runs is /opt/scylladb/libexec/scylla, before 4.0 the dynamic linker beside them with scylla.bin as its
// argument. Other verbs of the same program (sstable, nodetool, perf-…) are tools. Never seen on a real one.
var scyllaRecogniser = recogniser{
	engine:      engine.ScyllaDB,
	parts:       []string{engine.PartMain},
	executables: scyllaExecutables,
	identity:    isScylla,
	inspect:     inspectScylla,
	members:     alone,
}

const (
	scyllaPort    = 9042
	scyllaDataDir = "/var/lib/scylla"
	scyllaConfig  = "/etc/scylla/scylla.yaml"
)

var scyllaExecutables = []string{"scylla", "scylla.bin", "ld.so"}

func isScylla(p *procfs.Process) bool {
	if !options.IsProgram(p, []string{"scylla"}, scyllaExecutables) || path.Base(p.Exe) == "ld.so" &&
		!strings.Contains(p.Exe,
			"scylla") {
		return false
	}
	if verb := scyllaVerb(p); verb != "" && verb != "server" {
		return false
	}
	return !options.HasOption(p.Args, "--version", "--build-id", "--help", "-h", "--list-tools")
}

// scyllaVerb is the first argument when it is no option: "sstable", "nodetool", … ("server" is meant without).
func scyllaVerb(p *procfs.Process) string {
	args := p.Args
	if len(args) > 1 && path.Base(args[1]) == "scylla.bin" {
		args = args[1:]
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return ""
	}
	return args[1]
}

func inspectScylla(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	args := options.LongOptions(p.Args, map[string]string{"-W": "workdir"})
	inst.Config = options.Absolute(s.Cwd(p.PID), args["options-file"])
	for _, name := range slices.Compact([]string{inst.Config, scyllaConfig}) {
		if data := s.File(p.PID, name); data != nil {
			inst.Config = name
			break
		}
	}
	config := options.ParseYAML(string(s.File(p.PID, inst.Config)))
	if args["options-file"] != "" || args["workdir"] != "" {
		signals = append(signals, "was given a server's options")
	} else if _, ok := args["log-to-syslog"]; ok {
		signals = append(signals, "was given a server's options")
	}
	inst.DataDir = options.Clean(cmp.Or(args["workdir"], config["workdir"]))
	if dir := cmp.Or(args["data-file-directories"], config["data_file_directories"]); inst.DataDir == "" {
		inst.DataDir = options.Clean(cmp.Or(strings.TrimSuffix(dir, "/data"), scyllaDataDir))
	}
	port, _ := strconv.Atoi(cmp.Or(args["native-transport-port"], config["native_transport_port"]))
	if port == 0 {
		port = scyllaPort
	}
	signals = append(signals, s.listen(inst, endpoints{port: port}, scyllaPort)...)
	if len(p.Cgroups) > 0 && inUnit(p, "scylla-server.service") {
		signals = append(signals, "runs as scylla-server.service")
	}
	return signals
}

// inUnit says whether a path of a process leads through a systemd unit.
func inUnit(p *procfs.Process, unit string) bool {
	for _, where := range p.Cgroups {
		if slices.Contains(strings.Split(where, "/"), unit) {
			return true
		}
	}
	return false
}
