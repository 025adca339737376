package dbsnapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/linux/zfs"
)

// TestMain makes this binary zfs(8) when it is called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "zfs" {
		os.Exit(zfsMain(filepath.Dir(os.Args[0]), os.Args[1:]))
	}
	os.Exit(m.Run())
}

// zfsMain keeps snapshots as the lines that zfs get prints. The file "fail" or "hang" beside it names a word that it
// fails at, or hangs behind it.
func zfsMain(dir string, args []string) int {
	file := filepath.Join(dir, "state")
	text, _ := os.ReadFile(file)
	lines := strings.SplitAfter(string(text), "\n")
	is := func(name string) bool {
		word, err := os.ReadFile(filepath.Join(dir, name))
		return err == nil && string(word) == args[0]
	}
	if is("fail") {
		fmt.Fprintln(os.Stderr, "out of space")
		return 1
	}
	properties, names := []string{}, []string{}
	for _, a := range args[1:] {
		switch {
		case a == "-o":
		case strings.Contains(a, "="):
			properties = append(properties, a)
		default:
			names = append(names, a)
		}
	}
	switch args[0] {
	case "get":
		fmt.Print(string(text))
		return 0
	case "snapshot":
		for _, n := range names {
			lines = append(lines, n+"\tcreation\t1000\t-\n", n+"\tused\t10\t-\n")
		}
		fallthrough
	case "set":
		for _, n := range names {
			for _, p := range properties {
				key, value, _ := strings.Cut(p, "=")
				begin := n + "\t" + key + "\t"
				lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, begin) })
				lines = append(lines, begin+value+"\tlocal\n")
			}
		}
	case "destroy":
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, names[0]+"\t") })
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		return 1
	}
	if is("hang") {
		time.Sleep(time.Minute)
	}
	return 0
}

// rig is a fake zfs(8).
type rig struct {
	t   *testing.T
	dir string
	zfs.Tools
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, "zfs"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, dir, zfs.Tools{ZFS: filepath.Join(dir, "zfs")}}
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// state is what zfs get would print.
func (r *rig) state() string {
	text, _ := os.ReadFile(filepath.Join(r.dir, "state"))
	return string(text)
}

func (r *rig) list() []Set {
	r.t.Helper()
	sets, err := List(r.t.Context(), r.Tools)
	if err != nil {
		r.t.Fatal(err)
	}
	return sets
}

// server is a session that locks.
type server struct {
	position backuplock.Position
	left     time.Duration
	lost     error
	fails    error
	released bool
}

func (s *server) Take(context.Context) (backuplock.Position, error) { return s.position, s.fails }
func (s *server) Left() time.Duration                               { return s.left }

func (s *server) Release(context.Context) (time.Duration, error) {
	s.released = true
	return 120 * time.Millisecond, s.lost
}

var layout = Layout{Instance: "mysql3306", DataDir: "/d", Datasets: []Dataset{{Name: "tank/data", Point: "/d"},
	{Name: "tank/log", Point: "/l"}}}

var locks = "FLUSH TABLES WITH READ LOCK"

// A snapshot is of all datasets, made while the lock is held, and tells what it holds.
func TestTake(t *testing.T) {
	r := newRig(t)
	s := &server{left: time.Minute, position: backuplock.Position{Binlog: "b.000001:4", GTID: "u:1-3",
		Replica: []string{"a:1 x:2", "c=b:3 y:4"}, AtLeast: true}}
	taken, err := Take(t.Context(), r.Tools, s, locks, layout, "one")
	if err != nil || !s.released || taken.Held != 0.12 || len(taken.Notes) != 0 || taken.Replaced {
		t.Fatalf("%+v, %v", taken, err)
	}
	if _, err = Take(t.Context(), r.Tools, nil, "", layout, "two"); err != nil {
		t.Fatal(err)
	}
	sets := r.list()
	if len(sets) != 2 {
		t.Fatalf("%+v", sets)
	}
	one, two := sets[0], sets[1]
	if !one.Complete || one.String() != "mysql3306@one" || one.Lock != locks || one.HeldMS != 120 || one.Used != 20 ||
		one.Position.String() != s.position.String() || one.Created.Unix() != 1000 || one.Layout.DataDir != "/d" ||
		!slices.Equal(one.Parts(), []string{"tank/data@one", "tank/log@one"}) {
		t.Errorf("%+v", one)
	}
	if !two.Complete || two.Lock != "" || two.HeldMS != 0 || two.Position.String() != "" {
		t.Errorf("%+v", two)
	}
	_, err = Take(t.Context(), r.Tools, nil, "", layout, "one")
	if err == nil || !strings.Contains(err.Error(), "is there already") || len(r.list()) != 2 {
		t.Error(err)
	}
}

