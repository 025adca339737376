package treecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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
