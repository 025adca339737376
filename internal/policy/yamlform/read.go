package yamlform

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/policy"

	"go.yaml.in/yaml/v4"
)

// The most files one policy may consist of, how deep they include each other, and the most problems of including that
// are listed.
const (
	maxFiles           = 1000
	maxIncludeDepth    = 16
	maxIncludeProblems = 100
)

// maxRead is how long one file may take to be read. It ends reading from a file that is regular by its mode and still
// makes its reader wait.
const maxRead = 10 * time.Second

// Read reads a policy file and, depth first, what it includes: paths and globs relative to the including file. The
// first source is the file itself. A file that is included twice is read once. Only regular files are read. For root
// nobody else may be able to write the files or their directories, as what they say is done to the host. The error is
// Problems, of the reading only: what the text means is Parse's.
func Read(path string) ([]policy.Source, error) {
	r := includer{Report: NewReport(nil)}
	r.read(path, policy.Pos{File: path})
	return r.found, r.Problems().OrNil()
}

type includer struct {
	*Report
	found []policy.Source
	seen  []fs.FileInfo // of every source, by index
	chain []string      // the files that include the one being read
	open  []fs.FileInfo // of every entry of chain
}

// read reads one file; from is the include entry that asks for it.
func (r *includer) read(path string, from policy.Pos) {
	if r.Count() >= maxIncludeProblems {
		return
	}
	f, info, err := openRegular(path)
	if err != nil {
		r.unreadable(path, from, err)
		return
	}
	defer f.Close()
	same := func(other fs.FileInfo) bool { return os.SameFile(info, other) }
	switch i := slices.IndexFunc(r.open, same); {
	case i >= 0:
		loop := append(slices.Clone(r.chain[i:]), path)
		r.Fail(from, "take one of these includes out", "include loops: %s", strings.Join(loop, " includes "))
		return
	case slices.ContainsFunc(r.seen, same):
		return
	case len(r.found) >= maxFiles:
		r.Fail(from, "", "a policy of more than %d files", maxFiles)
		return
	case len(r.chain) >= maxIncludeDepth:
		r.Fail(from, "", "files include each other more than %d deep", maxIncludeDepth)
		return
	}
	if wrong := othersWrite(path, info); wrong != "" && os.Geteuid() == 0 {
		r.Fail(from, "chown it to root, and chmod go-w", "read policy %q: others may write it: %s", path, wrong)
		return
	}
	text, err := readLimited(f)
	if err != nil {
		r.unreadable(path, from, err)
		return
	}
	source := policy.Source{Path: path, Text: text}
	if link, err := os.Lstat(path); from.Line > 0 && (err != nil || link.Mode().Type() == fs.ModeSymlink) {
		source.Hidden = info.Mode().Perm()&0o004 == 0
	}
	r.Learn(source)
	r.found = append(r.found, source)
	r.seen = append(r.seen, info)
	if p := CheckText(source); p != nil {
		r.Add(*p)
		return
	}
	r.chain, r.open = append(r.chain, path), append(r.open, info)
	for _, entry := range includes(source) {
		r.include(entry)
	}
	r.chain, r.open = r.chain[:len(r.chain)-1], r.open[:len(r.open)-1]
}

// include follows one entry of `include:`.
func (r *includer) include(e includeEntry) {
	pattern := e.pattern
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(e.pos.File), pattern)
	}
	if !strings.ContainsAny(pattern, `*?[`) {
		r.read(pattern, e.pos)
		return
	}
	// A glob that matches nothing is how an empty policy.d looks; one in a directory that is not
	// there is a typing error.
	paths, err := filepath.Glob(pattern)
	if err != nil {
		r.Fail(e.pos, "", "include %q: %v", e.pattern, err)
		return
	}
	if dir := filepath.Dir(pattern); len(paths) == 0 && !strings.ContainsAny(dir, `*?[`) {
		if _, err := os.Stat(dir); err != nil {
			r.Fail(e.pos, "make the directory, or take the include out",
				"include %q: directory %q: %v", e.pattern, dir, Cause(err))
		}
	}
	for _, path := range paths {
		r.read(path, e.pos)
	}
}

