package ctxswitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/idset"
)

// Exit is a thread that ended.
type Exit struct {
	TID    int
	PID    int // its process; 0 where the kernel does not tell (before 5.19)
	Parent int // the process that made its process, or has it now
	Name   string
	Count  Count // since the thread began, the last switch away from it included
}

// Exits hears of each thread of the machine that ends.
type Exits struct {
	socket *nl.NetlinkSocket
	family uint16
	// Lost says that some were not heard of, as too many ended at a time.
	Lost bool
}

// exitBuffer is how many bytes may wait to be read: tens of thousands of ends.
const exitBuffer = 16 << 20

// OpenExits begins to hear of what ends on CPUs. It takes CAP_NET_ADMIN, the network, user and process namespaces of
// the host, and a kernel with CONFIG_TASKSTATS.
func OpenExits(cpus idset.Set) (*Exits, error) {
	family, err := netlink.GenlFamilyGet(unix.TASKSTATS_GENL_NAME)
	if err != nil {
		return nil, fmt.Errorf("find taskstats of the kernel: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open taskstats: %w", err)
	}
	e := &Exits{socket: socket, family: family.ID}
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, exitBuffer); err != nil {
		// Without the right to more than net.core.rmem_max: losses are said.
		_ = unix.SetsockoptInt(socket.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUF, exitBuffer)
	}
	q := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	q.AddData(&nl.Genlmsg{Command: unix.TASKSTATS_CMD_GET, Version: unix.TASKSTATS_GENL_VERSION})
	q.AddData(nl.NewRtAttr(unix.TASKSTATS_CMD_ATTR_REGISTER_CPUMASK, nl.ZeroTerminated(cpus.String())))
	if err := socket.Send(q); err != nil {
		socket.Close()
		return nil, fmt.Errorf("ask taskstats for ends of threads: %w", err)
	}
	for { // the answer to the question may stand behind ends
		messages, _, err := socket.Receive()
		if err != nil {
			socket.Close()
			return nil, fmt.Errorf("ask taskstats for ends of threads: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if n := int32(binary.NativeEndian.Uint32(m.Data)); n != 0 {
				socket.Close()
				return nil, fmt.Errorf("ask taskstats for ends of threads: %w", unix.Errno(-n))
			}
			return e, nil
		}
	}
}

// Drain gives to take what ended since the last time, and does not wait.
func (e *Exits) Drain(take func(Exit)) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(e.socket.GetFd(), buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			e.Lost = true
			continue
		case err != nil:
			return fmt.Errorf("read ends of threads: %w", err)
		}
		e.parse(buf[:n], take)
	}
}

// parse reads a datagram. What a newer kernel adds is passed over.
func (e *Exits) parse(datagram []byte, take func(Exit)) {
	for len(datagram) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(datagram))
		if size < unix.NLMSG_HDRLEN || size > len(datagram) {
			return
		}
		message := datagram[:size]
		datagram = datagram[min(len(datagram), (size+3)&^3):]
		if binary.NativeEndian.Uint16(message[4:]) != e.family || size < unix.NLMSG_HDRLEN+nl.SizeofGenlmsg {
			continue
		}
		outer, err := nl.ParseRouteAttr(message[unix.NLMSG_HDRLEN+nl.SizeofGenlmsg:])
		if err != nil {
			continue
		}
		for _, o := range outer {
			if o.Attr.Type != unix.TASKSTATS_TYPE_AGGR_PID { // another one sums up a process: threads were counted
				continue
			}
			inner, err := nl.ParseRouteAttr(o.Value)
			if err != nil {
				continue
			}
			for _, a := range inner {
				if a.Attr.Type != unix.TASKSTATS_TYPE_STATS {
					continue
				}
				if x, ok := parseStats(a.Value); ok {
					take(x)
				}
			}
		}
	}
}

// tgidVersion is the first version of struct taskstats with ac_tgid.
const tgidVersion = 12

// parseStats reads a struct taskstats. Its fields keep their places; a newer kernel puts more behind them.
func parseStats(b []byte) (x Exit, ok bool) {
	var s unix.Taskstats
	if len(b) < int(unsafe.Offsetof(s.Nivcsw))+8 {
		return x, false
	}
	u32 := func(at uintptr) int { return int(binary.NativeEndian.Uint32(b[at:])) }
	x = Exit{TID: u32(unsafe.Offsetof(s.Ac_pid)), Parent: u32(unsafe.Offsetof(s.Ac_ppid)),
		Count: Count{Voluntary: binary.NativeEndian.Uint64(b[unsafe.Offsetof(s.Nvcsw):]),
			Involuntary: binary.NativeEndian.Uint64(b[unsafe.Offsetof(s.Nivcsw):])}}
	x.Count.Voluntary++ // the kernel tells of the end shortly before this switch
	name := b[unsafe.Offsetof(s.Ac_comm):][:len(s.Ac_comm)]
	x.Name = unix.ByteSliceToString(name)
	if binary.NativeEndian.Uint16(b) >= tgidVersion && len(b) >= int(unsafe.Offsetof(s.Ac_tgid))+4 {
		x.PID = u32(unsafe.Offsetof(s.Ac_tgid))
	}
	return x, true
}

// Close ends the hearing.
func (e *Exits) Close() { e.socket.Close() }
