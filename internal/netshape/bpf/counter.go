package bpf

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A counter is a pair of programs of type cgroup_skb on a group's directory, one for each direction: they count what
// sockets of the group and of those below it send and receive on all interfaces, limits or not. Each has a map of bytes
// and packets. Loopback counts too.

// Traffic is what a counter has seen.
type Traffic struct{ Bytes, Packets uint64 }

// Offsets in the value of a counter's map.
const (
	countBytes   = 0
	countPackets = 8
	countSize    = 16
)

// counter counts a packet.
func counter(m *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.R0, countBytes, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, lenOffset, asm.Word),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R0, countBytes, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, asm.R0, countPackets, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, countPackets, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}

// Counted is what the counters on a cgroup2 directory have seen since they were attached, by direction; ok is false
// without both.
func Counted(path string) (out, in Traffic, ok bool, err error) {
	on, err := On(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return out, in, false, nil
	}
	if err != nil || len(on.Counters) < 2 {
		return out, in, false, err
	}
	for _, p := range on.Counters {
		t, err := counted(p)
		if err != nil {
			return out, in, false, fmt.Errorf("read what %q on %q counted: %w", p.Name, path, err)
		}
		if p.Name == counterIn {
			in = t
		} else {
			out = t
		}
	}
	return out, in, true, nil
}

func counted(p Program) (t Traffic, err error) {
	m, err := mapOf(p)
	if err != nil {
		return t, err
	}
	defer m.Close()
	var each []Traffic
	if err := m.Lookup(uint32(0), &each); err != nil {
		return t, err
	}
	for _, one := range each {
		t.Bytes, t.Packets = t.Bytes+one.Bytes, t.Packets+one.Packets
	}
	return t, nil
}
