package convert

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"bulkhead/internal/policy"
)

// Read reads files. A directory stands for the files in it that wanted picks by name, and for those in the directories
// below it that it picks by their name with a / behind, in the order of their names; nil picks all. The
// error is policy.Problems: every file that cannot be read.
func Read(paths []string, wanted func(name string) bool) ([]policy.Source, error) {
	r := reader{wanted: wanted, seen: map[fileID]bool{}}
	for _, path := range paths {
		r.read(path, true)
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.sources, nil
}

type reader struct {
	wanted   func(string) bool
	sources  []policy.Source
	seen     map[fileID]bool // directories on the way, and files: links make loops
	problems policy.Problems
}

// fileID tells files apart, whatever their names.
type fileID struct{ dev, ino uint64 }

func (r *reader) fail(path string, err error) {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	r.problems = append(r.problems, policy.Problem{Pos: policy.Pos{File: path},
		Msg: fmt.Sprintf("read %q: %v", path, err), Hint: "`ls -ld '" + path + "'` says what is there"})
}

var (
	errNotRegular = errors.New("neither a regular file nor a directory")
	errTooLarge   = fmt.Errorf("larger than %s", policy.Bytes(maxSize))
)

// read reads a file or what is in a directory. named is one that was asked for by name.
func (r *reader) read(path string, named bool) {
	// Without waiting, so that a named pipe is refused instead of hanging.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		r.fail(path, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		r.fail(path, err)
		return
	case r.twice(info):
		return
	}
	switch {
	case info.IsDir() && !named && r.wanted != nil && !r.wanted(filepath.Base(path)+"/"):
	case info.IsDir():
		r.directory(f)
	case !named && r.wanted != nil && !r.wanted(filepath.Base(path)):
	case !info.Mode().IsRegular():
		if named {
			r.fail(path, errNotRegular)
		}
	default:
		data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
		if err == nil && len(data) > maxSize {
			err = errTooLarge
		}
		if err != nil {
			r.fail(path, err)
			return
		}
		r.sources = append(r.sources, policy.Source{Path: path, Text: string(data)})
	}
}

// twice says whether a file was there before: by another name, or by a link back to where we came from.
func (r *reader) twice(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	id := fileID{st.Dev, st.Ino}
	before := r.seen[id]
	r.seen[id] = true
	return before
}

// directory reads what is in an open directory.
func (r *reader) directory(f *os.File) {
	names, err := f.Readdirnames(-1)
	if err != nil {
		r.fail(f.Name(), err)
	}
	slices.Sort(names)
	for _, name := range names {
		r.read(filepath.Join(f.Name(), name), false)
	}
}
