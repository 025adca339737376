package sockets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

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

// What linux/inet_diag.h defines.
const (
	inetReqSize  = 56 // struct inet_diag_req_v2
	inetMsgSize  = 72 // struct inet_diag_msg
	inetListen   = 1 << 10
	inetCgroupID = 21 // INET_DIAG_CGROUP_ID, kernel 5.8
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
		if n < netlinkHeader || flags&unix.NLM_F_DUMP == 0 || diagEnds(buf[:n]) {
			break
		}
	}
	return all, nil
}

// diagEnds says whether a datagram holds the last message of an answer, or an error.
func diagEnds(datagram []byte) bool {
	ends := false
	eachMessage(datagram, func(kind uint16, _ []byte) {
		ends = ends || kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR
	})
	return ends
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

// eachAttribute calls do for each netlink attribute, padded to four bytes like messages.
func eachAttribute(text []byte, do func(kind uint16, value []byte)) {
	for len(text) >= 4 {
		size := int(binary.NativeEndian.Uint16(text))
		if size < 4 || size > len(text) {
			return
		}
		do(binary.NativeEndian.Uint16(text[2:]), text[4:size])
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
		eachAttribute(body[diagMsgSize:], func(kind uint16, value []byte) {
			switch kind {
			case diagName:
				names[inode] = socketName(value)
			case diagPeer:
				if len(value) >= 4 {
					peers[inode] = binary.NativeEndian.Uint32(value)
				}
			}
		})
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

// OwnSocketGroup makes a socket that listens on loopback for as long as it takes to ask the kernel for its cgroup2
// directory, by inode.
func OwnSocketGroup() (uint64, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	body := make([]byte, inetReqSize)
	body[0], body[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], inetListen)
	binary.BigEndian.PutUint16(body[8:], uint16(l.Addr().(*net.TCPAddr).Port))
	copy(body[12:], net.IPv4(127, 0, 0, 1).To4())
	copy(body[48:], bytes.Repeat([]byte{0xff}, 8)) // INET_DIAG_NOCOOKIE
	answer, err := askDiag(0, body)
	if err != nil {
		return 0, err
	}
	var group uint64
	eachMessage(answer, func(kind uint16, body []byte) {
		if kind == diagByFamily && len(body) >= inetMsgSize {
			eachAttribute(body[inetMsgSize:], func(kind uint16, value []byte) {
				if kind == inetCgroupID && len(value) >= 8 {
					group = binary.NativeEndian.Uint64(value)
				}
			})
		}
	})
	if group == 0 {
		return 0, errors.New("the kernel does not tell the group of a socket")
	}
	return group, nil
}
