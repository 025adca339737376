package treecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Like gives a file the owner, mode and extended attributes of another one, and not its times.
func Like(from, to string) error {
	e := &entry{path: from}
	if err := unix.Lstat(from, &e.stat); err != nil {
		return fmt.Errorf("look at %q: %w", from, err)
	}
	var now unix.Stat_t
	if err := unix.Lstat(to, &now); err != nil {
		return fmt.Errorf("look at %q: %w", to, err)
	}
	e.stat.Atim, e.stat.Mtim = now.Atim, now.Mtim
	return attributes(e, to)
}

// Owner gives the user and group of a file.
func Owner(name string) (uid, gid int, err error) {
	var s unix.Stat_t
	err = unix.Lstat(name, &s)
	return int(s.Uid), int(s.Gid), err
}

// Free gives what a file system has free for root, in bytes.
func Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("ask for the room at %q: %w", dir, err)
	}
	return int64(s.Bfree) * s.Bsize, nil //nolint:gosec // blocks of a disk
}

// attributes gives a name the owner, attributes, mode and times of an entry, in this order: each undoes some of a later
// one.
func attributes(e *entry, to string) error {
	if err := os.Lchown(to, int(e.stat.Uid), int(e.stat.Gid)); err != nil {
		return err
	}
	want, err := xattrs(e.path)
	if err != nil {
		return err
	}
	for name, value := range want {
		if err := unix.Lsetxattr(to, name, value, 0); err != nil {
			return fmt.Errorf("set the attribute %s of %q: %w", name, to, err)
		}
	}
	if e.kind() != unix.S_IFLNK {
		if err := unix.Chmod(to, e.stat.Mode&0o7777); err != nil {
			return fmt.Errorf("set the mode of %q: %w", to, err)
		}
	}
	times := []unix.Timespec{e.stat.Atim, e.stat.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the times of %q: %w", to, err)
	}
	return nil
}

// xattrs are the extended attributes that a copy keeps: labels, capabilities, ACLs and a user's own.
func xattrs(name string) (map[string][]byte, error) {
	n, err := unix.Llistxattr(name, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	list := make([]byte, n)
	if err == nil {
		n, err = unix.Llistxattr(name, list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the attributes of %q: %w", name, err)
	}
	kept := map[string][]byte{}
	for attribute := range strings.SplitSeq(string(list[:n]), "\x00") {
		keep := false
		for _, prefix := range []string{"security.", "user.", "trusted.", "system.posix_acl_"} {
			keep = keep || strings.HasPrefix(attribute, prefix)
		}
		if !keep {
			continue
		}
		value := make([]byte, 64<<10) // the most that Linux allows
		n, err := unix.Lgetxattr(name, attribute, value)
		if err != nil {
			return nil, fmt.Errorf("read the attribute %s of %q: %w", attribute, name, err)
		}
		kept[attribute] = value[:n]
	}
	return kept, nil
}

// ErrDiffers is matched by the error of trees that are not equal.
var ErrDiffers = errors.New("the copy differs")

// Compare reads both trees and gives what they hold if they are equal: the same names, and of each owner, mode,
// attributes and every byte; of files the size and time.
func Compare(ctx context.Context, from, to Tree) (Size, error) {
	var s Size
	there := map[string]*entry{}
	err := to.walk(ctx, func(e *entry) error { there[e.rel] = e; return nil })
	if err != nil {
		return s, err
	}
	a, b := make([]byte, 1<<20), make([]byte, 1<<20)
	err = from.walk(ctx, func(e *entry) error {
		other := there[e.rel]
		if other == nil {
			return fmt.Errorf("%w: %q is missing in %q", ErrDiffers, e.rel, to.Dir)
		}
		delete(there, e.rel)
		if err := same(e, other); err != nil {
			return err
		}
		if e.kind() != unix.S_IFREG {
			return nil
		}
		s.Files++
		s.Bytes += e.stat.Size
		return equal(ctx, e.path, other.path, a, b)
	})
	if err != nil {
		return s, err
	}
	for rel := range there {
		return s, fmt.Errorf("%w: %q is only in %q", ErrDiffers, rel, to.Dir)
	}
	return s, nil
}

// same compares what stands beside the content.
func same(a, b *entry) error {
	what := ""
	switch {
	case a.stat.Mode != b.stat.Mode:
		what = fmt.Sprintf("mode %o and %o", a.stat.Mode, b.stat.Mode)
	case a.stat.Uid != b.stat.Uid || a.stat.Gid != b.stat.Gid:
		what = fmt.Sprintf("owner %d:%d and %d:%d", a.stat.Uid, a.stat.Gid, b.stat.Uid, b.stat.Gid)
	case a.kind() == unix.S_IFREG && (a.stat.Size != b.stat.Size || a.stat.Mtim != b.stat.Mtim):
		what = fmt.Sprintf("size and time %d, %v and %d, %v", a.stat.Size, a.stat.Mtim, b.stat.Size, b.stat.Mtim)
	case a.kind() == unix.S_IFLNK:
		to, err := os.Readlink(a.path)
		other, err2 := os.Readlink(b.path)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if to != other {
			what = fmt.Sprintf("links to %q and %q", to, other)
		}
	}
	if what == "" {
		want, err := xattrs(a.path)
		got, err2 := xattrs(b.path)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		for name, value := range want {
			if !bytes.Equal(value, got[name]) {
				what = fmt.Sprintf("attribute %s %q and %q", name, value, got[name])
			}
		}
	}
	if what != "" {
		return fmt.Errorf("%w: %q and %q have %s", ErrDiffers, a.path, b.path, what)
	}
	return nil
}

// equal compares the bytes of two files.
func equal(ctx context.Context, one, two string, a, b []byte) error {
	f, err := os.OpenFile(one, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	g, err := os.OpenFile(two, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(f, a)
		m, err2 := io.ReadFull(g, b)
		if !bytes.Equal(a[:n], b[:m]) {
			return fmt.Errorf("%w: %q and %q", ErrDiffers, one, filepath.Clean(two))
		}
		ends := func(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
		switch {
		case ends(err) && ends(err2):
			return nil
		case err != nil && !ends(err):
			return err
		case err2 != nil && !ends(err2):
			return err2
		}
	}
}
