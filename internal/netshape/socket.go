package netshape

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Socket is a TCP socket and the cgroup2 directory that it was made in, whose programs it obeys for good.
type Socket struct {
	Inode     uint32 // as /proc/PID/fd shows it
	Cgroup    uint64 // CgroupID of the directory
	Local     netip.AddrPort
	Remote    netip.AddrPort // the zero value of one that listens
	Listening bool
}

// Layout of struct inet_diag_req_v2 and inet_diag_msg (include/uapi/linux/inet_diag.h).
const (
	diagByFamily   = 20
	diagReqSize    = 56
	diagMsgSize    = 72
	diagCgroupID   = 21 // INET_DIAG_CGROUP_ID, kernel 5.8
	diagInodeAt    = 68
	diagSource     = 8
	diagTarget     = 24
	tcpListen      = 10
	tcpTimeWait    = 6 // has no owner any more
	tcpNewSynRecv  = 12
	ownedTCPStates = 0xfff &^ (1<<tcpTimeWait | 1<<tcpNewSynRecv)
)

// diagRequest asks for the TCP sockets of a family.
type diagRequest byte

func (diagRequest) Len() int { return diagReqSize }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, diagReqSize)
	b[0], b[1] = byte(r), unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], ownedTCPStates)
	return b
}

// Sockets lists the TCP sockets of the namespace. ErrNoKernel: the kernel does not tell their groups (before 5.8).
func (k *Kernel) Sockets() ([]Socket, error) {
	if k.diag == nil {
		return nil, fmt.Errorf("list sockets: %w: sock_diag", ErrNoKernel)
	}
	var all []Socket
	for _, family := range []diagRequest{unix.AF_INET, unix.AF_INET6} {
		some, err := k.sockets(family)
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func (k *Kernel) sockets(family diagRequest) ([]Socket, error) {
	req := &nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Len: unix.SizeofNlMsghdr, Type: diagByFamily, Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP},
		Sockets:  map[int]*nl.SocketHandle{unix.NETLINK_SOCK_DIAG: k.diag},
	}
	req.AddData(family)
	messages, err := req.Execute(unix.NETLINK_SOCK_DIAG, 0)
	if errors.Is(err, unix.ENOENT) && family == unix.AF_INET6 {
		return nil, nil // no IPv6
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // what came and went meanwhile may be missing
		return nil, err
	}
	var all []Socket
	for _, m := range messages {
		s, ok, err := parseSocket(m)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, s)
		}
	}
	return all, nil
}

// parseSocket reads a struct inet_diag_msg. False is a socket that no process holds.
func parseSocket(m []byte) (s Socket, ok bool, err error) {
	if len(m) < diagMsgSize {
		return s, false, fmt.Errorf("a message of %d bytes", len(m))
	}
	s.Inode = binary.NativeEndian.Uint32(m[diagInodeAt:])
	if s.Inode == 0 {
		return s, false, nil
	}
	id, has := find(m[diagMsgSize:], diagCgroupID)
	if !has || len(id) < 8 {
		return s, false, fmt.Errorf("%w: the group of a socket (kernel 5.8)", ErrNoKernel)
	}
	s.Cgroup = binary.NativeEndian.Uint64(id)
	size := 4
	if m[0] == unix.AF_INET6 {
		size = 16
	}
	address := func(at, port int) netip.AddrPort {
		a, _ := netip.AddrFromSlice(m[at : at+size])
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(m[port:]))
	}
	s.Local, s.Listening = address(diagSource, 4), m[1] == tcpListen
	if !s.Listening {
		s.Remote = address(diagTarget, 6)
	}
	return s, true, nil
}

// CgroupID is what the kernel calls a cgroup2 directory by in Socket.Cgroup: its inode (kernel 5.5, 64 bit).
func CgroupID(path string) (uint64, error) {
	dir, err := openCgroup(path)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// Outside picks the sockets that members hold and that were made outside of the given directories: no program of the group sees what they
// send, until they are opened anew. What a listener of that kind accepts is outside, too. Ports sort them all the same.
func Outside(all []Socket, held func(inode uint32) bool, inside ...uint64) []Socket {
	in := make(map[uint64]bool, len(inside))
	for _, id := range inside {
		in[id] = true
	}
	var out []Socket
	for _, s := range all {
		if held(s.Inode) && !in[s.Cgroup] {
			out = append(out, s)
		}
	}
	return out
}
