package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// MaxArgs is how much of a command line is read, in bytes. Linux allows 2 MiB and more; nothing that
// tells programs apart stands so far behind.
const MaxArgs = 128 << 10

// ID names a process beyond doubt: a pid may be reused, a pid with its start time is not.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, clock ticks since boot
}

// Text is the process in the address of a change.Target: "4711@88123".
func (id ID) Text() string { return strconv.Itoa(id.PID) + "@" + strconv.FormatUint(id.Start, 10) }

// ParseID is the inverse of ID.Text.
func ParseID(text string) (id ID, err error) {
	if _, err = fmt.Sscanf(text, "%d@%d", &id.PID, &id.Start); err != nil {
		err = fmt.Errorf("%q is no process with its start time: %w", text, err)
	}
	return id, err
}

// Process is one process (thread group) as /proc shows it.
type Process struct {
	ID
	PPID    int
	Session int    // field 6 of stat: the process that began it (setsid(2)), which may be gone
	Comm    string // field 2 of stat, at most 15 bytes
	State   byte   // field 3 of stat
	Kernel  bool   // a kernel thread (PF_KTHREAD)
	Exe     string // /proc/PID/exe without " (deleted)"; "" when unreadable
	// Script is the path of what it runs by another name than Exe: a script, a symbolic link; "" for none.
	Script string   `json:",omitempty"`
	Args   []string // none for a kernel thread, for a zombie and in the midst of execve(2)
	UID    int      // effective
	GID    int      // effective
	// Groups are the supplementary ones. On a live host a Scanner leaves them out, and Host.Groups has them.
	Groups  []int
	Threads int
	RT      bool // scheduling policy of the main thread is FIFO, RR or DEADLINE
	// Cgroups maps Hierarchy.ID to the path inside that hierarchy, "/" first. Processes of one group
	// share one map: do not write to it.
	Cgroups map[string]string
	// PIDNamespace differs from the reader's own: a container's process.
	ForeignNamespace bool
	// Env holds NAME=VALUE pairs; read only when asked for.
	Env []string
	// ArgsTruncated says that Args is the first MaxArgs bytes of a longer command line.
	ArgsTruncated bool
}

// Exited says whether the process has exited and only waits for its parent; the kernel moves no such one.
func (p *Process) Exited() bool { return exitedIn(p.State, p.Threads) }

// Options says what to read.
type Options struct {
	Env  bool  // read the environment too
	PIDs []int // only these; nil is every process
}

