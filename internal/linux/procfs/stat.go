package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/linux/sysroot"
)

// Tick is a hundredth of a second, what /proc counts in: USER_HZ is 100 on every Linux that matters (time(7)).
const Tick = 10 * time.Millisecond

// stat is what is used of /proc/PID/stat (proc(5)).
type stat struct {
	pid, ppid int
	session   int
	comm      string
	state     byte
	kernel    bool // PF_KTHREAD
	threads   int
	start     uint64
	realtime  bool
	// image tells one execve(2) of a process from the next: a hash over where code, data, stack,
	// arguments and environment lie, which is random with every execution.
	image uint64
}

// exitedIn says whether a process in that state, with that many threads, has exited and only waits for its parent. One
// whose main thread alone has ended shows Z too, and goes on.
func exitedIn(state byte, threads int) bool { return state == 'X' || state == 'Z' && threads <= 1 }

// Fields of stat, counted from 1 as in proc(5).
const (
	statState      = 3
	statPPID       = 4
	statSession    = 6
	statFlags      = 9
	statThreads    = 20
	statStart      = 22
	statStartCode  = 26
	statStartStack = 28
	statPolicy     = 41
	statStartData  = 45
	statEnvEnd     = 51
)

// flagKernelThread is PF_KTHREAD of linux/sched.h.
const flagKernelThread = 0x00200000

// parseStat reads a line of /proc/PID/stat. The name of the program may hold blanks, parentheses and
// newlines, so fields count from the last parenthesis. A field that an old kernel lacks is zero.
func parseStat(text []byte) (stat, error) {
	opening, closing := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if opening < 0 || closing < opening {
		return stat{}, errors.New("parse stat: no name in parentheses")
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:opening])))
	if err != nil {
		return stat{}, errors.New("parse stat: no pid before the name")
	}
	s := stat{pid: pid, comm: string(text[opening+1 : closing]), image: fnvOffset}
	rest := bytes.TrimSpace(text[closing+1:])
	last := statState - 1
	for len(rest) > 0 {
		var field []byte
		field, rest, _ = bytes.Cut(rest, []byte{' '})
		last++
		if err := s.set(last, field); err != nil {
			return stat{}, err
		}
	}
	if last < statStart {
		return stat{}, fmt.Errorf("parse stat of %d: %d fields, want at least %d", pid, last, statStart)
	}
	return s, nil
}

func (s *stat) set(number int, field []byte) error {
	if number == statState {
		if len(field) != 1 {
			return fmt.Errorf("parse stat of %d: state %q is not one letter", s.pid, string(field))
		}
		s.state = field[0]
		return nil
	}
	if number >= statStartCode && number <= statStartStack || number >= statStartData && number <= statEnvEnd {
		for _, c := range field {
			s.image = (s.image ^ uint64(c)) * fnvPrime
		}
		s.image = (s.image ^ ' ') * fnvPrime
		return nil
	}
	switch number {
	case statSession:
		s.session, _ = strconv.Atoi(string(field)) // -1 while it exits
		return nil
	case statPPID, statFlags, statThreads, statStart, statPolicy:
	default:
		return nil
	}
	n, err := parseDigits(field)
	if err != nil {
		return fmt.Errorf("parse stat of %d: field %d: %w", s.pid, number, err)
	}
	switch number {
	case statPPID:
		s.ppid = int(n)
	case statFlags:
		s.kernel = n&flagKernelThread != 0
	case statThreads:
		s.threads = int(n)
	case statStart:
		s.start = n
	case statPolicy:
		s.realtime = isRealtime(n)
	}
	return nil
}

// FNV-1a (draft-eastlake-fnv), written out because hash/fnv would allocate for every process of every look.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func parseDigits(field []byte) (uint64, error) {
	if len(field) == 0 || len(field) > 20 {
		return 0, fmt.Errorf("%.20q is not a number", string(field))
	}
	var n uint64
	for _, c := range field {
		digit := uint64(c - '0')
		if c < '0' || c > '9' || n > (1<<64-1-digit)/10 {
			return 0, fmt.Errorf("%q is not a number", string(field))
		}
		n = n*10 + digit
	}
	return n, nil
}

// isRealtime knows the scheduling policies of sched(7) that a v1 cpu group may refuse.
func isRealtime(policy uint64) bool {
	const fifo, roundRobin, deadline = 1, 2, 6
	return policy == fifo || policy == roundRobin || policy == deadline
}

// status is what is used of /proc/PID/status (proc(5)).
type status struct {
	uid, gid     int  // effective
	mixed        bool // the real, effective, saved and filesystem user ids differ
	groups       []int
	threads      int
	namespaces   int // pid namespaces between the reader and the process: columns of NSpid; 0 before kernel 4.1
	CapEffective uint64
	memory       Memory
	hasMemory    bool // VmRSS: kernel threads and zombies have none
	hasRss       bool // RssAnon and its sisters, since kernel 4.5
}

