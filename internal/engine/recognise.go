package engine

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/terminal"
)

// Source answers what the process table alone does not say. SourceOf gives that of a host.
type Source interface {
	SocketSource
	ProcessSource
}

// SocketSource tells of the sockets of processes.
type SocketSource interface {
	// Listeners returns the listening sockets of the processes, by pid.
	Listeners(pids []int) (map[int][]sockets.Listener, error)
	// Connections returns the sockets of this host that the processes are connected to, by pid.
	Connections(pids []int) (map[int][]sockets.Listener, error)
}

// ProcessSource tells what a process was started with and where.
type ProcessSource interface {
	// Cwd returns the working directory of a process.
	Cwd(pid int) (string, error)
	// Environ returns the environment a process was started with, as NAME=VALUE.
	Environ(pid int) ([]string, error)
	// ReadRootFile returns a file of at most max bytes as the process sees it (/proc/PID/root).
	ReadRootFile(pid int, path string, max int64) ([]byte, error)
	// UserName returns the name of a user.
	UserName(uid int) string
}

// maxConfig is the most that is read of one configuration file, in bytes.
const maxConfig = 256 << 10

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
	inspect func(s *scene, p *procfs.Process, inst *Instance) (signals []string)
	// members returns the instance's other processes, by the process table alone, and sets what only they
	// show.
	members func(s *scene, p *procfs.Process, inst *Instance) []Member
}

var recognisers = []*recogniser{
	&mysqlRecogniser, &postgresRecogniser, &redisRecogniser, &oracleRecogniser, &mongoRecogniser, &scyllaRecogniser,
	&cassandraRecogniser, &sqlserverRecogniser, &clickhouseRecogniser, &etcdRecogniser,
}

// byExecutable finds the engine, the helper program or the interpreter that an executable's base name
// belongs to: one look-up for each process, however many engines there are.
var byExecutable = func() map[string]program {
	m := make(map[string]program)
	for _, r := range recognisers {
		for _, name := range r.executables {
			p := m[name]
			p.server, p.script = r, interpreter(name)
			m[name] = p
		}
	}
	for i := range tools {
		for _, name := range tools[i].executables {
			p := m[name]
			p.tools = append(p.tools, &tools[i])
			m[name] = p
		}
	}
	return m
}()

// program is what an executable's base name may stand for.
type program struct {
	server *recogniser
	tools  []*tool
	script bool // an interpreter: an argument names the program
}

// programOf looks the executable of a process up. Where it cannot be read, the kernel's name for the process
// stands in, which is cut off after 15 bytes.
func programOf(p *procfs.Process) program {
	if p.Kernel || len(p.Args) == 0 || p.State == 'Z' || p.State == 'X' {
		return program{}
	}
	name := p.Exe
	if name == "" {
		if name = p.Comm; oracleProcess(p).sid != "" {
			name = "oracle" // which gives its processes names of their own
		}
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	if found, ok := byExecutable[name]; ok {
		return found
	}
	if interpreter(name) {
		return program{script: true}
	}
	if strings.IndexByte(name, '-') > 0 {
		return byExecutable[baseProgram(name)]
	}
	return program{}
}

// Recognise finds the database servers among the processes, sorted by engine, port and data directory.
// A source that fails gives less evidence; a server that shows too little of it is not reported.
func Recognise(procs []procfs.Process, src Source) []Instance {
	return new(Tracker).Recognise(procs, src)
}

// Tracker recognises instances look after look. What the source said about a server that listens is kept
// for some looks, as long as the process lives with the same command line: its files need not be read
// and its sockets not be found again each time. The same goes for a helper whose instance is known. Members
// are always those of the look. The zero value is ready; a Tracker is for one goroutine.
type Tracker struct {
	// Keep is for how many further looks an answer serves; 0 is 30.
	Keep int

	known     map[procfs.ID]tracked
	helpers   map[procfs.ID]attachment
	instances []procfs.ID // of the look before, that helpers were attached to
}

// tracked is an instance as inspected, with its main member only.
type tracked struct {
	inst Instance
	args []string
	left int // looks it still serves
}

// Recognise does what the function Recognise does.
func (t *Tracker) Recognise(procs []procfs.Process, src Source) []Instance {
	s := newScene(procs, src, t.reusable)
	known := make(map[procfs.ID]tracked)
	var found []Instance
	for _, r := range recognisers {
		for _, p := range s.mains[r] {
			kept, ok := t.reusable(p)
			if ok {
				kept.left--
			} else {
				kept, ok = s.inspect(r, p)
				kept.left = cmp.Or(t.Keep, keepLooks)
			}
			if !ok {
				continue
			}
			known[p.ID] = kept
			inst := kept.inst
			inst.Members = append(slices.Clone(inst.Members), r.members(s, p, &inst)...)
			found = append(found, inst)
		}
	}
	t.known = known
	slices.SortFunc(found, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Port, b.Port), cmp.Compare(a.SID, b.SID),
			cmp.Compare(a.DataDir, b.DataDir), cmp.Compare(a.Main.PID, b.Main.PID))
	})
	t.attach(s, found)
	return found
}

