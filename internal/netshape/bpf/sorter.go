package bpf

import (
	"bulkhead/internal/linux/tc"

	"github.com/cilium/ebpf/asm"
)

// priorityOffset is that of priority in struct __sk_buff (include/uapi/linux/bpf.h).
const priorityOffset = 32

// sorter sets skb->priority to the class, whose HTB then needs no filter. The kernel runs the program of the
// lowest directory first and those above after it, so what is sorted already stays: the group nearest to the socket
// wins. A socket's own priority is copied to each packet before this, so nothing lingers. It is overwritten:
// SO_PRIORITY and the priority of a TOS have no effect in a group that has a share.
func sorter(class tc.Handle) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, priorityOffset, asm.Word),
		asm.RSh.Imm(asm.R2, 16),
		asm.JEq.Imm(asm.R2, int32(class>>16), "pass"),
		asm.Mov.Imm(asm.R3, int32(class)),
		asm.StoreMem(asm.R1, priorityOffset, asm.R3, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}
