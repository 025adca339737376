package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Attached is our programs on one directory.
type Attached struct{ Sorters, Policers, Counters []Program }

// On lists our programs on a cgroup2 directory: those that sort, those that police what arrives at an
// interface, and those that count.
func On(path string, index int) (on Attached, err error) {
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
		case strings.HasPrefix(p.Name, sorterPrefix):
			on.Sorters = append(on.Sorters, p)
		case p.Name == counterOut:
			on.Counters = append(on.Counters, p)
		}
	}
	for _, p := range ingress {
		if p.Name == counterIn {
			on.Counters = append(on.Counters, p)
		}
		if at, ok := PolicerIndex(p.Name); ok && at == index {
			if p.Rate, err = policedRate(p); err != nil {
				return on, fmt.Errorf("read the rate of program %q on %q: %w", p.Name, path, err)
			}
			on.Policers = append(on.Policers, p)
		}
	}
	return on, nil
}

// Programs lists what of ours is on cgroup2 directories for no interface in particular: what sorts and what counts. A
// directory that is gone has none.
func Programs(dirs []string) (sorters, counters []Program, err error) {
	for _, dir := range dirs {
		on, err := On(dir, 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		sorters, counters = append(sorters, on.Sorters...), append(counters, on.Counters...)
	}
	return sorters, counters, nil
}

// There says whether a program of this name is on its directory. The error is fs.ErrNotExist where the directory is
// gone.
func There(p *Program) (bool, error) {
	dir, err := openCgroup(p.Cgroup)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	all, err := query(dir, p.hook())
	return slices.ContainsFunc(all, func(has Program) bool { return has.Name == p.Name }), err
}

// find returns the attached program that is meant: that of the given id, or the first of the name.
func find(dir *os.File, want *Program) (Program, error) {
	all, err := query(dir, want.hook())
	if err != nil {
		return Program{}, err
	}
	for _, has := range all {
		if has.Name == want.Name && (want.ID == 0 || has.ID == want.ID) {
			return has, nil
		}
	}
	return Program{}, fmt.Errorf("no program %q is on it", want.Name)
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

// mapOf opens the one map that an attached program has.
func mapOf(p Program) (*ebpf.Map, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID))
	if err != nil {
		return nil, err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, err
	}
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		return nil, errNoBucket
	}
	return ebpf.NewMapFromID(ids[0])
}

var errNoBucket = errors.New("it has no map of the expected kind")

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
