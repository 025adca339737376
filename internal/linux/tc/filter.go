package tc

import (
	"encoding/binary"
	"fmt"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink/nl"
)

// Protocols of a filter (include/uapi/linux/if_ether.h).
const (
	ProtoAll  uint16 = 0x0003
	ProtoIPv4 uint16 = 0x0800
	ProtoIPv6 uint16 = 0x86dd
)

// Filter is one filter of ours: what it takes and where that goes.
type Filter struct {
	Protocol uint16 `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`     // TCP; 0 with NetCls
	Source   bool   `json:"source,omitempty"`   // the port that a packet comes from, else the one it goes to
	NetCls   bool   `json:"net_cls,omitempty"`  // takes the class from the sender's net_cls group (cls_cgroup)
	Class    Handle `json:"class,omitempty"`    // sorts into this class
	Redirect string `json:"redirect,omitempty"` // sends out through this virtual NIC
}

// Kind is the name that the kernel has for a filter of this sort: u32 or cgroup.
func (f Filter) Kind() string {
	if f.NetCls {
		return "cgroup"
	}
	return "u32"
}

// String gives "IPv4 TCP to port 3306 → bhifb2".
func (f Filter) String() string {
	if f.NetCls {
		return "net_cls class ids"
	}
	family, way := "IPv4", "to"
	if f.Protocol == ProtoIPv6 {
		family = "IPv6"
	}
	if f.Source {
		way = "from"
	}
	to := f.Redirect
	if to == "" {
		to = f.Class.String()
	}
	return fmt.Sprintf("%s TCP %s port %d → %s", family, way, f.Port, to)
}

// u32 numbers of include/uapi/linux/pkt_cls.h and tc_act/tc_mirred.h.
const (
	u32Terminal   = 1
	actStolen     = 4
	egressRedir   = 1
	firstAction   = 1
	protocolTCP   = 6
	headerWords   = 5 // an IPv4 header without options
	ipv6HeaderLen = 40
)

// keys are 32-bit words of the packet, from the start of its network header. An IPv4 header with options, a later
// fragment, and an IPv6 packet with extension headers match nothing: they pass unsorted.
func (f Filter) keys() []nl.TcU32Key {
	port := func(off int32) nl.TcU32Key {
		if f.Source {
			return u32Key(0xffff0000, uint32(f.Port)<<16, off)
		}
		return u32Key(0x0000ffff, uint32(f.Port), off)
	}
	if f.Protocol == ProtoIPv6 {
		return []nl.TcU32Key{u32Key(0x0000ff00, protocolTCP<<8, 4), port(ipv6HeaderLen)}
	}
	return []nl.TcU32Key{
		u32Key(0x0f000000, headerWords<<24, 0),
		u32Key(0x00001fff, 0, 4),
		u32Key(0x00ff0000, protocolTCP<<16, 8),
		port(4 * headerWords),
	}
}

func u32Key(mask, value uint32, off int32) nl.TcU32Key {
	return nl.TcU32Key{Mask: bigEndian(mask), Val: bigEndian(value), Off: off}
}

// bigEndian gives the number whose bytes in memory are v's in network order, and back.
func bigEndian(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}

// Options encodes the filter; nic is the index of what it redirects to.
func (f Filter) Options(nic int) []byte {
	var a attributes
	if f.NetCls {
		return a
	}
	sel := nl.TcU32Sel{Flags: u32Terminal, Keys: f.keys()}
	sel.Nkeys = uint8(len(sel.Keys))
	if f.Class != 0 {
		a.add(nl.TCA_U32_CLASSID, nl.Uint32Attr(uint32(f.Class)))
	}
	a.add(nl.TCA_U32_SEL, sel.Serialize())
	if f.Redirect != "" {
		act := nl.NewRtAttr(nl.TCA_U32_ACT, nil)
		first := act.AddRtAttr(firstAction, nil)
		first.AddRtAttr(nl.TCA_ACT_KIND, nl.ZeroTerminated(mirred))
		first.AddRtAttr(nl.TCA_ACT_OPTIONS, nil).AddRtAttr(nl.TCA_MIRRED_PARMS, redirectTo(nic))
		a = append(a, act.Serialize()...)
	}
	return a
}

// ParseFilter gives back what options encoded. nic names the virtual NIC of an index. False is a filter that is none
// of ours.
func ParseFilter(r Record, nic func(index int) string) (Filter, bool) {
	f := Filter{Protocol: r.Protocol()}
	if r.Kind == "cgroup" {
		f.NetCls = true
		return f, true
	}
	sel, ok := nlattr.Find(r.Options, nl.TCA_U32_SEL)
	if r.Kind != "u32" || !ok || len(sel) < nl.SizeofTcU32Sel ||
		len(sel) < nl.SizeofTcU32Sel+int(sel[2])*nl.SizeofTcU32Key {
		return f, false
	}
	keys := nl.DeserializeTcU32Sel(append([]byte(nil), sel...)).Keys
	if len(keys) == 0 {
		return f, false
	}
	last := keys[len(keys)-1]
	f.Source = bigEndian(last.Mask) == 0xffff0000
	f.Port = uint16(bigEndian(last.Val))
	if f.Source {
		f.Port = uint16(bigEndian(last.Val) >> 16)
	}
	want := f.keys()
	if len(keys) != len(want) {
		return f, false
	}
	for i := range keys {
		if keys[i] != want[i] {
			return f, false
		}
	}
	class, _ := nlattr.Uint32(r.Options, nl.TCA_U32_CLASSID)
	f.Class = Handle(class)
	if _, acts := nlattr.Find(r.Options, nl.TCA_U32_ACT); acts {
		index, ok := RedirectOf(r)
		f.Redirect = nic(index)
		return f, ok && f.Redirect != ""
	}
	return f, true
}

// struct tc_mirred: index, capabilities, action, two counts (tc_gen, with which every action begins), what it does, and
// where to. The library counts two bytes too many.
const (
	mirred        = "mirred"
	mirredSize    = 28
	genCapab      = 4
	genAction     = 8
	genRefs       = 12 // who knows the action
	genBinds      = 16 // filters that use it
	genSize       = 20
	mirredEaction = 20
	mirredIndex   = 24
)

func redirectTo(nic int) []byte {
	b := make([]byte, mirredSize)
	binary.NativeEndian.PutUint32(b[genAction:], actStolen)
	binary.NativeEndian.PutUint32(b[mirredEaction:], egressRedir)
	binary.NativeEndian.PutUint32(b[mirredIndex:], uint32(nic))
	return b
}
