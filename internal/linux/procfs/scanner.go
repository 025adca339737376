package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

const (
	// settleTicks is how young a process is looked at again every time, in clock ticks: 2 s. Between
	// fork and its final self a process changes its program, its title and its user.
	settleTicks = 2 * ticksPerSecond
	// ticksPerSecond is USER_HZ, 100 on every architecture Go has a Linux port for.
	ticksPerSecond = 100
	// wholeEvery is after how many full looks every process has been read anew from end to end, so
	// that what leaves no trace in stat (a late setuid, a title, a move by somebody else) is seen.
	wholeEvery = 32
)

// Scanner looks at the process table again and again and reads only what may be new. It is not safe for concurrent use.
type Scanner struct {
	// Env makes it read environments too; set it before the first look.
	Env bool

	h       FS
	lister  *pidLister
	reader  *procReader
	procs   []Process
	marks   []mark // beside procs
	spare   []Process
	spareM  []mark
	pids    []int
	recheck map[int]bool
	turn    int
	fulls   int           // full looks so far
	loadavg int           // an open /proc/loadavg, 0 for none
	forks   forks         // before the list of the look before
	young   bool          // some process was still settling then
	told    bool          // during Follow: what is new is named, and nothing else is read
	clock   func() uint64 // time since boot in clock ticks
}

// mark is what a scanner remembers of a process beside its public face.
type mark struct {
	image uint64 // of stat
	young bool   // it was still settling when it was read
}

// NewScanner returns a scanner that has seen nothing yet.
func (h FS) NewScanner() *Scanner {
	clock := func() uint64 { return uint64(SinceBoot()) / (1e9 / ticksPerSecond) }
	if !h.Root.Live() { // a captured host stands still, long after
		clock = func() uint64 { return 1 << 63 }
	}
	return &Scanner{h: h, recheck: map[int]bool{}, clock: clock}
}

// Recheck has these processes read from end to end at the next look, quick or full: after a move
// their Cgroups are of the past.
func (s *Scanner) Recheck(pids ...int) {
	for _, pid := range pids {
		s.recheck[pid] = true
	}
}

// Close gives back the descriptors that a scanner of the live machine keeps. A later Look opens them again.
func (s *Scanner) Close() {
	if s.loadavg != 0 {
		_ = unix.Close(s.loadavg)
		s.loadavg = 0
	}
	if s.lister != nil {
		s.lister.close()
		s.lister = nil
	}
}

// Look returns the processes there are, by pid, and whether anything that tells processes apart
// differs from the look before: State and Threads alone do not count.
//
// A quick look first asks the kernel whether any task came or went since the look before; while none did it costs that
// one read. Else it lists /proc and reads processes whose pid is new, those that were younger than two seconds when
// they were read last, and those given to Recheck; to it a pid that was reused in the meantime is still the old
// process. A full look also reads the stat of all, and the rest of those that executed another program, changed their
// name or are others under an old pid; one in 32 of the processes, in turn, is read from end to end, so that a change
// of user, title or cgroup that no stat shows is seen after 32 full looks at the latest.
//
// The slice is the caller's to keep and to read, not to change. Like Processes, a full look returns
// what it sees beside an error that matches ErrHidden when processes are hidden from it.
func (s *Scanner) Look(full bool) (procs []Process, changed bool, err error) {
	forks, told := s.countForks() // before the list, so that what comes between the two shows next time
	if !full && told && forks == s.forks && !s.young && len(s.recheck) == 0 {
		return s.procs, false, nil
	}
	if err := s.list(); err != nil {
		return nil, false, fmt.Errorf("list processes: %w", err)
	}
	var hidden error
	if full {
		if hidden = s.h.hidden(); hidden != nil && !errors.Is(hidden, ErrHidden) {
			return nil, false, hidden
		}
		s.fulls++
	}
	s.makeReader()
	changed, err = s.update(full)
	if err != nil {
		return nil, false, err
	}
	s.forks = forks
	return s.procs, changed, hidden
}

// Turn names a part of the processes, another one each time, so that all of them were named after a while: for a
// caller that goes by events to read from end to end, since some changes leave no event.
func (s *Scanner) Turn() []int {
	s.turn++
	var pids []int
	for i := range s.procs {
		if s.procs[i].PID%wholeEvery == s.turn%wholeEvery {
			pids = append(pids, s.procs[i].PID)
		}
	}
	return pids
}