// unreadable reports a file that cannot be read.
func (r *includer) unreadable(path string, from policy.Pos, err error) {
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist) && from.Line > 0:
		hint = "make the file, or take the include out"
	case errors.Is(err, fs.ErrNotExist):
		hint = "`bulkhead discover --as-policy` prints a starter policy"
	case errors.Is(err, errTooLarge):
		hint = "a policy is a short text; is this the right file?"
	}
	r.Fail(from, hint, "read policy %q: %v", path, Cause(err))
}

// othersWrite says how somebody beside root and the caller could change a file that was opened at path: by writing to
// it, or by putting another file in its place. It looks at the file, its directory and, behind a symbolic link, at
// the directory of the target. A directory with the sticky bit (/tmp) is as safe as the file in it. "" is nobody.
func othersWrite(path string, opened fs.FileInfo) string {
	type place struct {
		name string
		info fs.FileInfo
	}
	places := []place{{path, opened}}
	targets := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		targets = append(targets, real)
	}
	for i, target := range targets {
		look := []string{filepath.Dir(target)}
		if i == 0 {
			look = append(look, target)
		}
		for _, name := range look {
			info, err := os.Lstat(name)
			if info != nil && info.Mode().Type() == fs.ModeSymlink && name != target {
				info, err = os.Stat(name)
			}
			if err != nil {
				return err.Error()
			}
			places = append(places, place{name, info})
		}
	}
	for _, at := range places {
		mode, owner := at.info.Mode(), os.Geteuid()
		if st, ok := at.info.Sys().(*syscall.Stat_t); ok {
			owner = int(st.Uid)
		}
		switch {
		case owner != os.Geteuid() && owner != 0:
			return fmt.Sprintf("%q is owned by user %d", at.name, owner)
		case mode.Type() == fs.ModeSymlink || mode.IsDir() && mode&fs.ModeSticky != 0:
		case mode.Perm()&0o022 != 0:
			return fmt.Sprintf("%q has mode %04o", at.name, mode.Perm())
		}
	}
	return ""
}

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = fmt.Errorf("larger than %s", policy.Bytes(MaxFileSize))
)

// kernelFilesystems hold files that are regular by their mode and that the kernel makes up as they are read: statfs(2).
// Some wait for events (/proc/kmsg, trace_pipe), and reading takes these away from whom they are for.
var kernelFilesystems = []int64{
	0x9fa0,     // proc
	0x62656572, // sysfs
	0x64626720, // debugfs
	0x74726163, // tracefs
}

// openRegular opens a regular file of at most maxFileSize bytes. Nothing else is opened: that could wait (a named
// pipe) or do something (a device).
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	var on syscall.Statfs_t
	switch err := syscall.Statfs(path, &on); {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular() || slices.Contains(kernelFilesystems, on.Type):
		return nil, nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err = f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular(): // changed meanwhile
		err = errNotRegular
	case info.Size() > MaxFileSize:
		err = errTooLarge
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// readLimited reads a file that may have grown since it was opened.
func readLimited(f *os.File) (string, error) {
	_ = f.SetReadDeadline(time.Now().Add(maxRead)) // ErrNoDeadline: reading from such a file never waits
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err == nil && len(data) > MaxFileSize {
		err = errTooLarge
	}
	return string(data), err
}

// Cause takes the path off an error that the message names already.
func Cause(err error) error {
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		return perr.Err
	}
	return err
}

type includeEntry struct {
	pattern string
	pos     policy.Pos
}

// includes finds the include entries of a source. Whatever is wrong with the text is left to Parse.
func includes(s policy.Source) []includeEntry {
	root, _ := decode(s)
	if root == nil || root.Kind != yaml.MappingNode {
		return nil
	}
	var entries []includeEntry
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != "include" || root.Content[i+1].Kind != yaml.SequenceNode {
			continue
		}
		for _, n := range root.Content[i+1].Content {
			if n.Kind == yaml.ScalarNode && n.Value != "" {
				entries = append(entries, includeEntry{n.Value,
					policy.Pos{File: s.Path, Line: n.Line, Column: n.Column}})
			}
		}
	}
	return entries
}
