package procevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

const (
	// traceBuffer is the size of the ring, bytes; an event takes 32.
	traceBuffer = 1 << 20
	// traceMost is how many events one Read takes at most.
	traceMost = 4096
	// traceIdle is how long a Read waits that nothing else limits.
	traceIdle = time.Second

	cloneThread = 0x00010000 // CLONE_THREAD of linux/sched.h

	ringNoWakeup    = 1 // BPF_RB_NO_WAKEUP of linux/bpf.h
	ringForceWakeup = 2 // BPF_RB_FORCE_WAKEUP
)

// firstPIDNamespace is the pid namespace of the machine itself (PROC_PID_INIT_INO of linux/proc_ns.h).
const firstPIDNamespace = "pid:[4026531836]"

// Trace is where events come from on a kernel without a process connector: small BPF programs on the tracepoints
// of fork, exec, exit and change of name. Read is for one goroutine; Close may be called from another one. The
// programs end with the process.
type Trace struct {
	reader *ringbuf.Reader
	record ringbuf.Record
	missed *ebpf.Map // how many found the ring full
	lost   uint64    // as far as Read has told
	parts  []interface{ Close() error }
	ended  atomic.Bool
	lazy   time.Duration
	timer  *time.Timer // has Read return
	soon   deadlines   // when it does
}

// OpenTrace makes one. It takes a kernel of 5.8, CAP_BPF and CAP_PERFMON or CAP_SYS_ADMIN, tracefs where it is
// usually mounted or CAP_SYS_ADMIN to mount it unseen, and the first pid namespace: the numbers of the tracepoints
// are that one's. A change of user alone makes no event here. Kinds and Timeout of the options do not count. Errors:
// ErrNoProcEvents.
func OpenTrace(o Options) (*Trace, error) {
	t := &Trace{}
	if err := t.open(o); err != nil {
		_ = t.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return t, nil
}

func (t *Trace) open(o Options) error {
	if space, err := os.Readlink("/proc/self/ns/pid"); err != nil || space != firstPIDNamespace {
		return errors.New("this is a pid namespace of its own, as a container has")
	}
	_ = rlimit.RemoveMemlock() // before 5.11 maps count as locked memory; if it is too little, the next line says so
	size := traceBuffer
	if o.Buffer > 0 {
		size = roundUp(o.Buffer)
	}
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "bulkhead_events", Type: ebpf.RingBuf, MaxEntries: uint32(size)})
	if err != nil {
		return fmt.Errorf("make a BPF ring (kernel 5.8): %w", err)
	}
	t.parts = append(t.parts, ring)
	if t.missed, err = ebpf.NewMap(&ebpf.MapSpec{Name: "bulkhead_missed", Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: 1}); err != nil {
		return fmt.Errorf("make a BPF map: %w", err)
	}
	t.parts = append(t.parts, t.missed)
	if t.reader, err = ringbuf.NewReader(ring); err != nil {
		return fmt.Errorf("read a BPF ring: %w", err)
	}
	t.lazy = o.Lazy
	t.timer = time.AfterFunc(time.Hour, t.interrupt)
	t.timer.Stop()
	return withTracefs(func() error {
		for _, p := range tracePoints {
			if err := t.attach(p, ring, o.Lazy > 0); err != nil {
				return fmt.Errorf("attach to the tracepoint %s/%s: %w", p.group, p.name, err)
			}
		}
		return nil
	})
}

// tracefsDirs are where tracefs is usually mounted.
var tracefsDirs = []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}

// withTracefs does something that reads tracefs. Where it is not mounted, that is done by a thread with a mount
// namespace of its own, in which it is: nobody else sees it, and it is gone with the thread.
func withTracefs(do func() error) error {
	for _, dir := range tracefsDirs {
		if _, err := os.Stat(dir + "/events"); err == nil {
			return do()
		}
	}
	done := make(chan error)
	go inOwnThread(func() {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tracefs", tracefsDirs[0], "tracefs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}
		if err != nil {
			done <- fmt.Errorf("tracefs is not mounted, and cannot be for this alone: %w", err)
			return
		}
		done <- do()
	})
	return <-done
}

// inOwnThread does something in a thread that ends with it. The first thread of a process never ends, and /proc/self
// is what it sees: it is held, while another one does it.
func inOwnThread(do func()) {
	runtime.LockOSThread() // and not unlocked: the thread ends with this goroutine
	if unix.Gettid() != os.Getpid() {
		do()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		inOwnThread(do)
	}()
	<-done
	runtime.UnlockOSThread()
}

