package procfs

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// OpenFiles returns the files that a process has open by descriptor, sorted, each once, without
// sockets, pipes and the like and without " (deleted)".
func (h FS) OpenFiles(pid int) ([]string, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	targets, err := dir.fileLinks()
	if err != nil {
		return nil, dir.Failed(err)
	}
	var files []string
	for _, target := range targets {
		if strings.HasPrefix(target, "/") {
			files = append(files, strings.TrimSuffix(target, " (deleted)"))
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// fileLinks returns what the descriptors of a process point to.
func (d Dir) fileLinks() ([]string, error) {
	names, err := d.list("fd")
	if err != nil {
		return nil, err
	}
	targets := make([]string, 0, len(names))
	for _, name := range names {
		target, err := d.Link("fd/" + name)
		if sysroot.IsGone(err) {
			continue // closed in this moment
		}
		if err != nil {
			return nil, err
		}
		targets = append(targets, target)
	}
	return targets, nil
}

// Sockets returns the inode numbers of the sockets a process has open.
func (d Dir) Sockets() ([]string, error) {
	targets, err := d.fileLinks()
	if err != nil {
		return nil, err
	}
	var inodes []string
	for _, target := range targets {
		if inode, is := strings.CutPrefix(target, "socket:["); is {
			inodes = append(inodes, strings.TrimSuffix(inode, "]"))
		}
	}
	return inodes, nil
}

// SocketInodes returns the inode numbers of the sockets that a process has open. A process that has exited matches
// ErrExited.
func (h FS) SocketInodes(pid int) ([]uint32, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	texts, err := dir.Sockets()
	if err != nil {
		return nil, dir.Failed(err)
	}
	inodes := make([]uint32, 0, len(texts))
	for _, text := range texts {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			inodes = append(inodes, uint32(n))
		}
	}
	return inodes, nil
}

// WrittenFile is a file or device that a process has open for writing.
type WrittenFile struct {
	Path   string
	Direct bool // with O_DIRECT: past the page cache
}

// WrittenFiles returns the files and devices that a process has open for writing, sorted by path, each once; one that
// is open both ways is not direct. The flags are those of fdinfo (proc(5)), in octal.
func (h FS) WrittenFiles(pid int) ([]WrittenFile, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.list("fd")
	if err != nil {
		return nil, dir.Failed(err)
	}
	var files []WrittenFile
	var buf []byte
	for _, name := range names {
		target, err := dir.Link("fd/" + name)
		if sysroot.IsGone(err) || err == nil && !strings.HasPrefix(target, "/") {
			continue // closed in this moment, or no file
		}
		if err != nil {
			return nil, dir.Failed(err)
		}
		text, err := dir.Read(buf, "fdinfo/"+name, sysroot.MaxPseudoFile)
		if sysroot.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, dir.Failed(err)
		}
		buf = text
		if flags, ok := openFlags(string(text)); ok && flags&unix.O_ACCMODE != unix.O_RDONLY {
			files = append(files, WrittenFile{strings.TrimSuffix(target, " (deleted)"), flags&unix.O_DIRECT != 0})
		}
	}
	slices.SortFunc(files, func(a, b WrittenFile) int {
		if order := strings.Compare(a.Path, b.Path); order != 0 || a.Direct == b.Direct {
			return order
		}
		if b.Direct {
			return -1 // the one through the page cache counts
		}
		return 1
	})
	return slices.CompactFunc(files, func(a, b WrittenFile) bool { return a.Path == b.Path }), nil
}

// openFlags takes the flags of open(2) out of a file of fdinfo.
func openFlags(text string) (flags int, ok bool) {
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, "flags:"); is {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 8, 64)
			return int(n), err == nil
		}
	}
	return 0, false
}
