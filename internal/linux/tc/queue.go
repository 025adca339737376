package tc

import (
	"encoding/binary"
	"math"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink/nl"
)

// ByteQueue is the kernel's name of a queue that is bounded in bytes (tc-bfifo(8)).
const ByteQueue = "bfifo"

const (
	leafQueueMs = 200 // of the ceiling, for a byte queue
	minQueue    = 128 << 10
	maxQueue    = 64 << 20
)

// LeafOptions are those of the queue in a class. fq_codel and fq keep delay low by themselves; a byte queue holds 200
// ms, as a queue of packets would hold seconds of the 64 KiB ones that offload makes.
func LeafOptions(kind string, ceil Rate) []byte {
	var a attributes
	switch kind {
	case "fq_codel":
		// Below 5 Mbit/s two frames alone take longer than CoDel's 5 ms.
		target := max(5000, 2*Frame*1_000_000/max(ceil.BytesPerSecond(), 1))
		a.add(nl.TCA_FQ_CODEL_TARGET, nl.Uint32Attr(uint32(min(target, math.MaxUint32))))
		a.add(nl.TCA_FQ_CODEL_ECN, nl.Uint32Attr(1))
	case "fq":
	default:
		// struct tc_fifo_qopt, without attributes around it
		return nl.Uint32Attr(uint32(min(max(ceil.BytesPerSecond()*leafQueueMs/1000, minQueue), maxQueue)))
	}
	return a
}

// LeafSame says whether the queue in a class is the wanted one.
func LeafSame(kind string, ceil Rate, r Record) bool {
	if r.Kind != kind {
		return false
	}
	switch want := LeafOptions(kind, ceil); kind {
	case "fq_codel":
		has, ok := nlattr.Uint32(r.Options, nl.TCA_FQ_CODEL_TARGET)
		target, _ := nlattr.Uint32(want, nl.TCA_FQ_CODEL_TARGET)
		return ok && max(has, target)-min(has, target) <= 2 // the kernel counts in 1024 ns
	case ByteQueue:
		return len(r.Options) >= 4 && binary.NativeEndian.Uint32(r.Options) == binary.NativeEndian.Uint32(want)
	}
	return true
}
