package netshape

import (
	"bulkhead/internal/linux/nlattr"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Errors that callers branch on; what is returned wraps them with the object.
var (
	ErrNoDevice = errors.New("no such interface")
	ErrNoKernel = errors.New("the kernel lacks a piece")
)

// Options of Open. The zero value is the network namespace of the caller.
type Options struct {
	// Namespace is an open network namespace to work in instead.
	Namespace *os.File
}

// Kernel reads and changes traffic control in one network namespace.
type Kernel struct {
	links *netlink.Handle
	tc    *nl.SocketHandle
}

// Open connects to the kernel. Close frees what it holds, and changes nothing: all that was made stays.
func Open(o Options) (*Kernel, error) {
	at := netns.None()
	if o.Namespace != nil {
		at = netns.NsHandle(o.Namespace.Fd())
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
	return &Kernel{links: links, tc: &nl.SocketHandle{Socket: socket}}, nil
}

// Close frees the sockets.
func (k *Kernel) Close() error {
	k.links.Close()
	k.tc.Close()
	return nil
}

func (k *Kernel) request(command, flags int) *nl.NetlinkRequest {
	return &nl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{Len: unix.SizeofNlMsghdr, Type: uint16(command), Flags: unix.NLM_F_REQUEST | uint16(flags)},
		Sockets:  map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.tc},
	}
}

// Look reads the state of an interface, and which programs of ours are on the given cgroup2 directories. A directory that is gone has
// none.
func (k *Kernel) Look(name string, cgroups []string) (State, error) {
	var s State
	link, err := k.link(name)
	if err != nil {
		return s, err
	}
	if s.Device, err = k.device(link); err != nil {
		return s, err
	}
	nic, err := k.link(nicName(link.Index))
	switch {
	case errors.Is(err, ErrNoDevice):
	case err != nil:
		return s, err
	case !nic.ours():
		return s, fmt.Errorf("look at %s: %s is there and not ours (a %s with alias %q); hint: rename it", name, nic.Name, nic.Kind, nic.Alias)
	default:
		d, err := k.device(nic)
		if err != nil {
			return s, err
		}
		s.NIC = &d
	}
	for _, dir := range cgroups {
		on, err := programsOn(dir, link.Index)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		s.Programs, s.Policers = append(s.Programs, on.sorters...), append(s.Policers, on.policers...)
		s.Counters = append(s.Counters, on.counters...)
	}
	return s, nil
}

// aliasPrefix begins what `ip link` shows beside our virtual NIC; the kernel keeps it with the NIC, so it tells ours from others'. The
// name of the interface follows, as it was then: an interface may be renamed.
const aliasPrefix = "bulkhead: what arrives at "

func (l Link) ours() bool {
	return l.Kind == "ifb" && strings.HasPrefix(l.Name, nicPrefix) && strings.HasPrefix(l.Alias, aliasPrefix)
}

func (k *Kernel) link(name string) (Link, error) {
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
		Name: a.Name, Index: a.Index, Kind: l.Type(), Alias: a.Alias, MTU: a.MTU, TxQueue: a.TxQLen, TxQueues: a.NumTxQueues,
		Up: a.RawFlags&unix.IFF_UP != 0,
	}
	if link.Kind == "device" {
		link.Kind = ""
	}
	return link
}

func (k *Kernel) device(l Link) (Device, error) {
	d := Device{Link: l}
	var err error
	if d.Qdiscs, err = k.dump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, l.Index, 0); err != nil {
		return d, fmt.Errorf("list qdiscs of %s: %w", l.Name, err)
	}
	if d.Classes, err = k.dump(unix.RTM_GETTCLASS, unix.RTM_NEWTCLASS, l.Index, 0); err != nil {
		return d, fmt.Errorf("list classes of %s: %w", l.Name, err)
	}
	for _, parent := range d.filterParents() {
		filters, err := k.dump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, l.Index, parent)
		if err != nil {
			return d, fmt.Errorf("list filters of %s at %s: %w", l.Name, parent, err)
		}
		d.Filters = append(d.Filters, filters...)
	}
	return d, nil
}

