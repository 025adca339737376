package zfsclone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/treecopy"
)

// file is one in the directory of a copy, root's.
type file struct {
	name, text string
	mode       fs.FileMode
}

func (f file) write(gid int) error {
	if _, err := atomicfile.Write(atomicfile.OS{}, f.name, []byte(f.text), f.mode); err != nil {
		return err
	}
	return os.Chown(f.name, 0, gid)
}

// open opens the data set that a path of the copy is in; rel is the path below it. The caller closes it.
func (p *Plan) open(name string) (root *os.Root, rel string, err error) {
	for _, s := range slices.Backward(p.Sets) {
		if s.Point != "" && mountinfo.Within(name, s.Point) {
			if rel, err = filepath.Rel(s.Point, name); err == nil {
				root, err = os.OpenRoot(s.Point)
			}
			return root, rel, err
		}
	}
	return nil, "", fmt.Errorf("%q is in no data set of the copy", name)
}

// links sees that no link of a data set leads to files that are not the copy's: a link by its whole name is made to
// lead to the copy's. So it is with .isl files, in which InnoDB keeps where a table is.
func (p *Plan) links(ctx context.Context, point string) error {
	root, err := os.OpenRoot(point)
	if err != nil {
		return err
	}
	defer root.Close()
	at := slices.IndexFunc(p.Sets, func(s Set) bool { return s.Point == point })
	return fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
			return err
		case d.Type()&fs.ModeSymlink != 0:
			return p.link(root, rel, filepath.Join(p.Sets[at].Was, rel), filepath.Join(point, rel))
		case d.Type().IsRegular() && filepath.Ext(rel) == ".isl":
			return p.rewrite(filepath.Join(point, rel))
		}
		return nil
	})
}

// link looks at one link, which had a name in the origin and has one in the copy.
func (p *Plan) link(root *os.Root, rel, was, is string) error {
	target, err := root.Readlink(rel)
	if err != nil {
		return err
	}
	leads := func(from string) string {
		if filepath.IsAbs(target) {
			return filepath.Clean(target)
		}
		return filepath.Join(filepath.Dir(from), target)
	}
	old := leads(was)
	mapped, held := p.In(old)
	switch {
	case held && leads(is) == mapped:
		return nil
	case !held && (mountinfo.Within(old, "/etc") || mountinfo.Within(old, "/usr")):
		return nil // such as certificates
	case !held:
		return refuse("move what it leads to into the data directory", "the link %s leads to %s, which the snapshot "+
			"does not hold: the copy would use files of another server", was, old)
	}
	info, err := root.Lstat(rel)
	if err != nil {
		return err
	}
	uid, gid, err := treecopy.Owner(is)
	if err != nil {
		return err
	}
	if err := errors.Join(root.Remove(rel), root.Symlink(mapped, rel), root.Lchown(rel, uid, gid)); err != nil {
		return fmt.Errorf("have the link %s (%s) lead to %s: %w", is, info.Mode(), mapped, err)
	}
	return nil
}

// mostText is how large a file may be that names others.
const mostText = 16 << 20

// rewrite makes the whole names in a text file, one a line, those of the copy. What is not there is done with.
func (p *Plan) rewrite(name string) error {
	root, rel, err := p.open(name)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(rel, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostText+1))
	if err == nil && len(text) > mostText {
		err = fmt.Errorf("%s is larger than %d bytes", name, mostText)
	}
	if err != nil {
		return err
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		path := strings.TrimRight(line, "\n")
		if filepath.IsAbs(path) {
			mapped, held := p.In(path)
			if !held {
				return refuse("", "%s names %q, which the snapshot does not hold: the copy would use files of another "+
					"server", name, path)
			}
			line = mapped + line[len(path):]
		}
		b.WriteString(line)
	}
	if b.String() == string(text) {
		return nil
	}
	if _, err := f.WriteAt([]byte(b.String()), 0); err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(b.Len())), f.Sync())
}

// without removes files from the data directory by patterns.
func without(root *os.Root, patterns ...string) error {
	for _, pattern := range patterns {
		names, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func tail(name string, most int64) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	} else if info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(data))
}
