// Package treecopy makes one directory equal to another, with owners, modes, times, hard links, symbolic links and
// extended attributes (labels of SELinux and ACLs among them), and compares two byte by byte.
//
//	err := treecopy.Sync(ctx, from, to, false)
//	done, err := treecopy.Compare(ctx, from, to)
//
// Nobody else may write below the directories meanwhile. Sockets are left out: a server makes its own. Devices, FIFOs
// and other file systems mounted below are errors. All calls may run at once on different directories.
package treecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Tree is a directory, or some of the names directly in it.
type Tree struct {
	Dir string
	// Only and Except are patterns (path.Match) of names directly in Dir. With Only others do not belong to the tree,
	// and Dir itself neither.
	Only, Except []string
}

// In is the same part of another directory.
func (t Tree) In(dir string) Tree { return Tree{dir, t.Only, t.Except} }

// has says whether a name directly in the directory belongs to the tree.
func (t Tree) has(name string) bool {
	matches := func(pattern string) bool {
		is, err := path.Match(pattern, name)
		return is && err == nil
	}
	return (len(t.Only) == 0 || slices.ContainsFunc(t.Only, matches)) && !slices.ContainsFunc(t.Except, matches)
}

// Size counts files, and their bytes: those in use on the disk, or what is in them where that is more.
type Size struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// entry is one name of a tree.
type entry struct {
	rel  string // below Dir; "." is Dir itself
	path string
	stat unix.Stat_t
}

func (e *entry) kind() uint32 { return e.stat.Mode & unix.S_IFMT }

// walk calls do for each entry, a directory before what is in it, in the order of names. A directory that is not there
// holds nothing.
func (t Tree) walk(ctx context.Context, do func(*entry) error) error {
	top := &entry{rel: ".", path: t.Dir}
	if err := unix.Lstat(t.Dir, &top.stat); err != nil {
		return fmt.Errorf("look at %q: %w", t.Dir, err)
	}
	if top.kind() != unix.S_IFDIR {
		return fmt.Errorf("look at %q: it is no directory", t.Dir)
	}
	if len(t.Only) == 0 {
		if err := do(top); err != nil {
			return err
		}
	}
	return t.walkIn(ctx, top, top.stat.Dev, do)
}

func (t Tree) walkIn(ctx context.Context, dir *entry, dev uint64, do func(*entry) error) error {
	names, err := os.ReadDir(dir.path)
	if err != nil {
		return fmt.Errorf("list %q: %w", dir.path, err)
	}
	for _, n := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if dir.rel == "." && !t.has(n.Name()) {
			continue
		}
		e := &entry{rel: path.Join(dir.rel, n.Name()), path: filepath.Join(dir.path, n.Name())}
		if err := unix.Lstat(e.path, &e.stat); err != nil {
			return fmt.Errorf("look at %q: %w", e.path, err)
		}
		switch e.kind() {
		case unix.S_IFSOCK:
			continue
		case unix.S_IFREG, unix.S_IFLNK:
		case unix.S_IFDIR:
			if e.stat.Dev != dev {
				return fmt.Errorf("another file system is mounted at %q", e.path)
			}
		default:
			return fmt.Errorf("%q is neither file, directory nor link: take it away", e.path)
		}
		if err := do(e); err != nil {
			return err
		}
		if e.kind() == unix.S_IFDIR {
			if err := t.walkIn(ctx, e, dev, do); err != nil {
				return err
			}
		}
	}
	return nil
}

// Measure counts what a tree holds.
func Measure(ctx context.Context, t Tree) (Size, error) {
	var s Size
	linked := map[[2]uint64]bool{}
	err := t.walk(ctx, func(e *entry) error {
		inode := [2]uint64{e.stat.Dev, e.stat.Ino}
		if e.kind() != unix.S_IFREG || linked[inode] {
			return nil
		}
		linked[inode] = e.stat.Nlink > 1
		s.Files++
		s.Bytes += max(e.stat.Blocks*512, e.stat.Size)
		return nil
	})
	return s, err
}

