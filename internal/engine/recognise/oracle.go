package recognise

import (
	"fmt"
	"path"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/linux/procfs"
)

// Oracle: many processes of one executable, each with its name and the SID in its first argument. None is
// the parent of the others: a listener, which may serve several instances, or init is. The process monitor
// (pmon) stands for the instance, for it is there as long as the instance is.
//
// Sources of the names: "Background Processes" of the Database Reference 11.2 to 23, and listings of
// running hosts (docs/engines.md). Never seen on a real one.
var oracleRecogniser = recogniser{
	engine:      engine.Oracle,
	parts:       []string{engine.PartMain, "background", "jobs", "lgwr", "local", "parallel", "sessions", "shared"},
	executables: oracleExecutables,
	identity:    isPmon,
	belongs:     func(p *procfs.Process) bool { return oracleProcess(p).sid != "" },
	inspect:     inspectOracle,
	members:     oracleMembers,
}

// oracleExecutables: relinking renames the file that is running to oracleO.
var oracleExecutables = []string{"oracle", "oracleO"}

// oracleName is what the first argument of an Oracle process says.
type oracleName struct {
	kind string // "ora", "asm", "mdb", …; "" for a session
	name string // "pmon", "p000"; oracleRemote or "" for a session
	sid  string // "" for none of Oracle's processes
}

// maxOracleName bounds how much of a command line is looked at.
const maxOracleName = 512

// oracleProcess reads the name of a process. It is asked for every process that runs an Oracle executable in every
// look, so it uses no expressions: a background process is "ora_pmon_BXTST02", a dedicated server process
// "oracleBXTST02 (LOCAL=NO)" when the listener started it, and "oracleBXTST02 (DESCRIPTION=(LOCAL=YES)…" when a client
// on this host did for itself (bequeath).
func oracleProcess(p *procfs.Process) oracleName {
	if len(p.Args) == 0 {
		return oracleName{}
	}
	first := strings.TrimRight(p.Args[0][:min(len(p.Args[0]), maxOracleName)], " \x00")
	if n, ok := oracleBackground(first); ok {
		return n
	}
	rest, ok := strings.CutPrefix(first, "oracle")
	if !ok {
		return oracleName{}
	}
	// The second half is an argument of its own until the process writes both into the first.
	sid, how, _ := strings.Cut(rest, " ")
	if how == "" && len(p.Args) > 1 {
		how = p.Args[1]
	}
	switch {
	case sid == "" || strings.Contains(sid, "/"):
	case strings.HasPrefix(how, oracleRemote):
		return oracleName{"", oracleRemote, sid}
	case strings.HasPrefix(how, "(DESCRIPTION=(LOCAL=YES)"):
		return oracleName{"", "", sid}
	}
	return oracleName{}
}

// oracleRemote is what the listener gives to a session.
const oracleRemote = "(LOCAL=NO)"

func oracleBackground(text string) (oracleName, bool) {
	if len(text) < 10 || text[3] != '_' || text[8] != '_' || strings.ContainsAny(text[9:], " \t") {
		return oracleName{}, false
	}
	for _, c := range []byte(text[4:8]) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return oracleName{}, false
		}
	}
	switch text[:3] {
	case "ora", "asm", "mdb", "apx", "ios":
		return oracleName{text[:3], text[4:8], text[9:]}, true
	}
	return oracleName{}, false
}

func isPmon(p *procfs.Process) bool { return oracleProcess(p).name == "pmon" }

func inspectOracle(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string) {
	name := oracleProcess(p)
	inst.SID, inst.Seen = name.sid, true
	switch name.kind {
	case "asm", "apx", "ios": // the disk manager, its proxy, its I/O server
		inst.Flavor = engine.ASM
	}
	inst.Version = options.PathVersion(p.Exe, "product", "app")
	// The processes of an instance work in $ORACLE_HOME/dbs.
	home := path.Dir(path.Dir(p.Exe))
	if dir := s.Cwd(p.PID); dir != "" && (p.Exe == "" && path.Base(dir) == "dbs" || dir == path.Join(home, "dbs")) {
		signals = append(signals, "works in "+dir)
	}
	if others := len(s.oracleOf(p, name.sid)); others > 0 {
		signals = append(signals, fmt.Sprintf("%d other processes have its SID", others))
	}
	if len(signals) == 0 {
		inst.Seen = false
	}
	return signals
}

// oracleOf returns the other processes of an instance: of its SID, its Oracle home and its container. Anybody
// may give a process such a name, and nobody else can run it from that file.
func (s *scene) oracleOf(pmon *procfs.Process, sid string) (own []oracleMember) {
	if s.oracle == nil {
		s.oracle = make(map[string][]oracleMember)
		for _, p := range s.loose[engine.Oracle] {
			name := oracleProcess(p)
			s.oracle[name.sid] = append(s.oracle[name.sid], oracleMember{p, name})
		}
	}
	home := path.Dir(pmon.Exe)
	for _, m := range s.oracle[sid] {
		// Where executables cannot be read, the user must do.
		same := m.p.Exe == pmon.Exe || path.Dir(m.p.Exe) == home
		if same && (pmon.Exe != "" || m.p.UID == pmon.UID) && sameContainer(m.p, pmon) {
			own = append(own, m)
		}
	}
	return own
}

// sameContainer says whether two processes may be of one instance: neither is of a container, or both of one.
func sameContainer(a, b *procfs.Process) bool {
	if !a.ForeignNamespace && !b.ForeignNamespace {
		return true
	}
	return a.ForeignNamespace == b.ForeignNamespace && a.ContainerPath() == b.ContainerPath()
}

// oracleMember is a process with its name.
type oracleMember struct {
	p    *procfs.Process
	name oracleName
}

func oracleMembers(s *scene, p *procfs.Process, inst *engine.Instance) (members []engine.Member) {
	for _, o := range s.oracleOf(p, inst.SID) {
		members = append(members, engine.Member{ID: o.p.ID, Part: oraclePart(o.name)})
	}
	return members
}

// oraclePart returns the part of a process. What is no session and has no part of its own is a background
// process: DBWn, CKPT, SMON, ARCn and a good hundred more.
func oraclePart(n oracleName) string {
	switch {
	case n.name == oracleRemote:
		return "sessions"
	case n.kind == "":
		return "local"
	}
	digit := n.name[1] >= '0' && n.name[1] <= '9'
	switch first := n.name[0]; {
	case first == 'p' && (digit || n.name[1] == 'z'): // P000, P00A, …; PZ99 for queries over the instances of a cluster
		return "parallel"
	case n.name == "lgwr" || strings.HasPrefix(n.name, "lg") && n.name[2] >= '0' &&
		n.name[2] <= '9': // since 12.1 its workers LG00 to LGnn
		return "lgwr"
	case digit && (first == 's' || first == 'd'): // shared servers and their dispatchers
		return "shared"
	case digit && first == 'j' || strings.HasPrefix(n.name, "cjq"):
		return "jobs"
	}
	return "background"
}
