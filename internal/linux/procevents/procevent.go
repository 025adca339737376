// Package procevents tells of processes that begin, exec, change their user, group or name, and end, as the kernel
// does: by the process connector (linux/cn_proc.h, Documentation/driver-api/connector.rst), or by BPF programs on
// tracepoints where the kernel has none. Open and OpenTrace give a stream of events; its Read is for one goroutine,
// Within and Close for any. Events get lost when nobody reads: Read says how many, and then a full look at /proc is
// due.
package procevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Kind is what happened to a process; the bits are the kernel's (linux/cn_proc.h), so kinds can
// be joined to a set.
type Kind uint32

// The kinds that bear on where a process belongs.
const (
	Fork Kind = 0x00000001 // a process was made; Parent made it
	Exec Kind = 0x00000002 // it runs another program
	UID  Kind = 0x00000004 // its real or effective user changed
	GID  Kind = 0x00000040 // its real or effective group changed
	Comm Kind = 0x00000200 // it gave itself another name (prctl(2); /proc/PID/comm since 5.16)
	Exit Kind = 0x80000000 // its main thread has ended
)

// procKinds are those that are passed on. A kernel has more and may get new ones (session, ptrace, core dump).
const procKinds = Fork | Exec | UID | GID | Comm | Exit

func (k Kind) String() string {
	var names []string
	for _, kind := range []struct {
		bit  Kind
		name string
	}{{Fork, "fork"}, {Exec, "exec"}, {UID, "uid"}, {GID, "gid"}, {Comm, "comm"}, {Exit, "exit"}} {
		if k&kind.bit != 0 {
			names, k = append(names, kind.name), k&^kind.bit
		}
	}
	if k != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(k)))
	}
	return strings.Join(names, "|")
}

// Event is one thing that happened to a process (thread group).
type Event struct {
	Kind   Kind
	PID    int
	Parent int // of a fork: the process that forked
	// Time is when it happened, on the clock CLOCK_MONOTONIC, ns (proc_event.timestamp_ns of linux/cn_proc.h).
	Time int64
}

// Offsets in what the process connector sends: struct nlmsghdr (linux/netlink.h), struct cn_msg
// (linux/connector.h) and struct proc_event (linux/cn_proc.h), one behind the other.
const (
	nlHeader  = 16
	cnHeader  = 20
	eventHead = 16
	eventSize = eventHead + 24 // with the largest of the union, exit

	nlDone = 3 // NLMSG_DONE, the type of every message of a connector

	cnIdxProc = 1
	cnValProc = 1
)

// procMessage is one message of the connector.
type procMessage struct {
	what Kind // 0 is the answer to a subscription
	cpu  uint32
	seq  uint32 // of that CPU
	ack  uint32
	err  uint32 // of an answer
	at   uint64 // ns of CLOCK_MONOTONIC
	// The four process numbers that an event may have, as they stand there.
	ids [4]int32
}

// noCPU is what the answer to a subscription has on kernels that do not number it (seen in no kernel since
// 4.18, where it is numbered like an event).
const noCPU = ^uint32(0)

// errProcMessage says that a datagram is not what the connector sends.
var errProcMessage = errors.New("not a message of the process connector")

// parseProcMessages appends the messages in a datagram, which may hold several. What is not a connector's
// message of processes is passed over; a length that cannot be ends the datagram with an error, beside the
// messages before it.
func parseProcMessages(order binary.ByteOrder, data []byte, to []procMessage) ([]procMessage, error) {
	for len(data) > 0 {
		if len(data) < nlHeader {
			return to, fmt.Errorf("%w: %d bytes left", errProcMessage, len(data))
		}
		length := order.Uint32(data)
		if length < nlHeader || uint64(length) > uint64(len(data)) {
			return to, fmt.Errorf("%w: length %d of %d bytes", errProcMessage, length, len(data))
		}
		body := data[nlHeader:length]
		if order.Uint16(data[4:]) == nlDone {
			m, ours, err := parseProcMessage(order, body)
			if err != nil {
				return to, err
			}
			if ours {
				to = append(to, m)
			}
		}
		// The next one begins at a multiple of four (NLMSG_ALIGN), unless this was the last.
		data = data[min(uint64(len(data)), (uint64(length)+3)&^3):]
	}
	return to, nil
}

// parseProcMessage reads one cn_msg. A kernel that appends to the event is as good.
func parseProcMessage(order binary.ByteOrder, body []byte) (m procMessage, ours bool, err error) {
	if len(body) < cnHeader {
		return m, false, fmt.Errorf("%w: %d bytes are no header", errProcMessage, len(body))
	}
	if order.Uint32(body) != cnIdxProc || order.Uint32(body[4:]) != cnValProc {
		return m, false, nil
	}
	length := int(order.Uint16(body[16:]))
	event := body[cnHeader:]
	if length < eventSize || length > len(event) {
		return m, false, fmt.Errorf("%w: an event of %d bytes in %d", errProcMessage, length, len(event))
	}
	m = procMessage{
		what: Kind(order.Uint32(event)), cpu: order.Uint32(event[4:]),
		seq: order.Uint32(body[8:]), ack: order.Uint32(body[12:]), err: order.Uint32(event[eventHead:]),
		at: order.Uint64(event[8:]),
	}
	for i := range m.ids {
		m.ids[i] = int32(order.Uint32(event[eventHead+4*i:]))
	}
	return m, true, nil
}

// event is what a message says about a process; false for one of a mere thread, or of a kind that does not
// matter here.
func (m *procMessage) event() (e Event, ok bool) {
	defer func() { e.Time = int64(m.at) }()
	switch m.what {
	case Fork: // parent's thread and process, child's thread and process
		e = Event{Kind: m.what, PID: int(m.ids[3]), Parent: int(m.ids[1])}
		return e, e.PID > 0 && m.ids[2] == m.ids[3]
	case Exit:
		e = Event{Kind: m.what, PID: int(m.ids[1])}
		return e, e.PID > 0 && m.ids[0] == m.ids[1]
	case Exec, Comm, UID, GID:
		// A thread may change its own user and name alone; what counts is the main thread's.
		e = Event{Kind: m.what, PID: int(m.ids[1])}
		return e, e.PID > 0 && (m.ids[0] == m.ids[1] || m.what == Exec)
	}
	return Event{}, false
}

// procSequence finds gaps in the numbers that each CPU gives to its messages. The zero value has seen none.
type procSequence struct{ next map[uint32]uint32 }

// skipped is how many messages of its CPU are missing before this one.
func (s *procSequence) skipped(m *procMessage) int {
	if s.next == nil {
		s.next = make(map[uint32]uint32)
	}
	want, known := s.next[m.cpu]
	s.next[m.cpu] = m.seq + 1
	if gap := int32(m.seq - want); known && gap > 0 { // a number that went back is a counter that began anew
		return int(gap)
	}
	return 0
}
