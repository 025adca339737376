package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Connections returns what the processes are connected to on this host: the addresses of the other ends,
// TCP by port first. A connection to another host is left out, for its other end is not in the tables of this
// one. A process without any is in the map too; one that has exited is not. What the reader has no right to see
// is left out and named in the error, beside the rest.
//
// /proc does not say who is at the other end of a Unix socket; sock_diag(7) does (unix_diag, kernel 3.3).
// Without it, in a captured host and for a process in another network namespace, they are left out.
func (h *Host) Connections(pids []int) (map[int][]Listener, error) {
	c := connections{h: h, tcp: map[string]map[string]Listener{}}
	return ofEach(pids, "find connections", c.of)
}

// connections is one look at the tables of sockets, each read once.
type connections struct {
	h    *Host
	tcp  map[string]map[string]Listener // by network namespace, then by inode: the other end
	unix map[string]string              // by inode: the path of the other end; nil until asked for
}

func (c *connections) of(pid int) ([]Listener, error) {
	inodes, namespace, table, err := c.h.socketsOf(pid, c.tcp, procDir.connected)
	if err != nil || len(inodes) == 0 {
		return nil, err
	}
	own, _ := c.h.readLink("/proc/self/ns/net")
	var list []Listener
	add := func(l Listener, is bool) {
		if is && !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	for _, inode := range inodes {
		l, is := table[inode]
		add(l, is)
		if !is && namespace == own {
			name, is := c.unixPeer(inode)
			add(Listener{Network: "unix", Address: name}, is)
		}
	}
	slices.SortFunc(list, compareListeners)
	return list, nil
}

// connected returns the other ends of the TCP connections of the process's network namespace that both ends
// are in, by inode.
func (d procDir) connected() (map[string]Listener, error) {
	var all []tcpConnection
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		text, err := d.read(nil, name, maxPseudoFile)
		if errors.Is(err, fs.ErrNotExist) && d.alive() {
			continue // no IPv6 on this host
		}
		if err != nil {
			return nil, err
		}
		more, err := parseConnections(text)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	here := make(map[[2]netip.AddrPort]bool, len(all))
	for _, c := range all {
		here[[2]netip.AddrPort{c.local, c.remote}] = true
	}
	table := make(map[string]Listener)
	for _, c := range all {
		if here[[2]netip.AddrPort{c.remote, c.local}] {
			table[c.inode] = Listener{"tcp", c.remote.String(), int(c.remote.Port())}
		}
	}
	return table, nil
}

// tcpConnection is one established connection. An IPv4 address is written as such, also where an IPv6 socket
// has it.
type tcpConnection struct {
	local, remote netip.AddrPort
	inode         string
}

// parseConnections reads the established connections of /proc/net/tcp or tcp6 (proc(5)), lines as in parseTCP.
func parseConnections(text []byte) ([]tcpConnection, error) {
	const established = "01" // TCP_ESTABLISHED of net/tcp_states.h
	var all []tcpConnection
	number := 0
	for line := range bytes.Lines(text) {
		if number++; number == 1 {
			continue // the heading
		}
		fields := bytes.Fields(line)
		if len(fields) < 10 {
			return nil, fmt.Errorf("parse net/tcp: line %d: %d fields, want ten", number, len(fields))
		}
		if string(fields[3]) != established {
			continue
		}
		local, err := parseAddress(string(fields[1]))
		if err != nil {
			return nil, fmt.Errorf("parse net/tcp: line %d: %w", number, err)
		}
		remote, err := parseAddress(string(fields[2]))
		if err != nil {
			return nil, fmt.Errorf("parse net/tcp: line %d: %w", number, err)
		}
		all = append(all, tcpConnection{unmapped(local), unmapped(remote), string(fields[9])})
	}
	return all, nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// unixPeer returns the path at the other end of a Unix socket. What accept(2) gives out has the path of the
// socket that listens.
func (c *connections) unixPeer(inode string) (string, bool) {
	if !c.h.live {
		return "", false
	}
	if c.unix == nil {
		// Without unix_diag in the kernel nothing is known: that is no error of the process.
		answer, _ := askUnixSockets()
		c.unix = parseUnixDiag(answer)
	}
	name, is := c.unix[inode]
	return name, is
}

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
	req := make([]byte, nlHeader, nlHeader+len(body))
	native := binary.NativeEndian
	native.PutUint32(req[0:], uint32(nlHeader+len(body)))
	native.PutUint16(req[4:], diagByFamily)
	native.PutUint16(req[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(req, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []byte
	buf := make([]byte, 64<<10)
	for len(all) < maxDiag {
		n, err := retry(func() (int, error) { n, _, err := unix.Recvfrom(fd, buf, 0); return n, err })
		if err != nil {
			return all, err
		}
		all = append(all, buf[:n]...)
		if n < nlHeader || flags&unix.NLM_F_DUMP == 0 || diagEnds(buf[:n]) {
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
	for len(text) >= nlHeader {
		size := int(binary.NativeEndian.Uint32(text))
		if size < nlHeader || size > len(text) {
			return
		}
		do(binary.NativeEndian.Uint16(text[4:]), text[nlHeader:size])
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
