package tc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Errors that callers branch on; what is returned wraps them with the object.
var (
	// ErrNoDevice says that there is no such interface.
	ErrNoDevice = errors.New("no such interface")
	// ErrNoRoute is an ErrNoDevice: no interface has a route to the network that was named.
	ErrNoRoute = fmt.Errorf("%w: no route leads there", ErrNoDevice)
)

// Conn is a connection to rtnetlink in one network namespace.
type Conn struct {
	links *netlink.Handle
	tc    *nl.SocketHandle
}

// Dial connects to the kernel, in the namespace of an open file, or with nil in that of the calling thread. Close
// changes nothing: all that was made stays.
func Dial(namespace *os.File) (*Conn, error) {
	at := netns.None()
	if namespace != nil {
		at = netns.NsHandle(namespace.Fd())
	}
	links, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(at, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	_ = socket.SetExtAck(true) // kernel 4.12: the reason of a refusal in words
	return &Conn{links: links, tc: &nl.SocketHandle{Socket: socket}}, nil
}

// Close frees the sockets.
func (k *Conn) Close() error {
	k.links.Close()
	k.tc.Close()
	return nil
}

// Links lists the interfaces of the namespace.
func (k *Conn) Links() ([]Link, error) {
	list, err := k.linkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links := make([]Link, len(list))
	for i, l := range list {
		links[i] = linkOf(l)
	}
	return links, nil
}

func (k *Conn) request(command, flags int) *nl.NetlinkRequest {
	return &nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{
			Len: unix.SizeofNlMsghdr, Type: uint16(command), Flags: unix.NLM_F_REQUEST | uint16(flags),
		},
		Sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.tc},
	}
}

// Link gives the interface of a name; ErrNoDevice when there is none.
func (k *Conn) Link(name string) (Link, error) {
	l, err := k.links.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return Link{}, fmt.Errorf("look at %s: %w", name, ErrNoDevice)
	case err != nil:
		return Link{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return linkOf(l), nil
}

func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	link := Link{
		Name: a.Name, Index: a.Index, Kind: l.Type(), Alias: a.Alias, MTU: a.MTU,
		TxQueue: a.TxQLen, TxQueues: a.NumTxQueues, Up: a.RawFlags&unix.IFF_UP != 0,
	}
	if link.Kind == "device" {
		link.Kind = ""
	}
	return link
}

// LinkByIndex gives the interface of an index; ErrNoDevice when there is none.
func (k *Conn) LinkByIndex(index int) (Link, error) {
	list, err := k.linkList()
	if err != nil {
		return Link{}, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range list {
		if l.Attrs().Index == index {
			return linkOf(l), nil
		}
	}
	return Link{}, fmt.Errorf("look at interface %d: %w", index, ErrNoDevice)
}

// Device reads the traffic control of an interface. Qdiscs and classes for whose handle skip is true are not asked
// for their filters.
func (k *Conn) Device(l Link, skip func(Handle) bool) (Device, error) {
	d := Device{Link: l}
	var err error
	if d.Qdiscs, err = k.dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, l.Index, 0); err != nil {
		return d, fmt.Errorf("list qdiscs of %s: %w", l.Name, err)
	}
	if d.Classes, err = k.dump(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, l.Index, 0); err != nil {
		return d, fmt.Errorf("list classes of %s: %w", l.Name, err)
	}
	for _, parent := range d.filterParents(skip) {
		filters, err := k.dump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, l.Index, parent)
		if err != nil {
			return d, fmt.Errorf("list filters of %s at %s: %w", l.Name, parent, err)
		}
		d.Filters = append(d.Filters, filters...)
	}
	return d, nil
}

// filterParents are the places of a device that can hold filters.
func (d *Device) filterParents(skip func(Handle) bool) []Handle {
	var all []Handle
	for _, q := range d.Qdiscs {
		switch {
		case q.Kind == "clsact": // its two hooks (kernel 4.5)
			all = append(all, IngressHandle|0xfff2, IngressHandle|0xfff3)
		case q.Made() && !skip(q.Handle):
			all = append(all, q.Handle)
		}
	}
	for _, c := range d.Classes {
		if c.Handle>>16 != 0 && !skip(c.Handle) {
			all = append(all, c.Handle)
		}
	}
	return all
}