// filterParents are the places of a device that can hold filters.
func (d *Device) filterParents() []Handle {
	var all []Handle
	for _, q := range d.Qdiscs {
		switch {
		case q.Kind == "clsact": // its two hooks (kernel 4.5)
			all = append(all, ingressHandle|0xfff2, ingressHandle|0xfff3)
		case q.made() && (q.Handle.ours() && q.Kind == "htb" || !q.Handle.ours()):
			all = append(all, q.Handle)
		}
	}
	for _, c := range d.Classes {
		if !c.Handle.ours() && c.Handle>>16 != 0 {
			all = append(all, c.Handle)
		}
	}
	return all
}

// dumpTries bounds how often a listing is read anew because something changed meanwhile.
const dumpTries = 5

// whole lists anew when something changed while the kernel listed: on a host where containers come and go that is nothing rare.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func (k *Kernel) linkList() ([]netlink.Link, error) { return whole(k.links.LinkList) }

func (k *Kernel) dump(command, answer, index int, parent Handle) ([]Record, error) {
	for try := 1; ; try++ {
		req := k.request(command, unix.NLM_F_DUMP)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: uint32(parent)})
		messages, err := req.Execute(unix.NETLINK_ROUTE, uint16(answer))
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted) && try < dumpTries:
			continue
		case command == unix.RTM_GETTFILTER && errors.Is(err, unix.EOPNOTSUPP): // a class or qdisc that takes no filters
			return nil, nil
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
			}
		}
		all = append(all, r)
	}
	return all, nil
}

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

// Strays finds virtual NICs of ours whose interface is gone: its qdiscs and filters went with it, the NIC stays. It gives the changes that
// remove them.
func (k *Kernel) Strays() ([]Change, error) {
	list, err := k.linkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	there := make(map[string]bool)
	for _, l := range list {
		there[nicName(l.Attrs().Index)] = true
	}
	var all []Change
	for _, l := range list {
		if nic := linkOf(l); nic.ours() && !there[nic.Name] {
			all = append(all, Change{Verb: Delete, What: NIC, Device: nic.Name, Index: nic.Index, For: strings.TrimPrefix(nic.Alias, aliasPrefix)})
		}
	}
	return all, nil
}

// Do makes one change.
func (k *Kernel) Do(c Change) error {
	var err error
	switch c.What {
	case NIC:
		err = k.nic(c)
	case Sorter:
		err = sorter(c)
	case Counter:
		err = counter(c)
	case Policer:
		var l Link
		if l, err = k.at(c); err == nil {
			err = policer(c, l.Index)
		}
	default:
		if c.Regrafts() {
			defer hurry()()
		}
		err = k.control(c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, explain(c, err))
	}
	return nil
}

// hurry lets the calling thread go before others until the function that it gives is called. A regraft waits, asleep, while packets are
// dropped: on a busy machine waking up takes most of that time. Who may not do so goes on as before.
func hurry() (done func()) {
	runtime.LockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}
	return func() {
		if err == nil {
			_ = unix.SchedSetAttr(0, before, 0)
		}
		runtime.UnlockOSThread()
	}
}

// explain names the missing piece: a kernel without the module says ENOENT to a qdisc or filter of that kind.
func explain(c Change, err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) || c.Verb == Delete {
		return err
	}
	var modules []string
	switch c.What {
	case Qdisc:
		modules = []string{"sch_" + c.Record.Kind}
	case FilterOf:
		if modules = []string{"cls_" + c.Record.Kind}; c.Filter != nil && c.Filter.Redirect != "" {
			modules = append(modules, "act_mirred")
		}
	case NIC:
		modules = []string{"ifb"}
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w; hint: `modprobe %s`, or a kernel that has it", ErrNoKernel, strings.Join(modules, " or "), err, modules[0])
}

// at resolves the interface of a change: the one that was looked at, under the name it had then.
func (k *Kernel) at(c Change) (Link, error) {
	l, err := k.link(c.Device)
	if err == nil && c.Index != 0 && l.Index != c.Index {
		return l, fmt.Errorf("%w: %s is another one than before (index %d, was %d)", ErrNoDevice, c.Device, l.Index, c.Index)
	}
	return l, err
}