// roundUp gives the power of two, of whole pages, that holds so many bytes.
func roundUp(size int) int {
	room := os.Getpagesize()
	for room < size {
		room *= 2
	}
	return room
}

// tracePoint is one that events come from.
type tracePoint struct {
	group, name string
	kind        Kind
}

var tracePoints = []tracePoint{
	{"task", "task_newtask", Fork},
	{"sched", "sched_process_exec", Exec},
	{"sched", "sched_process_exit", Exit},
	{"task", "task_rename", Comm},
}

func (t *Trace) attach(p tracePoint, ring *ebpf.Map, lazily bool) error {
	fields, err := traceFields(p)
	if err != nil {
		return err
	}
	flags := int32(ringForceWakeup)
	if lazily && p.kind != Exec {
		flags = ringNoWakeup
	}
	code, err := traceProgram(p.kind, fields, ring, t.missed, flags)
	if err != nil {
		return err
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "bulkhead_" + p.kind.String(), Type: ebpf.TracePoint,
		License: "Apache-2.0", Instructions: code})
	if err != nil {
		return err
	}
	t.parts = append(t.parts, program)
	hook, err := link.Tracepoint(p.group, p.name, program, nil)
	if err != nil {
		return err
	}
	t.parts = append(t.parts, hook)
	return nil
}

// traceField is where a field of a tracepoint stands in its record, bytes.
type traceField struct{ offset, size int }

// traceFields reads how the kernel lays out a tracepoint's record.
func traceFields(p tracePoint) (map[string]traceField, error) {
	var text []byte
	var err error
	for _, dir := range tracefsDirs {
		if text, err = os.ReadFile(dir + "/events/" + p.group + "/" + p.name + "/format"); err == nil {
			return parseTraceFormat(text), nil
		}
	}
	return nil, fmt.Errorf("tracefs tells nothing of it: %w", err)
}

// parseTraceFormat reads lines like "field:pid_t pid;	offset:8;	size:4;	signed:1;" (Documentation/trace/events.rst).
func parseTraceFormat(text []byte) map[string]traceField {
	fields := map[string]traceField{}
	for line := range bytes.Lines(text) {
		name, f := "", traceField{offset: -1, size: -1}
		for part := range strings.SplitSeq(string(line), ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(part), ":")
			switch key {
			case "field":
				name = value[strings.LastIndexByte(value, ' ')+1:]
			case "offset":
				f.offset = traceNumber(value)
			case "size":
				f.size = traceNumber(value)
			}
		}
		if name != "" && f.offset >= 0 && f.size > 0 {
			fields[name] = f
		}
	}
	return fields
}

func traceNumber(text string) int {
	n, err := strconv.ParseUint(text, 10, 15) // an offset is that of an instruction
	if err != nil {
		return -1
	}
	return int(n)
}

// What a program writes for an event, bytes from its beginning: the time in ns of CLOCK_MONOTONIC, the kind, the
// process, and who forked it.
const (
	traceTime   = 0
	traceKind   = 8
	tracePID    = 12
	traceParent = 16
	traceSize   = 24
)

// traceProgram tells of what happens to whole processes. R7 holds the number of the current process above that of its
// thread.
func traceProgram(kind Kind, fields map[string]traceField, ring, missed *ebpf.Map, flags int32) (asm.Instructions,
	error) {
	which, err := traceSubject(kind, fields)
	if err != nil {
		return nil, err
	}
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.RFP, traceTime-traceSize, asm.R0, asm.DWord),
		asm.StoreImm(asm.RFP, traceKind-traceSize, int64(int32(kind)), asm.Word),
		asm.StoreImm(asm.RFP, traceParent-traceSize, 0, asm.Word),
		asm.StoreImm(asm.RFP, traceParent+4-traceSize, 0, asm.Word),
	}
	code = append(code, which...)
	return append(code,
		asm.StoreMem(asm.RFP, tracePID-traceSize, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, ring.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -traceSize),
		asm.Mov.Imm(asm.R3, traceSize),
		asm.Mov.Imm(asm.R4, flags),
		asm.FnRingbufOutput.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		// The ring is full.
		asm.StoreImm(asm.RFP, traceParent-traceSize, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, traceParent-traceSize),
		asm.LoadMapPtr(asm.R1, missed.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	), nil
}

