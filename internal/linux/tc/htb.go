package tc

import (
	"math"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink/nl"
)

// What the kernel takes and shows as TCA_OPTIONS. Rates go in bytes per second, times in ticks of 64 ns
// (PSCHED_SHIFT, since 2.6.31). The library's own encoding loses bursts above 13 Gbit/s and rates above 34 Gbit/s.

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

// HTBOptions are those of an HTB qdisc. Packets that no filter sorts go to the class defaultMinor. Without that class
// they pass all classes, in a queue of that many packets.
func HTBOptions(defaultMinor, queue uint32) []byte {
	var a attributes
	glob := nl.TcHtbGlob{Version: 3, Rate2Quantum: 10, Defcls: defaultMinor}
	a.add(nl.TCA_HTB_INIT, glob.Serialize())
	a.add(nl.TCA_HTB_DIRECT_QLEN, nl.Uint32Attr(queue))
	return a
}

// HTBClass is an HTB class.
type HTBClass struct {
	Rate, Ceil Rate // what it gets in any case, and what it may borrow up to
	// Burst and Cburst are how many bytes may pass at once at Rate and at Ceil; Quantum is how many a class sends in
	// its turn when classes share what is left.
	Burst, Cburst, Quantum uint32
}

// Frame is an Ethernet frame with a VLAN tag, rounded up, in bytes.
const Frame = 1600

// Options encodes the class.
func (c HTBClass) Options() []byte {
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

// shownClass is what the kernel shows of a class, in its own units.
type shownClass struct {
	rate, ceil      uint64 // bytes per second
	buffer, cbuffer uint32 // ticks
	quantum         uint32
}

func parseShownClass(options []byte) (shownClass, bool) {
	parms, ok := nlattr.Find(options, nl.TCA_HTB_PARMS)
	if !ok || len(parms) < nl.SizeofTcHtbCopt {
		return shownClass{}, false
	}
	copt := nl.DeserializeTcHtbCopt(append([]byte(nil), parms...))
	c := shownClass{
		rate: uint64(copt.Rate.Rate), ceil: uint64(copt.Ceil.Rate),
		buffer: copt.Buffer, cbuffer: copt.Cbuffer, quantum: copt.Quantum,
	}
	if rate, ok := nlattr.Uint64(options, nl.TCA_HTB_RATE64); ok {
		c.rate = rate
	}
	if ceil, ok := nlattr.Uint64(options, nl.TCA_HTB_CEIL64); ok {
		c.ceil = ceil
	}
	return c, true
}

// ParseHTBClass gives the rates of a class from its options.
func ParseHTBClass(options []byte) (rate, ceil Rate, ok bool) {
	c, ok := parseShownClass(options)
	return Rate(8 * c.rate), Rate(8 * c.ceil), ok
}

// Same says whether the kernel's class is the wanted one. Ticks may differ by rounding. The quantum of an inner class
// is that of its time as a leaf: the kernel keeps it and does not use it.
func (c HTBClass) Same(options []byte, leaf bool) bool {
	has, ok := parseShownClass(options)
	if !ok {
		return false
	}
	near := func(a, b uint32) bool { return max(a, b)-min(a, b) <= 2 }
	return has.rate == c.Rate.BytesPerSecond() && has.ceil == c.Ceil.BytesPerSecond() &&
		(!leaf || has.quantum == c.Quantum) &&
		near(has.buffer, ticks(c.Burst, c.Rate)) && near(has.cbuffer, ticks(c.Cburst, c.Ceil))
}
