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
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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

// Measure counts what a tree holds. A server may make and remove files meanwhile.
func Measure(ctx context.Context, t Tree) (s Size, err error) {
	for range 10 {
		if s, err = t.measure(ctx); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return s, err
}

func (t Tree) measure(ctx context.Context) (Size, error) {
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
