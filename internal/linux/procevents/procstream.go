package procevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"bulkhead/internal/linux/procfs"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says that this kernel, or this process's place in it, has no process events. The text of
// the error that wraps it says which, for people.
var ErrUnavailable = errors.New("no process events")

// Options says what to listen to. Zero values are the defaults.
type Options struct {
	// Kinds is what is wanted; 0 is everything. A kernel of 6.6 or later then sends nothing else
	// (struct proc_input); an older one sends all, and the rest is dropped here. With less than everything
	// a gap in the sequence numbers says nothing, since the kernel counts what it does not send: only an
	// overrun is known to be a loss then.
	Kinds Kind
	// Buffer is the size of the receive buffer in bytes. Default 8 MiB; the kernel takes memory only for
	// what waits in it, about 1 KiB for an event.
	Buffer int
	// Timeout is how long the kernel may take to confirm the subscription. Default 500 ms.
	Timeout time.Duration
	// Lazy is how long forks and exits may wait to be read, so that they wake nobody; 0: not at all. Whatever else
	// happens is read at once, with all that came before it.
	Lazy time.Duration
}

const (
	procBuffer  = 8 << 20
	procConfirm = 500 * time.Millisecond
	// procBatch is how many datagrams one system call takes at most.
	procBatch = 64
	// procDatagram is the room for one; an event is 76 bytes.
	procDatagram = 256

	listen = 1 // PROC_CN_MCAST_LISTEN
	ignore = 2 // PROC_CN_MCAST_IGNORE
)

// Connector is a subscription to the kernel's process connector (netlink, linux/cn_proc.h). Read is
// for one goroutine; Close may be called from another one.
type Connector struct {
	file  *os.File
	conn  syscall.RawConn
	kinds Kind
	seq   procSequence
	gaps  bool // a gap is a loss
	in    *datagrams
	queue []procMessage // scratch
	ended atomic.Bool
	wakes *wakeSocket // nil: everything wakes the reader
	lazy  time.Duration
}

var subscriptions atomic.Uint32 // numbers them in this process

// Open subscribes to the events of every process on the machine. It works in the first user, pid
// and network namespace alone, and takes CAP_NET_ADMIN before 6.6. Errors: ErrNoProcEvents.
func Open(o Options) (*Connector, error) {
	if o.Buffer <= 0 {
		o.Buffer = procBuffer
	}
	if o.Timeout <= 0 {
		o.Timeout = procConfirm
	}
	var wakes *wakeSocket
	if o.Lazy > 0 {
		wakes, _ = openWakeSocket() // without one every event wakes the reader
	}
	s, err := openStream(o)
	if err == nil && wakes != nil {
		err = s.leavePoller()
	}
	if err != nil {
		if wakes != nil {
			_ = wakes.file.Close()
		}
		return nil, err
	}
	s.wakes, s.lazy = wakes, o.Lazy
	return s, nil
}

// Within has a Read, also one that waits, take what there is no later than that from now, forks and exits too; of
// several that are still to come, the first and the last count. It may be called from any goroutine.
func (s *Connector) Within(d time.Duration) {
	if s.wakes != nil {
		s.wakes.within(d)
	}
}

// leavePoller takes the socket out of the runtime's poller, where each event wakes a thread: another socket wakes the
// reader. What was registered there goes with its descriptor.
func (s *Connector) leavePoller() error {
	copied, err := -1, error(nil)
	if control := s.conn.Control(func(fd uintptr) {
		if copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			err = unix.SetNonblock(copied, false) // os.NewFile registers what does not block; reads here never wait
		}
	}); control != nil {
		err = control
	}
	if err == nil {
		err = s.file.Close()
		s.file = os.NewFile(uintptr(copied), "process connector")
	} else if copied >= 0 {
		unix.Close(copied)
	}
	if err == nil {
		s.conn, err = s.file.SyscallConn()
	}
	if err != nil {
		_ = s.file.Close()
		return fmt.Errorf("listen to process events: %w", err)
	}
	return nil
}

// openStream opens a stream without a wake socket.
func openStream(o Options) (*Connector, error) {
	fd, err := procSocket(o.Buffer)
	if err != nil {
		return nil, err
	}
	s := &Connector{file: os.NewFile(uintptr(fd), "process connector"), kinds: procKinds, gaps: true,
		in: newDatagrams()}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		_ = s.file.Close()
		return nil, fmt.Errorf("listen to process events: %w", err)
	}
	err = s.subscribe(o.Timeout)
	if err == nil && o.Kinds != 0 {
		// After the answer, since the mask holds back that too (measured on 6.18). A kernel without masks
		// drops a request of this length.
		s.kinds, s.gaps = o.Kinds&procKinds, false
		err = s.send(procRequest(binary.NativeEndian, listen, o.Kinds, 0))
	}
	if err != nil {
		_ = s.file.Close()
		return nil, err
	}
	return s, nil
}

