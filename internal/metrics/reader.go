package metrics

import (
	"maps"
	"strings"

	"bulkhead/internal/cgroup"
)

// dear says whether reading a file costs the kernel much: memory.stat brings the counters of all CPUs and of all groups
// below together, for which on large hosts others have waited 100 ms.
func dear(file string) bool { return file == "memory.stat" || strings.HasPrefix(file, "hugetlb.") }

// Dear says whether a file that tells the field costs the kernel much to read, so that it is read less often.
func (f *Field) Dear() bool { return dear(f.V1.File) || dear(f.V2.File) }

// Reader reads the same groups again and again for little: which files a directory has, and the dear ones of them, it
// reads only when it is told to. What it read of them is kept meanwhile. It is for one goroutine at a time.
type Reader struct {
	known map[cgroup.Dir]*kept
	used  map[cgroup.Dir]*kept // in the round under way
}

// kept is what is known of a directory.
type kept struct {
	cheap []string          // names of files
	dear  map[string]string // texts by name
}

// Begin begins a round of reads. What the round before did not read is forgotten.
func (r *Reader) Begin() { r.known, r.used = r.used, map[cgroup.Dir]*kept{} }

// Read is Group.Read, with what dear files told at the last time unless whole.
func (r *Reader) Read(t *cgroup.Tree, g Group, whole bool) (Usage, bool) {
	return g.read(func(d cgroup.Dir) (Usage, error) { return r.dir(t, d, whole) })
}

func (r *Reader) dir(t *cgroup.Tree, d cgroup.Dir, whole bool) (Usage, error) {
	version := versionOf(t, d)
	k := r.known[d]
	if k == nil || whole {
		k = &kept{}
		names, err := figureFiles(t, d, version)
		if err != nil {
			return Usage{}, err
		}
		var costly []string
		for _, name := range names {
			if dear(name) {
				costly = append(costly, name)
			} else {
				k.cheap = append(k.cheap, name)
			}
		}
		if k.dear, err = t.ReadMany(d, costly); err != nil {
			return Usage{}, err
		}
	}
	texts, err := t.ReadMany(d, k.cheap)
	if err != nil {
		return Usage{}, err
	}
	r.used[d] = k
	maps.Copy(texts, k.dear)
	return parse(version, texts), nil
}