// parseStatus reads the lines it knows and passes over all others.
func parseStatus(text []byte) (status, error) {
	var s status
	seen := 0
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		name, value, found := bytes.Cut(line, []byte{':'})
		if !found {
			continue
		}
		if err := s.set(string(name), value, &seen); err != nil {
			return status{}, fmt.Errorf("parse status: %s: %w", name, err)
		}
	}
	if seen < 2 {
		return status{}, errors.New("parse status: no Uid or no Gid")
	}
	return s, nil
}

func (s *status) set(name string, value []byte, seen *int) (err error) {
	switch name {
	case "Uid":
		*seen++
		if s.uid, err = parseEffective(value); err == nil {
			ids := bytes.Fields(value)
			s.mixed = slices.ContainsFunc(ids, func(id []byte) bool { return !bytes.Equal(id, ids[0]) })
		}
	case "Gid":
		*seen++
		s.gid, err = parseEffective(value)
	case "Groups":
		s.groups, err = parseInts(value)
	case "Threads":
		s.threads, err = strconv.Atoi(string(bytes.TrimSpace(value)))
	case "NSpid":
		s.namespaces = len(bytes.Fields(value))
	case "CapEff":
		s.CapEffective, err = strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
	case "VmRSS":
		s.hasMemory = true
	case "RssAnon":
		s.hasRss = true
		s.memory.Anon, err = ParseAmount(string(value))
	case "RssFile":
		s.memory.File, err = ParseAmount(string(value))
	case "RssShmem":
		s.memory.Shmem, err = ParseAmount(string(value))
	case "VmSwap":
		s.memory.Swap, err = ParseAmount(string(value))
	case "HugetlbPages":
		s.memory.Huge, err = ParseAmount(string(value))
	case "VmLck":
		s.memory.Locked, err = ParseAmount(string(value))
	}
	return err
}

// parseEffective takes the second of "real effective saved filesystem".
func parseEffective(value []byte) (int, error) {
	fields := bytes.Fields(value)
	if len(fields) < 2 {
		return 0, fmt.Errorf("%q has fewer than two IDs", value)
	}
	id, err := strconv.ParseUint(string(fields[1]), 10, 32)
	return int(id), err
}

func parseInts(value []byte) ([]int, error) {
	fields := bytes.Fields(value)
	if len(fields) == 0 {
		return nil, nil
	}
	list := make([]int, len(fields))
	for i, field := range fields {
		n, err := strconv.ParseUint(string(field), 10, 32)
		if err != nil {
			return nil, err
		}
		list[i] = int(n)
	}
	return list, nil
}

// parseArgs splits /proc/PID/cmdline. Every argument ends with a NUL; one that is empty counts. A
// program that overwrote its arguments (setproctitle(3)) leaves one text, with no NUL at all or with
// all the room behind it filled with them: that is one argument.
func parseArgs(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	whole := string(text)
	title := strings.TrimRight(whole, "\x00")
	if !strings.Contains(title, "\x00") && (len(whole)-len(title) > 2 || strings.Contains(title, " ")) {
		if title == "" {
			return nil // a kernel thread's, or wiped
		}
		return []string{strings.Clone(title)}
	}
	return strings.Split(strings.TrimSuffix(whole, "\x00"), "\x00")
}

// parseEnviron splits /proc/PID/environ and leaves out what is no NAME=VALUE.
func parseEnviron(text []byte) []string {
	var env []string
	for item := range strings.SplitSeq(string(text), "\x00") {
		if name, _, found := strings.Cut(item, "="); found && name != "" {
			env = append(env, item)
		}
	}
	return env
}

// Task is one thread of a process.
type Task struct {
	TID   int
	State byte // field 3 of stat
	RT    bool // scheduling policy is FIFO, RR or DEADLINE
}

// TaskState is the state of a thread, field 3 of its stat. Errors: ErrExited.
func (h FS) TaskState(tid int) (byte, error) {
	dir, err := h.OpenProc(tid)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "stat", sysroot.MaxPseudoFile)
	if err != nil {
		return 0, dir.Failed(err)
	}
	s, err := parseStat(text)
	if err != nil {
		return 0, dir.Failed(err)
	}
	return s.state, nil
}

// Tasks returns the threads of a process by number, its main thread included.
func (h FS) Tasks(pid int) ([]Task, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.list("task")
	if err != nil {
		return nil, dir.Failed(err)
	}
	tasks := make([]Task, 0, len(names))
	var buf []byte
	for _, name := range names {
		tid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		buf, err = dir.Read(buf, "task/"+name+"/stat", sysroot.MaxPseudoFile)
		if sysroot.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, dir.Failed(err)
		}
		s, err := parseStat(buf)
		if err != nil {
			return nil, dir.Failed(err)
		}
		tasks = append(tasks, Task{TID: tid, State: s.state, RT: s.realtime})
	}
	slices.SortFunc(tasks, func(a, b Task) int { return a.TID - b.TID })
	return tasks, nil
}