// Where the lock was lost, zfs(8) failed or gave no answer, nothing is left, and the server is let go at once.
func TestTakeFails(t *testing.T) {
	for name, tt := range map[string]struct {
		file string
		s    server
		want string
	}{
		"lost":     {"", server{left: time.Minute, lost: backuplock.ErrLost}, "did not keep the lock"},
		"failed":   {"fail", server{left: time.Minute}, "out of space"},
		"hung":     {"hang", server{left: 300 * time.Millisecond}, "no answer in time"},
		"no time":  {"", server{left: -time.Second}, "no answer in time"},
		"not lock": {"", server{fails: errors.New("denied")}, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if tt.file != "" {
				r.write(tt.file, "snapshot")
			}
			begun := time.Now()
			_, err := Take(t.Context(), r.Tools, &tt.s, locks, layout, "one")
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.s.fails == nil && !tt.s.released {
				t.Errorf("%v, released %t", err, tt.s.released)
			}
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			// A program that was given up may still make it: it is marked then.
			for _, set := range r.list() {
				if set.Complete || tt.want != "no answer in time" {
					t.Errorf("left: %+v", set)
				}
			}
			if state := r.state(); state != "" && tt.want != "no answer in time" {
				t.Errorf("left:\n%s", state)
			}
		})
	}
}

