package tc

import (
	"encoding/binary"
	"slices"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink/nl"
)

// Writable turns what the kernel shows of a qdisc into what it takes. HTB shows the whole of its version (0x30011)
// and takes the upper half; filters show whether the hardware has them, and take only whether it shall; u32 counts
// its tables by itself.
func Writable(r Record) Record {
	if kind, ok := flagsOf[r.Kind]; ok {
		return numberless(tableless(cutFlags(r, kind)))
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

// Numbers of u32 (include/uapi/linux/pkt_cls.h, net/sched/cls_u32.c): a filter's handle is that of its table, 12
// bits, its bucket and its place. The kernel numbers from 800 on the table that each preference has by itself.
const (
	u32HashKind   = 2 // TCA_U32_HASH: the table
	u32Place      = 0xfff
	u32OwnTables  = 0x800
	u32TableShift = 20
)

// tableless leaves out the number of the table that a u32 filter's preference has by itself: those are counted anew
// when filters are put back, and a number that is another one now is refused.
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

// Changeable is a queue as the kernel shows it without what it takes only when the queue is made: fq_codel refuses a
// number of flows in a change, be it the one that it has (EINVAL, fq_codel_change).
func Changeable(r Record) Record {
	if r = Writable(r); r.Kind != "fq_codel" {
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

// timesOf are the attributes of CoDel's times, by the kind of the queue (include/uapi/linux/pkt_sched.h). They are
// kept in units of 1024 ns and shown rounded down, so each is written as what makes the kernel show the same again.
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
