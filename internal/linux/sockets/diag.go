package sockets

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"bulkhead/internal/linux/nlattr"
	"bulkhead/internal/linux/procfs"

	"golang.org/x/sys/unix"
)

// netlinkHeader is the size of struct nlmsghdr (linux/netlink.h).
const netlinkHeader = 16

// What sock_diag(7) and linux/unix_diag.h define.
const (
	diagByFamily = 20 // SOCK_DIAG_BY_FAMILY
	diagReqSize  = 24 // struct unix_diag_req
	diagMsgSize  = 16 // struct unix_diag_msg: family, type, state, pad, inode, cookie[2]
	diagShowName = 1  // UDIAG_SHOW_NAME
	diagShowPeer = 4  // UDIAG_SHOW_PEER
	diagName     = 0  // UNIX_DIAG_NAME
	diagPeer     = 2  // UNIX_DIAG_PEER
	// maxDiag bounds the answer: some 100 bytes for each socket.
	maxDiag = 64 << 20
)

// askUnixSockets returns the kernel's messages about all Unix sockets of this network namespace, one behind the
// other.
func askUnixSockets() ([]byte, error) {
	body := make([]byte, diagReqSize)
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], ^uint32(0)) // in any state
	binary.NativeEndian.PutUint32(body[12:], diagShowName|diagShowPeer)
	return askDiag(unix.NLM_F_DUMP, body)
}

// askDiag asks sock_diag(7), and gives its messages one behind the other. Without NLM_F_DUMP among the flags it is one.
// The namespace is that of the calling thread. An errno of the kernel's is returned as it is, beside what came before.
func askDiag(flags uint16, body []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	// A kernel that does not answer must not hold a look up.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return nil, err
	}
	req := make([]byte, netlinkHeader, netlinkHeader+len(body))
	native := binary.NativeEndian
	native.PutUint32(req[0:], uint32(netlinkHeader+len(body)))
	native.PutUint16(req[4:], diagByFamily)
	native.PutUint16(req[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(req, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []byte
	buf := make([]byte, 64<<10)
	for len(all) < maxDiag {
		n, err := procfs.Retry(func() (int, error) { n, _, err := unix.Recvfrom(fd, buf, 0); return n, err })
		if err != nil {
			return all, err
		}
		all = append(all, buf[:n]...)
		ends, err := diagEnds(buf[:n])
		if err != nil {
			return all, err
		}
		if n < netlinkHeader || flags&unix.NLM_F_DUMP == 0 || ends {
			break
		}
	}
	return all, nil
}

// diagEnds says whether a datagram holds the last message of an answer; the errno that it ends with is the error.
func diagEnds(datagram []byte) (ends bool, err error) {
	eachMessage(datagram, func(kind uint16, body []byte) {
		if kind != unix.NLMSG_DONE && kind != unix.NLMSG_ERROR {
			return
		}
		ends = true
		if len(body) >= 4 {
			if errno := int32(binary.NativeEndian.Uint32(body)); errno < 0 {
				err = unix.Errno(-errno)
			}
		}
	})
	return ends, err
}

// eachMessage calls do for each netlink message (linux/netlink.h): a header with length and type, a body, and
// padding to four bytes.
func eachMessage(text []byte, do func(kind uint16, body []byte)) {
	for len(text) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(text))
		if size < netlinkHeader || size > len(text) {
			return
		}
		do(binary.NativeEndian.Uint16(text[4:]), text[netlinkHeader:size])
		text = text[min((size+3)&^3, len(text)):]
	}
}

// parseUnixDiag returns the path at the other end of each socket whose other end has one, by inode.
func parseUnixDiag(answer []byte) map[string]string {
	names, peers := map[uint32]string{}, map[uint32]uint32{}
	eachMessage(answer, func(kind uint16, body []byte) {
		if kind != diagByFamily || len(body) < diagMsgSize {
			return
		}
		inode := binary.NativeEndian.Uint32(body[4:])
		if name, ok := nlattr.Find(body[diagMsgSize:], diagName); ok {
			names[inode] = socketName(name)
		}
		if peer, ok := nlattr.Uint32(body[diagMsgSize:], diagPeer); ok {
			peers[inode] = peer
		}
	})
	found := make(map[string]string)
	for inode, peer := range peers {
		if name := names[peer]; name != "" {
			found[fmt.Sprint(inode)] = name
		}
	}
	return found
}

// socketName writes the name of a Unix socket as /proc/net/unix does: an abstract one begins with "@".
func socketName(raw []byte) string {
	if len(raw) > 0 && raw[0] == 0 {
		return "@" + string(raw[1:])
	}
	name, _, _ := bytes.Cut(raw, []byte{0})
	return string(name)
}
