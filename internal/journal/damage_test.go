package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/procfs"

	"pgregory.net/rapid"
)

// sampleLog is a log with every kind of record, and where each of its lines ends.
func sampleLog(t testing.TB) (data []byte, ends []int) {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(dir, Options{Now: clock(), CompactAt: 700})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Lock("test", "root"); err != nil {
		t.Fatal(err)
	}
	begin := func(outcome string, moves []Change, changes ...Change) {
		t.Helper()
		id, err := s.Begin(Txn{Boot: boot, Verb: "apply", Changes: changes,
			Homes: []Home{{"a", map[string]string{"cpu": "/u"}}}})
		if err == nil && moves != nil {
			err = s.Moves(id, moves)
		}
		if err == nil && outcome == Failed {
			err = s.Leave(id, changes[:1])
		}
		if err == nil && outcome != "" {
			err = s.End(id, outcome, "note")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	begin(Committed, nil, mkdir(cpu("/bulkhead")))
	begin(Committed, []Change{move(1, cpu("/bulkhead"), "/u")}, score(1, "0", "500"))
	begin(Undone, nil, mkdir(cpu("/bulkhead/b")))
	begin(Failed, nil, mkdir(cpu("/bulkhead/c")), mkdir(cpu("/bulkhead/d")))
	if err := s.Home(boot, "b", map[string]string{"cpu": "/v"}); err != nil {
		t.Fatal(err)
	}
	begin("", []Change{move(2, cpu("/bulkhead"), "/v")}, write(cpu("/x"), "cpu.shares", "1", "2"))
	data, err = os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(`"kind":"state"`)) {
		t.Fatal("the sample holds no compacted state")
	}
	for i, b := range data {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	return data, ends
}

// storeOver opens a store over a log that holds data.
func storeOver(t testing.TB, dir string, data []byte) (*Store, *memFS) {
	t.Helper()
	fs := newMemFS()
	fs.put(filepath.Join(dir, logName), data)
	s, err := Open(dir, Options{Now: clock(), FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s, fs
}

func TestTornAtEveryByte(t *testing.T) {
	data, ends := sampleLog(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	for cut := range len(data) + 1 {
		whole := 0
		for _, end := range ends {
			if end <= cut {
				whole = end
			}
		}
		want, _ := storeOver(t, dir, data[:whole])
		got, fs := storeOver(t, dir, data[:cut])
		for _, when := range []string{"before", "after"} {
			if w, g := summary(want, boot), summary(got, boot); w != g {
				t.Fatalf("cut at byte %d, %s the lock: got\n%s\nwant\n%s", cut, when, g, w)
			}
			if when == "after" {
				break
			}
			if _, err := got.Lock("test", "root"); err != nil {
				t.Fatalf("cut at byte %d: %v", cut, err)
			}
		}
		if torn := cut > whole; torn != (len(got.Warnings()) > 0) {
			t.Fatalf("cut at byte %d: warnings %q", cut, got.Warnings())
		} else if torn && !strings.Contains(got.Warnings()[1], fmt.Sprintf("at byte %d,", whole)) {
			t.Fatalf("cut at byte %d: warning %q does not say %d", cut, got.Warnings(), whole)
		}
		if left, _ := fs.ReadFile(path); !bytes.Equal(left, data[:whole]) {
			t.Fatalf("cut at byte %d: the log was left with %d bytes, want %d", cut, len(left), whole)
		}
		// It can be written to again, and read after that.
		if p, ok := got.Pending(); ok {
			if err := got.End(p.ID, Undone, ""); err != nil {
				t.Fatal(err)
			}
		}
		commit(t, got, mkdir(cpu("/after")))
		if again := open(t, dir, Options{FS: fs}); !again.InBoot(boot).Made()[cpu("/after")] ||
			len(again.Warnings()) > 0 {
			t.Fatalf("cut at byte %d: written again: %s %q", cut, summary(again, boot), again.Warnings())
		}
		got.Close()
	}
}

func TestDamageInTheMiddle(t *testing.T) {
	data, ends := sampleLog(t)
	last := ends[len(ends)-2] // where the last record starts
	dir := t.TempDir()
	for at := 0; at < last-1; at += 7 { // a damaged newline before the last record is as if that were cut off
		damaged := slices.Clone(data)
		damaged[at] ^= 0x21
		s, fs := storeOver(t, dir, damaged)
		if len(s.Warnings()) != 1 {
			t.Fatalf("byte %d: warnings %q", at, s.Warnings())
		}
		if _, err := s.Lock("test", "root"); err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		start := 0
		for _, end := range ends {
			if end <= at {
				start = end
			}
		}
		warning := s.Warnings()[len(s.Warnings())-1]
		if !strings.Contains(warning, fmt.Sprintf("damaged at byte %d ", start)) {
			t.Fatalf("byte %d: warning %q does not say %d", at, warning, start)
		}
		aside := slices.DeleteFunc(fs.list(),
			func(name string) bool { return !strings.Contains(name, logName+".damaged-") })
		if len(aside) != 1 || !strings.Contains(warning, aside[0]) {
			t.Fatalf("byte %d: set aside %v; warning %q", at, aside, warning)
		}
		if kept, _ := fs.ReadFile(aside[0]); !bytes.Equal(kept, damaged) {
			t.Fatalf("byte %d: what was set aside is not what was there", at)
		}
		// What lies past the damage was kept. (A damaged line break takes the next record with it.)
		again := open(t, dir, Options{FS: fs})
		if p, ok := again.Pending(); at < ends[len(ends)-3]-1 && (!ok || p.ID != 5) {
			t.Fatalf("byte %d: the open transaction was lost: %s", at, summary(again, boot))
		}
		_, open := again.Pending()
		lacks := open || len(again.InBoot(boot).Made()) > 0 // something of ours is still there
		if w := again.Warnings(); lacks != (len(w) == 1 && strings.Contains(w[0], "lacks records")) || !lacks &&
			len(w) > 0 {
			t.Fatalf("byte %d: warnings %q after mending", at, w)
		}
		if g, w := summary(again, boot), summary(s, boot); g != w {
			t.Fatalf("byte %d: read again\n%s\nwas\n%s", at, g, w)
		}
		s.Close()
	}
}

// A transaction whose end was damaged counts as done when another one follows: its originals are kept.
func TestLostEnd(t *testing.T) {
	dir := t.TempDir()
	s := locked(t, dir, Options{})
	commit(t, s, mkdir(cpu("/bulkhead")))
	commit(t, s, mkdir(cpu("/bulkhead/a")))
	s.Close()
	path := filepath.Join(dir, logName)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[bytes.Index(data, []byte(`"kind":"end"`))] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s = locked(t, dir, Options{})
	if _, ok := s.Pending(); ok || len(s.InBoot(boot).Made()) != 2 {
		t.Errorf("state %s", summary(s, boot))
	}
}

func FuzzLog(f *testing.F) {
	data, ends := sampleLog(f)
	f.Add(data)
	f.Add(data[:ends[1]+5])
	f.Add([]byte{})
	f.Add([]byte("\n\n"))
	f.Add([]byte("00000000 \n"))
	f.Add(bytes.Repeat([]byte{0}, 100))
	bad := slices.Clone(data)
	bad[len(bad)/2] ^= 4
	f.Add(bad)
	head, _ := statedir.Line(map[string]any{"kind": kindBegin})
	f.Add(head)
	f.Fuzz(func(t *testing.T, data []byte) {
		read := func(data []byte) (payloads [][]byte, faults []statedir.Fault) {
			st := newState()
			faults = statedir.Scan(data, func(p []byte) error {
				if err := st.use(p); err != nil {
					return err
				}
				payloads = append(payloads, p)
				return nil
			})
			return payloads, faults
		}
		payloads, faults := read(data)
		covered := 0
		for _, p := range payloads {
			covered += statedir.SumLen + 1 + len(p) + 1
		}
		for _, f := range faults {
			covered += int(f.Length)
		}
		if covered != len(data) {
			t.Errorf("records and faults cover %d of %d bytes", covered, len(data))
		}
		again, left := read(statedir.Without(data, faults))
		if len(left) > 0 {
			t.Errorf("faults remain: %v", left)
		}
		if !slices.EqualFunc(again, payloads, bytes.Equal) {
			t.Errorf("other records after mending")
		}
	})
}

// The store against a model, with crashes that tear the log at any byte and with compaction.
func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := newMemFS()
		root, err := os.MkdirTemp("", "journal")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(root)
		m := &machine{dir: root, fs: fs, model: newModel()}
		m.reopen(t)
		defer func() { m.store.Close() }()
		t.Repeat(rapid.StateMachineActions(m))
	})
}

// model is what a store should say, kept in the plainest way.
type model struct {
	made     map[string]bool
	original map[string]string // place → first value
	home     map[int]string
	group    map[string]string
	pending  []Change
	open     bool
	id       uint64
}

func newModel() *model {
	return &model{made: map[string]bool{}, original: map[string]string{}, home: map[int]string{},
		group: map[string]string{}}
}

func (m *model) clone() *model {
	c := newModel()
	for k, v := range m.made {
		c.made[k] = v
	}
	for k, v := range m.original {
		c.original[k] = v
	}
	for k, v := range m.home {
		c.home[k] = v
	}
	for k, v := range m.group {
		c.group[k] = v
	}
	c.pending, c.open, c.id = slices.Clone(m.pending), m.open, m.id
	return c
}

func (m *model) commit() {
	for _, c := range m.pending {
		switch c.Kind {
		case cgroup.KindDir:
			path := strings.TrimPrefix(c.Addr, "cpu:")
			if m.made[path] = true; c.New == "" {
				delete(m.made, path)
			}
		case cgroup.KindFile, procfs.KindScore:
			p := place(c)
			first, known := m.original[p]
			switch {
			case m.made[strings.TrimPrefix(c.Addr[:max(0, strings.LastIndex(c.Addr, "/"))], "cpu:")]:
			case known && first == c.New:
				delete(m.original, p)
			case !known && c.Old != c.New:
				m.original[p] = c.Old
			}
		case cgroup.KindMembership:
			var pid int
			if _, err := fmt.Sscanf(c.Addr, "%d@", &pid); err != nil {
				panic(err)
			}
			switch {
			case !m.made[c.New]:
				delete(m.home, pid)
			case m.home[pid] == "" && !m.made[c.Old]:
				m.home[pid] = c.Old
			}
		}
	}
}

// machine runs a store and its model side by side. past holds the model after each append, by the
// length of the log then, so that a torn log can be compared too.
type machine struct {
	dir   string
	fs    *memFS
	store *Store
	model *model
	past  map[int64]*model
}

func (m *machine) reopen(t *rapid.T) {
	s, err := Open(m.dir, Options{FS: m.fs, Now: clock(), CompactAt: 3000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lock("test", "root"); err != nil {
		t.Fatal(err)
	}
	m.store = s
	m.past = map[int64]*model{s.log.Size: m.model.clone()}
}

func (m *machine) noted() { m.past[m.store.log.Size] = m.model.clone() }

func anyChange(t *rapid.T) Change {
	dirs := rapid.SampledFrom([]string{"/b", "/b/1", "/b/2", "/x"})
	value := rapid.SampledFrom([]string{"1", "2", "3"})
	d := cpu(dirs.Draw(t, "dir"))
	switch rapid.IntRange(0, 4).Draw(t, "op") {
	case 0:
		return mkdir(d)
	case 1:
		return rmdir(d)
	case 2:
		return write(d, "cpu.shares", value.Draw(t, "old"), value.Draw(t, "new"))
	case 3:
		return score(rapid.IntRange(1, 3).Draw(t, "pid"), value.Draw(t, "old"), value.Draw(t, "new"))
	}
	return move(rapid.IntRange(1, 3).Draw(t, "pid"), d, dirs.Draw(t, "from"))
}

func (m *machine) Begin(t *rapid.T) {
	if m.model.open {
		t.Skip("open already")
	}
	changes := rapid.SliceOfN(rapid.Custom(anyChange), 0, 4).Draw(t, "changes")
	id, err := m.store.Begin(Txn{Boot: boot, Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	if m.store.log.Size < 3000 {
		// It may have been compacted: earlier lengths mean nothing any more.
		for size := range m.past {
			if size > m.store.log.Size {
				clear(m.past)
			}
		}
	}
	m.model.open, m.model.id, m.model.pending = true, id, changes
	m.noted()
}

func (m *machine) Moves(t *rapid.T) {
	if !m.model.open {
		t.Skip("nothing open")
	}
	c := rapid.Custom(anyChange).Draw(t, "move")
	if err := m.store.Moves(m.model.id, []Change{c}); err != nil {
		t.Fatal(err)
	}
	m.model.pending = append(m.model.pending, c)
	m.noted()
}

func (m *machine) End(t *rapid.T) {
	if !m.model.open {
		t.Skip("nothing open")
	}
	outcome := rapid.SampledFrom([]string{Committed, Undone, Failed}).Draw(t, "outcome")
	if err := m.store.End(m.model.id, outcome, ""); err != nil {
		t.Fatal(err)
	}
	if outcome != Undone {
		m.model.commit()
	}
	m.model.open, m.model.pending = false, nil
	m.noted()
}

func (m *machine) Home(t *rapid.T) {
	group := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "group")
	from := rapid.SampledFrom([]string{"/u", "/v", "/b", "/b/1"}).Draw(t, "from")
	ours := m.model.made[from]
	if err := m.store.Home(boot, group, map[string]string{"cpu": from}); err != nil {
		t.Fatal(err)
	}
	if m.model.group[group] == "" && !ours {
		m.model.group[group] = from
	}
	m.noted()
}

// Crash tears the log at any byte of what the process wrote since it started.
func (m *machine) Crash(t *rapid.T) {
	path := filepath.Join(m.dir, logName)
	m.store.Close()
	m.fs = m.fs.killed()
	var sizes []int64
	for size := range m.past {
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	from := sizes[0]
	if from == 0 && len(sizes) == 1 {
		m.reopen(t)
		return
	}
	cut := rapid.Int64Range(from, sizes[len(sizes)-1]).Draw(t, "cut")
	for _, size := range sizes {
		if size <= cut {
			m.model = m.past[size].clone()
		}
	}
	if f := m.fs.names[path]; f != nil {
		f.data = f.data[:cut]
	}
	m.reopen(t)
}

func (m *machine) Restart(t *rapid.T) {
	m.store.Close()
	m.fs = m.fs.killed()
	m.reopen(t)
}

func (m *machine) Check(t *rapid.T) {
	p, open := m.store.Pending()
	if open != m.model.open || open && !slices.EqualFunc(p.Changes, m.model.pending, sameChange) {
		t.Fatalf("pending %+v (%v), want %+v (%v)", p, open, m.model.pending, m.model.open)
	}
	made := m.store.InBoot(boot).Made()
	for _, path := range []string{"/b", "/b/1", "/b/2", "/x"} {
		want := m.model.made[path]
		for _, c := range m.model.pending {
			want = want || c.Target == cpu(path).Target() && c.New != ""
		}
		if made[cpu(path)] != want {
			t.Fatalf("made[%q] is %v, want %v", path, made[cpu(path)], want)
		}
	}
	originals := map[string]string{}
	for _, c := range m.store.InBoot(boot).Originals() {
		originals[place(c)] = c.Old
	}
	if fmt.Sprint(originals) != fmt.Sprint(m.model.original) {
		t.Fatalf("originals %v, want %v", originals, m.model.original)
	}
	process, group := m.store.InBoot(boot).Homes()
	homes, groups := map[int]string{}, map[string]string{}
	for id, from := range process {
		homes[id.PID] = from["cpu"]
	}
	for g, from := range group {
		groups[g] = from["cpu"]
	}
	if fmt.Sprint(homes, groups) != fmt.Sprint(m.model.home, m.model.group) {
		t.Fatalf("homes %v %v, want %v %v", homes, groups, m.model.home, m.model.group)
	}
}
