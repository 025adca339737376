package netshape

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"bulkhead/internal/linux/tc"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// The sorter is a program of type cgroup_skb/egress on a group's directory in cgroup2 (attaching: kernel 4.10, several
// beside each other: 4.15, writing the priority: 5.0). It needs no file system and no pin: the directory holds it until
// it is removed, so it outlives whoever attached it.

// priorityOffset is that of priority in struct __sk_buff (include/uapi/linux/bpf.h).
const priorityOffset = 32

// allowMulti is BPF_F_ALLOW_MULTI: systemd's own programs stay, and those of groups above run, too.
const allowMulti = 2

// sorterProgram sets skb->priority to the class, whose HTB then needs no filter. The kernel runs the program of the
// lowest directory first and those above after it, so what is sorted already stays: the group nearest to the socket
// wins. A socket's own priority is copied to each packet before this, so nothing lingers. It is overwritten:
// SO_PRIORITY and the priority of a TOS have no effect in a group that has a share.
func sorterProgram(class tc.Handle) asm.Instructions {
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

// newProgram loads a program. Before kernel 5.11 programs and maps count as locked memory, of which even root has
// little: where the limit may not be lifted, the kernel's refusal says so.
func newProgram(spec *ebpf.ProgramSpec) (p *ebpf.Program, err error) {
	pastMemlock(func() { p, err = ebpf.NewProgram(spec) })
	return p, err
}

// newMap is newProgram for a map.
func newMap(spec *ebpf.MapSpec) (m *ebpf.Map, err error) {
	pastMemlock(func() { m, err = ebpf.NewMap(spec) })
	return m, err
}

var memlock sync.Mutex

// pastMemlock lifts the limit meanwhile: what this process becomes, or starts, is to have its own.
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

func loadSorter(class tc.Handle) (*ebpf.Program, error) {
	p, err := newProgram(&ebpf.ProgramSpec{
		Name: programName(class), Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress,
		License: "Apache-2.0", Instructions: sorterProgram(class),
	})
	if err != nil {
		return nil, fmt.Errorf("%w: a cgroup_skb/egress program that sets the priority (kernel 5.0, "+
			"CONFIG_CGROUP_BPF): %w", ErrNoKernel, err)
	}
	return p, nil
}

// sorter attaches a program or takes one off.
func sorter(c Change) error {
	dir, err := openCgroup(c.Program.Cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	if c.Verb == tc.Delete {
		return detach(dir, c.Program, ebpf.AttachCGroupInetEgress)
	}
	class, ok := programClass(c.Program.Name)
	if !ok {
		return fmt.Errorf("%q is no program of ours", c.Program.Name)
	}
	p, err := loadSorter(class)
	if err != nil {
		return err
	}
	defer p.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInetEgress, Flags: allowMulti,
	})
}

// detach takes off one program: that of the given id, or the first of the name.
func detach(dir *os.File, want *Program, at ebpf.AttachType) error {
	all, err := query(dir, at)
	if err != nil {
		return err
	}
	for _, has := range all {
		if has.Name != want.Name || want.ID != 0 && has.ID != want.ID {
			continue
		}
		p, err := ebpf.NewProgramFromID(ebpf.ProgramID(has.ID))
		if err != nil {
			return err
		}
		defer p.Close()
		return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: at})
	}
	return fmt.Errorf("no program %q is on it", want.Name)
}

// onDirectory is our programs on one directory.
type onDirectory struct{ sorters, policers, counters []Program }

// programsOn lists our programs on a cgroup2 directory: those that sort, those that police what arrives at an
// interface, and those that count.
func programsOn(path string, index int) (on onDirectory, err error) {
	dir, err := openCgroup(path)
	if err != nil {
		return on, err
	}
	defer dir.Close()
	egress, err1 := query(dir, ebpf.AttachCGroupInetEgress)
	ingress, err2 := query(dir, ebpf.AttachCGroupInetIngress)
	if err := errors.Join(err1, err2); err != nil {
		return on, fmt.Errorf("list programs on %q: %w", path, err)
	}
	for _, p := range egress {
		switch {
		case strings.HasPrefix(p.Name, progPrefix):
			on.sorters = append(on.sorters, p)
		case p.Name == counterOut:
			on.counters = append(on.counters, p)
		}
	}
	for _, p := range ingress {
		if p.Name == counterIn {
			on.counters = append(on.counters, p)
		}
		if at, ok := policerIndex(p.Name); ok && at == index {
			if p.Rate, err = policedRate(p); err != nil {
				return on, fmt.Errorf("read the rate of program %q on %q: %w", p.Name, path, err)
			}
			on.policers = append(on.policers, p)
		}
	}
	return on, nil
}

// Programs lists what of ours is on cgroup2 directories for no interface in particular: what sorts and what counts. A
// directory that is gone has none.
func Programs(dirs []string) (sorters, counters []Program, err error) {
	for _, dir := range dirs {
		on, err := programsOn(dir, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		sorters, counters = append(sorters, on.sorters...), append(counters, on.counters...)
	}
	return sorters, counters, nil
}

// query lists all programs of one kind on a directory.
func query(dir *os.File, at ebpf.AttachType) ([]Program, error) {
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: at})
	if errors.Is(err, link.ErrNotSupported) { // a kernel without cgroup BPF has none
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Program
	for _, attached := range result.Programs {
		p, err := ebpf.NewProgramFromID(attached.ID)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				continue // detached meanwhile
			}
			return nil, err
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return nil, err
		}
		all = append(all, Program{Cgroup: dir.Name(), Name: info.Name, ID: uint32(attached.ID)})
	}
	return all, nil
}

// openCgroup opens a directory of cgroup2; a directory elsewhere would be refused with a bare EINVAL or EBADF.
func openCgroup(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		dir.Close()
		return nil, fmt.Errorf("stat %q: %w", path, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		dir.Close()
		return nil, fmt.Errorf("open %q: not a directory of cgroup2", path)
	}
	return dir, nil
}

// CgroupID is what the kernel calls a cgroup2 directory by beside its sockets: its inode (kernel 5.5, 64 bit).
func CgroupID(path string) (uint64, error) {
	dir, err := openCgroup(path)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
