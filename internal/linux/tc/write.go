package tc

import (
	"errors"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Verb is what a change does.
type Verb string

// The verbs. Replace is for a root qdisc alone: it takes the place of whatever is there.
const (
	Add     Verb = "add"
	Alter   Verb = "change"
	Replace Verb = "replace"
	Delete  Verb = "delete"
)

// Object is a kind of object of traffic control.
type Object string

// The objects.
const (
	QdiscObject  Object = "qdisc"
	ClassObject  Object = "class"
	FilterObject Object = "filter"
)

var commands = map[Object][2]int{
	QdiscObject:  {unix.RTM_NEWQDISC, unix.RTM_DELQDISC},
	ClassObject:  {unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS},
	FilterObject: {unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER},
}

var verbFlags = map[Verb]int{
	Add:     unix.NLM_F_CREATE | unix.NLM_F_EXCL,
	Replace: unix.NLM_F_CREATE | unix.NLM_F_REPLACE,
	Alter:   0,
	Delete:  0,
}

// Write sends one change. A root or ingress qdisc makes the kernel switch the interface's queues off meanwhile.
func (k *Conn) Write(verb Verb, object Object, index int, r Record) error {
	if object == QdiscObject && r.AtHook() {
		defer hurry()()
	}
	message := &nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Handle: uint32(r.Handle),
		Parent: uint32(r.Parent)}
	if object == FilterObject {
		message.Info = r.Info
		if verb == Delete {
			message.Handle = 0 // all of its preference
		}
	}
	code := commands[object][0]
	if verb == Delete {
		code = commands[object][1]
	}
	req := k.request(code, verbFlags[verb]|unix.NLM_F_ACK)
	req.AddData(message)
	if verb != Delete {
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(r.Kind)))
		if r.Chain != 0 {
			req.AddData(nl.NewRtAttr(nl.TCA_CHAIN, nl.Uint32Attr(r.Chain)))
		}
		if len(r.Options) > 0 || object == FilterObject {
			req.AddData(nl.NewRtAttr(nl.TCA_OPTIONS, r.Options))
		}
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// AddIFB makes a virtual NIC of the kind ifb with an alias, and sets it up. When a part of that fails, none of it
// stays.
func (k *Conn) AddIFB(name, alias string, mtu, txQueue int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.TxQLen = name, txQueue
	if mtu > 0 {
		attrs.MTU = mtu
	}
	ifb := &netlink.Ifb{LinkAttrs: attrs}
	if err := k.links.LinkAdd(ifb); err != nil {
		return err
	}
	err := errors.Join(k.links.LinkSetAlias(ifb, alias), k.links.LinkSetUp(ifb))
	if err != nil {
		return errors.Join(err, k.links.LinkDel(ifb))
	}
	return nil
}

// DeleteIFB takes a virtual NIC away.
func (k *Conn) DeleteIFB(l Link) error {
	return k.links.LinkDel(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Index: l.Index, Name: l.Name}})
}

// hurry lets the calling thread go before others until the function that it gives is called. A regraft waits, asleep,
// while packets are dropped: on a busy machine waking up takes most of that time. Who may not do so goes on as
// before.
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
