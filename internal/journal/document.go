package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/journal/statedir"
)

// document is the file form of a document: valid JSON that shows when it was damaged.
type document struct {
	CRC32C string          `json:"crc32c"` // of Data, in hex
	Data   json.RawMessage `json:"data"`
}

// documentName is what a document may be called.
var documentName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// Save replaces a document, whole or not at all, and returns when it is on disk.
func (s *Store) Save(name string, v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return fmt.Errorf("save document %q: %w", name, ErrNotLocked)
	}
	if err := s.settle(); err != nil { // it would be written over later
		return err
	}
	return save(s.o.FS, s.dir, name, v)
}

// save replaces the document of a name in a directory.
func save(fsys atomicfile.FS, dir, name string, v any) error {
	path, err := documentPath(dir, name)
	if err != nil {
		return err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode document %q: %w", name, err)
	}
	text, err := json.Marshal(document{CRC32C: statedir.Checksum(data), Data: data})
	if err != nil {
		return fmt.Errorf("encode document %q: %w", name, err)
	}
	if _, err := atomicfile.Write(fsys, path, append(text, '\n'), 0o600); err != nil {
		return statedir.FileError("save document", path, err)
	}
	return nil
}

// Load reads a document into v; found is false when there is none. The error of one that was
// damaged, or that v cannot hold, is ErrDamaged.
func (s *Store) Load(name string, v any) (found bool, err error) {
	path, err := documentPath(s.dir, name)
	if err != nil {
		return false, err
	}
	damaged := func(why string) error {
		return &statedir.Error{Op: "read document", Path: path, Err: fmt.Errorf("%w: %s", ErrDamaged, why),
			Hint: "move it away to go on without it"}
	}
	s.mu.Lock()
	raw, committed := s.state.docs[name]
	s.mu.Unlock()
	if committed {
		if err := json.Unmarshal(raw, v); err != nil {
			return false, damaged(err.Error())
		}
		return true, nil
	}
	text, err := s.o.FS.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, atomicfile.ErrUnusable):
		return false, damaged(err.Error())
	case err != nil:
		return false, statedir.FileError("read document", path, err)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return false, damaged(err.Error())
	}
	if got := statedir.Checksum(d.Data); got != d.CRC32C {
		return false, damaged(fmt.Sprintf("checksum %s, should be %q", got, d.CRC32C))
	}
	if err := json.Unmarshal(d.Data, v); err != nil {
		return false, damaged(err.Error())
	}
	return true, nil
}

// SetAside renames a damaged document, so that it can be looked at and stands in nobody's way, and gives its
// new name. It needs the lock.
func (s *Store) SetAside(name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, err := documentPath(s.dir, name)
	if err != nil {
		return "", err
	}
	if s.lock == nil {
		return "", fmt.Errorf("set document %q aside: %w", path, ErrNotLocked)
	}
	aside := statedir.AsideOf(path, s.o.Now())
	if err := s.o.FS.Rename(path, aside); err != nil {
		return "", statedir.FileError("set document aside", path, err)
	}
	return aside, nil
}

// VersionName is the document that keeps the sources of a revision.
func VersionName(n int) string { return fmt.Sprintf("policy-%d", n) }

func documentPath(dir, name string) (string, error) {
	if !documentName.MatchString(name) {
		return "", fmt.Errorf("no document can be called %q", name)
	}
	return filepath.Join(dir, name+".json"), nil
}

// Versions lists the revisions whose sources are kept, the oldest first.
func (s *Store) Versions() ([]int, error) {
	names, err := filepath.Glob(filepath.Join(s.dir, "policy-*.json"))
	if err != nil {
		return nil, statedir.FileError("list revisions", s.dir, err)
	}
	var all []int
	for _, name := range names {
		if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(name), "policy-"),
			".json")); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, nil
}

// DropVersion forgets the sources of a revision. It needs the lock.
func (s *Store) DropVersion(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, err := documentPath(s.dir, VersionName(n))
	if err != nil {
		return err
	}
	if s.lock == nil {
		return fmt.Errorf("drop revision %d: %w", n, ErrNotLocked)
	}
	if err := s.o.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return statedir.FileError("drop revision", path, err)
	}
	return nil
}

func (s *Store) settle() error {
	if len(s.state.docs) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.state.docs)) {
		if err := save(s.o.FS, s.dir, name, s.state.docs[name]); err != nil {
			return err
		}
	}
	return s.append(true, record{Kind: kindEnd, Outcome: settled})
}
