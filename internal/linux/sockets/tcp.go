package sockets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"bulkhead/internal/linux/nlattr"

	"golang.org/x/sys/unix"
)

// TCPSocket is a TCP socket and the cgroup2 directory that it was made in, whose BPF programs it obeys for good.
type TCPSocket struct {
	Inode     uint32 // as /proc/PID/fd shows it
	Cgroup    uint64 // inode number of the directory
	Local     netip.AddrPort
	Remote    netip.AddrPort // the zero value of one that listens
	Listening bool
}

// Layout of struct inet_diag_req_v2 and inet_diag_msg (include/uapi/linux/inet_diag.h), states of net/tcp_states.h.
const (
	inetReqSize  = 56
	inetMsgSize  = 72
	inetSource   = 8
	inetTarget   = 24
	inetInode    = 68
	inetCgroupID = 21 // INET_DIAG_CGROUP_ID, kernel 5.8

	tcpTimeWait   = 6 // has no owner any more
	tcpListen     = 10
	tcpNewSynRecv = 12
	tcpOwned      = 0xfff &^ (1<<tcpTimeWait | 1<<tcpNewSynRecv)
)

// TCP lists the TCP sockets of the calling thread's network namespace that a process holds. The error is
// errors.ErrUnsupported where the kernel does not tell their groups (before 5.8).
func TCP() ([]TCPSocket, error) {
	return dumpTCP("list sockets", tcpOwned, 0, parseTCPDiag)
}

// dumpTCP lists the TCP sockets in some states (a bit for each) of the calling thread's network namespace, with what
// the extensions of inet_diag (a bit for each, from 1) tell of them.
func dumpTCP[S any](what string, states uint32, extensions byte, parse func([]byte, []S) ([]S, error)) ([]S, error) {
	var all []S
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := inetRequest(family, states)
		body[2] = extensions
		answer, err := askDiag(unix.NLM_F_DUMP, body)
		if errors.Is(err, unix.ENOENT) && family == unix.AF_INET6 {
			continue // no IPv6
		}
		if err == nil {
			all, err = parse(answer, all)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return all, nil
}

// inetRequest is a struct inet_diag_req_v2 for the TCP sockets of a family in some states (a bit for each).
func inetRequest(family byte, states uint32) []byte {
	b := make([]byte, inetReqSize)
	b[0], b[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], states)
	return b
}

// parseTCPDiag adds the sockets of an answer of inet_diag to a list, without those that no process holds.
func parseTCPDiag(answer []byte, all []TCPSocket) ([]TCPSocket, error) {
	return parseDiag(answer, all, func(m []byte, inode uint32) (s TCPSocket, err error) {
		group, ok := nlattr.Uint64(m[inetMsgSize:], inetCgroupID)
		if !ok {
			return s, fmt.Errorf("the kernel does not tell the group of a socket (since 5.8): %w",
				errors.ErrUnsupported)
		}
		s = TCPSocket{Inode: inode, Listening: m[1] == tcpListen, Cgroup: group, Local: inetAddress(m, inetSource, 4)}
		if !s.Listening {
			s.Remote = inetAddress(m, inetTarget, 6)
		}
		return s, nil
	})
}

// parseDiag adds the sockets of an answer of inet_diag to a list, each by its struct inet_diag_msg and what follows it;
// not those that no process holds. The last error counts.
func parseDiag[S any](answer []byte, all []S, socket func(m []byte, inode uint32) (S, error)) ([]S, error) {
	var wrong error
	eachMessage(answer, func(kind uint16, m []byte) {
		if kind != diagByFamily {
			return
		}
		if len(m) < inetMsgSize {
			wrong = fmt.Errorf("a message of %d bytes", len(m))
			return
		}
		inode := binary.NativeEndian.Uint32(m[inetInode:])
		if inode == 0 {
			return
		}
		s, err := socket(m, inode)
		if err != nil {
			wrong = err
			return
		}
		all = append(all, s)
	})
	return all, wrong
}

// inetAddress is one end of the socket of a struct inet_diag_msg.
func inetAddress(m []byte, at, port int) netip.AddrPort {
	size := 4
	if m[0] == unix.AF_INET6 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(m[at : at+size])
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(m[port:]))
}

// MadeOutside picks the sockets that some processes hold (held, by inode) and that were made outside of the given
// directories: no program there sees what they send, until they are opened anew. What a listener of that kind accepts
// is outside, too.
func MadeOutside(all []TCPSocket, held func(inode uint32) bool, inside ...uint64) []TCPSocket {
	in := make(map[uint64]bool, len(inside))
	for _, id := range inside {
		in[id] = true
	}
	var out []TCPSocket
	for _, s := range all {
		if held(s.Inode) && !in[s.Cgroup] {
			out = append(out, s)
		}
	}
	return out
}

// OwnGroup makes a socket that listens on loopback for as long as it takes to ask the kernel for its cgroup2 directory,
// by inode number.
func OwnGroup() (uint64, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	body := inetRequest(unix.AF_INET, 1<<tcpListen)
	binary.BigEndian.PutUint16(body[8:], uint16(l.Addr().(*net.TCPAddr).Port))
	copy(body[12:], net.IPv4(127, 0, 0, 1).To4())
	copy(body[48:], bytes.Repeat([]byte{0xff}, 8)) // INET_DIAG_NOCOOKIE
	answer, err := askDiag(0, body)
	if err != nil {
		return 0, err
	}
	found, err := parseTCPDiag(answer, nil)
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("the kernel told of %d sockets, one was asked for", len(found))
	}
	return found[0].Cgroup, nil
}
