package netshape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"bulkhead/internal/linux/tc"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// A counter is a pair of programs of type cgroup_skb on a group's directory, one for each direction: they count what
// sockets of the group and of those below it send and receive on all interfaces, limits or not. Each has a map of bytes
// and packets. Loopback counts too.

// Traffic is what a counter has seen.
type Traffic struct{ Bytes, Packets uint64 }

const (
	counterOut = "bcount_out"
	counterIn  = "bcount_in"
)

// Offsets in the value of a counter's map.
const (
	countBytes   = 0
	countPackets = 8
	countSize    = 16
)

func counterProgram(m *ebpf.Map) asm.Instructions {
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

// attach is the place of a program's kind.
func (c Change) attach() ebpf.AttachType {
	if c.What == Policer || c.What == Counter && c.Program.Name == counterIn {
		return ebpf.AttachCGroupInetIngress
	}
	return ebpf.AttachCGroupInetEgress
}

// counter attaches a counting program or takes it off. Each CPU counts by itself (kernel 4.6), so nothing is lost and
// nobody waits.
func counter(c Change) error {
	dir, err := openCgroup(c.Program.Cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	if c.Verb == tc.Delete {
		return detach(dir, c.Program, c.attach())
	}
	m, err := newMap(&ebpf.MapSpec{Name: c.Program.Name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: countSize,
		MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("%w: make a BPF map: %w", ErrNoKernel, err)
	}
	defer m.Close() // the program holds it
	p, err := newProgram(&ebpf.ProgramSpec{
		Name: c.Program.Name, Type: ebpf.CGroupSKB, AttachType: c.attach(), License: "Apache-2.0",
		Instructions: counterProgram(m),
	})
	if err != nil {
		return fmt.Errorf("%w: a cgroup_skb program (kernel 4.15, CONFIG_CGROUP_BPF): %w", ErrNoKernel, err)
	}
	defer p.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: c.attach(),
		Flags: allowMulti})
}

// countersOn lists the counters on a directory.
func countersOn(dir *os.File) ([]Program, error) {
	var all []Program
	for _, name := range []string{counterOut, counterIn} {
		c := Change{What: Counter, Program: &Program{Name: name}}
		found, err := query(dir, c.attach())
		if err != nil {
			return nil, fmt.Errorf("list programs on %q: %w", dir.Name(), err)
		}
		for _, p := range found {
			if p.Name == name {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// Counted is what the counters on a cgroup2 directory have seen since they were attached, by direction; ok is false
// without both.
func Counted(path string) (out, in Traffic, ok bool, err error) {
	dir, err := openCgroup(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, in, false, nil
	}
	if err != nil {
		return out, in, false, err
	}
	defer dir.Close()
	all, err := countersOn(dir)
	if err != nil || len(all) < 2 {
		return out, in, false, err
	}
	for _, p := range all {
		t, err := counted(p)
		if err != nil {
			return out, in, false, fmt.Errorf("read what %q on %q counted: %w", p.Name, path, err)
		}
		if strings.HasSuffix(p.Name, "_in") {
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

// planCounters puts both counters on each of the directories, and takes them off where they are not wanted.
func planCounters(want []string, have []Program) []Step {
	at := make(map[Program]bool)
	for _, h := range have {
		at[Program{Cgroup: h.Cgroup, Name: h.Name}] = true
	}
	wanted := make(map[Program]bool)
	var steps []Step
	for _, dir := range want {
		for _, name := range []string{counterOut, counterIn} {
			p := Program{Cgroup: dir, Name: name}
			if wanted[p] {
				continue
			}
			if wanted[p] = true; !at[p] {
				steps = append(steps, Step{Do: Change{Verb: tc.Add, What: Counter, Program: &p},
					Undo: []Change{{Verb: tc.Delete, What: Counter, Program: &p}},
					Why:  "counts the group's traffic; beside other programs", phase: sortPackets})
			}
		}
	}
	for _, h := range have {
		if key := (Program{Cgroup: h.Cgroup, Name: h.Name}); wanted[key] {
			wanted[key] = false // once is enough
			continue
		}
		steps = append(steps, Step{Do: Change{Verb: tc.Delete, What: Counter, Program: &h},
			Undo: []Change{{Verb: tc.Add, What: Counter, Program: &Program{Cgroup: h.Cgroup, Name: h.Name}}},
			Why:  "nobody asks for the group's traffic", phase: unsort})
	}
	return steps
}