// Follow brings the table up to date with what process events told: those that are gone leave it, the others
// named here, and those given to Recheck, are read from end to end. No other process is looked at, nor
// is /proc listed. It is as good as Look as long as no event was lost. Before the first Look it is a full one.
func (s *Scanner) Follow(seen, gone []int) (procs []Process, changed bool, err error) {
	if s.fulls == 0 {
		return s.Look(true)
	}
	if len(seen) == 0 && len(gone) == 0 && len(s.recheck) == 0 {
		return s.procs, false, nil
	}
	s.Recheck(seen...)
	left := make(map[int]bool, len(gone))
	for _, pid := range gone {
		left[pid] = true
	}
	s.pids = s.pids[:0]
	for i := range s.procs {
		s.pids = append(s.pids, s.procs[i].PID)
		if left[s.procs[i].PPID] { // it has another parent now, which no event tells
			s.recheck[s.procs[i].PID] = true
		}
	}
	for _, pid := range gone {
		delete(s.recheck, pid)
	}
	for pid := range s.recheck {
		s.pids = append(s.pids, pid)
	}
	slices.Sort(s.pids)
	s.pids = slices.Compact(s.pids)
	if len(gone) > 0 {
		gone = slices.Sorted(slices.Values(gone))
		s.pids = slices.DeleteFunc(s.pids, func(pid int) bool {
			_, is := slices.BinarySearch(gone, pid)
			return is
		})
	}
	s.told = true
	defer func() { s.told = false }()
	changed, err = s.update(false)
	return s.procs, changed, err
}

// Settling names the processes that were younger than two seconds when they were read last: what tells them
// apart may still change without any event, as a title does that is written over the arguments.
func (s *Scanner) Settling() []int {
	if !s.young {
		return nil
	}
	var pids []int
	for i, m := range s.marks {
		if m.young {
			pids = append(pids, s.procs[i].PID)
		}
	}
	return pids
}

// update makes the table that of s.pids.
func (s *Scanner) update(full bool) (changed bool, err error) {
	changed, touched, err := s.merge(full)
	if err != nil {
		return false, err
	}
	clear(s.recheck)
	s.young = slices.ContainsFunc(s.spareM, func(m mark) bool { return m.young })
	s.marks, s.spareM = s.spareM, s.marks
	if touched {
		s.procs, s.spare = s.spare, nil // callers keep the old one
	}
	return changed, nil
}

// forks tells whether tasks came or went: it differs whenever one was made or has gone.
type forks struct {
	tasks uint64 // there are now
	last  uint64 // the number last given to one
}