// One that was not confirmed is marked, replaced by the next of its name, and no other's is.
func TestTakeAfterAKill(t *testing.T) {
	r := newRig(t)
	r.write("fail", "set") // as if killed before the last step: the snapshot is there, and what undoes it is not
	r.write("state", "")
	properties, err := layout.properties(locks)
	if err == nil {
		err = r.Snapshot(t.Context(), properties, layout.names("one")...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if sets := r.list(); len(sets) != 1 || sets[0].Complete || !sets[0].Unfinished {
		t.Fatalf("%+v", sets)
	}
	other := layout
	other.Instance = "mysql3307"
	if _, err := Take(t.Context(), r.Tools, nil, "", other, "one"); err == nil {
		t.Error("another instance's snapshot was replaced")
	}
	r.write("fail", "")
	taken, err := Take(t.Context(), r.Tools, nil, "", layout, "one")
	if err != nil || !taken.Replaced {
		t.Fatalf("%+v, %v", taken, err)
	}
	r.write("state", r.state()+"tank/data@foreign\tused\t3\t-\n")
	if _, err := Take(t.Context(), r.Tools, nil, "", layout, "foreign"); err == nil {
		t.Error("a snapshot that is not ours was replaced")
	}
	if _, err := Take(t.Context(), r.Tools, nil, "", layout, "two"); err != nil {
		t.Fatal(err)
	}
	for _, s := range r.list() {
		if err := Remove(t.Context(), r.Tools, s); err != nil {
			t.Error(err)
		}
	}
	if state := r.state(); state != "tank/data@foreign\tused\t3\t-\n" {
		t.Errorf("left:\n%s", state)
	}
}

// A position that no property can hold, or that would forge a line of zfs get, is left out and said.
func TestPositionThatIsNotKept(t *testing.T) {
	r := newRig(t)
	s := &server{left: time.Minute, position: backuplock.Position{GTID: strings.Repeat("x", maxProperty+1),
		Binlog: "b:4\tlocal\ntank/log@one\tbulkhead:state\ttaking", LSN: "0/1"}}
	taken, err := Take(t.Context(), r.Tools, s, locks, layout, "one")
	if err != nil || len(taken.Notes) != 2 {
		t.Fatalf("%+v, %v", taken, err)
	}
	if sets := r.list(); len(sets) != 1 || !sets[0].Complete || sets[0].Position.String() != "LSN 0/1" {
		t.Errorf("%+v", sets)
	}
	big := layout
	big.Outside = []string{strings.Repeat("y", maxProperty)}
	if _, err := Take(t.Context(), r.Tools, nil, "", big, "two"); err == nil || len(r.list()) != 1 {
		t.Error("a layout that no property holds was taken")
	}
}

// What does not read as a snapshot of ours is none, and one with parts missing is not complete.
func TestListGarbage(t *testing.T) {
	r := newRig(t)
	text, err := layout.text()
	if err != nil {
		t.Fatal(err)
	}
	r.write("state", strings.Join([]string{
		"tank/x@received\tbulkhead:instance\tmysql3306\treceived",
		"tank/x@inherited\tbulkhead:instance\tmysql3306\tinherited from tank",
		"tank/x@none\tbulkhead:instance\t-\t-",
		"no tabs", "\t\t\t", "tank/x@short\tused",
		"tank/data@half\tbulkhead:instance\tmysql3306\tlocal",
		"tank/data@half\tbulkhead:layout\t" + text + "\tlocal",
		"tank/data@half\tbulkhead:held-ms\tmany\tlocal",
		"tank/data@half\tused\t-5\t-",
		"tank/data@bad\tbulkhead:instance\tmysql3306\tlocal",
		"tank/data@bad\tbulkhead:layout\t{{{\tlocal",
		"tank/renamed@old\tbulkhead:instance\tmysql3306\tlocal",
		"tank/renamed@old\tbulkhead:layout\t" + text + "\tlocal",
	}, "\n")+"\n")
	got := []string{}
	for _, s := range r.list() {
		got = append(got, fmt.Sprint(s.Name, " ", s.Complete, " ", s.Unfinished, " ", s.Used, " ", s.Trouble))
	}
	slices.Sort(got)
	if want := []string{"bad false false 0 its datasets have other names than when it was made",
		"half false false 0 parts of it are missing: tank/log",
		"old false false 0 its datasets have other names than when it was made"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	r.write("fail", "get")
	if _, err := List(t.Context(), r.Tools); err == nil {
		t.Error("no error")
	}
}

// Number and age decide; the newest, what has clones or holds, and what others made stay.
func TestRetain(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	day := 24 * time.Hour
	set := func(name string, age time.Duration, change func(*Set)) Set {
		s := Set{Instance: "a", Name: name, Created: now.Add(-age), Complete: true}
		if change != nil {
			change(&s)
		}
		return s
	}
	unfinished := func(s *Set) { s.Complete, s.Unfinished = false, true }
	sets := []Set{set("killed", 0, unfinished), set("n1", day, nil), set("n2", 2*day, nil), set("n3", 3*day, nil),
		set("part", 3*day, func(s *Set) { s.Complete = false }),
		set("cloned", 4*day, func(s *Set) { s.Clones = []string{"p/dev"} }),
		set("held", 5*day, func(s *Set) { s.Holds = 1 }),
		set("gone", 5*day, func(s *Set) { unfinished(s); s.Clones = []string{"p/x"} }), set("n6", 6*day, nil),
		set("b1", 30*day, func(s *Set) { s.Instance = "b" }), set("b2", 31*day, func(s *Set) { s.Instance = "b" })}
	for _, tt := range []struct {
		name string
		Rule
		want string
	}{
		{"no rule", Rule{}, "killed"},
		{"number", Rule{Keep: 2}, "killed n3 n6"},
		{"one", Rule{Keep: 1}, "killed n2 n3 n6 b2"},
		{"age", Rule{Older: 50 * time.Hour}, "killed n3 n6 b2"},
		{"the newest stays, how old it may be", Rule{Older: time.Hour, Instance: "b"}, "b2"},
		{"number and age", Rule{Keep: 2, Older: 4 * day}, "killed n6"},
		{"more than there are", Rule{Keep: 100}, "killed"},
		{"pattern", Rule{Keep: 1, Pattern: "n[36]"}, "n6"},
		{"instance", Rule{Keep: 1, Instance: "nobody"}, ""},
	} {
		got := []string{}
		for _, v := range Retain(sets, func(string) Rule { return tt.Rule }, now) {
			if v.Why == "" && !v.Remove {
				t.Errorf("%s: %s stays for no reason", tt.name, v.Set.Name)
			}
			if v.Remove {
				got = append(got, v.Set.Name)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q goes, want %s", tt.name, got, tt.want)
		}
	}
}

// Each instance has the rule that there is for it, and one without a rule loses nothing.
func TestRetainByInstance(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	sets := []Set{}
	for _, instance := range []string{"a", "b", "c"} {
		for i := range 4 {
			sets = append(sets, Set{Instance: instance, Name: fmt.Sprint(i), Complete: true,
				Created: now.Add(-time.Duration(i) * time.Hour)})
		}
	}
	got := []string{}
	for _, v := range Retain(sets, func(instance string) Rule {
		return map[string]Rule{"a": {Keep: 1}, "b": {Keep: 2, Older: 150 * time.Minute}}[instance]
	}, now) {
		if v.Remove {
			got = append(got, v.Set.String())
		}
	}
	if want := "a@1 a@2 a@3 b@3"; strings.Join(got, " ") != want {
		t.Errorf("%q goes, want %s", got, want)
	}
}

// snapshotLines are what zfs get prints of one complete snapshot of a data set.
func snapshotLines(pool, name, created, txg string) string {
	l := Layout{Instance: "mysql3306", Datasets: []Dataset{{Name: pool + "/data"}}}
	text, err := l.text()
	if err != nil {
		panic(err)
	}
	lines := ""
	for _, p := range [][2]string{{"creation\t" + created, "-"}, {"createtxg\t" + txg, "-"},
		{propInstance + "\tmysql3306", "local"}, {propLayout + "\t" + text, "local"},
		{propState + "\t" + stateComplete, "local"}} {
		lines += pool + "/data@" + name + "\t" + p[0] + "\t" + p[1] + "\n"
	}
	return lines
}

// After the clock was set back the newest snapshot is the one made last, so that one that was just taken does not go.
func TestClockSetBack(t *testing.T) {
	r := newRig(t)
	r.write("state", snapshotLines("tank", "ahead", "9000", "11")+snapshotLines("tank", "now", "2000", "12")+
		snapshotLines("tank", "old", "1000", "10"))
	got := []string{}
	for _, s := range r.list() {
		got = append(got, fmt.Sprint(s.Name, " ", s.Created.Unix()))
	}
	if want := []string{"now 2000", "ahead 9000", "old 1000"}; !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	for i, v := range Retain(r.list(), func(string) Rule { return Rule{Keep: 1} }, time.Unix(2001, 0)) {
		if v.Remove != (i > 0) {
			t.Errorf("%s: %v, %s", v.Set, v.Remove, v.Why)
		}
	}
}

// Snapshots of two pools are two, also where an imported pool of another host has the same names: of each the newest
// stays, and to remove one leaves the other.
func TestTwoPools(t *testing.T) {
	r := newRig(t)
	r.write("state", snapshotLines("tank", "nightly", "3000", "30")+snapshotLines("rescued", "nightly", "2000", "70")+
		snapshotLines("rescued", "before", "1000", "60"))
	sets := r.list()
	removed := []string{}
	for _, v := range Retain(sets, func(string) Rule { return Rule{Keep: 1, Older: time.Second} }, time.Now()) {
		if v.Remove {
			removed = append(removed, v.Set.Pool()+" "+v.Set.Name)
		}
	}
	if len(sets) != 3 || !slices.Equal(removed, []string{"rescued before"}) {
		t.Fatalf("%d sets, %q goes", len(sets), removed)
	}
	if err := Remove(t.Context(), r.Tools, sets[0]); err != nil || sets[0].Pool() != "tank" {
		t.Fatal(sets[0].Pool(), err)
	}
	if state := r.state(); strings.Contains(state, "tank/") || !strings.Contains(state, "rescued/data@nightly\t") {
		t.Errorf("left:\n%s", state)
	}
}

// One that ZFS refuses to destroy, as somebody holds it meanwhile, is complete as before; one that is half gone is not.
func TestRemoveRefused(t *testing.T) {
	r := newRig(t)
	r.write("state", snapshotLines("tank", "s", "1000", "10"))
	r.write("fail", "destroy")
	if err := Remove(t.Context(), r.Tools, r.list()[0]); err == nil {
		t.Fatal("no error")
	}
	if s := r.list()[0]; !s.Complete {
		t.Errorf("what was refused is left %q", s.Trouble)
	}
	unfinished := r.list()[0]
	unfinished.Complete = false
	if err := Remove(t.Context(), r.Tools, unfinished); err == nil || !r.list()[0].Unfinished {
		t.Errorf("what was half gone is whole: %v", err)
	}
}

// Names reach zfs(8) as they are: what could be read as an option, a dataset or a list is none.
func TestCheckName(t *testing.T) {
	for text, want := range map[string]bool{"monday": true, "2026-11-26_02:10": true, "-r": false, "a@b": false,
		"a/b": false, "a,b": false, "a%b": false, "": false, "a b": false, strings.Repeat("x", 101): false} {
		if err := CheckName(text); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func refused(err error) bool {
	return err != nil && api.CodeOf(err) == api.CodeRefused && api.HintOf(err) != ""
}
