package metrics

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// A reader reads the files of its fields alone, those that are not there not again for a minute, and what a directory
// that is gone had is gone.
func TestReader(t *testing.T) {
	k, a, read := counted(t)
	set := func(name, text string) { k.Set(a.File(name), text) }
	g := Group{Dirs: [][]cgroup.Dir{{a}}}
	now := time.Unix(1e9, 0)
	cheap := NewReader("memory.current", "memory.oom_kills")
	dear := NewReader("memory.anonymous", "memory.huge", "io[].reads")
	look := func(r *Reader) Usage {
		t.Helper()
		clear(read)
		r.Begin(now)
		u, found := r.Read(k.Tree, g)
		if !found {
			t.Fatal("the group is not found")
		}
		return u
	}
	wantRead := func(names ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(read)); !slices.Equal(got, names) {
			t.Errorf("read %v, want %v", got, names)
		}
	}
	set("memory.current", "100")
	set("memory.stat", "anon 10\nfile 5\nshmem 1")
	if u := look(cheap); *u.Memory.Current != 100 || u.Memory.OOMKills == nil || u.Memory.Anonymous != nil {
		t.Errorf("the cheap ones: %s", show(u))
	}
	wantRead("memory.current", "memory.events")
	if u := look(dear); *u.Memory.Anonymous != 10 || u.Memory.Current != nil {
		t.Errorf("the dear ones: %s", show(u))
	}
	set("memory.current", "200")
	set("memory.stat", "anon 20\nfile 5\nshmem 1")
	if u := look(cheap); *u.Memory.Current != 200 {
		t.Errorf("the second time: %s", show(u))
	}
	look(dear)
	wantRead("memory.stat") // and no file of io or of huge pages, which the directory lacks
	now = now.Add(time.Minute)
	look(dear)
	if read["memory.stat"] == 0 {
		t.Errorf("a minute later it reads %v", read)
	}
	cheap.Begin(now)
	cheap.Begin(now) // a round in which nothing was read
	if u := look(cheap); *u.Memory.Current != 200 {
		t.Errorf("of a directory that was forgotten: %s", show(u))
	}
	none := NewReader("cpu.throttled_periods")
	k.Vanish(a)
	cheap.Begin(now)
	if u, found := cheap.Read(k.Tree, g); found || !reflect.DeepEqual(u, Usage{}) {
		t.Errorf("of a directory that is gone: %s", show(u))
	}
	if u := func() Usage { none.Begin(now); u, _ := none.Read(k.Tree, g); return u }(); !reflect.DeepEqual(u, Usage{}) {
		t.Errorf("of a directory without its files: %s", show(u))
	}
}

// A file that comes with a controller is read a minute later at most.
func TestReaderFindsNewFiles(t *testing.T) {
	top := cgroup.Dir{Hierarchy: procfs.UnifiedID, Path: "/"}
	k := cgroupfake.New([]host.Hierarchy{{ID: top.Hierarchy, Version: 2, Controllers: []string{"memory", "pids"},
		Mount: "/sys/fs/cgroup", Root: "/"}}, cgroupfake.Options{})
	if err := errors.Join(k.Enable(top, []string{"memory"}), k.Make(top.Child("a"))); err != nil {
		t.Fatal(err)
	}
	r, now := NewReader("tasks.current"), time.Unix(1e9, 0)
	reads := func() bool {
		r.Begin(now)
		u, _ := r.Read(k.Tree, Group{Dirs: [][]cgroup.Dir{{top.Child("a")}}})
		return u.Tasks.Current != nil
	}
	if reads() {
		t.Error("it reads a file that is not there")
	}
	if err := k.Enable(top, []string{"memory", "pids"}); err != nil {
		t.Fatal(err)
	}
	if reads() {
		t.Error("it looks for new files each time")
	}
	if now = now.Add(time.Minute); !reads() {
		t.Error("a minute later the new file is not read")
	}
}