// procSocket makes the socket. EPROTONOSUPPORT is a kernel without CONFIG_CONNECTOR.
func procSocket(buffer int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC,
		unix.NETLINK_CONNECTOR)
	if err != nil {
		return -1, refusedEvents(err)
	}
	// Beyond net.core.rmem_max only CAP_NET_ADMIN of the first user namespace may go.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) // the default works too
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: cnIdxProc}); err != nil {
		unix.Close(fd)
		return -1, refusedEvents(err)
	}
	return fd, nil
}

// refusedEvents says why there are none.
func refusedEvents(err error) error {
	why := err.Error()
	switch {
	case errors.Is(err, unix.EPERM):
		why = "CAP_NET_ADMIN is missing"
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		why = "the kernel has no connector (CONFIG_CONNECTOR)"
	case errors.Is(err, unix.ECONNREFUSED):
		why = "the kernel's connector is not in this network namespace"
	}
	return fmt.Errorf("%w: %s", ErrUnavailable, why)
}

// errNoAnswer: the kernel drops what it does not understand, and who asks from another namespace.
var errNoAnswer = fmt.Errorf("%w: the kernel does not confirm the subscription (CONFIG_PROC_EVENTS is off, or this "+
	"is a container)", ErrUnavailable)

// subscribe asks for events and waits for the kernel's answer, which everybody who listens gets: ours has
// our number, plus one. Events that come before it are dropped; who subscribes has looked at nothing yet.
func (s *Connector) subscribe(timeout time.Duration) error {
	ack := uint32(os.Getpid())<<8 + subscriptions.Add(1)
	if err := s.send(procRequest(binary.NativeEndian, listen, 0, ack)); err != nil {
		return refusedEvents(err)
	}
	if err := s.file.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("listen to process events: %w", err)
	}
	for {
		messages, _, err := s.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errNoAnswer
		}
		if err != nil {
			return fmt.Errorf("listen to process events: %w", err)
		}
		for i := range messages {
			m := &messages[i]
			if m.what != 0 || m.ack != ack+1 {
				continue
			}
			if m.err != 0 {
				return refusedEvents(syscall.Errno(m.err))
			}
			s.seq = procSequence{}
			return s.file.SetReadDeadline(time.Time{})
		}
	}
}

// procRequest is a subscription, or its end. A mask of 0 leaves struct proc_input away: kernels before
// 6.6 know only the operation.
func procRequest(order binary.ByteOrder, op uint32, mask Kind, ack uint32) []byte {
	length := 4
	if mask != 0 {
		length = 8
	}
	b := make([]byte, nlHeader+cnHeader+length)
	order.PutUint32(b, uint32(len(b)))
	order.PutUint16(b[4:], nlDone)
	order.PutUint32(b[nlHeader:], cnIdxProc)
	order.PutUint32(b[nlHeader+4:], cnValProc)
	order.PutUint32(b[nlHeader+12:], ack)
	order.PutUint16(b[nlHeader+16:], uint16(length))
	order.PutUint32(b[nlHeader+cnHeader:], op)
	if mask != 0 {
		order.PutUint32(b[nlHeader+cnHeader+4:], uint32(mask))
	}
	return b
}

