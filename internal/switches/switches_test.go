package switches

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/dblogin"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/procfs"
)

func lookOf(threads map[int]map[int]ctxswitch.Count) *look {
	l := &look{procs: map[int]procfs.Process{}, threads: threads, owner: map[int]int{}, inst: map[int]string{100: "db"},
		servers: []engine.Instance{}}
	for pid, all := range threads {
		l.procs[pid] = procfs.Process{ID: procfs.ID{PID: pid}, Comm: "server"}
		for tid := range all {
			l.owner[tid] = pid
		}
	}
	return l
}

// Each switch between two looks counts once: of threads that go on, begin, end, or both, of a number given twice,
// and of one that ends behind the second look.
func TestMerge(t *testing.T) {
	v := func(n uint64) ctxswitch.Count { return ctxswitch.Count{Voluntary: n} }
	exit := func(tid, pid, parent int, n uint64) ctxswitch.Exit {
		return ctxswitch.Exit{TID: tid, PID: pid, Parent: parent, Name: "child", Count: v(n)}
	}
	m := newMerger()
	m.first = lookOf(map[int]map[int]ctxswitch.Count{100: {100: v(1000), 101: v(500), 102: v(50), 103: v(7)}})
	m.endsEarly(exit(101, 100, 1, 520)) // 20 since the first look
	m.endsEarly(exit(110, 100, 1, 3))   // began and ended meanwhile
	m.endsEarly(exit(102, 100, 1, 55))  // 5, and its number is given again, below
	m.endsEarly(exit(200, 200, 100, 9)) // a child that began and ended
	m.endsEarly(exit(201, 0, 100, 2))   // likewise on an old kernel
	m.second = lookOf(map[int]map[int]ctxswitch.Count{100: {100: v(1100), 102: v(4), 103: v(8), 111: v(30)}})
	m.endsLate(exit(103, 100, 1, 9))  // the second look has it
	m.endsLate(exit(112, 100, 1, 40)) // it has it not
	r := &Report{ThreadSpan: 2 * time.Second}
	m.fill(r, &host.Facts{})
	want := uint64(100 + 20 + 3 + 5 + 4 + 1 + 30 + 40)
	at := slices.IndexFunc(r.Procs, func(u Use) bool { return u.PID == 100 })
	gone := slices.IndexFunc(r.Procs, func(u Use) bool { return u.PID == 0 })
	if at < 0 || r.Procs[at].Count.All() != want || r.Procs[at].Rate != float64(want)/2 {
		t.Errorf("want %d: %+v", want, r.Procs)
	}
	if gone < 0 || r.Procs[gone].Count.All() != 11 || r.Procs[gone].Instance != "db" || r.Seen != want+11 ||
		m.homeless != 1 {
		t.Errorf("the children: %+v, %d, %d", r.Procs, r.Seen, m.homeless)
	}
}

// What ends in an hour on a host that starts programs and threads all the time is not kept one by one.
func TestManyThatEnd(t *testing.T) {
	m := newMerger()
	m.first = lookOf(map[int]map[int]ctxswitch.Count{100: {100: {}}})
	const many = 10_000
	for i := range many {
		one := ctxswitch.Count{Voluntary: 1}
		m.endsEarly(ctxswitch.Exit{TID: 1000 + i, PID: 100, Parent: 1, Name: "thread", Count: one})
		m.endsEarly(ctxswitch.Exit{TID: 20_000 + i, PID: 20_000 + i, Parent: 100, Name: "child", Count: one})
	}
	if len(m.early) != 2 || len(m.over) > 0 || m.homeless > 0 {
		t.Errorf("%d are kept, and %d numbers of threads", len(m.early), len(m.over))
	}
	m.second = lookOf(map[int]map[int]ctxswitch.Count{100: {100: {}}})
	r := &Report{ThreadSpan: time.Second}
	if m.fill(r, &host.Facts{}); r.Seen != 2*many || len(r.Procs) != 2 || r.Procs[0].Count.All() != many {
		t.Errorf("%d switches: %+v", r.Seen, r.Procs)
	}
}

func TestWarnings(t *testing.T) {
	r := &Report{PerCPU: 40_000, CPUs: []CPU{{0, 20_000}, {1, 60_000}}}
	for _, c := range []struct {
		max  *Maximum
		want []string
	}{
		{nil, []string{"CPU 1 switches 60000 times a second: more than 50000"}},
		{&Maximum{Rate: 1_000_000}, []string{"more than 50000"}},
		{&Maximum{Rate: 500_000}, []string{"more than 50000", "12 % of the measured maximum of 500000"}},
		{&Maximum{Rate: 500_000, Stale: "kernel"}, []string{"more than 50000", "stale: kernel changed"}},
	} {
		got := r.Warnings(c.max)
		if len(got) != len(c.want) {
			t.Errorf("%+v: %q", c.max, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%q lacks %q", got[i], c.want[i])
			}
		}
	}
	if got := (&Report{PerCPU: 49_000}).Warnings(nil); len(got) > 0 {
		t.Errorf("below: %q", got)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		per    float64
		engine string
		want   string
	}{
		{10, dblogin.MySQL, "many"}, {9.9, dblogin.PostgreSQL, "contention is unlikely"},
		{9.9, dblogin.MySQL, "InnoDB spins"}, {1.9, dblogin.Redis, "fewer than 2"},
	} {
		if got := (Queries{Done: 1, PerQuery: c.per}).Verdict(c.engine); !strings.HasPrefix(got, c.want) &&
			!strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A maximum of another kernel, CPU or set of mitigations is stale.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	if m, err := Kept(dir, Machine{}); m != nil || err != nil {
		t.Fatalf("of nothing: %+v, %v", m, err)
	}
	was := Machine{Kernel: "6.1", CPU: "x", CPUs: 2, Mitigations: "meltdown: Mitigation: PTI"}
	if err := (&Maximum{Rate: 1, Machine: was}).Keep(dir); err != nil {
		t.Fatal(err)
	}
	for want, now := range map[string]Machine{
		"":                    was,
		"kernel, mitigations": {Kernel: "6.2", CPU: "x", CPUs: 2},
		"CPU, number of CPUs": {Kernel: "6.1", CPU: "y", CPUs: 4, Mitigations: was.Mitigations},
	} {
		if m, err := Kept(dir, now); err != nil || m.Stale != want {
			t.Errorf("want %q: %+v, %v", want, m, err)
		}
	}
}
