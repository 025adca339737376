package netshape

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// The one range of everything that bulkhead names in the kernel's traffic control (docs/network.md says the same):
//
//	qdisc 7fff:            our HTB, on an interface and on its virtual NIC. The kernel numbers by itself from
//	                       8001: up, people from 1: up
//	class 7fff:1           the link, where a group has a guarantee
//	class 7fff:2           traffic of no group, where a group has a guarantee
//	class 7fff:SLOT*32     a group's own traffic; the same number is its net_cls class id and its skb->priority
//	class 7fff:SLOT*32+16  a group with its children
//	qdisc 7000+SLOT:       the queue inside a group's class (7000: inside 7fff:2)
//	filter pref 28672 …    to 32767: slot and kind of match
//	bhifbINDEX             virtual NIC for what arrives at the interface of that index
//	bh_7fff_MINOR          BPF program that sorts into that class
//	bpMINOR_INDEX          BPF program that polices what arrives for that class's group at the interface of that
//	                       index; its map bears the same name
//	bcount_out, bcount_in  BPF programs that count a group's traffic, and their maps
//
// Minors of classes that packets are sorted into are multiples of 16: pfifo_fast, prio and mqprio look at the lowest
// four bits of skb->priority, and 0 there is what a packet has anyway. So a class number does no harm on an interface
// without our HTB.
const (
	rootMajor = bpf.Major
	leafMajor = 0x7000
	linkMinor = 1
	restMinor = 2
	slotStep  = 32
	innerStep = 16
	maxSlot   = 65535 / slotStep
	prefBase  = 0x7000
	prefLast  = 0x7fff
	nicPrefix = "bhifb"
)

// Slot is a group's number, from 1 to maxSlot. It is the same on every interface, so one program sorts for all of them.
type Slot uint16

// Class holds the group's own traffic. It is also the group's net_cls class id.
func (s Slot) Class() tc.Handle { return tc.MakeHandle(rootMajor, uint16(s)*slotStep) }

// inner is the class above the group's own and its children's.
func (s Slot) inner() tc.Handle { return tc.MakeHandle(rootMajor, uint16(s)*slotStep+innerStep) }

func (s Slot) leaf() tc.Handle { return tc.MakeHandle(leafMajor+uint16(s), 0) }

// nicName is the virtual NIC for an interface. An index has at most ten digits, a name at most 15 bytes.
func nicName(index int) string { return nicPrefix + strconv.Itoa(index) }

// ErrFull says that the range has no number left.
var ErrFull = errors.New("no class number left")

// Slots gives every group a number: the one it had, or the lowest free one. What is not in groups loses its own.
func Slots(had map[string]Slot, groups []string) (map[string]Slot, error) {
	now := make(map[string]Slot, len(groups))
	used := make(map[Slot]bool)
	for _, name := range slices.Sorted(maps.Keys(had)) {
		s := had[name]
		if slices.Contains(groups, name) && s >= 1 && s <= maxSlot && !used[s] {
			now[name], used[s] = s, true
		}
	}
	next := Slot(1)
	for _, name := range slices.Sorted(slices.Values(groups)) {
		if _, ok := now[name]; ok {
			continue
		}
		for used[next] {
			next++
		}
		if next > maxSlot {
			return nil, fmt.Errorf("number group %q: %w: all %d are in use", name, ErrFull, maxSlot)
		}
		now[name], used[next] = next, true
	}
	return now, nil
}

// Slot is the group that a change is for; 0 is the interface itself.
func (c Change) Slot() Slot {
	h := c.Record.Handle
	switch {
	case c.Program != nil:
		class, _ := bpf.SorterClass(c.Program.Name)
		h = class
	case c.What == FilterOf && c.Filter != nil:
		h = c.Filter.Class
	case c.What == Qdisc && ours(h) && h>>16 != rootMajor:
		return Slot(h>>16 - leafMajor)
	case c.What != ClassOf:
		return 0
	}
	return Slot(h & 0xffff / slotStep)
}

// ours says whether a number of a qdisc or class lies in our range.
func ours(h tc.Handle) bool {
	major := h >> 16
	return major == rootMajor || major >= leafMajor && major <= leafMajor+maxSlot
}