func (s *Connector) send(data []byte) error {
	var err error
	if control := s.conn.Control(func(fd uintptr) {
		_, err = procfs.Retry(func() (int, error) {
			return 0, unix.Sendto(int(fd), data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		})
	}); control != nil {
		return control
	}
	return err
}

// Read waits for events and appends them to to[:0], those of one system call, in the order of each CPU.
// Lost says how many were lost at least: then only a look at every process tells what there is. After
// Close the error matches os.ErrClosed.
func (s *Connector) Read(to []Event) (events []Event, lost int, err error) {
	messages, lost, err := s.receive()
	to = to[:0]
	for i := range messages {
		m := &messages[i]
		if m.cpu == noCPU {
			continue
		}
		if skipped := s.seq.skipped(m); s.gaps {
			lost += skipped
		}
		if e, ok := m.event(); ok && e.Kind&s.kinds != 0 {
			to = append(to, e)
		}
	}
	if err != nil {
		return to, lost, fmt.Errorf("read process events: %w", err)
	}
	return to, lost, nil
}

// receive waits for datagrams and takes the messages out of those that the kernel sent. An overrun (ENOBUFS)
// and what cannot be read count as one lost message each; the socket goes on after both.
func (s *Connector) receive() (messages []procMessage, lost int, err error) {
	if s.wakes != nil {
		return s.drain()
	}
	var n int
	var got error
	err = s.conn.Read(func(fd uintptr) bool {
		n, got = s.in.receive(int(fd))
		return !errors.Is(got, unix.EAGAIN)
	})
	s.queue = s.queue[:0]
	switch {
	case err != nil && s.ended.Load():
		return nil, 0, os.ErrClosed
	case err != nil:
		return nil, 0, err
	case errors.Is(got, unix.ENOBUFS):
		return nil, 1, nil
	case got != nil:
		return nil, 0, got
	}
	return s.queue, s.parse(n), nil
}

// parse takes the messages out of what was received last, and counts what cannot be read.
func (s *Connector) parse(n int) (lost int) {
	for i := range n {
		data, whole := s.in.datagram(i)
		if !s.in.fromKernel(i) {
			continue
		}
		var bad error
		if s.queue, bad = parseProcMessages(binary.NativeEndian, data, s.queue); bad != nil || !whole {
			lost++
		}
	}
	return lost
}

// drain waits for the wake socket and then takes everything that there is, up to a bound.
func (s *Connector) drain() (messages []procMessage, lost int, err error) {
	woken, err := s.wakes.wait(s.lazy)
	switch {
	case err != nil && s.ended.Load():
		return nil, 0, os.ErrClosed
	case err != nil:
		return nil, 0, err
	}
	s.queue = s.queue[:0]
	full := true
	take := func(fd uintptr) {
		var n int
		n, err = s.in.receive(int(fd))
		full = n == procBatch
		lost += s.parse(n)
	}
	for round := 0; round < drainRounds && (full || s.late(woken)); round++ {
		if control := s.conn.Control(take); control != nil {
			return nil, 0, os.ErrClosed
		}
		switch {
		case errors.Is(err, unix.ENOBUFS):
			lost, full = lost+1, true
		case err != nil && !errors.Is(err, unix.EAGAIN):
			return nil, lost, err
		}
	}
	return s.queue, lost, nil
}

// drainRounds bounds how much is taken on end: what remains is taken at the next Read.
const drainRounds = 64

// late says whether the wake socket has woken for a message that is not there yet: another CPU is just delivering it.
func (s *Connector) late(woken []procMessage) bool {
	for i := range woken {
		m := &woken[i]
		if m.what != 0 && !s.seq.seen(m) && !slices.ContainsFunc(s.queue,
			func(q procMessage) bool { return q.cpu == m.cpu && int32(q.seq-m.seq) >= 0 }) {
			return true
		}
	}
	return false
}

// Close ends the subscription and a Read that waits. A second call does nothing.
func (s *Connector) Close() error {
	if s.ended.Swap(true) {
		return nil
	}
	// Before 6.6 the kernel counts listeners by these messages alone, and works for nobody without it.
	_ = s.send(procRequest(binary.NativeEndian, ignore, 0, 0))
	if s.wakes != nil {
		_ = s.wakes.file.Close()
	}
	return s.file.Close()
}

// datagrams is what one recvmmsg(2) fills in: one call for many events, without an allocation.
type datagrams struct {
	headers [procBatch]mmsghdr
	vectors [procBatch]unix.Iovec
	from    [procBatch]unix.RawSockaddrNetlink
	room    [procBatch][procDatagram]byte
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	length uint32
}

func newDatagrams() *datagrams {
	d := &datagrams{}
	for i := range d.headers {
		d.vectors[i].Base = &d.room[i][0]
		d.vectors[i].SetLen(procDatagram)
		h := &d.headers[i]
		h.Name = (*byte)(unsafe.Pointer(&d.from[i]))
		h.Iov = &d.vectors[i]
		h.SetIovlen(1)
	}
	return d
}

// receive takes what is there; it does not wait.
func (d *datagrams) receive(fd int) (n int, err error) {
	for i := range d.headers {
		d.headers[i].Namelen = unix.SizeofSockaddrNetlink // the kernel writes it
		d.from[i].Pid = ^uint32(0)
	}
	return procfs.Retry(func() (int, error) {
		// It does not wait, so the scheduler need not know of it.
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&d.headers[0])),
			procBatch, unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
}

// datagram gives the bytes of one; whole is false when it was longer than the room for it.
func (d *datagrams) datagram(i int) (data []byte, whole bool) {
	h := &d.headers[i]
	return d.room[i][:min(h.length, procDatagram)], h.Flags&unix.MSG_TRUNC == 0
}

// fromKernel says whether the kernel sent it: any process may send to a netlink socket whose number it
// guesses.
func (d *datagrams) fromKernel(i int) bool {
	return d.headers[i].Namelen == unix.SizeofSockaddrNetlink && d.from[i].Family == unix.AF_NETLINK &&
		d.from[i].Pid == 0
}