// keepLooks is for how many looks an answer serves unless the Tracker says otherwise.
const keepLooks = 30

// reusable returns what is known of a server. One that was not seen listening is asked about again: it
// is just starting.
func (t *Tracker) reusable(p *procfs.Process) (tracked, bool) {
	k, ok := t.known[p.ID]
	return k, ok && k.left > 0 && k.inst.Seen && slices.Equal(k.args, p.Args)
}

// inspect asks the source about a candidate; false when it is no server.
func (s *scene) inspect(r *recogniser, p *procfs.Process) (tracked, bool) {
	inst := Instance{
		Engine:    r.engine,
		Main:      p.ID,
		User:      s.userName(p.UID),
		Container: p.ForeignNamespace && s.inContainer(p),
		Members:   []Member{{p.ID, PartMain}},
	}
	signals := r.inspect(s, p, &inst)
	if len(signals) == 0 {
		return tracked{}, false
	}
	inst.Evidence = append([]string{identityEvidence(p)}, signals...)
	for i, line := range inst.Evidence {
		inst.Evidence[i] = terminal.Printable(line)
	}
	return tracked{inst: inst, args: p.Args}, true
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

func identityEvidence(p *procfs.Process) string {
	if p.Exe == "" {
		return fmt.Sprintf("runs as %q", programName(p))
	}
	return fmt.Sprintf("runs %s as %q", p.Exe, programName(p))
}

// scene is the process table with what a source says about the candidates.
type scene struct {
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

// newScene sorts the processes out, and asks the source for the listeners of the candidates that are not
// known.
func newScene(procs []procfs.Process, src Source, known func(*procfs.Process) (tracked, bool)) *scene {
	s := &scene{
		src:      src,
		sorted:   make([]*procfs.Process, len(procs)),
		children: make(map[int][]*procfs.Process),
		mains:    make(map[*recogniser][]*procfs.Process),
		loose:    make(map[string][]*procfs.Process),
		claimed:  make(map[int]bool),
	}
	inOrder := true
	for i := range procs {
		s.sorted[i] = &procs[i]
		inOrder = inOrder && (i == 0 || procs[i-1].PID <= procs[i].PID)
	}
	if !inOrder {
		slices.SortFunc(s.sorted, func(a, b *procfs.Process) int { return cmp.Compare(a.PID, b.PID) })
	}
	for _, p := range s.sorted {
		s.sort(p, programOf(p))
	}
	for _, p := range s.sorted {
		if list, ok := s.children[p.PPID]; ok {
			s.children[p.PPID] = append(list, p)
		}
	}
	var pids []int
	for r, mains := range s.mains {
		if r.forked {
			s.mains[r] = s.withoutWatchers(r, mains)
		}
	}
	for _, r := range recognisers {
		for _, p := range s.mains[r] {
			if k, ok := known(p); ok {
				for _, port := range k.inst.Ports {
					s.claimed[port] = true
				}
				continue
			}
			pids = append(pids, p.PID)
		}
	}
	if len(pids) > 0 {
		slices.Sort(pids)
		// An error may come with the listeners of the processes that could be read: use those.
		s.listeners, _ = src.Listeners(pids)
	}
	return s
}

// sort notes what a process is for the look: a server, a member by its own name, a helper. A process forked by a
// server that has not retitled itself yet still looks like its parent and is none.
func (s *scene) sort(p *procfs.Process, what program) {
	if r := what.server; r != nil {
		switch {
		case r.identity(p):
			if parent := s.process(p.PPID); parent == nil || r.forked || !r.identity(parent) ||
				parent.Exe != p.Exe || !slices.Equal(parent.Args, p.Args) {
				s.mains[r] = append(s.mains[r], p)
				s.children[p.PID] = nil
				return
			}
		case r.belongs != nil && r.belongs(p):
			s.loose[r.engine] = append(s.loose[r.engine], p)
			return
		}
	}
	if what.script || len(what.tools) > 0 {
		if t := toolOf(p, what); t != nil {
			s.helpers = append(s.helpers, candidateHelper{p, t})
		}
	}
}

// withoutWatchers leaves out the processes that have forked one which looks like themselves.
func (s *scene) withoutWatchers(r *recogniser, mains []*procfs.Process) []*procfs.Process {
	return slices.DeleteFunc(slices.Clone(mains), func(p *procfs.Process) bool {
		return slices.ContainsFunc(s.children[p.PID], func(c *procfs.Process) bool {
			return r.identity(c) &&
				c.Exe == p.Exe
		})
	})
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

// cwd returns the working directory of a process, "" when it cannot be read.
func (s *scene) cwd(pid int) string {
	dir, err := s.src.Cwd(pid)
	if err != nil || !path.IsAbs(dir) {
		return ""
	}
	return path.Clean(dir)
}

// file returns a file as the process sees it; nil when it cannot be read or is larger than maxConfig.
func (s *scene) file(pid int, name string) []byte {
	if !path.IsAbs(name) {
		return nil
	}
	data, err := s.src.ReadRootFile(pid, path.Clean(name), maxConfig)
	if err != nil {
		return nil
	}
	return append([]byte{}, data...) // an empty file is there: not nil
}

// holds returns the first of the small files that is there in a directory, as the process sees it.
func (s *scene) holds(pid int, dir string, names ...string) (string, bool) {
	for _, name := range names {
		if dir != "" && s.file(pid, path.Join(dir, name)) != nil {
			return name, true
		}
	}
	return "", false
}

// endpoints is where a server is reached: what it was told, then what it really listens on.
type endpoints struct {
	port   int
	socket string
}

// listen sets the ports and the socket of an instance: the sockets it listens on win over what its
// configuration says. While it listens on nothing at all — it is starting, or its sockets cannot be
// seen — the configuration is believed. usual is the engine's own port, preferred among several.
func (s *scene) listen(inst *Instance, told endpoints, usual int) (signals []string) {
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

// programName is the base name of what a process calls itself: of its first argument, up to a blank
// when it wrote a title there ("/usr/bin/redis-server *:6379").
func programName(p *procfs.Process) string {
	if len(p.Args) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(p.Args[0], " ")
	return path.Base(name)
}

// isProgram says whether a process is one of the programs by its name and by its executable. An
// executable that cannot be read is replaced by the kernel's name for the process, which a script
// named like a server has too: then the interpreter is the first argument and the names differ.
func isProgram(p *procfs.Process, names, executables []string) bool {
	name := baseProgram(programName(p))
	if !slices.Contains(names, name) {
		return false
	}
	if p.Exe != "" {
		return slices.Contains(executables, baseProgram(path.Base(p.Exe)))
	}
	return slices.Contains(executables, baseProgram(p.Comm))
}

// baseProgram takes the endings of debug and versioned builds off a program's name: "mysqld-debug",
// "mysqld-8.0.36".
func baseProgram(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "-debug"), "-max")
	if base, version, ok := strings.Cut(name, "-"); ok && version != "" && strings.Trim(version, "0123456789.") == "" {
		return base
	}
	return name
}

// title returns what a process that wrote a title shows: its arguments in one line, without the
// padding.
func title(p *procfs.Process) string {
	return strings.TrimRight(strings.Join(p.Args, " "), " \x00")
}

func absoluteIn(dir, name string) string {
	if name == "" || path.IsAbs(name) || dir == "" {
		return name
	}
	return path.Join(dir, name)
}