var commands = map[What][2]int{
	Qdisc:    {unix.RTM_NEWQDISC, unix.RTM_DELQDISC},
	ClassOf:  {unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS},
	FilterOf: {unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER},
}

var verbFlags = map[Verb]int{
	Add:     unix.NLM_F_CREATE | unix.NLM_F_EXCL,
	Replace: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
	Alter:   0,
	Delete:  0,
}

// control sends one traffic control message.
func (k *Kernel) control(c Change) error {
	command, ok := commands[c.What]
	if !ok {
		return fmt.Errorf("no way to change a %s", c.What)
	}
	l, err := k.at(c)
	if err != nil {
		return err
	}
	r := c.Record
	if c.Filter != nil && c.Verb != Delete {
		nic := 0
		if c.Filter.Redirect != "" {
			to, err := k.link(c.Filter.Redirect)
			if err != nil {
				return err
			}
			nic = to.Index
		}
		r.Options = c.Filter.options(nic)
		if c.Filter.kind() == "u32" {
			r.Handle = 0 // u32 gives one; the preference is what tells them apart
		}
	}
	message := &nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(l.Index), Handle: uint32(r.Handle), Parent: uint32(r.Parent)}
	if c.What == FilterOf {
		message.Info = r.Info
		if c.Verb == Delete {
			message.Handle = 0 // all of its preference: one of ours has that to itself
		}
	}
	code := command[0]
	if c.Verb == Delete {
		code = command[1]
	}
	req := k.request(code, verbFlags[c.Verb]|unix.NLM_F_ACK)
	req.AddData(message)
	if c.Verb != Delete {
		k.payload(req, c.What, r)
	}
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *Kernel) payload(req *nl.NetlinkRequest, what What, r Record) {
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(r.Kind)))
	if r.Chain != 0 {
		req.AddData(nl.NewRtAttr(nl.TCA_CHAIN, nl.Uint32Attr(r.Chain)))
	}
	if len(r.Options) > 0 || what == FilterOf {
		req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, r.Options))
	}
}

// nic makes our virtual NIC or takes it away.
func (k *Kernel) nic(c Change) error {
	if c.Verb == Delete {
		l, err := k.at(c)
		if err != nil {
			return err
		}
		if !l.ours() {
			return fmt.Errorf("a %s with alias %q is not ours", l.Kind, l.Alias)
		}
		return k.links.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: l.Index, Name: l.Name}})
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.TxQLen = c.Device, 1000
	if served, err := k.link(c.For); err != nil {
		return err
	} else if served.MTU > 0 {
		attrs.MTU = served.MTU
	}
	ifb := &netlink.Ifb{LinkAttrs: attrs}
	if err := k.links.LinkAdd(ifb); err != nil {
		return err
	}
	err := errors.Join(k.links.LinkSetAlias(ifb, aliasPrefix+c.For), k.links.LinkSetUp(ifb))
	if err != nil { // one without our alias would be nobody's
		return errors.Join(err, k.links.LinkDel(ifb))
	}
	return nil
}

// Run makes the changes of steps in order. When one fails, those before it are undone, last first, and both are told.
func (k *Kernel) Run(steps []Step) error {
	for i, s := range steps {
		err := k.Do(s.Do)
		if err == nil {
			continue
		}
		for j := i - 1; j >= 0; j-- {
			for _, u := range steps[j].Undo {
				if e := k.Do(u); e != nil {
					err = errors.Join(err, fmt.Errorf("undo: %w", e))
				}
			}
		}
		return err
	}
	return nil
}

// ClassStats are the counters of each group's own class, by slot.
func (d *Device) ClassStats() map[Slot]Stats {
	all := make(map[Slot]Stats)
	for _, c := range d.Classes {
		minor := c.Handle & 0xffff
		if c.Kind == "htb" && c.Handle>>16 == rootMajor && minor >= slotStep && minor%slotStep == 0 && minor <= math.MaxUint16 {
			all[Slot(minor/slotStep)] = c.Stats
		}
	}
	return all
}
