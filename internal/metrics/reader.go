package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
)

// Reader reads some fields, or files, of the same groups again and again for little: which of the files a directory
// has, it finds out once a minute. It is for one goroutine at a time.
type Reader struct {
	files  [3][]string // by version
	looked time.Time
	known  map[cgroup.Dir][]string // the files that are there
	used   map[cgroup.Dir][]string // in the round under way
	open   *cgroup.Kept
}

// mostOpen is how many files of groups a reader keeps open: those of the processors of 100 groups and more. The kernel
// holds a page of 4 KiB for each.
const mostOpen = 256

// lookAgain is the time between two looks for files that are new.
const lookAgain = time.Minute

// NewReader makes a reader of the fields of these names.
func NewReader(fields ...string) *Reader {
	r := &Reader{open: cgroup.NewKept(mostOpen)}
	for version := 1; version <= 2; version++ {
		r.files[version] = filesOf(version, fields)
	}
	return r
}

// NewFileReader makes a reader of the files of these names, for Texts.
func NewFileReader(names ...string) *Reader {
	return &Reader{open: cgroup.NewKept(mostOpen), files: [3][]string{1: names, 2: names}}
}

// Begin begins a round of reads. What the round before did not read is forgotten.
func (r *Reader) Begin(now time.Time) {
	r.open.Begin()
	if r.known, r.used = r.used, map[cgroup.Dir][]string{}; now.Sub(r.looked) >= lookAgain {
		r.looked, r.known = now, nil
	}
}

// Read is Group.Read of the reader's fields.
func (r *Reader) Read(t *cgroup.Tree, g Group) (Usage, bool) {
	return g.read(func(d cgroup.Dir) (Usage, error) { return r.dir(t, d) })
}

func (r *Reader) dir(t *cgroup.Tree, d cgroup.Dir) (Usage, error) {
	texts, err := r.Texts(t, d)
	if err != nil || len(texts) == 0 {
		return Usage{}, err
	}
	return parse(t.Version(d), texts), nil
}

// Texts reads the reader's files of a directory, those that are there. Errors: cgroup.ErrGone.
func (r *Reader) Texts(t *cgroup.Tree, d cgroup.Dir) (map[string]string, error) {
	version := t.Version(d)
	names, known := r.known[d]
	if known && len(names) == 0 {
		r.used[d] = names
		return nil, nil // it has nothing for this reader
	}
	if !known {
		names = r.files[version]
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "*") }) {
			there, err := t.Files(d)
			if err != nil {
				return nil, err
			}
			names = slices.DeleteFunc(there, func(name string) bool {
				return !slices.ContainsFunc(r.files[version], func(file string) bool { return isFile(name, file) })
			})
		}
	}
	texts, err := r.open.ReadMany(t, d, names)
	if err != nil {
		return nil, err
	}
	if r.used[d] = names; len(texts) != len(names) {
		r.used[d] = slices.Collect(maps.Keys(texts))
	}
	return texts, nil
}