// Processes returns the processes there are, by pid. One that exits meanwhile is left out. When hidepid hides processes
// of other users from this one, it returns those it sees together with an error that matches ErrHidden.
func (h FS) Processes(o Options) ([]Process, error) {
	var hidden error
	pids := slices.Clone(o.PIDs)
	if o.PIDs == nil {
		var err error
		if pids, err = listPIDs(h.Root, nil); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		hidden = h.hidden()
		if hidden != nil && !errors.Is(hidden, ErrHidden) {
			return nil, hidden
		}
	}
	slices.Sort(pids)
	pids = slices.Compact(pids)
	reader := newProcReader(h, o.Env)
	list := make([]Process, 0, len(pids))
	for _, pid := range pids {
		p, _, err := reader.read(pid)
		if errors.Is(err, ErrExited) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, hidden
}

// procReader reads processes one after the other into the same buffers.
type procReader struct {
	h       FS
	env     bool
	lean    bool // no supplementary groups: status, which has them, costs a third of all the rest
	buf     []byte
	cgroups map[string]map[string]string // by the text of the cgroup file
	self    string                       // our own pid namespace, "" until asked for
}

func newProcReader(h FS, env bool) *procReader {
	return &procReader{h: h, env: env, buf: make([]byte, 0, 16<<10), cgroups: map[string]map[string]string{}}
}

// read reads one process. The error matches ErrExited when it is gone.
func (r *procReader) read(pid int) (Process, stat, error) {
	dir, err := r.h.OpenProc(pid)
	if err != nil {
		return Process{}, stat{}, err
	}
	defer dir.Close()
	return r.readOpen(dir, nil)
}

// readOpen reads a process whose directory is open. Arguments says by the executable whether they are read; nil is
// always.
func (r *procReader) readOpen(dir Dir, arguments func(exe string) bool) (Process, stat, error) {
	s, err := r.stat(dir)
	if err != nil {
		return Process{}, stat{}, err
	}
	p := Process{
		ID:      ID{PID: dir.pid, Start: s.start},
		PPID:    s.ppid,
		Session: s.session,
		Comm:    s.comm,
		State:   s.state,
		Kernel:  s.kernel,
		Threads: s.threads,
		RT:      s.realtime,
	}
	err = r.owner(dir, &p)
	if err == nil {
		err = r.program(dir, &p, arguments)
	}
	if err == nil {
		err = r.cgroup(dir, &p)
	}
	if err == nil {
		err = r.environ(dir, &p)
	}
	if err != nil {
		return Process{}, stat{}, dir.Failed(err)
	}
	return p, s, nil
}

// stat reads the stat of a process whose directory is open.
func (r *procReader) stat(dir Dir) (stat, error) {
	text, err := dir.Read(r.buf, "stat", sysroot.MaxPseudoFile)
	if err != nil {
		return stat{}, dir.Failed(err)
	}
	r.buf = text[:0]
	s, err := parseStat(text)
	if err != nil {
		return stat{}, dir.Failed(err)
	}
	return s, nil
}

func (r *procReader) owner(dir Dir, p *Process) error {
	if r.lean && r.ownerOfDirectory(dir, p) {
		return nil
	}
	text, err := dir.Read(r.buf, "status", sysroot.MaxPseudoFile)
	if err != nil {
		return err
	}
	r.buf = text[:0]
	s, err := parseStatus(text)
	if err != nil {
		return err
	}
	p.UID, p.GID, p.Groups = s.uid, s.gid, s.groups
	p.ForeignNamespace = s.namespaces > 1
	if s.namespaces == 0 && !p.Kernel { // before 4.1
		p.ForeignNamespace, _ = r.foreign(dir)
	}
	return nil
}

// ownerOfDirectory reads who owns the directory of a process: the effective user and group, also of one that is not
// dumpable (task_dump_owner in fs/proc/base.c, pid_getattr before 4.11), and the link to its pid namespace. It says
// whether that could be had.
func (r *procReader) ownerOfDirectory(dir Dir, p *Process) bool {
	var own unix.Stat_t
	if dir.fd < 0 || fstat(dir.fd, &own) != nil {
		return false
	}
	if !p.Kernel {
		foreign, known := r.foreign(dir)
		if !known {
			return false
		}
		p.ForeignNamespace = foreign
	}
	p.UID, p.GID = int(own.Uid), int(own.Gid)
	return true
}

// foreign compares the links to the pid namespaces. Known is false without the right to read them.
func (r *procReader) foreign(dir Dir) (foreign, known bool) {
	if r.self == "" {
		r.self, _ = r.h.Root.Readlink("/proc/self/ns/pid")
	}
	theirs, err := dir.Link("ns/pid")
	known = err == nil && r.self != ""
	return known && theirs != r.self, known
}

func (r *procReader) program(dir Dir, p *Process, arguments func(exe string) bool) error {
	if p.Kernel {
		return nil
	}
	exe, err := dir.Link("exe")
	switch {
	case err == nil:
		p.Exe = strings.TrimSuffix(exe, " (deleted)")
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return err
	}
	named := p.Comm == "" || p.Exe == "" || isNameOf(p.Comm, p.Exe)
	if named && arguments != nil && p.Exe != "" && !arguments(p.Exe) {
		return nil
	}
	text, err := dir.Read(r.buf, "cmdline", MaxArgs+1)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	r.buf = text[:0]
	if p.ArgsTruncated = len(text) > MaxArgs; p.ArgsTruncated {
		text = text[:MaxArgs]
	}
	p.Args = parseArgs(text)
	if !named {
		p.Script = script(dir, p)
	}
	return nil
}

// isNameOf says whether the kernel would name a process so that runs a file: its first 15 bytes.
func isNameOf(comm, file string) bool {
	const most = 15 // TASK_COMM_LEN without its end
	base := file[strings.LastIndexByte(file, '/')+1:]
	return base != "" && comm == base[:min(len(base), most)]
}

// script finds the path that a process was started by where that is not its executable: the first argument with the
// name that the kernel gave it. For a script that is its own path, which execve(2) puts behind its interpreter. A name
// without a directory was found by PATH, and is none.
func script(dir Dir, p *Process) string {
	for _, arg := range p.Args {
		if !isNameOf(p.Comm, arg) { // a title may stand behind the path, as Redis has it
			if arg, _, _ = strings.Cut(arg, " "); !isNameOf(p.Comm, arg) {
				continue
			}
		}
		switch {
		case strings.HasPrefix(arg, "/"):
			return arg
		case strings.Contains(arg, "/"):
			if cwd, err := dir.Link("cwd"); err == nil {
				return path.Join(cwd, arg)
			}
		}
		return ""
	}
	return ""
}

func (r *procReader) cgroup(dir Dir, p *Process) error {
	text, err := dir.Read(r.buf, "cgroup", sysroot.MaxPseudoFile)
	if errors.Is(err, fs.ErrNotExist) && dir.Alive() {
		return nil // built without cgroups
	}
	if err != nil {
		return err
	}
	r.buf = text[:0]
	paths, found := r.cgroups[string(text)]
	if !found {
		if paths, err = ParseCgroup(text); err != nil {
			return err
		}
		if len(r.cgroups) >= maxCgroupTexts {
			clear(r.cgroups)
		}
		r.cgroups[string(text)] = paths
	}
	p.Cgroups = paths
	return nil
}

// maxCgroupTexts bounds the memory of a scanner that lives for months beside short-lived groups.
const maxCgroupTexts = 4096

func (r *procReader) environ(dir Dir, p *Process) error {
	if !r.env || p.Kernel {
		return nil
	}
	env, err := dir.environ()
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	p.Env = env
	return err
}

// Alive says whether the process runs: its pid is still its own, and it is no zombie.
func (h FS) Alive(id ID) bool {
	s, err := h.statOf(id.PID)
	return err == nil && s.start == id.Start && !exitedIn(s.state, s.threads)
}

// statOf reads the stat of a process, and nothing else.
func (h FS) statOf(pid int) (stat, error) {
	d := Dir{h: h, pid: pid, fd: -1}
	if !h.Root.Live() || h.Root.Recorded() {
		text, err := d.Read(nil, "stat", sysroot.MaxPseudoFile)
		if err != nil {
			return stat{}, d.Failed(err)
		}
		return parseStat(text)
	}
	fd, err := openat(unix.AT_FDCWD, d.path("stat"), unix.O_RDONLY)
	if err != nil {
		return stat{}, d.Failed(err)
	}
	defer closeFD(fd)
	var room [2 * maxStat]byte
	n, err := readOnce(fd, room[:])
	if err != nil {
		return stat{}, d.Failed(err)
	}
	return parseStat(room[:n])
}

// Cwd returns the working directory of a process.
func (h FS) Cwd(pid int) (string, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	cwd, err := dir.Link("cwd")
	if err != nil {
		return "", dir.Failed(err)
	}
	return strings.TrimSuffix(cwd, " (deleted)"), nil
}

// Environ returns the environment a process was started with, as NAME=VALUE.
func (h FS) Environ(pid int) ([]string, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	env, err := dir.environ()
	if err != nil {
		return nil, dir.Failed(err)
	}
	return env, nil
}

// Groups returns the supplementary groups of a process, not nil when there are none. Errors: ErrExited.
func (h FS) Groups(pid int) ([]int, error) {
	who, err := h.Identity(pid)
	if err != nil {
		return nil, err
	}
	return who.Groups[1:], nil
}

// Identity is whose a process is.
type Identity struct {
	UID    int   // effective
	Groups []int // the effective one and the supplementary ones
	// Sole says that the process has no other user: its real, saved and filesystem user ids are the same.
	Sole bool
	// Capabilities are the effective ones, by bit (linux/capability.h).
	Capabilities uint64
}

// Identity reads whose a process is. Errors: ErrExited.
func (h FS) Identity(pid int) (Identity, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return Identity{}, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "status", sysroot.MaxPseudoFile)
	if err != nil {
		return Identity{}, dir.Failed(err)
	}
	s, err := parseStatus(text)
	if err != nil {
		return Identity{}, dir.Failed(err)
	}
	return Identity{UID: s.uid, Groups: append([]int{s.gid}, s.groups...), Sole: !s.mixed,
		Capabilities: s.CapEffective}, nil
}

// ParentsFirst orders what is about processes so that a parent comes before its children: what a parent forks between
// two moves is then born in the right place. Of gives the process of an element.
func ParentsFirst[T any](list []T, of func(*T) *Process) []*T {
	at := make(map[int]int, len(list))
	for i := range list {
		at[of(&list[i]).PID] = i
	}
	ordered := make([]*T, 0, len(list))
	done := make([]bool, len(list))
	var visit func(i int)
	visit = func(i int) {
		if done[i] {
			return
		}
		done[i] = true // before the parent: a pid reused between two reads could make a loop
		if parent, is := at[of(&list[i]).PPID]; is {
			visit(parent)
		}
		ordered = append(ordered, &list[i])
	}
	for i := range list {
		visit(i)
	}
	return ordered
}
