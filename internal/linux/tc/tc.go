// Package tc reads and changes the traffic control of one network namespace over rtnetlink(7): interfaces, qdiscs,
// classes and filters, as records that can be written back as they were read. Numbers and layouts are those of
// include/uapi/linux/pkt_sched.h and pkt_cls.h. It knows the options of HTB, of the queues in its classes, of filters
// by port and by net_cls, and of redirects to a virtual NIC (ifb). All other options it keeps as the kernel encodes
// them. What is made for which group is decided in package netshape.
//
// A Conn is for one goroutine at a time. Changing anything needs CAP_NET_ADMIN in the namespace; reading needs
// nothing.
package tc

import (
	"fmt"
	"strconv"
)

// Handles with a meaning of their own (include/uapi/linux/pkt_sched.h).
const (
	AtRoot        Handle = 0xffffffff
	AtIngress     Handle = 0xfffffff1
	IngressHandle Handle = 0xffff0000
	ClsactEgress         = IngressHandle | 0xfff3 // where filters of a clsact for what leaves are
)

// Handle is a qdisc's or class's number, major and minor.
type Handle uint32

// String gives it as tc prints it.
func (h Handle) String() string {
	switch {
	case h == AtRoot:
		return "root"
	case h == AtIngress:
		return "ingress"
	case h&0xffff == 0:
		return fmt.Sprintf("%x:", uint32(h>>16))
	}
	return fmt.Sprintf("%x:%x", uint32(h>>16), uint32(h&0xffff))
}

// MakeHandle makes a handle of its two halves.
func MakeHandle(major, minor uint16) Handle { return Handle(major)<<16 | Handle(minor) }

// Rate is in bits per second. 0 is no rate.
type Rate uint64

// The units of a Rate.
const (
	Kbit Rate = 1000
	Mbit      = 1000 * Kbit
	Gbit      = 1000 * Mbit
)

// BytesPerSecond is the rate as HTB counts it.
func (r Rate) BytesPerSecond() uint64 { return uint64(r) / 8 }

// String gives "100Mbit/s".
func (r Rate) String() string {
	for _, u := range []struct {
		size Rate
		name string
	}{{Gbit, "G"}, {Mbit, "M"}, {Kbit, "k"}} {
		if r >= u.size {
			return strconv.FormatFloat(float64(r)/float64(u.size), 'f', -1, 64) + u.name + "bit/s"
		}
	}
	return fmt.Sprintf("%dbit/s", uint64(r))
}