// countForks reads forks from /proc/loadavg (proc(5)), without an allocation; ok is false when that cannot be told.
func (s *Scanner) countForks() (f forks, ok bool) {
	if !s.h.Root.Live() {
		return f, false
	}
	if s.loadavg == 0 {
		fd, err := Retry(func() (int, error) { return unix.Open("/proc/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
		if err != nil {
			return f, false
		}
		s.loadavg = fd
	}
	var buf [128]byte
	n, err := Retry(func() (int, error) { return unix.Pread(s.loadavg, buf[:], 0) })
	if err != nil {
		return f, false
	}
	return parseForks(buf[:n])
}

// parseForks reads "0.20 0.18 0.12 1/80 11206": 80 tasks, the last of number 11206.
func parseForks(text []byte) (f forks, ok bool) {
	_, rest, found := bytes.Cut(text, []byte("/"))
	if !found {
		return f, false
	}
	fields := [2]uint64{}
	for i := range fields {
		digits := 0
		for ; digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9'; digits++ {
			fields[i] = fields[i]*10 + uint64(rest[digits]-'0')
		}
		if digits == 0 {
			return f, false
		}
		rest = bytes.TrimLeft(rest[digits:], " ")
	}
	return forks{tasks: fields[0], last: fields[1]}, true
}

func (s *Scanner) list() (err error) {
	if !s.h.Root.Live() {
		s.pids, err = listPIDs(s.h.Root, s.pids)
		return err
	}
	if s.lister == nil {
		if s.lister, err = openPIDLister(); err != nil {
			return err
		}
	}
	s.pids, err = s.lister.list(s.pids)
	return err
}

// merge builds the next table in spare. Touched says that it differs from the present one at all.
func (s *Scanner) merge(full bool) (changed, touched bool, err error) {
	s.spare, s.spareM = slices.Grow(s.spare[:0], len(s.pids)), s.spareM[:0]
	now := s.clock()
	old := 0
	for _, pid := range s.pids {
		for old < len(s.procs) && s.procs[old].PID < pid {
			old++
			changed = true // it has vanished
		}
		var before *Process
		var m mark
		if old < len(s.procs) && s.procs[old].PID == pid {
			before, m = &s.procs[old], s.marks[old]
			old++
		}
		p, m, err := s.look(pid, before, m, full, now)
		if errors.Is(err, ErrExited) {
			changed = changed || before != nil
			continue
		}
		if err != nil {
			return false, false, err
		}
		if before == nil || !Same(before, &p) {
			changed = true
		} else if before.State != p.State || before.Threads != p.Threads {
			touched = true
		}
		s.spare, s.spareM = append(s.spare, p), append(s.spareM, m)
	}
	changed = changed || old < len(s.procs)
	return changed, touched || changed, nil
}

// look decides how much of one process to read.
func (s *Scanner) look(pid int, before *Process, m mark, full bool, now uint64) (Process, mark, error) {
	turn := full && pid%wholeEvery == s.fulls%wholeEvery
	if before != nil && (!m.young || s.told) && !turn && !s.recheck[pid] {
		if !full {
			return *before, m, nil
		}
		st, err := s.stat(pid)
		if err != nil {
			return Process{}, mark{}, err
		}
		if st.start == before.Start && st.image == m.image && st.comm == before.Comm {
			p := *before
			p.PPID, p.Session, p.State, p.Threads, p.RT = st.ppid, st.session, st.state, st.threads, st.realtime
			return p, m, nil
		}
	}
	p, st, err := s.reader.read(pid)
	if err != nil {
		return Process{}, mark{}, err
	}
	return p, mark{image: st.image, young: now < p.Start+settleTicks}, nil
}

// stat reads the stat of a process in three system calls, without opening its directory.
func (s *Scanner) stat(pid int) (stat, error) {
	d := Dir{h: s.h, pid: pid, fd: -1}
	if !s.h.Root.Live() {
		return s.reader.stat(d)
	}
	fd, err := Retry(func() (int, error) {
		return unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return stat{}, d.Failed(err)
	}
	defer unix.Close(fd)
	text, err := readAll(fd, s.reader.buf[:0], sysroot.MaxPseudoFile, true)
	if err != nil {
		return stat{}, d.Failed(err)
	}
	s.reader.buf = text[:0]
	st, err := parseStat(text)
	if err != nil {
		return stat{}, d.Failed(err)
	}
	return st, nil
}

// SinceBoot is the time since the boot of the live machine, suspended times too; nobody sets it.
func SinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // every kernel since 2.6.39 tells it
	return time.Duration(t.Nano())
}

// Same compares all of two processes but State, Threads and Groups.
func Same(a, b *Process) bool {
	return a.ID == b.ID && a.PPID == b.PPID && a.Session == b.Session && a.Comm == b.Comm && a.Kernel == b.Kernel &&
		a.Exe == b.Exe && a.Script == b.Script && slices.Equal(a.Args, b.Args) && a.ArgsTruncated == b.ArgsTruncated &&
		a.UID == b.UID && a.GID == b.GID && a.RT == b.RT &&
		a.ForeignNamespace == b.ForeignNamespace && slices.Equal(a.Env, b.Env) &&
		(reflect.ValueOf(a.Cgroups).Pointer() == reflect.ValueOf(b.Cgroups).Pointer() || // most share theirs
			maps.Equal(a.Cgroups, b.Cgroups))
}

// ReadSome reads these processes and leaves the table as it is, for a first idea of what events tell of; those
// that are gone are left out. It is followed by a Follow or a Look, which takes them into the table.
func (s *Scanner) ReadSome(pids []int) ([]Process, error) {
	list, held, err := s.ReadHeld(pids, nil)
	held.Close()
	return list, err
}

// Held are processes whose directories are open, so that it can be told whether they still have their numbers.
type Held []Dir

// Same says that until now nobody else can have had the number of a process: what was done by it was done to this one.
func (h Held) Same(pid int) bool {
	i := slices.IndexFunc(h, func(d Dir) bool { return d.pid == pid })
	return i >= 0 && h[i].Alive()
}

// Close lets go of them.
func (h Held) Close() {
	for _, d := range h {
		d.Close()
	}
}

// ReadHeld is ReadSome that holds the processes, and reads the arguments only of those executables for which they
// matter. The caller closes what it holds, also after an error.
func (s *Scanner) ReadHeld(pids []int, arguments func(exe string) bool) (list []Process, held Held, err error) {
	s.makeReader()
	list = make([]Process, 0, len(pids))
	for _, pid := range pids {
		dir, err := s.h.OpenProc(pid)
		var p Process
		if err == nil {
			held = append(held, dir)
			p, _, err = s.reader.readOpen(dir, arguments)
		}
		switch {
		case errors.Is(err, ErrExited):
		case err != nil:
			return nil, held, err
		default:
			list = append(list, p)
		}
	}
	return list, held, nil
}

func (s *Scanner) makeReader() {
	if s.reader == nil {
		s.reader = newProcReader(s.h, s.Env)
		s.reader.lean = true
	}
}

// Find returns a process as the table has it.
func (s *Scanner) Find(pid int) (Process, bool) {
	i, found := slices.BinarySearchFunc(s.procs, pid, func(p Process, pid int) int { return p.PID - pid })
	if !found {
		return Process{}, false
	}
	return s.procs[i], true
}

// Below names the processes that descend from others, as the table has it.
func (s *Scanner) Below(pids []int) []int {
	below := []int{}
	if len(pids) == 0 {
		return below
	}
	children := make(map[int][]int, len(s.procs))
	for i := range s.procs {
		children[s.procs[i].PPID] = append(children[s.procs[i].PPID], s.procs[i].PID)
	}
	seen := make(map[int]bool, len(pids))
	for _, pid := range pids {
		seen[pid] = true
	}
	for next := slices.Clone(pids); len(next) > 0; {
		pid := next[len(next)-1]
		next = next[:len(next)-1]
		for _, child := range children[pid] {
			if !seen[child] {
				seen[child] = true
				below, next = append(below, child), append(next, child)
			}
		}
	}
	return below
}
