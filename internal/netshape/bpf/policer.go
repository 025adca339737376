package bpf

import (
	"math/bits"
	"os"

	"bulkhead/internal/linux/tc"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A policer is a program of type cgroup_skb/ingress on a group's directory: a bucket of time. It sees a packet when its
// socket is known, too late to queue it, so it drops what comes beyond the rate. Its map holds the rate, so a change
// needs no new program.

// bucket is the value of a policer's map: one for the program.
type bucket struct {
	// Until is when the time paid for so far ends (CLOCK_MONOTONIC, ns).
	Until uint64
	// Depth is how long may be saved up, ns.
	Depth uint64
	// Cost of a byte, ns << costShift.
	Cost uint64
	// Rate is what the others were computed from; the program does not look at it.
	Rate tc.Rate
}

// Offsets in bucket.
const (
	untilOffset = 0
	depthOffset = 8
	costOffset  = 16
	bucketSize  = 32
	// costShift: at 64 kbit/s a packet of 64 KiB costs 2^53, at 100 Gbit/s a byte still costs 83886.
	costShift = 20
)

const (
	// A bucket of less than 200 ms of the rate, or less than 256 KiB, starves a single connection: 128 KiB gave it 5 of
	// 50 Mbit/s.
	depthMs  = 200
	minDepth = 256 << 10
)

// bucketFor gives the bucket of a rate, full.
func bucketFor(r tc.Rate) bucket {
	rate := max(r.BytesPerSecond(), 1)
	high, low := bits.Mul64(1e9, 1<<costShift)
	cost, _ := bits.Div64(high, low, rate)
	return bucket{Depth: max(depthMs*1_000_000, minDepth*1_000_000_000/rate), Cost: cost, Rate: r}
}

// Offsets in struct __sk_buff.
const (
	lenOffset     = 0
	ifindexOffset = 40
)

// policer drops a packet that arrives while the time paid for lies ahead; any other pays for its length. What
// several CPUs do at once may each pass one packet too many, and all are paid for: the rate holds.
func policer(m *ebpf.Map, index int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, ifindexOffset, asm.Word),
		asm.JNE.Imm(asm.R2, int32(index), "pass"),
		// r7 = the bucket
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.FnKtimeGetNs.Call(),
		// r2 = until; a pause is saved up to the depth
		asm.LoadMem(asm.R2, asm.R7, untilOffset, asm.DWord),
		asm.JGT.Reg(asm.R2, asm.R0, "drop"),
		asm.LoadMem(asm.R3, asm.R7, depthOffset, asm.DWord),
		asm.Mov.Reg(asm.R4, asm.R0),
		asm.Sub.Reg(asm.R4, asm.R3),
		asm.JGE.Reg(asm.R2, asm.R4, "pay"),
		asm.StoreMem(asm.R7, untilOffset, asm.R4, asm.DWord),
		asm.LoadMem(asm.R3, asm.R6, lenOffset, asm.Word).WithSymbol("pay"),
		asm.LoadMem(asm.R4, asm.R7, costOffset, asm.DWord),
		asm.Mul.Reg(asm.R3, asm.R4),
		asm.RSh.Imm(asm.R3, costShift),
		asm.StoreXAdd(asm.R7, asm.R3, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("drop"),
		asm.Return(),
	}
}

// setRate changes the rate in the map of an attached policer. What it has saved up stays, up to the new depth.
func setRate(dir *os.File, want *Program) error {
	has, err := find(dir, want)
	if err != nil {
		return err
	}
	return withBucket(has, func(m *ebpf.Map, b bucket) error {
		now := bucketFor(want.Rate)
		now.Until = b.Until
		return m.Put(uint32(0), now)
	})
}

// policedRate reads the rate of an attached policer.
func policedRate(p Program) (tc.Rate, error) {
	var r tc.Rate
	err := withBucket(p, func(_ *ebpf.Map, b bucket) error {
		r = b.Rate
		return nil
	})
	return r, err
}

// withBucket opens the map of an attached policer.
func withBucket(p Program, f func(*ebpf.Map, bucket) error) error {
	m, err := mapOf(p)
	if err != nil {
		return err
	}
	defer m.Close()
	if m.ValueSize() != bucketSize {
		return errNoBucket
	}
	var b bucket
	if err := m.Lookup(uint32(0), &b); err != nil {
		return err
	}
	return f(m, b)
}
