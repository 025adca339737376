package netshape

import (
	"bulkhead/internal/linux/nlattr"
	"encoding/binary"
	"math"
	"slices"

	"github.com/vishvananda/netlink/nl"
)

// What the kernel takes and shows as TCA_OPTIONS. Rates go in bytes per second, times in ticks of 64 ns (PSCHED_SHIFT, since 2.6.31;
// the library's own encoding loses bursts above 13 Gbit/s and rates above 34).

const tickNs = 64

// ticks is how long bytes take at a rate.
func ticks(bytes uint32, r Rate) uint32 {
	if r == 0 {
		return 0
	}
	return uint32(min(float64(bytes)*1e9/float64(r.BytesPerSecond())/tickNs, math.MaxUint32))
}

func rateSpec(r Rate) nl.TcRateSpec {
	return nl.TcRateSpec{Linklayer: nl.LINKLAYER_ETHERNET, Rate: uint32(min(r.BytesPerSecond(), math.MaxUint32))}
}

// attributes is a list of route attributes without a head of its own, as TCA_OPTIONS holds it.
type attributes []byte

func (a *attributes) add(kind int, data []byte) {
	*a = append(*a, nl.NewRtAttr(kind, data).Serialize()...)
}

// htbOptions are those of our root qdisc: what no class takes goes to class 2, and where that is not there past all classes.
// queue is how many packets may wait there.
func htbOptions(queue uint32) []byte {
	var a attributes
	glob := nl.TcHtbGlob{Version: 3, Rate2Quantum: 10, Defcls: restMinor}
	a.add(nl.TCA_HTB_INIT, glob.Serialize())
	a.add(nl.TCA_HTB_DIRECT_QLEN, nl.Uint32Attr(queue))
	return a
}

// settable turns what the kernel shows of a qdisc into what it takes. HTB shows the whole of its version (0x30011) and takes the upper
// half; filters show whether the hardware has them, and take only whether it shall; u32 counts its tables by itself.
func settable(r Record) Record {
	if kind, ok := flagsOf[r.Kind]; ok {
		return tableless(cutFlags(r, kind))
	}
	if len(timesOf[r.Kind]) > 0 {
		return exactTimes(r)
	}
	glob, ok := nlattr.Find(r.Options, nl.TCA_HTB_INIT)
	if r.Kind != "htb" || !ok || len(glob) < nl.SizeofTcHtbGlob {
		return r
	}
	set := nl.DeserializeTcHtbGlob(slices.Clone(glob))
	if set.Version > 0xffff {
		set.Version >>= 16
	}
	set.DirectPkts = 0
	var a attributes
	a.add(nl.TCA_HTB_INIT, set.Serialize())
	if queue, ok := nlattr.Uint32(r.Options, nl.TCA_HTB_DIRECT_QLEN); ok {
		a.add(nl.TCA_HTB_DIRECT_QLEN, nl.Uint32Attr(queue))
	}
	r.Options = a
	return r
}

// flagsOf is the attribute that holds a filter's flags, by its kind (include/uapi/linux/pkt_cls.h).
var flagsOf = map[string]int{"u32": 11, "flower": nl.TCA_FLOWER_FLAGS, "matchall": 3}

// skipFlags are TCA_CLS_FLAGS_SKIP_HW and SKIP_SW.
const skipFlags = 3

func cutFlags(r Record, flagsKind int) Record {
	var a attributes
	for kind, value := range nlattr.All(r.Options) {
		if kind == flagsKind && len(value) >= 4 {
			flags := binary.NativeEndian.Uint32(value) & skipFlags
			if flags == 0 {
				continue
			}
			value = nl.Uint32Attr(flags)
		}
		a.add(kind, value)
	}
	r.Options = a
	return r
}

// Numbers of u32 (include/uapi/linux/pkt_cls.h, net/sched/cls_u32.c): a filter's handle is that of its table, 12 bits, its bucket and its
// place. The kernel numbers from 800 on the table that each preference has by itself.
const (
	u32HashKind   = 2 // TCA_U32_HASH: the table
	u32Place      = 0xfff
	u32OwnTables  = 0x800
	u32TableShift = 20
)

// tableless leaves out the number of the table that a u32 filter's preference has by itself: those are counted anew when filters are put
// back, and a number that is another one now is refused.
func tableless(r Record) Record {
	if r.Kind != "u32" || r.Handle>>u32TableShift < u32OwnTables {
		return r
	}
	var a attributes
	for kind, value := range nlattr.All(r.Options) {
		if kind != u32HashKind {
			a.add(kind, value)
		}
	}
	r.Handle, r.Options = r.Handle&u32Place, a
	return r
}

// options of an HTB class.
func (c Class) options() []byte {
	var a attributes
	copt := nl.TcHtbCopt{
		Rate: rateSpec(c.Rate), Ceil: rateSpec(c.Ceil), Quantum: c.Quantum,
		Buffer: ticks(c.Burst, c.Rate), Cbuffer: ticks(c.Cburst, c.Ceil),
	}
	a.add(nl.TCA_HTB_PARMS, copt.Serialize())
	for _, r := range []struct {
		kind int
		rate Rate
	}{{nl.TCA_HTB_RATE64, c.Rate}, {nl.TCA_HTB_CEIL64, c.Ceil}} {
		if r.rate.BytesPerSecond() >= math.MaxUint32 {
			a.add(r.kind, nl.Uint64Attr(r.rate.BytesPerSecond()))
		}
	}
	return a
}

