package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// GroupError says that the devices of a group cannot be told.
type GroupError struct {
	Kind  LayerKind
	Name  string
	Known []string // groups of this kind that were found instead
	Err   error
}

func (e *GroupError) Error() string {
	return fmt.Sprintf("find the devices of the %s %s: %v", e.Kind, e.Name, e.Err)
}

// Unwrap gives the cause.
func (e *GroupError) Unwrap() error { return e.Err }

// Members says where the disks of an ASM disk group are named; the zero value has them found by what is written on
// them.
type Members struct {
	Disks []string // paths, with * and ? in the last part
	File  string   // a file with a path on each line
}

// maxDiskList bounds the file of Members, and the one that names the disk of a label.
const (
	maxDiskList = 1 << 20
	maxLabel    = 4 << 10
)

// diskGroup finds the disks of a disk group of ASM.
type diskGroup struct{ *Storage }

// ASM is the layer of an Oracle ASM disk group. Its disks are those that are named, else those that carry its name in
// their header, whatever they are called below /dev: labels of ASMLib and of the filter driver, names by udev's
// rules, multipath. Headers are read of devices on which nothing seen here lies; that takes root.
func (s *Storage) ASM(group string, named Members) (*Layer, error) {
	var found labelled
	var err error
	if len(named.Disks) > 0 || named.File != "" {
		found.disks, err = diskGroup{s}.namedDisks(named)
	} else {
		found, err = diskGroup{s}.labelledDisks(group)
	}
	if err != nil {
		return nil, &GroupError{Kind: DiskGroup, Name: group, Known: found.others, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.layer("asm "+group, func(l *Layer) {
		l.Kind, l.Name = DiskGroup, group
		for _, number := range found.disks {
			l.below("", s.device(number))
		}
		if len(found.unread) > 0 {
			l.trouble("a disk whose header cannot be read may belong to it: %s", strings.Join(found.unread, "; "))
		}
	}), nil
}

// namedDisks are the numbers of the devices that are named.
func (s diskGroup) namedDisks(named Members) ([]string, error) {
	names := slices.Clone(named.Disks)
	if named.File != "" {
		text, err := s.read(named.File, maxDiskList)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", named.File, sysroot.Cause(err))
		}
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line != "" {
				names = append(names, line)
			}
		}
		if len(names) == len(named.Disks) {
			return nil, fmt.Errorf("%s names no disk", named.File)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var numbers []string
	for _, name := range names {
		found, err := s.matching(asmPath(name))
		if err != nil {
			return nil, err
		}
		for _, number := range found {
			if !slices.Contains(numbers, number) {
				numbers = append(numbers, number)
			}
		}
	}
	slices.SortFunc(numbers, compareNumbers)
	return numbers, nil
}

// asmPath is the path of a disk as ASM itself names it: "ORCL:DATA1" of ASMLib, "AFD:DATA1" of the filter driver.
func asmPath(name string) string {
	for prefix, dir := range map[string]string{"ORCL:": "/dev/oracleasm/disks/", "AFD:": "/dev/oracleafd/disks/"} {
		if label, is := strings.CutPrefix(name, prefix); is {
			return dir + label
		}
	}
	return name
}

// matching are the numbers of the devices that a path names, which may be a pattern in its last part.
func (s diskGroup) matching(pattern string) ([]string, error) {
	if !path.IsAbs(pattern) {
		return nil, fmt.Errorf("%q is not a path", pattern)
	}
	names := []string{pattern}
	if strings.ContainsAny(path.Base(pattern), "*?[") {
		if s.h.root == nil {
			return nil, fmt.Errorf("no disk matches %s", pattern)
		}
		dir, last := path.Split(pattern)
		entries, err := s.h.root.ReadDir(path.Clean(dir))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path.Clean(dir), sysroot.Cause(err))
		}
		slices.Sort(entries)
		names = nil
		for _, e := range entries {
			if fits, err := path.Match(last, e); err != nil {
				return nil, fmt.Errorf("%s: %w", pattern, err)
			} else if fits {
				names = append(names, path.Join(dir, e))
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("no disk matches %s", pattern)
		}
	}
	var numbers []string
	for _, name := range names {
		number, err := s.node(name)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

// node is the number of the device that a path leads to: a device node wherever it lies, a link to one, or a small
// file that holds the path of one, as a label's may.
func (s diskGroup) node(name string) (string, error) {
	if number, found := s.numberOf(name); found {
		return number, nil
	}
	if s.h.root == nil {
		return "", fmt.Errorf("no block device is called %s", name)
	}
	real, err := s.h.root.EvalSymlinks(name)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", name, sysroot.Cause(errors.Unwrap(err)))
	}
	info, err := s.h.root.Lstat(real)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", name, sysroot.Cause(err))
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Mode&syscall.S_IFMT == syscall.S_IFBLK {
		return fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)), nil
	}
	if info.Mode().IsRegular() {
		text, err := s.h.root.ReadSome(real, maxLabel)
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, sysroot.Cause(err))
		}
		first, _, _ := strings.Cut(string(text), "\n")
		if number, found := s.numberOf(strings.TrimSpace(first)); found {
			return number, nil
		}
	}
	return "", fmt.Errorf("%s is no block device", name)
}

