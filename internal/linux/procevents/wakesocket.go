package procevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// wakeSocket is a second socket of the process connector. A filter in the kernel lets through what is for now: another
// program, user, group or name. It wakes the reader, who then takes everything that waits in the first socket; exits
// wake nobody by themselves. Forks pass, too, and the reader goes on waiting: the exec that mostly follows finds its
// thread awake (without, placing took twice as long, on 6.18).
type wakeSocket struct {
	file  *os.File
	conn  syscall.RawConn
	in    *datagrams
	woken []procMessage // scratch
	soon  deadlines     // a wait ends then at the latest
}

// wakeKinds are for now.
const wakeKinds = Exec | UID | GID | Comm

// openWakeSocket opens one. It has to be bound before the first socket is: the kernel gives a message to the socket
// that was bound last first, and who is woken by the wake socket should find the message there.
func openWakeSocket() (*wakeSocket, error) {
	fd, err := procSocket(wakeBuffer)
	if err != nil {
		return nil, err
	}
	program := wakeFilter(binary.NativeEndian, wakeKinds)
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("filter process events: %w", err)
	}
	b := &wakeSocket{file: os.NewFile(uintptr(fd), "process connector"), in: newDatagrams()}
	if b.conn, err = b.file.SyscallConn(); err != nil {
		_ = b.file.Close()
		return nil, err
	}
	return b, nil
}

// wakeBuffer is small: one message that waits wakes the reader, and more need not.
const wakeBuffer = 64 << 10

// wakeFilter is the program (classic BPF, Documentation/networking/filter.rst): kinds pass, and forks that make a
// process and not a mere thread. The kind of event stands behind the two headers, and the machine loads it as if it
// were in network order.
func wakeFilter(order binary.ByteOrder, kinds Kind) []unix.SockFilter {
	const load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K,
		unix.BPF_RET | unix.BPF_K
	const event = nlHeader + cnHeader
	const thread, process = event + eventHead + 8, event + eventHead + 12 // of a fork's child
	bit := func(kind Kind) uint32 {
		var text [4]byte
		order.PutUint32(text[:], uint32(kind))
		return binary.BigEndian.Uint32(text[:])
	}
	program := []unix.SockFilter{{Code: load, K: event}}
	n := bits.OnesCount32(uint32(kinds))
	for kind := Kind(1); kind != 0; kind <<= 1 {
		if kinds&kind != 0 {
			program = append(program, unix.SockFilter{Code: equal, Jt: uint8(n + 6 - len(program)), K: bit(kind)})
		}
	}
	return append(program,
		unix.SockFilter{Code: equal, Jf: 4, K: bit(Fork)},
		unix.SockFilter{Code: load, K: thread},
		unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX},
		unix.SockFilter{Code: load, K: process},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jt: 1},
		unix.SockFilter{Code: give, K: 0},
		unix.SockFilter{Code: give, K: 1 << 16})
}

// within has a wait end no later than that from now, also one that has begun, and the next one where none has.
func (b *wakeSocket) within(d time.Duration) {
	b.soon.add(time.Now().Add(d),
		func(first time.Time) { _ = b.file.SetReadDeadline(first) }) // of a closed one nobody waits
}

// wait returns when a message comes, or after a while, with the messages that came.
func (b *wakeSocket) wait(while time.Duration) ([]procMessage, error) {
	if err := b.soon.until(time.Now().Add(while), b.file.SetReadDeadline); err != nil {
		return nil, err
	}
	defer func() { b.soon.passed(time.Now(), func(time.Time) {}) }() // the next wait asks
	var n int
	var got error
	err := b.conn.Read(func(fd uintptr) bool {
		n, got = b.in.receive(int(fd))
		return !errors.Is(got, unix.EAGAIN) && (got != nil || b.parse(n))
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil
	case err != nil:
		return nil, err
	case got != nil: // an overrun: it has woken
		return nil, nil // the first socket tells of it
	}
	return b.woken, nil
}

// parse takes the messages out of what was received last, and says whether one of them is more than a fork.
func (b *wakeSocket) parse(n int) bool {
	b.woken = b.woken[:0]
	for i := range n {
		if data, _ := b.in.datagram(i); b.in.fromKernel(i) {
			b.woken, _ = parseProcMessages(binary.NativeEndian, data,
				b.woken) // the first socket counts what cannot be read
		}
	}
	return slices.ContainsFunc(b.woken, func(m procMessage) bool { return m.what != Fork })
}

// seen says whether a message was taken from the first socket.
func (s *procSequence) seen(m *procMessage) bool {
	next, known := s.next[m.cpu]
	return known && int32(m.seq-next) < 0
}
