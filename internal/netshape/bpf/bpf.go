// Package bpf has the programs that netshape puts on the cgroup2 directories of groups: one that sorts what leaves into
// the group's class, one that polices what arrives, and two that count the group's traffic.
//
// They are of type cgroup_skb (attaching: kernel 4.10, several beside each other: 4.15, writing the priority: 5.0).
// Such a program needs no file system and no pin: the directory holds it until it is removed, so it outlives whoever
// attached it. The name of a program says what it does and for whom. Functions may be called from several goroutines.
package bpf

import (
	"fmt"
	"os"
	"sync"

	"bulkhead/internal/linux/tc"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// allowMulti is BPF_F_ALLOW_MULTI: systemd's own programs stay, and those of groups above run, too.
const allowMulti = 2

// Do attaches a program, changes the rate of one that polices, or takes one off. The program's name says which it is.
func Do(verb tc.Verb, p *Program) error {
	dir, err := openCgroup(p.Cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	switch verb {
	case tc.Delete:
		return detach(dir, p)
	case tc.Alter:
		return setRate(dir, p)
	}
	loaded, err := load(p)
	if err != nil {
		return err
	}
	defer loaded.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: loaded, Attach: p.hook(), Flags: allowMulti,
	})
}

// TrySorter says whether the kernel takes a program that sorts. It attaches none.
func TrySorter() error {
	p, err := load(&Program{Name: SorterName(tc.MakeHandle(Major, 1))})
	if err != nil {
		return err
	}
	return p.Close()
}

// load makes a program and its map, which the program holds.
func load(p *Program) (loaded *ebpf.Program, err error) {
	var instructions asm.Instructions
	needs := "a cgroup_skb program (kernel 4.15, CONFIG_CGROUP_BPF)"
	class, sorts := SorterClass(p.Name)
	index, polices := PolicerIndex(p.Name)
	switch {
	case sorts:
		needs = "a cgroup_skb/egress program that sets the priority (kernel 5.0, CONFIG_CGROUP_BPF)"
		instructions = sorter(class)
	case polices:
		m, err := newMap(p.Name, ebpf.Array, bucketSize)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		if err := m.Put(uint32(0), bucketFor(p.Rate)); err != nil {
			return nil, err
		}
		instructions = policer(m, index)
	case p.Name == counterOut || p.Name == counterIn:
		// Each CPU counts by itself (kernel 4.6), so nothing is lost and nobody waits.
		m, err := newMap(p.Name, ebpf.PerCPUArray, countSize)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		instructions = counter(m)
	default:
		return nil, fmt.Errorf("%q is no program of ours", p.Name)
	}
	pastMemlock(func() {
		loaded, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: p.Name, Type: ebpf.CGroupSKB, AttachType: p.hook(),
			License: "Apache-2.0", Instructions: instructions})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoKernel, needs, err)
	}
	return loaded, nil
}

// newMap makes a map of one value.
func newMap(name string, kind ebpf.MapType, size uint32) (m *ebpf.Map, err error) {
	pastMemlock(func() {
		m, err = ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: kind, KeySize: 4, ValueSize: size, MaxEntries: 1})
	})
	if err != nil {
		return nil, fmt.Errorf("%w: make a BPF map: %w", ErrNoKernel, err)
	}
	return m, nil
}

var memlock sync.Mutex

// pastMemlock lifts the limit on locked memory meanwhile: before kernel 5.11 programs and maps count as such, of which
// even root has little. What this process becomes, or starts, is to have its own limit. Where it may not be lifted, the
// kernel's refusal says so.
func pastMemlock(load func()) {
	memlock.Lock()
	defer memlock.Unlock()
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &own) == nil {
		defer func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &own) }()
	}
	_ = rlimit.RemoveMemlock()
	load()
}

// detach takes off one program: that of the given id, or the first of the name.
func detach(dir *os.File, want *Program) error {
	has, err := find(dir, want)
	if err != nil {
		return err
	}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(has.ID))
	if err != nil {
		return err
	}
	defer p.Close()
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: want.hook()})
}
