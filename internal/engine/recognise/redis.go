package recognise

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// Redis and Valkey: one process that writes its address over its command line ("redis-server *:6379") and
// works in its data directory. A save is a child process. The executable may be redis-check-rdb: one
// binary serves under several names, and distributions differ in which of them is the file.
var redisRecogniser = recogniser{
	engine:      engine.Redis,
	parts:       []string{engine.PartMain, engine.PartSave, engine.PartSentinel},
	executables: redisExecutables,
	identity:    isRedis,
	inspect:     inspectRedis,
	members:     redisMembers,
}

const redisPort = 6379

var (
	redisNames       = []string{"redis-server", "redis-sentinel", "valkey-server", "valkey-sentinel"}
	redisExecutables = append([]string{"redis-check-rdb", "redis-check-aof", "valkey-check-rdb", "valkey-check-aof"},
		redisNames...)
	// redisFiles are small files of a data directory: with an append-only file since 7.0, in a cluster.
	redisFiles = []string{"appendonlydir/appendonly.aof.manifest", "nodes.conf"}
	// redisConfigs are the files tried when the title hides which one was given.
	redisConfigs = []string{"/etc/redis/redis.conf", "/etc/redis.conf", "/etc/valkey/valkey.conf"}
)

func isRedis(p *procfs.Process) bool { return options.IsProgram(p, redisNames, redisExecutables) }

func inspectRedis(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	if strings.HasPrefix(options.ProgramName(p), engine.Valkey) || strings.HasPrefix(path.Base(p.Exe), engine.Valkey) {
		inst.Flavor = engine.Valkey
	}
	inst.DataDir = s.Cwd(p.PID)
	shown, titled := parseRedisTitle(strings.TrimRight(p.Args[0], " ")) // a title is one argument with blanks
	args := redisArgs{}
	if titled {
		signals = append(signals, "shows "+strconv.Quote(options.Title(p)))
	} else if args = parseRedisArgs(p.Args); args.serving() {
		signals = append(signals, "was given a server's configuration")
	}
	told := shown.endpoints
	if args.values["port"] != "" {
		told.port, _ = strconv.Atoi(args.values["port"])
	}
	told.socket = cmp.Or(told.socket, args.values["unixsocket"])
	signals = append(signals, s.listen(inst, told, redisPort)...)
	if name, ok := s.Holds(p.PID, inst.DataDir, redisFiles...); ok {
		signals = append(signals, inst.DataDir+" holds "+name)
	}
	s.redisConfig(p, inst, args.config)
	inst.Version = cmp.Or(options.PathVersion(p.Exe, "redis", "valkey"))
	if shown.mode == engine.PartSentinel || args.sentinel || strings.HasSuffix(options.ProgramName(p), "-sentinel") {
		inst.Members[0].Part = engine.PartSentinel
	}
	return signals
}

func redisMembers(s *scene, p *procfs.Process, inst *engine.Instance) (members []engine.Member) {
	for _, c := range s.children[p.PID] {
		if !inst.Sentinel() && c.State != 'Z' && len(c.Args) > 0 && isRedisSave(c, p) {
			members = append(members, engine.Member{ID: c.ID, Part: engine.PartSave})
		}
	}
	return members
}

// redisSave is the start of the titles of forked children: redis-rdb-bgsave, redis-aof-rewrite,
// redis-rdb-to-slaves, redis-module-fork.
var redisSave = regexp.MustCompile(`^(?:redis|valkey)-(?:rdb|aof|module)-`)

// isRedisSave says whether a child is a fork of the server: by its title, or by looking like its parent
// for the instant before it has one.
func isRedisSave(c, server *procfs.Process) bool {
	if c.Exe != "" && server.Exe != "" && c.Exe != server.Exe {
		return false
	}
	return redisSave.MatchString(options.ProgramName(c)) || slices.Equal(c.Args, server.Args)
}

type redisTitle struct {
	endpoints
	mode string // "cluster", "sentinel" or ""
}

var redisTitlePattern = regexp.MustCompile(`^\S*(?:redis|valkey)-(?:server|sentinel) ` +
	`(\S+:\d+|/\S+|unixsocket:\S+)(?: \[(\w+)\])?$`)

// parseRedisTitle reads the default proc-title-template, "{title} {listen-addr} {server-mode}" (since
// 2.6; the template since 6.2).
func parseRedisTitle(text string) (redisTitle, bool) {
	m := redisTitlePattern.FindStringSubmatch(text)
	if m == nil {
		return redisTitle{}, false
	}
	t := redisTitle{mode: m[2]}
	if addr := strings.TrimPrefix(m[1], "unixsocket:"); path.IsAbs(addr) {
		t.socket = addr
		return t, true
	}
	port, err := strconv.Atoi(m[1][strings.LastIndexByte(m[1], ':')+1:])
	if err != nil || port >= 1<<16 {
		return redisTitle{}, false
	}
	t.port = port
	return t, true
}

// redisArgs is a command line before the title hides it, or for good with set-proc-title no.
type redisArgs struct {
	config   string
	values   map[string]string
	sentinel bool
}

func (a redisArgs) serving() bool { return a.config != "" || len(a.values) > 0 || a.sentinel }

// parseRedisArgs reads "redis-server [CONFIG] [--NAME VALUE…]".
func parseRedisArgs(args []string) redisArgs {
	a := redisArgs{values: make(map[string]string)}
	if len(args) < 2 {
		return a
	}
	rest := args[1:]
	if slices.ContainsFunc(rest, func(s string) bool {
		return s == "-v" || s == "--version" || s == "-h" || s == "--help" || s == "--test-memory" ||
			s == "--check-system"
	}) {
		return a
	}
	if !strings.HasPrefix(rest[0], "-") {
		a.config, rest = rest[0], rest[1:]
	}
	for i, arg := range rest {
		name, ok := strings.CutPrefix(arg, "--")
		switch {
		case !ok || name == "":
		case name == "sentinel":
			a.sentinel = true
		case i+1 < len(rest):
			a.values[strings.ToLower(name)] = rest[i+1]
		}
	}
	return a
}

// redisConfig finds the configuration file. The title hides it, so a usual file counts only when its
// port and its directory are this server's.
func (s *scene) redisConfig(p *procfs.Process, inst *engine.Instance, given string) {
	if given != "" {
		inst.Config = options.Absolute(inst.DataDir, given)
		return
	}
	candidates := redisConfigs
	if inst.Port != 0 {
		port := strconv.Itoa(inst.Port)
		candidates = append(candidates[:len(candidates):len(candidates)], "/etc/redis/"+port+".conf",
			"/etc/redis/redis-"+port+".conf")
	}
	if inst.DataDir != "" {
		candidates = append(candidates[:len(candidates):len(candidates)], path.Join(inst.DataDir, "redis.conf"))
	}
	for _, name := range candidates {
		if config := parseRedisConfig(string(s.File(p.PID, name))); config.fits(inst) {
			inst.Config = name
			return
		}
	}
}

type redisConfigFile struct {
	port int
	dir  string
}

func (c redisConfigFile) fits(inst *engine.Instance) bool {
	return c.port == inst.Port && c.dir != "" && path.Clean(c.dir) == inst.DataDir
}

func parseRedisConfig(text string) redisConfigFile {
	c := redisConfigFile{port: redisPort}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		switch strings.ToLower(name) {
		case "port":
			c.port, _ = strconv.Atoi(value)
		case "dir":
			c.dir = value
		}
	}
	return c
}
