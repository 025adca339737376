package treecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Sync makes the tree `to` equal to `from`: what `from` does not have is removed. Files of the same size and time are
// taken as equal, unless all is set. It returns when all is on the disk.
func Sync(ctx context.Context, from, to Tree, all bool) error {
	if err := os.MkdirAll(to.Dir, 0o700); err != nil {
		return err
	}
	// What is mounted below would be emptied where the other tree has no directory of that name.
	if err := to.walk(ctx, func(*entry) error { return nil }); err != nil {
		return fmt.Errorf("copy %q to %q: %w", from.Dir, to.Dir, err)
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
	if err != nil { // what is gone may hold what could not be looked at
		return fmt.Errorf("copy %q to %q: %w", from.Dir, to.Dir, err)
	}
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
	var now unix.Stat_t
	err := unix.Lstat(to, &now)
	exists := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if exists && (now.Mode&unix.S_IFMT != e.kind() || e.kind() == unix.S_IFLNK) {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		exists = false
	}
	switch {
	case e.kind() == unix.S_IFREG:
		return c.file(ctx, e, to, exists, &now)
	case e.kind() == unix.S_IFDIR && !exists:
		return os.Mkdir(to, 0o700) // its attributes come last
	case e.kind() == unix.S_IFDIR:
		return nil
	}
	target, err := os.Readlink(e.path)
	if err == nil {
		err = os.Symlink(target, to)
	}
	if err != nil {
		return err
	}
	return attributes(e, to)
}

// file makes a file, or another name of one that was made.
func (c *copier) file(ctx context.Context, e *entry, to string, exists bool, now *unix.Stat_t) error {
	inode := [2]uint64{e.stat.Dev, e.stat.Ino}
	first := c.made[inode]
	if exists && (first != "" || now.Nlink > 1) { // another name of it may be an old one
		if err := os.Remove(to); err != nil {
			return err
		}
		exists = false
	}
	if first != "" {
		return os.Link(first, to)
	}
	if e.stat.Nlink > 1 {
		c.made[inode] = to
	}
	if c.all || !exists || now.Size != e.stat.Size || now.Mtim != e.stat.Mtim {
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