// htbClass is what the kernel shows of a class, in its own units.
type htbClass struct {
	rate, ceil      uint64 // bytes per second
	buffer, cbuffer uint32 // ticks
	quantum         uint32
}

func parseHTBClass(options []byte) (htbClass, bool) {
	parms, ok := nlattr.Find(options, nl.TCA_HTB_PARMS)
	if !ok || len(parms) < nl.SizeofTcHtbCopt {
		return htbClass{}, false
	}
	copt := nl.DeserializeTcHtbCopt(append([]byte(nil), parms...))
	c := htbClass{rate: uint64(copt.Rate.Rate), ceil: uint64(copt.Ceil.Rate), buffer: copt.Buffer, cbuffer: copt.Cbuffer, quantum: copt.Quantum}
	if v, ok := nlattr.Find(options, nl.TCA_HTB_RATE64); ok && len(v) >= 8 {
		c.rate = binary.NativeEndian.Uint64(v)
	}
	if v, ok := nlattr.Find(options, nl.TCA_HTB_CEIL64); ok && len(v) >= 8 {
		c.ceil = binary.NativeEndian.Uint64(v)
	}
	return c, true
}

// same says whether the kernel's class is the wanted one. Ticks may differ by rounding. An inner class keeps the quantum of its time
// as a leaf, and does not use it.
func (c Class) same(options []byte) bool {
	has, ok := parseHTBClass(options)
	if !ok {
		return false
	}
	near := func(a, b uint32) bool { return max(a, b)-min(a, b) <= 2 }
	return has.rate == c.Rate.BytesPerSecond() && has.ceil == c.Ceil.BytesPerSecond() && (c.Inner || has.quantum == c.Quantum) &&
		near(has.buffer, ticks(c.Burst, c.Rate)) && near(has.cbuffer, ticks(c.Cburst, c.Ceil))
}

const (
	byteQueue   = "bfifo"
	leafQueueMs = 200 // of the ceiling, for a byte queue
	minQueue    = 128 << 10
	maxQueue    = 64 << 20
)

// leafOptions are those of the queue in a class. fq_codel and fq keep delay low by themselves; a byte queue holds 200 ms, as a
// queue of packets would hold seconds of the 64 KiB ones that offload makes.
func leafOptions(kind string, ceil Rate) []byte {
	var a attributes
	switch kind {
	case "fq_codel":
		// Below 5 Mbit/s two frames alone take longer than CoDel's 5 ms.
		target := max(5000, 2*frame*1_000_000/max(ceil.BytesPerSecond(), 1))
		a.add(nl.TCA_FQ_CODEL_TARGET, nl.Uint32Attr(uint32(min(target, math.MaxUint32))))
		a.add(nl.TCA_FQ_CODEL_ECN, nl.Uint32Attr(1))
	case "fq":
	default:
		// struct tc_fifo_qopt, without attributes around it
		return nl.Uint32Attr(uint32(min(max(ceil.BytesPerSecond()*leafQueueMs/1000, minQueue), maxQueue)))
	}
	return a
}

// alterable is a queue as the kernel shows it without what it takes only when the queue is made: fq_codel refuses a number of flows in a
// change, be it the one that it has (EINVAL, fq_codel_change).
func alterable(r Record) Record {
	if r = settable(r); r.Kind != "fq_codel" {
		return r
	}
	var a attributes
	for kind, value := range nlattr.All(r.Options) {
		if kind != nl.TCA_FQ_CODEL_FLOWS {
			a.add(kind, value)
		}
	}
	r.Options = a
	return r
}

// timesOf are the attributes of CoDel's times, by the kind of the queue (include/uapi/linux/pkt_sched.h). They are kept in units of 1024 ns
// and shown rounded down, so each is written as what makes the kernel show the same again.
var timesOf = map[string][]int{
	"fq_codel": {nl.TCA_FQ_CODEL_TARGET, nl.TCA_FQ_CODEL_INTERVAL, nl.TCA_FQ_CODEL_CE_THRESHOLD},
	"codel":    {1, 3, 5},
}

func exactTimes(r Record) Record {
	var a attributes
	for kind, value := range nlattr.All(r.Options) {
		if slices.Contains(timesOf[r.Kind], kind) && len(value) >= 4 {
			value = nl.Uint32Attr(roundedUp(binary.NativeEndian.Uint32(value)))
		}
		a.add(kind, value)
	}
	r.Options = a
	return r
}

// roundedUp gives microseconds that CoDel keeps and shows as us.
func roundedUp(us uint32) uint32 {
	kept := (uint64(us)*1000 + 1023) / 1024
	return uint32((kept*1024 + 999) / 1000)
}

// leafSame says whether the queue in a class is the wanted one.
func leafSame(kind string, ceil Rate, r Record) bool {
	if r.Kind != kind {
		return false
	}
	switch want := leafOptions(kind, ceil); kind {
	case "fq_codel":
		has, ok := nlattr.Uint32(r.Options, nl.TCA_FQ_CODEL_TARGET)
		target, _ := nlattr.Uint32(want, nl.TCA_FQ_CODEL_TARGET)
		return ok && max(has, target)-min(has, target) <= 2 // the kernel counts in 1024 ns
	case byteQueue:
		return len(r.Options) >= 4 && binary.NativeEndian.Uint32(r.Options) == binary.NativeEndian.Uint32(want)
	}
	return true
}
