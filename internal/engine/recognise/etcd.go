package recognise

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// etcd: one process, etcd. Every option may also be a variable of its environment (ETCD_DATA_DIR), as Debian's
// unit has them, or stand in a configuration file, which replaces both.
var etcdRecogniser = recogniser{
	engine:      engine.Etcd,
	parts:       []string{engine.PartMain},
	executables: []string{"etcd"},
	identity:    isEtcd,
	inspect:     inspectEtcd,
	members:     alone,
}

const etcdPort = 2379

func isEtcd(p *procfs.Process) bool {
	if !options.IsProgram(p, []string{"etcd"}, []string{"etcd"}) ||
		options.HasOption(p.Args, "--version", "-version", "--help",
			"-help", "-h") {
		return false
	}
	return len(p.Args) < 2 || strings.HasPrefix(p.Args[1], "-") // "etcd gateway" and "etcd grpc-proxy" hold no data
}

func inspectEtcd(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	opts := options.LongOptions(p.Args, nil)
	if len(opts) > 0 {
		signals = append(signals, "was given options")
	}
	for _, name := range []string{"name", "data-dir", "listen-client-urls", "advertise-client-urls", "config-file"} {
		if value := s.Env(p.PID)["ETCD_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))]; value != "" &&
			opts[name] == "" {
			opts[name] = value
			signals = append(signals, "has etcd's variables in its environment")
		}
	}
	signals = slices.Compact(signals)
	cwd := s.Cwd(p.PID)
	if name := options.Absolute(cwd, opts["config-file"]); name != "" {
		inst.Config = name
		opts = options.ParseYAML(string(s.File(p.PID, name)))
	}
	dir := opts["data-dir"]
	if dir == "" {
		dir = cmp.Or(opts["name"], "default") + ".etcd"
	}
	inst.DataDir = options.Clean(options.Absolute(cwd, dir))
	urls := strings.Split(cmp.Or(opts["listen-client-urls"], opts["advertise-client-urls"]), ",")
	port := urlPort(urls[0])
	if port == 0 {
		port = etcdPort
	}
	return append(signals, s.listen(inst, endpoints{port: port}, etcdPort)...)
}

func urlPort(text string) int {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || port < 0 || port > 65535 {
		return 0
	}
	return port
}