// traceSubject leaves in R1 the process that an event is about, or goes to the end.
func traceSubject(kind Kind, fields map[string]traceField) (asm.Instructions, error) {
	pid := fields["pid"]
	if pid.size != 4 {
		return nil, errors.New("its record has no pid of four bytes")
	}
	switch kind {
	case Fork: // in the process that forks
		flags := fields["clone_flags"]
		width := map[int]asm.Size{4: asm.Word, 8: asm.DWord}[flags.size]
		if flags.size != 4 && flags.size != 8 {
			return nil, errors.New("its record has no clone_flags")
		}
		return asm.Instructions{
			asm.LoadMem(asm.R1, asm.R6, int16(flags.offset), width),
			asm.And.Imm(asm.R1, cloneThread),
			asm.JNE.Imm(asm.R1, 0, "end"),
			asm.RSh.Imm(asm.R7, 32),
			asm.StoreMem(asm.RFP, traceParent-traceSize, asm.R7, asm.Word),
			asm.LoadMem(asm.R1, asm.R6, int16(pid.offset), asm.Word),
		}, nil
	case Exec: // by whichever thread, which is the main one from now on
		return asm.Instructions{asm.Mov.Reg(asm.R1, asm.R7), asm.RSh.Imm(asm.R1, 32)}, nil
	}
	return asm.Instructions{ // of the main thread alone
		asm.LoadMem(asm.R1, asm.R6, int16(pid.offset), asm.Word),
		asm.RSh.Imm(asm.R7, 32),
		asm.JNE.Reg(asm.R1, asm.R7, "end"),
	}, nil
}

// Within has a Read, also one that waits, take what there is no later than that from now, forks, exits and names too;
// of several that are still to come, the first and the last count. It may be called from any goroutine.
func (t *Trace) Within(d time.Duration) {
	t.soon.add(time.Now().Add(d), func(first time.Time) { t.timer.Reset(time.Until(first)) })
}

// interrupt has Read return.
func (t *Trace) interrupt() {
	_ = t.reader.Flush() // of a closed one nobody waits
	t.soon.passed(time.Now(), func(next time.Time) { t.timer.Reset(time.Until(next)) })
}

// Read waits for events and appends them to to[:0], in their order. It returns none when there were none for a while.
// Lost says how many were lost: then only a look at every process tells what there is. After Close the error matches
// os.ErrClosed.
func (t *Trace) Read(to []Event) (events []Event, lost int, err error) {
	wait := traceIdle
	if t.lazy > 0 {
		wait = t.lazy
	}
	t.reader.SetDeadline(time.Now().Add(wait))
	for to = to[:0]; len(to) < traceMost; {
		if err = t.reader.ReadInto(&t.record); err != nil {
			break
		}
		if len(to) == 0 {
			t.reader.SetDeadline(time.Unix(1, 0)) // what is there, and no more
		}
		if e, ok := parseTraceRecord(t.record.RawSample); ok {
			to = append(to, e)
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
		err = nil
	}
	if err == nil {
		lost, err = t.losses()
	}
	switch {
	case err != nil && t.ended.Load():
		err = os.ErrClosed
	case err != nil:
		err = fmt.Errorf("read process events: %w", err)
	}
	return withoutExecNames(to), lost, err
}

// losses gives how many events found no room since it was called last.
func (t *Trace) losses() (int, error) {
	var total uint64
	if err := t.missed.Lookup(uint32(0), &total); err != nil {
		return 0, err
	}
	lost := int(total - t.lost)
	t.lost = total
	return lost, nil
}

func parseTraceRecord(b []byte) (e Event, ok bool) {
	if len(b) < traceSize {
		return e, false
	}
	order := binary.NativeEndian
	e = Event{
		Kind: Kind(order.Uint32(b[traceKind:])), PID: int(int32(order.Uint32(b[tracePID:]))),
		Parent: int(int32(order.Uint32(b[traceParent:]))), Time: int64(order.Uint64(b[traceTime:])),
	}
	return e, e.PID > 0
}

// withoutExecNames drops the names that processes got from an exec(2) that the same Read tells of: the connector has
// none of these.
func withoutExecNames(events []Event) []Event {
	execs := map[int]bool{}
	kept := len(events)
	for i := len(events) - 1; i >= 0; i-- {
		e := events[i]
		if e.Kind == Exec {
			execs[e.PID] = true
		} else if e.Kind == Comm && execs[e.PID] {
			delete(execs, e.PID)
			continue
		}
		kept--
		events[kept] = e
	}
	return append(events[:0], events[kept:]...)
}

// Close takes the programs away and ends a Read that waits. A second call does nothing.
func (t *Trace) Close() error {
	if t.ended.Swap(true) {
		return nil
	}
	var errs []error
	if t.reader != nil {
		t.timer.Stop()
		errs = append(errs, t.reader.Close())
	}
	for i := len(t.parts) - 1; i >= 0; i-- {
		errs = append(errs, t.parts[i].Close())
	}
	return errors.Join(errs...)
}
