package policy

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

	"go.yaml.in/yaml/v4"
)

// The largest policy file that is read, the most files one policy may consist of, how deep they
// include each other, and the most problems of including that are listed. A thousand groups of a
// dozen settings are about half a megabyte.
const (
	maxFileSize        = 4 << 20
	maxFiles           = 1000
	maxIncludeDepth    = 16
	maxIncludeProblems = 100
)

// Read reads a policy file and, depth first, what it includes: paths and globs relative to the
// including file. The first source is the file itself. A file that is included twice is read once.
// The error is Problems, of the reading only: what the text means is Parse's.
func Read(path string) ([]Source, error) {
	r := includer{lines: make(lines)}
	r.read(path, Pos{File: path})
	return r.sources, r.problems.orNil()
}

type includer struct {
	sources  []Source
	lines    lines
	problems Problems
	seen     []fs.FileInfo // of every source, by index
	chain    []string      // the files that include the one being read
	open     []fs.FileInfo // of every entry of chain
}

// read reads one file; from is the include entry that asks for it.
func (r *includer) read(path string, from Pos) {
	if len(r.problems) >= maxIncludeProblems {
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
		r.fail(from, "take one of these includes out", "include loops: "+strings.Join(loop, " includes "))
		return
	case slices.ContainsFunc(r.seen, same):
		return
	case len(r.sources) >= maxFiles:
		r.fail(from, "", fmt.Sprintf("a policy of more than %d files", maxFiles))
		return
	case len(r.chain) >= maxIncludeDepth:
		r.fail(from, "", fmt.Sprintf("files include each other more than %d deep", maxIncludeDepth))
		return
	}
	text, err := readLimited(f)
	if err != nil {
		r.unreadable(path, from, err)
		return
	}
	source := Source{Path: path, Text: text}
	r.sources, r.seen = append(r.sources, source), append(r.seen, info)
	if p := checkText(source); p != nil {
		r.problems = append(r.problems, *p)
		return
	}
	r.lines[path] = strings.Split(text, "\n")
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
		r.fail(e.pos, "", fmt.Sprintf("include %q: %v", e.pattern, err))
		return
	}
	if dir := filepath.Dir(pattern); len(paths) == 0 && !strings.ContainsAny(dir, `*?[`) {
		if _, err := os.Stat(dir); err != nil {
			r.fail(e.pos, "make the directory, or take the include out", fmt.Sprintf("include %q: directory %q: %v", e.pattern, dir, bare(err)))
		}
	}
	for _, path := range paths {
		r.read(path, e.pos)
	}
}

func (r *includer) fail(at Pos, hint, msg string) {
	r.problems = append(r.problems, Problem{Pos: at, Msg: msg, Hint: hint, Source: r.lines.of(at)})
}

// unreadable reports a file that cannot be read.
func (r *includer) unreadable(path string, from Pos, err error) {
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist) && from.Line > 0:
		hint = "make the file, or take the include out"
	case errors.Is(err, fs.ErrNotExist):
		hint = "`bulkhead discover --as-policy` prints a starter policy"
	case errors.Is(err, errTooLarge):
		hint = "a policy is a short text; is this the right file?"
	}
	r.fail(from, hint, fmt.Sprintf("read policy %q: %v", path, bare(err)))
}

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = fmt.Errorf("larger than %s", Bytes(maxFileSize))
)

// openRegular opens a regular file of at most maxFileSize bytes. It does not wait, so that a named
// pipe is refused instead of hanging the agent.
func openRegular(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errNotRegular
	case info.Size() > maxFileSize:
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
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(data) > maxFileSize {
		err = errTooLarge
	}
	return string(data), err
}

// bare takes the path off an error that the message names already.
func bare(err error) error {
	if perr := (*fs.PathError)(nil); errors.As(err, &perr) {
		return perr.Err
	}
	return err
}

type includeEntry struct {
	pattern string
	pos     Pos
}

// includes finds the include entries of a source. Whatever is wrong with the text is left to Parse.
func includes(s Source) []includeEntry {
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
				entries = append(entries, includeEntry{n.Value, Pos{s.Path, n.Line, n.Column}})
			}
		}
	}
	return entries
}