func (s diskGroup) read(name string, limit int64) ([]byte, error) {
	if s.h.root == nil {
		return nil, fs.ErrNotExist
	}
	return s.h.root.ReadSome(name, limit)
}

// labelled is what the headers of disks tell of one group.
type labelled struct {
	disks  []string // their numbers
	others []string // groups that other disks name
	unread []string // disks that gave no header, with the reason
}

// labelledDisks looks for the devices whose header names the group.
func (s diskGroup) labelledDisks(group string) (found labelled, err error) {
	if s.h.root == nil {
		return found, errors.New("their headers were not read")
	}
	for _, l := range s.Unused() {
		if l.Device == nil || l.Device.Size == 0 || l.Kind == Other {
			continue
		}
		header, err := s.h.blockStart(l.Device)
		if errors.Is(err, fs.ErrPermission) {
			return found, fmt.Errorf("read the header of %s: %w", l.Device.Name, sysroot.Cause(err))
		}
		if err != nil {
			found.unread = append(found.unread, fmt.Sprintf("%s: %v", l.Device.Name, sysroot.Cause(err)))
			continue
		}
		name, is := asmGroup(header)
		switch {
		case !is:
		case strings.EqualFold(name, group):
			found.disks = append(found.disks, l.Device.Number)
		case !slices.Contains(found.others, name):
			found.others = append(found.others, name)
		}
	}
	slices.Sort(found.others)
	slices.SortFunc(found.disks, compareNumbers)
	switch {
	case len(found.disks) > 0:
		return found, nil
	case len(found.unread) > 0:
		return found, fmt.Errorf("no disk names it in its header, of those that could be read; not of %s",
			strings.Join(found.unread, "; "))
	}
	return found, errors.New("no disk names it in its header")
}

// The block at the start of a disk of ASM, as kfed(1) of Oracle shows it: a header of 32 bytes with the block's type
// at 2, then what the disk is; names are 32 bytes long.
const (
	asmBlock      = 4096
	asmTypeAt     = 2
	asmDiskHeader = 1 // KFBTYP_DISKHEAD
	asmMarkAt     = 32
	asmStatusAt   = 32 + 0x27
	asmMember     = 3 // KFDHDR_MEMBER
	asmGroupAt    = 32 + 0x48
)

// asmGroup takes the name of the disk group out of the start of a disk.
func asmGroup(b []byte) (group string, is bool) {
	if len(b) < asmGroupAt+32 || b[asmTypeAt] != asmDiskHeader || b[asmStatusAt] != asmMember ||
		!bytes.HasPrefix(b[asmMarkAt:], []byte("ORCLDISK")) {
		return "", false
	}
	name, _, _ := bytes.Cut(b[asmGroupAt:asmGroupAt+32], []byte{0})
	return string(name), len(name) > 0
}

// blockStart reads the first block of a device.
func (h FS) blockStart(d *Device) ([]byte, error) {
	return sysroot.WithTimeout(h.root, d.Name, func() ([]byte, error) {
		f, err := h.openBlock(d)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		data := make([]byte, asmBlock)
		n, err := io.ReadFull(f, data)
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = nil
		}
		return data[:n], err
	})
}

// openBlock opens a device for reading. Its node must be the device's, whoever made it.
func (h FS) openBlock(d *Device) (*os.File, error) {
	f, err := h.root.Open("/dev/" + d.Name)
	if err != nil || !h.root.Live() {
		return f, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Mode&syscall.S_IFMT != syscall.S_IFBLK ||
		d.Number != fmt.Sprintf("%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)) {
		f.Close()
		return nil, fmt.Errorf("/dev/%s is not the device %s", d.Name, d.Number)
	}
	return f, nil
}