// dumpTries bounds how often a listing is read anew because something changed meanwhile.
const dumpTries = 5

// whole lists again when something changed while the kernel listed. Where containers come and go that happens often.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func (k *Conn) linkList() ([]netlink.Link, error) { return whole(k.links.LinkList) }

func (k *Conn) dump(command, answer, index int, parent Handle) ([]Record, error) {
	for try := 1; ; try++ {
		req := k.request(command, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: uint32(parent)})
		messages, err := req.Execute(unix.NETLINK_ROUTE, uint16(answer))
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted) && try < dumpTries:
			continue
		case command == unix.RTM_GETTFILTER && errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil // a class or qdisc that takes no filters
		case err != nil:
			return nil, err
		}
		return records(messages, index)
	}
}

func records(messages [][]byte, index int) ([]Record, error) {
	var all []Record
	for _, m := range messages {
		if len(m) < nl.SizeofTcMsg {
			return nil, fmt.Errorf("a message of %d bytes", len(m))
		}
		head := nl.DeserializeTcMsg(m)
		if int(head.Ifindex) != index {
			continue // before 4.20 or without a filter, the kernel lists all
		}
		r := Record{Handle: Handle(head.Handle), Parent: Handle(head.Parent), Info: head.Info}
		for kind, value := range nlattr.All(m[head.Len():]) {
			switch kind {
			case nl.TCA_KIND:
				r.Kind = unix.ByteSliceToString(value)
			case nl.TCA_OPTIONS:
				r.Options = slices.Clone(value)
			case nl.TCA_STATS2:
				r.Stats = parseStats(value)
			case nl.TCA_CHAIN:
				if len(value) >= 4 {
					r.Chain = binary.NativeEndian.Uint32(value)
				}
			case nl.TCA_STAB, tcaIngressBlock, tcaEgressBlock:
				r.More = true
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// Queues gives for each of some links what its root queueing discipline has passed on, and the most bytes that wait in
// one of its disciplines now. All is 0 of a link that has none, or is gone.
func (k *Conn) Queues(links []Link) ([]Stats, error) {
	all := make([]Stats, len(links))
	for i, l := range links {
		qdiscs, err := k.dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, l.Index, 0)
		if err != nil {
			return nil, fmt.Errorf("list queueing disciplines of %s: %w", l.Name, err)
		}
		for _, r := range qdiscs {
			waits := max(all[i].Backlog, r.Stats.Backlog)
			if r.Parent == rootParent {
				all[i] = r.Stats
			}
			all[i].Backlog = waits
		}
	}
	return all, nil
}

// Attributes of a qdisc whose hook shares a block of filters with other interfaces (kernel 4.16).
const (
	tcaIngressBlock = 13
	tcaEgressBlock  = 14
)

// rootParent is the parent of a link's root discipline (TC_H_ROOT).
const rootParent Handle = 0xffffffff

// tcaStatsPkt64 came with kernel 5.5: TCA_STATS_BASIC counts packets in 32 bits.
const tcaStatsPkt64 = 8

func parseStats(data []byte) Stats {
	var s Stats
	if basic, ok := nlattr.Find(data, nl.TCA_STATS_BASIC); ok && len(basic) >= 12 {
		s.Bytes, s.Packets = binary.NativeEndian.Uint64(basic), uint64(binary.NativeEndian.Uint32(basic[8:]))
	}
	if packets, ok := nlattr.Find(data, tcaStatsPkt64); ok && len(packets) >= 8 {
		s.Packets = binary.NativeEndian.Uint64(packets)
	}
	if q, ok := nlattr.Find(data, nl.TCA_STATS_QUEUE); ok && len(q) >= 20 {
		s.Backlog, s.Drops = uint64(binary.NativeEndian.Uint32(q[4:])), uint64(binary.NativeEndian.Uint32(q[8:]))
		s.Overlimits = uint64(binary.NativeEndian.Uint32(q[16:]))
	}
	return s
}