// Stamp changes when a file of the tree is written, made, removed or renamed.
func Stamp(ctx context.Context, t Tree) (string, error) {
	sum := sha256.New()
	err := t.walk(ctx, func(e *entry) error {
		if e.rel == "." {
			return nil // a rename of it changes its ctime
		}
		_, err := fmt.Fprintf(sum, "%q %d %d %d %v\n", e.rel, e.stat.Ino, e.stat.Mode, e.stat.Size, e.stat.Mtim)
		return err
	})
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

// Sync makes the tree `to` equal to `from`: what `from` does not have is removed. Files of the same size and time are
// taken as equal, unless all is set. It returns when all is on the disk.
func Sync(ctx context.Context, from, to Tree, all bool) error {
	if err := os.MkdirAll(to.Dir, 0o700); err != nil {
		return err
	}
	has := map[string]bool{}
	var dirs []*entry // their times change while they are filled
	c := copier{all: all, made: map[[2]uint64]string{}, buf: make([]byte, 1<<20)}
	err := from.walk(ctx, func(e *entry) error {
		has[e.rel] = true
		if e.kind() == unix.S_IFDIR {
			dirs = append(dirs, e)
		}
		return c.put(ctx, e, filepath.Join(to.Dir, e.rel))
	})
	if err != nil {
		return fmt.Errorf("copy %q to %q: %w", from.Dir, to.Dir, err)
	}
	var gone []string
	err = to.walk(ctx, func(e *entry) error {
		if !has[e.rel] {
			gone = append(gone, e.path)
		}
		return nil
	})
	for _, name := range gone {
		err = errors.Join(err, os.RemoveAll(name))
	}
	for _, d := range slices.Backward(dirs) {
		err = errors.Join(err, attributes(d, filepath.Join(to.Dir, d.rel)))
	}
	if err == nil {
		err = flush(to.Dir)
	}
	if err != nil {
		return fmt.Errorf("copy %q to %q: %w", from.Dir, to.Dir, err)
	}
	return nil
}

// flush writes what a file system holds back.
func flush(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

type copier struct {
	all  bool
	made map[[2]uint64]string // copies of files with several names
	buf  []byte
}

// put makes one name.
func (c *copier) put(ctx context.Context, e *entry, to string) error {
	var there unix.Stat_t
	err := unix.Lstat(to, &there)
	exists := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if exists && (there.Mode&unix.S_IFMT != e.kind() || e.kind() == unix.S_IFLNK) {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		exists = false
	}
	switch e.kind() {
	case unix.S_IFDIR:
		if !exists {
			err = os.Mkdir(to, 0o700)
		} else {
			err = nil
		}
		if err != nil {
			return err
		}
		return nil // its attributes come last
	case unix.S_IFLNK:
		target, err := os.Readlink(e.path)
		if err == nil {
			err = os.Symlink(target, to)
		}
		if err != nil {
			return err
		}
		return attributes(e, to)
	}
	inode := [2]uint64{e.stat.Dev, e.stat.Ino}
	if first := c.made[inode]; first != "" {
		if exists {
			if err := os.Remove(to); err != nil {
				return err
			}
		}
		return os.Link(first, to)
	}
	if e.stat.Nlink > 1 {
		c.made[inode] = to
	}
	same := exists && !c.all && there.Nlink == 1 && there.Size == e.stat.Size && there.Mtim == e.stat.Mtim
	if exists && there.Nlink > 1 { // another name of it may be an old one
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	if !same {
		if err := c.content(ctx, e, to); err != nil {
			return err
		}
	}
	return attributes(e, to)
}

// content writes the bytes of a file. Zeros of one that has holes are not written.
func (c *copier) content(ctx context.Context, e *entry, to string) (err error) {
	in, err := os.OpenFile(e.path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	holes := e.stat.Blocks*512 < e.stat.Size
	zeros := make([]byte, 64<<10)
	size := int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(in, c.buf)
		for part := c.buf[:n]; len(part) > 0; {
			piece := part[:min(len(part), len(zeros))]
			part = part[len(piece):]
			if !holes || !bytes.Equal(piece, zeros[:len(piece)]) {
				if _, err := out.WriteAt(piece, size); err != nil {
					return err
				}
			}
			size += int64(len(piece))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out.Truncate(size)
		}
		if err != nil {
			return err
		}
	}
}
