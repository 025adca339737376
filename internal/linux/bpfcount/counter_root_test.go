//go:build root

package bpfcount

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// The test's program is a process that counts until it is killed, and loads.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "count":
		c, err := Open()
		if err == nil {
			err = c.Watch(map[string][]uint64{"a": {1 << 40}})
		}
		fmt.Println(err)
		if err == nil {
			_, _ = os.Stdin.Read(make([]byte, 1)) // for ever
		}
	case len(os.Args) == 2 && os.Args[1] == "pingpong":
		pingPong()
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "read "):
		reading(strings.TrimPrefix(os.Args[1], "read "))
	case len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "reread "):
		rereading(strings.TrimPrefix(os.Args[1], "reread "))
	default:
		os.Exit(m.Run())
	}
}

// counting gives a counter. The test is skipped, with the reason, where the kernel cannot; where it should be able to,
// it fails.
func counting(t testing.TB) *Counter {
	t.Helper()
	testhost.RequireRoot(t)
	c, err := Open()
	if err != nil && !testhost.CountsByBPF(t) {
		t.Skipf("this kernel cannot count: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// bench is groups in the hierarchy of the CPU controller.
type bench struct {
	tree *cgroup.Tree
	root cgroup.Dir
	dirs map[string]cgroup.Dir
	ids  map[string][]uint64
}

// groupsOf makes groups for a test.
func groupsOf(t testing.TB, names ...string) *bench {
	t.Helper()
	b := &bench{tree: testhost.Tree(t), dirs: map[string]cgroup.Dir{}, ids: map[string][]uint64{}}
	root := testhost.Root(t)
	for _, h := range testhost.Hierarchies(t) {
		if !h.Has("cpu") {
			continue
		}
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		all := top.Child(root)
		b.root = all
		check(t, b.tree.Make(all))
		if h.Version == 2 {
			check(t, b.tree.Enable(top, []string{"cpu"}))
			check(t, b.tree.Enable(all, []string{"cpu"}))
		}
		b.weigh(t, 10) // the machine may be busy with other work
		for _, name := range names {
			d := all.Child(name)
			check(t, b.tree.Make(d))
			id, err := Directory(b.tree.Abs(d))
			check(t, err)
			b.dirs[name], b.ids[name] = d, []uint64{id}
		}
		return b
	}
	if text, err := os.ReadFile("/proc/cgroups"); err != nil || regexp.MustCompile(`(?m)^cpu\t.*\t1$`).Match(text) {
		t.Fatalf("no CPU controller was found in a kernel that has one: %v\n%s", err, text)
	}
	t.Skip("this kernel has no CPU controller: /proc/cgroups has none that is enabled")
	return nil
}

// weigh gives all groups together the weight of so many.
func (b *bench) weigh(t testing.TB, times int) {
	t.Helper()
	name, one := "cpu.shares", 1024
	if b.tree.Version(b.root) == 2 {
		name, one = "cpu.weight", 100
	}
	check(t, b.tree.Write(b.root.File(name), strconv.Itoa(times*one)))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spin has a process that wants a CPU in a group, on one CPU; -1: on any.
func (b *bench) spin(t testing.TB, group string, cpu int) procfs.ID {
	t.Helper()
	return b.put(t, testhost.Spin(t), group, cpu)
}

func (b *bench) put(t testing.TB, p procfs.ID, group string, cpu int) procfs.ID {
	t.Helper()
	if cpu >= 0 {
		pin(t, p.PID, cpu)
	}
	check(t, b.tree.Move(b.dirs[group], p))
	return p
}

func pin(t testing.TB, pid, cpu int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	check(t, unix.SchedSetaffinity(pid, &set))
}

// limit lets a group have a part of a CPU.
func (b *bench) limit(t testing.TB, group string, part float64) {
	t.Helper()
	d := b.dirs[group]
	if b.tree.Version(d) == 2 {
		check(t, b.tree.Write(d.File("cpu.max"), fmt.Sprintf("%d 100000", int(100_000*part))))
		return
	}
	check(t, b.tree.Write(d.File("cpu.cfs_quota_us"), strconv.Itoa(int(100_000*part))))
}

// throttled is for how long a group was held back, as its cpu.stat says.
func (b *bench) throttled(t testing.TB, group string) time.Duration {
	t.Helper()
	text, err := b.tree.Read(b.dirs[group].File("cpu.stat"))
	check(t, err)
	if v := cgroup.Line(text, "throttled_time"); v != "" {
		return time.Duration(number(t, v))
	}
	return time.Duration(number(t, cgroup.Line(text, "throttled_usec"))) * time.Microsecond
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	check(t, err)
	return n
}

// delays is how long processes have waited for a CPU, by their schedstat.
func delays(t testing.TB, all ...procfs.ID) (sum time.Duration) {
	t.Helper()
	for _, p := range all {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.PID))
		check(t, err)
		sum += time.Duration(number(t, strings.Fields(string(text))[1]))
	}
	return sum
}

// during is what was counted in a span of time.
func during(t testing.TB, c *Counter, span time.Duration) map[string]*Waits {
	t.Helper()
	before, err := c.Read()
	check(t, err)
	time.Sleep(span)
	after, err := c.Read()
	check(t, err)
	return since(before, after)
}

// beside counts for a span, and tells how long threads waited in it by schedstat: at least and at most, as on a busy
// host some time goes by between two readings.
func beside(t testing.TB, c *Counter, of map[string][]procfs.ID) (got map[string]*Waits, by map[string]bounds) {
	t.Helper()
	read := func() map[string]time.Duration {
		all := map[string]time.Duration{}
		for name, threads := range of {
			all[name] = delays(t, threads...)
		}
		return all
	}
	first := read()
	before, err := c.Read()
	check(t, err)
	inner := read()
	time.Sleep(span)
	last := read()
	after, err := c.Read()
	check(t, err)
	outer := read()
	by = map[string]bounds{}
	for name := range of {
		by[name] = bounds{last[name] - inner[name], outer[name] - first[name]}
	}
	return since(before, after), by
}

// bounds are the least and the most that something may be.
type bounds struct{ least, most time.Duration }

// near says whether something is within the bounds, or as near to one as a part of it.
func (b bounds) near(got time.Duration, part float64) bool {
	return got >= b.least && got <= b.most || near(got, b.least, part) || near(got, b.most, part)
}

func since(before, after map[string]*Waits) map[string]*Waits {
	all := map[string]*Waits{}
	for name, a := range after {
		d := &Waits{Ran: a.Ran, Waited: a.Waited, Limited: a.Limited, Own: a.Own, Outside: a.Outside, Idle: a.Idle,
			Older: a.Older, Turns: a.Turns, Voluntary: a.Voluntary, Involuntary: a.Involuntary, Lost: a.Lost,
			Others: maps.Clone(a.Others)}
		if b := before[name]; b != nil {
			d.Ran -= b.Ran
			d.Waited -= b.Waited
			d.Limited -= b.Limited
			d.Own -= b.Own
			d.Outside -= b.Outside
			d.Idle -= b.Idle
			d.Older -= b.Older
			d.Turns -= b.Turns
			d.Voluntary -= b.Voluntary
			d.Involuntary -= b.Involuntary
			d.Lost -= b.Lost
			for other, was := range b.Others {
				d.Others[other] -= was
			}
		}
		all[name] = d
	}
	return all
}

// adds is whether rows are what was waited, and how much of that nobody has.
func adds(t testing.TB, name string, w *Waits) {
	t.Helper()
	sum := w.Limited + w.Own + w.Outside + w.Idle + w.Older
	for _, d := range w.Others {
		sum += d
	}
	t.Logf("%s: ran %v, waited %v = limit %v, own %v, others %v, outside %v, idle %v, older %v; turns %d, lost %d, "+
		"switches %d and %d", name, w.Ran, w.Waited, w.Limited, w.Own, w.Others, w.Outside, w.Idle, w.Older, w.Turns,
		w.Lost, w.Voluntary, w.Involuntary)
	if !near(sum, w.Waited, 0.001) {
		t.Errorf("%s: rows are %v, waited %v", name, sum, w.Waited)
	}
	if float64(w.Older) > 0.1*float64(w.Waited) {
		t.Errorf("%s: %v of %v unexplained", name, w.Older, w.Waited)
	}
}

func near(a, b time.Duration, part float64) bool {
	return (a - b).Abs() <= max(time.Duration(part*float64(max(a, b))), 20*time.Millisecond)
}

const span = 4 * time.Second

// Two groups on one CPU: each waits while the other runs, by the kernel's own sum of waiting.
func TestWhoRan(t *testing.T) {
	c := counting(t)
	b := groupsOf(t, "victim", "hog")
	v, h := b.spin(t, "victim", 0), b.spin(t, "hog", 0)
	check(t, c.Watch(b.ids))
	time.Sleep(200 * time.Millisecond)
	got, told := beside(t, c, map[string][]procfs.ID{"victim": {v}, "hog": {h}})
	for name, by := range told {
		w := got[name]
		adds(t, name, w)
		if !by.near(w.Waited, 0.05) {
			t.Errorf("%s: waited %v, by schedstat %v", name, w.Waited, by)
		}
		if w.Limited != 0 {
			t.Errorf("%s: %v blamed on a limit that it has not", name, w.Limited)
		}
	}
	if w := got["victim"]; w.Own != 0 || len(w.Others) != 1 {
		t.Errorf("victim: %+v", w)
	}
	if w := got["victim"]; !near(w.Others["hog"], got["hog"].Ran, 0.05) {
		t.Errorf("the hog ran for %v, and was blamed for %v", got["hog"].Ran, w.Others["hog"])
	}
}

// Threads of one group wait for each other.
func TestOwnLoad(t *testing.T) {
	c := counting(t)
	b := groupsOf(t, "victim")
	one, two := b.spin(t, "victim", 0), b.spin(t, "victim", 0)
	check(t, c.Watch(b.ids))
	time.Sleep(200 * time.Millisecond)
	got, told := beside(t, c, map[string][]procfs.ID{"victim": {one, two}})
	w, by := got["victim"], told["victim"]
	adds(t, "victim", w)
	if !by.near(w.Waited, 0.05) {
		t.Errorf("waited %v, by schedstat %v", w.Waited, by)
	}
	if !near(w.Own, w.Ran, 0.05) { // one of the two always waits while the other runs
		t.Errorf("of %v its own load has %v, as it ran for %v", w.Waited, w.Own, w.Ran)
	}
}

// Threads that go from CPU to CPU while they wait, of groups below a group and of many groups.
func TestManyGroupsOnAnyCPU(t *testing.T) {
	c := counting(t)
	names := []string{"a", "b", "c", "d", "e"}
	b := groupsOf(t, names...)
	// As many more as need the programs to be loaded anew.
	for i := range 20 {
		b.ids[fmt.Sprintf("none%d", i)] = []uint64{1<<40 + uint64(i)}
	}
	of := map[string][]procfs.ID{}
	for i, name := range names {
		for range i%2 + 1 {
			of[name] = append(of[name], b.spin(t, name, -1))
		}
	}
	check(t, c.Watch(b.ids))
	time.Sleep(500 * time.Millisecond)
	got, told := beside(t, c, of)
	for name, by := range told {
		adds(t, name, got[name])
		if !by.near(got[name].Waited, 0.05) {
			t.Errorf("%s: waited %v, by schedstat %v", name, got[name].Waited, by)
		}
	}
}

// Of more groups than can be counted the first are, groups that go make room, and what was counted stays.
func TestMoreGroupsThanCanBeCounted(t *testing.T) {
	c := counting(t)
	b := groupsOf(t, "a", "b")
	b.spin(t, "a", 0)
	b.spin(t, "b", 0) // a task that runs alone is not switched, and its time is counted when it is
	check(t, c.Watch(b.ids))
	time.Sleep(300 * time.Millisecond)
	last := time.Duration(0)
	for round := range 3 {
		all := map[string][]uint64{"a": b.ids["a"]}
		for i := range Most + 10 {
			all[fmt.Sprintf("round%d-%03d", round, i)] = []uint64{1<<40 + uint64(round<<20+i)}
		}
		check(t, c.Watch(all))
		loaded := c.cpu
		check(t, c.Watch(all))
		if c.cpu != loaded {
			t.Error("the same groups once more have the programs loaded anew")
		}
		time.Sleep(300 * time.Millisecond)
		now, err := c.Read()
		check(t, err)
		if kept := len(c.before) + len(c.before["a"].Others); kept > 2*mostSlots && round > 0 {
			t.Errorf("what %d groups that are gone had is kept", kept)
		}
		if len(c.names) > mostSlots || now["a"].Ran <= last {
			t.Errorf("%d slots; it ran for %v, and for %v before", len(c.names), now["a"].Ran, last)
		}
		last = now["a"].Ran
		for name := range now {
			if was := fmt.Sprintf("round%d-", round-1); strings.HasPrefix(name, was) {
				t.Errorf("%s is not watched, and has figures", name)
			}
		}
	}
}

// Of more directories than the kernel is told of these are the same ones each time.
func TestMoreDirectoriesThanAreTold(t *testing.T) {
	c := counting(t)
	all := map[string][]uint64{}
	for i := range 2 * directoriesMost {
		name := fmt.Sprintf("g%d", i%4)
		all[name] = append(all[name], 1<<40+uint64(i))
	}
	check(t, c.Watch(all))
	told, generation := maps.Clone(c.groups), c.generation
	check(t, c.Watch(all))
	if len(told) != directoriesMost || !maps.Equal(told, c.groups) || c.generation != generation {
		t.Errorf("%d are told, in generation %d, and then %d in %d", len(told), generation, len(c.groups), c.generation)
	}
}

// Two count at once, as an agent and a person do: neither sees the other, and one that ends takes nothing from the
// other.
func TestTwoCountAtOnce(t *testing.T) {
	one, two := counting(t), counting(t)
	b := groupsOf(t, "victim", "hog")
	v := b.spin(t, "victim", 0)
	b.spin(t, "hog", 0)
	check(t, one.Watch(b.ids))
	check(t, two.Watch(map[string][]uint64{"other name": b.ids["victim"]}))
	time.Sleep(200 * time.Millisecond)
	before, err := two.Read()
	check(t, err)
	by := delays(t, v)
	first := during(t, one, span/2)["victim"]
	check(t, one.Close())
	time.Sleep(span / 2)
	by = delays(t, v) - by
	after, err := two.Read()
	check(t, err)
	all := since(before, after)["other name"]
	adds(t, "victim", first)
	adds(t, "other name", all)
	if !near(all.Waited, by, 0.05) || first.Waited < all.Waited/4 || first.Others["hog"] == 0 || all.Outside == 0 {
		t.Errorf("one has %+v, the other %+v of %v", first, all, by)
	}
}

// A process that is killed leaves no program behind.
func TestKilledLeavesNothing(t *testing.T) {
	counting(t).Close()
	before := programsNow(t)
	cmd := exec.Command("/proc/self/exe", "count")
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	check(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	said := make([]byte, 100)
	n, _ := out.Read(said)
	if said := string(bytes.TrimSpace(said[:n])); said != "<nil>" {
		t.Fatal(said)
	}
	meanwhile := programsNow(t) - before
	check(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	if want := len(programs) + len(diskPrograms) + len(reclaimPrograms); meanwhile < want {
		t.Errorf("%d programs while it counts, want %d", meanwhile, want)
	}
	testhost.WaitFor(t, "no programs are left", func() bool { return programsNow(t) <= before })
}

// programsNow counts the programs of this package that are loaded.
func programsNow(t testing.TB) (n int) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return n
		}
		check(t, err)
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // gone meanwhile
		}
		if info, err := p.Info(); err == nil && strings.HasPrefix(info.Name, "count_") {
			n++
		}
		p.Close()
	}
}
