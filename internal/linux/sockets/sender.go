package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"bulkhead/internal/linux/nlattr"
	"bulkhead/internal/linux/sysroot"
)

// Sender is a TCP connection that a process holds, and what it has sent so far (struct tcp_info).
type Sender struct {
	Inode         uint32 // as /proc/PID/fd shows it
	Local, Remote netip.AddrPort
	Sent          uint64 // bytes, those sent again too (kernel 4.19)
	// Busy is for how long it had data that was not acknowledged yet, and PeerFull for how much of that its other end
	// took no more (kernel 4.10).
	Busy, PeerFull time.Duration
	// RoundTrip is how long an answer takes now, smoothed, and Least the shortest of the last minutes; 0 is not known.
	RoundTrip, Least time.Duration
}

// Attribute and offsets of struct tcp_info (include/uapi/linux/tcp.h).
const (
	inetInfo     = 2 // INET_DIAG_INFO
	infoRTT      = 68
	infoLeastRTT = 148
	infoBusy     = 168
	infoPeerFull = 176
	infoSent     = 200
	infoSize     = 208

	tcpEstablished = 1
	tcpCloseWait   = 8
)

// Senders lists the TCP connections of the calling thread's network namespace that a process holds. The error is
// errors.ErrUnsupported where the kernel does not tell what they sent (before 4.19).
func Senders() ([]Sender, error) {
	return dumpTCP("list connections", 1<<tcpEstablished|1<<tcpCloseWait, 1<<(inetInfo-1), parseSenders)
}

// Elsewhere says whether a process is in another network namespace than this one, so that Senders has none of its
// connections. One that is gone is nowhere.
func Elsewhere(root *sysroot.FS, pid int) bool {
	own, err := root.Readlink("/proc/self/ns/net")
	if err != nil {
		return false
	}
	space, err := root.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err == nil && space != own
}

// parseSenders adds the connections of an answer of inet_diag to a list, without those that no process holds.
func parseSenders(answer []byte, all []Sender) ([]Sender, error) {
	return parseDiag(answer, all, func(m []byte, inode uint32) (s Sender, err error) {
		info, _ := nlattr.Find(m[inetMsgSize:], inetInfo)
		if len(info) < infoSize {
			return s, fmt.Errorf("the kernel does not tell what connections sent (since 4.19): %w",
				errors.ErrUnsupported)
		}
		microseconds := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
		s = Sender{Inode: inode, Local: inetAddress(m, inetSource, 4), Remote: inetAddress(m, inetTarget, 6),
			Sent:      binary.NativeEndian.Uint64(info[infoSent:]),
			Busy:      microseconds(binary.NativeEndian.Uint64(info[infoBusy:])),
			PeerFull:  microseconds(binary.NativeEndian.Uint64(info[infoPeerFull:])),
			RoundTrip: microseconds(uint64(binary.NativeEndian.Uint32(info[infoRTT:]))),
		}
		if least := binary.NativeEndian.Uint32(info[infoLeastRTT:]); least != ^uint32(0) {
			s.Least = microseconds(uint64(least))
		}
		return s, nil
	})
}
