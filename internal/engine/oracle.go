package engine

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/host"
)

// Oracle: many processes of one executable, each with its name and the SID in its first argument. None is
// the parent of the others: a listener, which may serve several instances, or init is. The process monitor
// (pmon) stands for the instance, for it is there as long as the instance is.
//
// Sources of the names: "Background Processes" of the Database Reference 11.2 to 23, and listings of
// running hosts (docs/engines.md). Never seen on a real one.
var oracleRecogniser = recogniser{
	engine:      Oracle,
	parts:       []string{PartMain, "background", "jobs", "lgwr", "local", "parallel", "sessions", "shared"},
	executables: oracleExecutables,
	identity:    isPmon,
	belongs:     func(p *host.Process) bool { return oracleProcess(p).sid != "" },
	inspect:     inspectOracle,
	members:     oracleMembers,
}

// oracleExecutables: relinking renames the file that is running to oracleO.
var oracleExecutables = []string{"oracle", "oracleO"}

// oracleName is what the first argument of an Oracle process says.
type oracleName struct {
	kind string // "ora", "asm", "mdb", …; "" for a session
	name string // "pmon", "p000"; "(LOCAL=NO)" and the like for a session
	sid  string // "" for none of Oracle's processes
}

var (
	oracleBackground = regexp.MustCompile(`^(ora|asm|mdb|apx|ios)_([a-z0-9]{4})_(\S+)$`)
	// A dedicated server process, "oracleBXTST02 (LOCAL=NO)". The listener starts it with the first form; a client
	// on the host that starts its own (bequeath) with the second.
	oracleSession = regexp.MustCompile(`^oracle([^\s/]+) (\(LOCAL=NO\)|\(DESCRIPTION=\(LOCAL=YES\).*)`)
)

// maxOracleName bounds how much of a command line is looked at.
const maxOracleName = 512

func oracleProcess(p *host.Process) oracleName {
	if len(p.Args) == 0 || !strings.HasPrefix(p.Args[0], "oracle") && !strings.Contains(p.Args[0][:min(5, len(p.Args[0]))], "_") {
		return oracleName{}
	}
	first := p.Args[0][:min(len(p.Args[0]), maxOracleName)]
	if m := oracleBackground.FindStringSubmatch(strings.TrimRight(first, " \x00")); m != nil {
		return oracleName{m[1], m[2], m[3]}
	}
	// The second half is an argument of its own until the process writes both into the first.
	if len(p.Args) > 1 {
		first += " " + p.Args[1][:min(len(p.Args[1]), maxOracleName)]
	}
	if m := oracleSession.FindStringSubmatch(first); m != nil {
		return oracleName{"", m[2], m[1]}
	}
	return oracleName{}
}

func isPmon(p *host.Process) bool { return oracleProcess(p).name == "pmon" }

func inspectOracle(s *scene, p *host.Process, inst *Instance) (signals []string) {
	name := oracleProcess(p)
	inst.SID, inst.Seen = name.sid, true
	switch name.kind {
	case "asm", "apx", "ios": // the disk manager, its proxy, its I/O server
		inst.Flavor = ASM
	}
	inst.Version = pathVersion(p.Exe, "product", "app")
	// The processes of an instance work in $ORACLE_HOME/dbs.
	home := path.Dir(path.Dir(p.Exe))
	if dir := s.cwd(p.PID); dir != "" && (p.Exe == "" && path.Base(dir) == "dbs" || dir == path.Join(home, "dbs")) {
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
func (s *scene) oracleOf(pmon *host.Process, sid string) (own []*host.Process) {
	home, container := path.Dir(pmon.Exe), pmon.ContainerPath()
	for _, p := range s.loose[Oracle] {
		if oracleProcess(p).sid == sid && path.Dir(p.Exe) == home && p.ContainerPath() == container {
			own = append(own, p)
		}
	}
	return own
}

func oracleMembers(s *scene, p *host.Process, inst *Instance) (members []Member) {
	for _, o := range s.oracleOf(p, inst.SID) {
		members = append(members, Member{o.ProcID, oraclePart(oracleProcess(o))})
	}
	return members
}

var (
	// P000, P00A, …; PZ99 for queries over the instances of a cluster.
	oracleParallel = regexp.MustCompile(`^p(?:[0-9][0-9a-z]{2}|z[0-9]{2})$`)
	// LGWR, and since 12.1 the workers LG00 to LGnn that it hands writes to.
	oracleLogWriter = regexp.MustCompile(`^lg(?:wr|[0-9a-z]{2})$`)
	oracleShared    = regexp.MustCompile(`^[sd][0-9][0-9a-z]{2}$`) // shared servers and their dispatchers
	oracleJobs      = regexp.MustCompile(`^(?:j[0-9][0-9a-z]{2}|cjq[0-9])$`)
)

// oraclePart returns the part of a process. What is no session and has no part of its own is a background
// process: DBWn, CKPT, SMON, ARCn and a good hundred more.
func oraclePart(n oracleName) string {
	switch {
	case n.name == "(LOCAL=NO)":
		return "sessions"
	case n.kind == "":
		return "local"
	case oracleParallel.MatchString(n.name):
		return "parallel"
	case oracleLogWriter.MatchString(n.name):
		return "lgwr"
	case oracleShared.MatchString(n.name):
		return "shared"
	case oracleJobs.MatchString(n.name):
		return "jobs"
	}
	return "background"
}

// attachRMAN makes helpers of the sessions that an RMAN on this host started for itself: they read and write the
// backup, the client only directs them. They stay members of the instance.
func (s *scene) attachRMAN(found []Instance) {
	for i := range found {
		inst := &found[i]
		if inst.Engine != Oracle {
			continue
		}
		for _, m := range inst.Members {
			if m.Part != "local" {
				continue
			}
			p := s.process(m.ID.PID)
			if p == nil {
				continue
			}
			at, is := slices.BinarySearchFunc(s.helpers, p.PPID, compareHelperPID)
			if !is || s.helpers[at].tool.name != "rman" {
				continue
			}
			inst.Helpers = append(inst.Helpers, Helper{
				ID: m.ID, Kind: HelperBackup, Tool: "rman", Sure: true, Rate: s.helpers[at].tool.rate.of(s.helpers[at].p, nil),
				How: fmt.Sprintf("process %d, an RMAN, started it", p.PPID),
			})
		}
	}
}
