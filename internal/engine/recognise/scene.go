package recognise

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/tool"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// candidateHelper is a process that runs a helper program.
type candidateHelper struct {
	p    *procfs.Process
	tool *tool.Tool
}

// alone is for engines whose instances are one process.
func alone(*scene, *procfs.Process, *engine.Instance) []engine.Member { return nil }

// Source answers what the process table alone does not say. SourceOf gives that of a host.
type Source interface {
	SocketSource
	options.ProcessSource
}

// SocketSource tells of the sockets of processes.
type SocketSource interface {
	// Listeners returns the listening sockets of the processes, by pid.
	Listeners(pids []int) (map[int][]sockets.Listener, error)
	// Connections returns the sockets of this host that the processes are connected to, by pid.
	Connections(pids []int) (map[int][]sockets.Listener, error)
}

// recogniser is what one engine's file brings.
type recogniser struct {
	engine string
	parts  []string
	// executables are the base names of the files that the server may run from. No other process is
	// asked for its identity.
	executables []string
	// identity says whether a process is the server program, by its executable and by its name.
	identity func(p *procfs.Process) bool
	// forked says that of two processes which look the same, parent and child, the child is the server and
	// the parent watches it. Else the child is a fork that has not written its title yet.
	forked bool
	// belongs says that a process may be a member by its own name, whoever its parent is; nil for the engines
	// whose members descend from the server.
	belongs func(p *procfs.Process) bool
	// inspect fills in the instance, which has its main member already, and returns how the process behaves
	// like a server; no signal: it is none.
	inspect func(s *scene, p *procfs.Process, inst *engine.Instance) (signals []string)
	// members returns the instance's other processes, by the process table alone, and sets what only they
	// show.
	members func(s *scene, p *procfs.Process, inst *engine.Instance) []engine.Member
}

// inContainer says whether a container engine made a control group of the process or of an ancestor. A
// pid namespace of its own is no container yet: anybody may make one.
func (s *scene) inContainer(p *procfs.Process) bool {
	if p.ContainerPath() != "" {
		return true
	}
	for a := range s.ancestors(p) {
		if a.ContainerPath() != "" {
			return true
		}
	}
	return false
}

// scene is the process table with what a source says about the candidates.
type scene struct {
	options.Reader
	src      Source
	sorted   []*procfs.Process         // by pid
	children map[int][]*procfs.Process // of the candidates, in order of pid
	mains    map[*recogniser][]*procfs.Process
	loose    map[string][]*procfs.Process // by engine: what belongs to an instance by its own name
	oracle   map[string][]oracleMember    // by SID; nil until asked for
	helpers  []candidateHelper            // by pid
	// listeners of the candidates; nil when they could not be read.
	listeners map[int][]sockets.Listener
	claimed   map[int]bool // ports that a server will listen on, as far as can be guessed
}

// process returns the process with a pid, nil when there is none.
func (s *scene) process(pid int) *procfs.Process {
	i, found := slices.BinarySearchFunc(s.sorted, pid,
		func(p *procfs.Process, pid int) int { return cmp.Compare(p.PID, pid) })
	if !found {
		return nil
	}
	return s.sorted[i]
}

// ancestors yields the ancestors of a process, nearest first. Pids are read one after the other while
// processes come and go, so the chain may close into a ring.
func (s *scene) ancestors(p *procfs.Process) func(yield func(*procfs.Process) bool) {
	return func(yield func(*procfs.Process) bool) {
		seen := map[int]bool{p.PID: true}
		for p = s.process(p.PPID); p != nil && !seen[p.PID]; p = s.process(p.PPID) {
			seen[p.PID] = true
			if !yield(p) {
				return
			}
		}
	}
}

func (s *scene) userName(uid int) string {
	return cmp.Or(s.src.UserName(uid), strconv.Itoa(uid))
}

// endpoints is where a server is reached: what it was told, then what it really listens on.
type endpoints struct {
	port   int
	socket string
}

// listen sets the ports and the socket of an instance: the sockets it listens on win over what its
// configuration says. While it listens on nothing at all — it is starting, or its sockets cannot be
// seen — the configuration is believed. usual is the engine's own port, preferred among several.
func (s *scene) listen(inst *engine.Instance, told endpoints, usual int) (signals []string) {
	if told.port < 0 || told.port > 65535 {
		told.port = 0 // no server listens there, whatever it was told
	}
	inst.Port, inst.Socket = told.port, told.socket
	var sockets []string
	for _, l := range s.listeners[inst.Main.PID] {
		switch {
		case l.Network == "unix" && l.Address != "":
			sockets = append(sockets, l.Address)
		case l.Port != 0:
			inst.Ports = append(inst.Ports, l.Port)
			if at, err := netip.ParseAddrPort(l.Address); err == nil {
				inst.Addresses = append(inst.Addresses, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
			}
		}
	}
	if len(inst.Ports) == 0 && len(sockets) == 0 {
		return nil
	}
	inst.Seen = true
	slices.Sort(inst.Ports)
	inst.Ports = slices.Compact(inst.Ports)
	slices.Sort(sockets)
	inst.Port = preferred(inst.Ports, 0, told.port, usual)
	inst.Socket = preferred(sockets, "", told.socket)
	if inst.Port != 0 {
		signals = append(signals, fmt.Sprintf("listens on port %d", inst.Port))
	}
	if inst.Socket != "" {
		signals = append(signals, "listens on "+inst.Socket)
	}
	return signals
}

// claim says whether nobody listens on a port or will, and from then on somebody will.
func (s *scene) claim(port int) bool {
	for _, list := range s.listeners {
		if slices.ContainsFunc(list, func(l sockets.Listener) bool { return l.Port == port }) {
			return false
		}
	}
	free := !s.claimed[port]
	s.claimed[port] = true
	return free
}

// preferred returns the first wish that is in the list, else the list's first item, else none.
func preferred[T comparable](list []T, none T, wishes ...T) T {
	for _, w := range wishes {
		if w != none && slices.Contains(list, w) {
			return w
		}
	}
	if len(list) > 0 {
		return list[0]
	}
	return none
}

// watcher finds the parent that restarts a server and runs the same program.
func watcher(is func(*procfs.Process) bool) func(*scene, *procfs.Process, *engine.Instance) []engine.Member {
	return func(s *scene, p *procfs.Process, _ *engine.Instance) []engine.Member {
		if parent := s.process(p.PPID); parent != nil && parent.Exe == p.Exe && is(parent) {
			return []engine.Member{{ID: parent.ID, Part: engine.PartSupervisor}}
		}
		return nil
	}
}
