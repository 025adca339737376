package metrics

import (
	"reflect"
	"testing"

	"bulkhead/internal/cgroup"
)

// Dear files are read when they are to be, the others always, and neither when the directory is gone.
func TestReader(t *testing.T) {
	k, a, read := counted(t)
	set := func(current, anon string) {
		k.Set(a.File("memory.current"), current)
		k.Set(a.File("memory.stat"), "anon "+anon+"\nfile 5\nshmem 1")
	}
	g := Group{Dirs: [][]cgroup.Dir{{a}}}
	var r Reader
	look := func(whole bool) Usage {
		t.Helper()
		r.Begin()
		u, found := r.Read(k.Tree, g, whole)
		if !found {
			t.Fatal("the group is not found")
		}
		return u
	}
	set("100", "10")
	first := look(true)
	if all, _ := g.Read(k.Tree); !reflect.DeepEqual(first, all) {
		t.Errorf("the first time it reads %+v, want %+v", first, all)
	}
	set("200", "20")
	clear(read)
	if u := look(false); *u.Memory.Current != 200 || *u.Memory.Anonymous != 10 || read["memory.stat"] != 0 {
		t.Errorf("without dear files: %d and %d, read %v", *u.Memory.Current, *u.Memory.Anonymous, read)
	}
	if u := look(true); *u.Memory.Current != 200 || *u.Memory.Anonymous != 20 {
		t.Errorf("with them: %d and %d", *u.Memory.Current, *u.Memory.Anonymous)
	}
	r.Begin()
	r.Begin() // a round in which nothing was read
	if u := look(false); *u.Memory.Anonymous != 20 {
		t.Errorf("of a directory that was forgotten: %d", *u.Memory.Anonymous)
	}
	k.Vanish(a)
	r.Begin()
	if u, found := r.Read(k.Tree, g, false); found || !reflect.DeepEqual(u, Usage{}) {
		t.Errorf("of a directory that is gone: %+v", u)
	}
}
