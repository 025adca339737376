package journal

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"
)

const boot = "11111111-1111-4111-8111-111111111111"

func cpu(path string) cgroup.Dir { return cgroup.Dir{Hierarchy: "cpu", Path: path} }

// clock is the time of records in tests; it advances a second with every look.
func clock() func() time.Time {
	t := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return func() time.Time { t = t.Add(time.Second); return t }
}

func open(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	if o.Now == nil {
		o.Now = clock()
	}
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func locked(t testing.TB, dir string, o Options) *Store {
	t.Helper()
	s := open(t, dir, o)
	if _, err := s.Lock("test", "root"); err != nil {
		t.Fatal(err)
	}
	return s
}

// commit does a whole transaction.
func commit(t *testing.T, s *Store, changes ...Change) {
	t.Helper()
	finish(t, s, Committed, changes...)
}

func finish(t *testing.T, s *Store, outcome string, changes ...Change) {
	t.Helper()
	id, err := s.Begin(Txn{Boot: boot, Verb: "apply", Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.End(id, outcome, ""); err != nil {
		t.Fatal(err)
	}
}

// summary is everything a store says about a boot, as text.
func summary(s *Store, boot string) string {
	process, group := s.InBoot(boot).Homes()
	var homes []string
	for id, from := range process {
		text, _ := json.Marshal(from)
		homes = append(homes, string(rune('0'+id.PID%10))+string(text))
	}
	slices.Sort(homes)
	pending, _ := s.Pending()
	if pending != nil {
		pending.Time = time.Time{}
	}
	var made []string
	for d := range s.InBoot(boot).Made() {
		made = append(made, d.String())
	}
	slices.Sort(made)
	originals := s.InBoot(boot).Originals()
	slices.SortFunc(originals, func(a, b Change) int { return strings.Compare(place(a), place(b)) })
	text, err := json.MarshalIndent(map[string]any{
		"pending": pending, "made": made, "originals": originals, "process": homes, "group": group,
	}, "", " ")
	if err != nil {
		panic(err)
	}
	return string(text)
}

func place(c Change) string {
	return c.Target.String()
}

func TestStateIsWhatWasCommitted(t *testing.T) {
	root, a := cpu("/bulkhead"), cpu("/bulkhead/a")
	subtreeRoot := cgroup.Dir{Hierarchy: "unified", Path: "/"}
	tests := []struct {
		name      string
		do        func(t *testing.T, s *Store)
		made      []cgroup.Dir
		originals []Change
		process   map[int]map[string]string
		subtree   map[cgroup.Dir][]string
	}{
		{name: "nothing", do: func(*testing.T, *Store) {}},
		{
			name: "directories made and removed",
			do: func(t *testing.T, s *Store) {
				commit(t, s, mkdir(root), mkdir(a))
				commit(t, s, rmdir(a))
			},
			made: []cgroup.Dir{root},
		},
		{
			name: "values inside directories that are ours are no originals",
			do: func(t *testing.T, s *Store) {
				commit(t, s, mkdir(root), write(root, "cpu.shares", "1024", "5"))
				commit(t, s, write(root, "cpu.shares", "5", "6"))
			},
			made: []cgroup.Dir{root},
		},
		{
			name: "the first original outside stays",
			do: func(t *testing.T, s *Store) {
				commit(t, s, write(cpu("/x"), "cpu.shares", "1024", "5"))
				commit(t, s, write(cpu("/x"), "cpu.shares", "5", "6"), score(7, "0", "500"))
			},
			originals: []Change{
				write(cpu("/x"), "cpu.shares", "1024", "6"),
				score(7, "0", "500"),
			},
		},
		{
			name: "an original that was given back is forgotten",
			do: func(t *testing.T, s *Store) {
				commit(t, s, write(cpu("/x"), "cpu.shares", "1024", "5"), score(7, "0", "500"))
				commit(t, s, write(cpu("/x"), "cpu.shares", "5", "1024"), score(7, "500", "0"))
			},
		},
		{
			name: "devices of one file are places of their own",
			do: func(t *testing.T, s *Store) {
				f := cpu("/x").File("io.max")
				f.Key = "8:0"
				c := writeLine(f, "a", "b")
				f.Key = "8:16"
				d := writeLine(f, "c", "d")
				commit(t, s, c, d)
				c.Old, c.New = c.New, c.Old
				commit(t, s, c)
			},
			originals: []Change{writeLine(cgroup.File{Dir: cpu("/x"), Name: "io.max", Key: "8:16"}, "c", "d")},
		},
		{
			name: "controllers handed on",
			do: func(t *testing.T, s *Store) {
				commit(t, s, write(subtreeRoot, cgroup.SubtreeControl, "pids", "cpu pids"))
				commit(t, s, write(subtreeRoot, cgroup.SubtreeControl, "cpu pids", "cpu memory pids"))
			},
			originals: []Change{write(subtreeRoot, cgroup.SubtreeControl, "pids", "cpu memory pids")},
			subtree:   map[cgroup.Dir][]string{subtreeRoot: {"cpu", "memory"}},
		},
		{
			name: "undone is as if it had not been",
			do: func(t *testing.T, s *Store) {
				finish(t, s, Undone, mkdir(root), write(cpu("/x"), "cpu.shares", "1024", "5"))
			},
		},
		{
			name: "failed keeps everything when nobody says what is left",
			do: func(t *testing.T, s *Store) {
				finish(t, s, Failed, mkdir(root), score(7, "0", "500"))
			},
			made:      []cgroup.Dir{root},
			originals: []Change{score(7, "0", "500")},
		},
		{
			name: "failed keeps what is left",
			do: func(t *testing.T, s *Store) {
				id, err := s.Begin(Txn{Boot: boot, Changes: []Change{mkdir(root), score(7, "0", "500")}})
				if err == nil {
					err = errors.Join(s.Leave(id, []Change{mkdir(root)}), s.End(id, Failed, "busy"))
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			made: []cgroup.Dir{root},
		},
		{
			name: "what was given up does not count",
			do: func(t *testing.T, s *Store) {
				first, second, third := mkdir(root), rmdir(root), score(7, "0", "500")
				first.Seq, second.Seq, third.Seq = 1, 2, 3
				id, err := s.Begin(Txn{Boot: boot, Changes: []Change{first, second, third}})
				if err == nil {
					err = errors.Join(s.Forgo(id, []int{2, 3}), s.End(id, Committed, ""))
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			made: []cgroup.Dir{root},
		},
		{
			name: "a process's home is where it was before its first move",
			do: func(t *testing.T, s *Store) {
				commit(t, s, mkdir(root), mkdir(a))
				for _, c := range []Change{move(1, root, "/user"), move(1, a, "/bulkhead"), move(2, a, "/"),
					move(2, cpu("/"), "/bulkhead/a")} {
					id, err := s.Begin(Txn{Boot: boot})
					if err == nil {
						err = errors.Join(s.Moves(id, []Change{c}), s.End(id, Committed, ""))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			},
			made:    []cgroup.Dir{root, a},
			process: map[int]map[string]string{1: {"cpu": "/user"}},
		},
		{
			name: "another boot's state is not this one's",
			do: func(t *testing.T, s *Store) {
				id, err := s.Begin(Txn{Boot: "other",
					Changes: []Change{mkdir(root), score(7, "0", "500"), move(1, root, "/user")}})
				if err == nil {
					err = errors.Join(s.End(id, Committed, ""), s.Home("other", "g", map[string]string{"cpu": "/user"}))
				}
				if err != nil {
					t.Fatal(err)
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s := locked(t, dir, Options{})
			tt.do(t, s)
			check := func(s *Store, when string) {
				t.Helper()
				made := map[cgroup.Dir]bool{}
				for _, d := range tt.made {
					made[d] = true
				}
				if got := s.InBoot(boot).Made(); !maps.Equal(got, made) {
					t.Errorf("%s: made %v, want %v", when, got, made)
				}
				if got := s.InBoot(boot).Originals(); !slices.EqualFunc(got, tt.originals, sameChange) {
					t.Errorf("%s: originals %+v, want %+v", when, got, tt.originals)
				}
				process, group := s.InBoot(boot).Homes()
				got := map[int]map[string]string{}
				for id, from := range process {
					got[id.PID] = from
				}
				if !maps.EqualFunc(got, tt.process, maps.Equal) {
					t.Errorf("%s: homes %v, want %v", when, got, tt.process)
				}
				if len(group) > 0 {
					t.Errorf("%s: homes of groups %v, want none", when, group)
				}
				if got := s.InBoot(boot).Subtree(); !maps.EqualFunc(got, tt.subtree, slices.Equal) {
					t.Errorf("%s: subtree %v, want %v", when, got, tt.subtree)
				}
			}
			check(s, "at once")
			check(open(t, dir, Options{}), "read again")
		})
	}
}

func TestPendingUntilEnded(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	first := mkdir(cpu("/bulkhead"))
	first.Seq = 1
	last := write(cpu("/x"), "cpu.shares", "1", "2")
	last.Seq = 3
	id, err := s.Begin(Txn{Boot: boot, Verb: "apply", By: "root", Reason: "test", Revision: 4,
		Changes: []Change{first, last}})
	if err != nil {
		t.Fatal(err)
	}
	between := move(1, cpu("/bulkhead"), "/")
	between.Seq = 2
	if err := s.Moves(id, []Change{between}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(Txn{Boot: boot}); !errors.Is(err, ErrPending) ||
		!strings.Contains(statedir.Hint(err), "rollback") {
		t.Errorf("second Begin: %v, want ErrPending with a hint", err)
	}
	for _, s := range []*Store{s, open(t, dir, Options{})} {
		p, ok := s.Pending()
		if !ok || p.ID != id || p.Boot != boot || p.Verb != "apply" || p.By != "root" || p.Reason != "test" ||
			p.Revision != 4 {
			t.Fatalf("pending %+v, %v", p, ok)
		}
		if want := []Change{first, between, last}; !slices.EqualFunc(p.Changes, want, sameChange) {
			t.Errorf("changes %+v, want %+v", p.Changes, want)
		}
		if !s.InBoot(boot).Made()[cpu("/bulkhead")] {
			t.Error("a directory of an open transaction counts as foreign")
		}
	}
	if err := s.Moves(id+1, nil); err == nil {
		t.Error("moves of a transaction that is not open were taken")
	}
	if err := s.End(id, "done", ""); err == nil {
		t.Error("an unknown outcome was taken")
	}
	if err := s.End(id, Committed, ""); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Pending(); ok {
		t.Error("still pending after its end")
	}
	if err := s.End(id, Committed, ""); err == nil {
		t.Error("a second end was taken")
	}
}

func TestHomesOfGroups(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	commit(t, s, mkdir(cpu("/bulkhead")), mkdir(cpu("/bulkhead/a")))
	record := func(group string, from map[string]string) int64 {
		t.Helper()
		before := s.log.Size
		if err := s.Home(boot, group, from); err != nil {
			t.Fatal(err)
		}
		return s.log.Size - before
	}
	if record("a", map[string]string{"cpu": "/user", "memory": "/m"}) == 0 {
		t.Error("the first home was not recorded")
	}
	if record("a", map[string]string{"cpu": "/user", "memory": "/m"}) != 0 {
		t.Error("the first home was recorded again")
	}
	if record("a", map[string]string{"cpu": "/other", "pids": "/p"}) == 0 {
		t.Error("another hierarchy was not recorded")
	}
	for _, scope := range []string{"/session-7.scope", "/session-8.scope"} {
		if record("a", map[string]string{"cpu": scope, "pids": scope}) != 0 {
			t.Error("another source was recorded of a group that has a home in each of its hierarchies")
		}
	}
	if record("a", map[string]string{"cpu": "/bulkhead/a"}) != 0 {
		t.Error("a directory of ours was taken for a home")
	}
	id, err := s.Begin(Txn{Boot: boot, Homes: []Home{
		{Group: "b", From: map[string]string{"cpu": "/svc"}}, {Group: "b", From: map[string]string{"cpu": "/svc"}},
		{Group: "a", From: map[string]string{"cpu": "/other", "pids": "/p"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := s.Pending(); len(p.Homes) != 1 {
		t.Errorf("homes written by Begin: %v, want one", p.Homes)
	}
	if err := s.End(id, Undone, ""); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"a": {"cpu": "/user", "memory": "/m", "pids": "/p"}, "b": {"cpu": "/svc"}}
	for _, s := range []*Store{s, open(t, dir, Options{})} {
		if _, got := s.InBoot(boot).Homes(); !maps.EqualFunc(got, want, maps.Equal) {
			t.Errorf("homes %v, want %v", got, want)
		}
	}
}

func TestWritingNeedsTheLock(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	_, begin := s.Begin(Txn{Boot: boot})
	_, record := s.Record(Entry{})
	for name, err := range map[string]error{
		"Begin": begin, "Record": record, "Moves": s.Moves(1, nil), "End": s.End(1, Undone, ""),
		"Home": s.Home(boot, "a", map[string]string{"cpu": "/"}),
		"Save": s.Save("applied", 1), "Leave": s.Leave(1, nil),
	} {
		if !errors.Is(err, ErrNotLocked) {
			t.Errorf("%s without the lock: %v, want ErrNotLocked", name, err)
		}
	}
}

func TestOpenChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir, Options{})
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open made the directory")
	}
	if _, err := s.Lock("apply", "root"); err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(dir)
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("state directory: %v, %v, want mode 0700", fi, err)
	}
	commit(t, s, mkdir(cpu("/bulkhead")))
	s.Close()
	path := filepath.Join(dir, logName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	torn := data[:len(data)-3]
	if err := os.WriteFile(path, torn, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open(t, dir, Options{}); len(s.Warnings()) != 1 ||
		!strings.Contains(s.Warnings()[0], "was not written to its end") {
		t.Errorf("warnings %q", s.Warnings())
	}
	if got, _ := os.ReadFile(path); string(got) != string(torn) {
		t.Errorf("Open changed the log")
	}
}

func TestRefusesDirectoryThatOthersMayWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(statedir.Hint(err), "0700") {
		t.Errorf("Open: %v, want a refusal with a hint", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	open(t, dir, Options{})
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, Options{}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Open of a file: %v", err)
	}
}

func TestRefusesNewerFormat(t *testing.T) {
	dir := t.TempDir()
	head, _ := statedir.Line(record{Kind: kindFormat, Version: formatVersion + 1})
	strange, _ := statedir.Line(map[string]string{"kind": "hologram"})
	if err := os.WriteFile(filepath.Join(dir, logName), append(head, strange...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrNewer) {
		t.Errorf("Open: %v, want ErrNewer", err)
	}
}

// Processes that came from the same places share what is kept of that; one that comes from another place, or goes back,
// changes nothing for the others.
func TestHomesAreShared(t *testing.T) {
	b := newState().own(boot)
	b.made[cpu("/b")], b.made[cgroup.Dir{Hierarchy: "memory", Path: "/b"}] = true, true
	move := func(pid int, hierarchy, from, to string) {
		target := cgroup.Membership(procfs.ID{PID: pid}, hierarchy)
		b.moved(Change{Change: change.Change{Target: target, Old: from, New: to}})
	}
	for pid := range 3 {
		move(pid, "cpu", "/u", "/b")
		move(pid, "memory", "/v", "/b")
	}
	of := func(pid int) map[string]string { return b.process[procfs.ID{PID: pid}] }
	if reflect.ValueOf(of(0)).Pointer() != reflect.ValueOf(of(2)).Pointer() {
		t.Error("two maps of the same")
	}
	move(1, "cpu", "/b", "/u")
	move(3, "cpu", "/w", "/b")
	want := map[int]map[string]string{0: {"cpu": "/u", "memory": "/v"}, 1: {"memory": "/v"},
		2: {"cpu": "/u", "memory": "/v"}, 3: {"cpu": "/w"}}
	for pid, home := range want {
		if !maps.Equal(of(pid), home) {
			t.Errorf("process %d came from %v, want %v", pid, of(pid), home)
		}
	}
	move(1, "memory", "/b", "/v")
	if len(b.process) != 3 {
		t.Errorf("a process that went back is kept: %v", b.process)
	}
}
