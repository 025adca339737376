package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
)

// Reader reads some fields, or files, of the same groups again and again for little: which of the files a directory
// has, it finds out once a minute, and what did not change it does not parse again. It is for one goroutine at a time.
type Reader struct {
	files  [3][]string // by version
	looked time.Time
	anew   bool // in the round under way which files are there is found out
	round  int
	known  map[cgroup.Dir]*knownDir
	open   *cgroup.Kept
}

// knownDir is what a reader knows of a directory.
type knownDir struct {
	names  []string // the files that are there
	round  int      // in which it was read last
	looked int      // in which it was found out what is there
	parsed bool
	usage  Usage
}

// mostOpen is how many files of groups a reader keeps open: those of the processors of 100 groups and more. The kernel
// holds a page of 4 KiB for each.
const mostOpen = 256

// lookAgain is the time between two looks for files that are new.
const lookAgain = time.Minute

// NewReader makes a reader of the fields of these names.
func NewReader(fields ...string) *Reader {
	r := &Reader{open: cgroup.NewKept(mostOpen), known: map[cgroup.Dir]*knownDir{}}
	for version := 1; version <= 2; version++ {
		r.files[version] = filesOf(version, fields)
	}
	return r
}

// NewFileReader makes a reader of the files of these names, for Texts.
func NewFileReader(names ...string) *Reader {
	return &Reader{open: cgroup.NewKept(mostOpen), known: map[cgroup.Dir]*knownDir{},
		files: [3][]string{1: names, 2: names}}
}

// Begin begins a round of reads. What the round before did not read is forgotten.
func (r *Reader) Begin(now time.Time) {
	r.open.Begin()
	maps.DeleteFunc(r.known, func(_ cgroup.Dir, k *knownDir) bool { return k.round != r.round })
	r.round++
	if r.anew = now.Sub(r.looked) >= lookAgain; r.anew {
		r.looked = now
	}
}

// Read is Group.Read of the reader's fields.
func (r *Reader) Read(t *cgroup.Tree, g Group) (Usage, bool) {
	return g.read(func(d cgroup.Dir) (*Usage, error) { return r.dir(t, d) })
}

// nothing is what a directory tells that has none of the files. It is not changed.
var nothing Usage

// dir is what a directory tells. It is not to be changed, and holds until the next round.
func (r *Reader) dir(t *cgroup.Tree, d cgroup.Dir) (*Usage, error) {
	texts, same, err := r.read(t, d)
	if err != nil || len(texts) == 0 {
		return &nothing, err
	}
	k := r.known[d]
	if !same || !k.parsed {
		k.usage, k.parsed = parse(t.Version(d), texts), true
	}
	return &k.usage, nil
}

// Texts reads the reader's files of a directory, those that are there; they hold until the next round. Errors:
// cgroup.ErrGone.
func (r *Reader) Texts(t *cgroup.Tree, d cgroup.Dir) (map[string]string, error) {
	texts, _, err := r.read(t, d)
	return texts, err
}

// read is Texts; same says that they are those of the last time.
func (r *Reader) read(t *cgroup.Tree, d cgroup.Dir) (texts map[string]string, same bool, err error) {
	k := r.known[d]
	if k == nil {
		k = &knownDir{}
	}
	names := k.names
	if k.looked == 0 || r.anew && k.looked != r.round {
		if names, err = r.filesIn(t, d); err != nil {
			return nil, false, err
		}
	}
	if len(names) > 0 {
		if texts, same, err = r.open.ReadMany(t, d, names); err != nil {
			delete(r.known, d)
			return nil, false, err
		}
	}
	if k.round = r.round; k.looked == 0 || r.anew {
		k.looked = r.round
	}
	if k.names = names; len(texts) != len(names) {
		k.names = slices.Collect(maps.Keys(texts))
	}
	r.known[d] = k
	return texts, same, nil
}

// filesIn are the reader's files that a directory may have. Those whose name has a "*" are listed.
func (r *Reader) filesIn(t *cgroup.Tree, d cgroup.Dir) ([]string, error) {
	version := t.Version(d)
	may := func(name string) bool { return cgroup.MayHave(t, d, name) }
	names := slices.DeleteFunc(slices.Clone(r.files[version]), func(name string) bool { return !may(name) })
	if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "*") }) {
		return names, nil
	}
	there, err := t.Files(d)
	return slices.DeleteFunc(there, func(name string) bool {
		return !slices.ContainsFunc(names, func(file string) bool { return isFile(name, file) })
	}), err
}
