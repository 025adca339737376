//go:build root

package bpfcount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

// rereading reads a file through the page cache from its begin to its end, again and again, in one thread, on the CPU
// on which its process is. For each line on its input it does so for so many nanoseconds, and says how many bytes it
// read.
func rereading(file string) {
	runtime.LockOSThread()
	fd, err := unix.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf, at := make([]byte, 256<<10), int64(0)
	for {
		var span, sum int64
		if _, err := fmt.Scanln(&span); err != nil {
			return
		}
		var set unix.CPUSet
		if err := errors.Join(unix.SchedGetaffinity(os.Getpid(), &set), unix.SchedSetaffinity(0, &set)); err != nil {
			fmt.Println(err)
			return
		}
		for end := time.Now().Add(time.Duration(span)); time.Now().Before(end); {
			n, err := unix.Pread(fd, buf, at)
			if err != nil {
				fmt.Println(err)
				return
			}
			if at += int64(n); n == 0 {
				at = 0
			}
			sum += int64(n)
		}
		fmt.Println(sum)
	}
}

// reader is a process of the group "victim" that rereads a file.
type reader struct {
	in  io.Writer
	out *bufio.Reader
}

func (b *bench) rereader(t testing.TB, file string, cpu int) reader {
	t.Helper()
	in, out := b.child(t, "reread "+file, "victim", cpu)
	return reader{in, out}
}

func (r reader) read(t testing.TB, span time.Duration) {
	t.Helper()
	_, err := fmt.Fprintln(r.in, span.Nanoseconds())
	check(t, err)
}

// done gives how many bytes it read.
func (r reader) done(t testing.TB) (bytes int64) {
	t.Helper()
	_, err := fmt.Fscanln(r.out, &bytes)
	check(t, err)
	return bytes
}

// onDisk makes a file on a disk that is in no page cache, so that who reads it has it charged.
func onDisk(t testing.TB, size int) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bulkhead-reclaim-")
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	file := filepath.Join(dir, "file")
	f, err := os.Create(file)
	check(t, err)
	defer f.Close()
	for range size >> 20 {
		_, err = f.Write(make([]byte, 1<<20))
		check(t, err)
	}
	check(t, errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
	return file
}

// hold has a limit on the memory of the processes of a group, and gives what tells for how long PSI says they waited;
// nil where this kernel has no PSI of groups.
func (b *bench) hold(t testing.TB, group string, limit int64) (pressure func() time.Duration) {
	t.Helper()
	pids, err := b.tree.Procs(b.dirs[group])
	check(t, err)
	held := false
	for _, h := range testhost.Hierarchies(t) {
		if !h.Has("memory") && h.Version != 2 {
			continue
		}
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/"}
		all, d := cgroup.Dir{Hierarchy: h.ID, Path: b.root.Path}, b.dirs[group]
		if h.Has("memory") && h.Version == 2 {
			check(t, b.tree.Enable(top, []string{"memory"}))
		}
		if h.ID != b.root.Hierarchy {
			d = all.Child(group)
			check(t, b.tree.Make(all))
		}
		if h.Has("memory") && h.Version == 2 {
			check(t, b.tree.Enable(all, []string{"memory"}))
		}
		if h.ID != b.root.Hierarchy {
			check(t, b.tree.Make(d))
		}
		if h.Has("memory") {
			name := "memory.limit_in_bytes"
			if h.Version == 2 {
				name = "memory.max"
			}
			check(t, b.tree.Write(d.File(name), strconv.FormatInt(limit, 10)))
			held = true
		}
		for _, pid := range pids {
			check(t, b.tree.Move(d, testhost.Identify(t, pid)))
		}
		if _, err := b.tree.Read(d.File("memory.pressure")); err == nil {
			pressure = func() time.Duration {
				text, err := b.tree.Read(d.File("memory.pressure"))
				check(t, err)
				some, _, _ := strings.Cut(text, "\n")
				return time.Duration(number(t, some[strings.LastIndex(some, "=")+1:])) * time.Microsecond
			}
		}
	}
	if !held {
		t.Skip("this kernel has no memory controller")
	}
	return pressure
}

// watchReclaim has a counter watch groups, and skips the test where this kernel is too old to count reclaim.
func (b *bench) watchReclaim(t testing.TB, c *Counter) {
	t.Helper()
	check(t, c.Watch(b.ids))
	var why *MissingError
	if err := c.noReclaim; errors.As(err, &why) && why.Why == OldKernel && !testhost.Since(t, 5, 11) {
		t.Skip(why)
	} else {
		check(t, err)
	}
}

// A group that reads a file four times as large as its limit on memory is in reclaim because of that: for no longer
// than it ran, than PSI says that it waited for memory, and than its threads together. A group that does nothing is
// not. Of two that do so at a time one's threads are longer in reclaim than at least one of them is.
func TestReclaimBecauseOfALimit(t *testing.T) {
	c := counting(t)
	const limit = 32 << 20 // the readers themselves take up to 16 MiB: of a program that nobody has read before
	b := groupsOf(t, "victim", "idle")
	readers := []reader{b.rereader(t, onDisk(t, 4*limit), 0), b.rereader(t, onDisk(t, 4*limit), 0)}
	pressure := b.hold(t, "victim", limit)
	b.put(t, testhost.Spawn(t, "sleep", "60"), "idle", -1)
	for _, one := range readers { // until they have reached the limit, however slow this disk is
		for bytes := int64(0); bytes < 2*limit; bytes += one.done(t) {
			one.read(t, 100*time.Millisecond)
		}
	}
	b.watchReclaim(t, c)
	const span = time.Second
	read := func(n int) (r Reclaim, wall time.Duration) {
		psi := time.Duration(0)
		before, err := c.Read()
		check(t, err)
		begun := time.Now()
		if pressure != nil {
			psi = -pressure()
		}
		for _, one := range readers[:n] {
			one.read(t, span)
		}
		for _, one := range readers[:n] {
			one.done(t)
		}
		if pressure != nil {
			psi += pressure()
		}
		after, err := c.Read()
		check(t, err)
		wall = time.Since(begun)
		r, was := *after["victim"].Reclaim, before["victim"].Reclaim
		r.Limit, r.LimitThreads = r.Limit-was.Limit, r.LimitThreads-was.LimitThreads
		r.Host, r.HostThreads = r.Host-was.Host, r.HostThreads-was.HostThreads
		r.LimitStalls, r.Lost = r.LimitStalls-was.LimitStalls, r.Lost-was.Lost
		t.Logf("%d: %+v in %v; PSI: %v", n, r, wall, psi)
		if r.Limit <= 0 || r.LimitStalls == 0 || r.Lost > 0 || r.Limit+r.Host > wall {
			t.Errorf("%+v in %v", r, wall)
		}
		if got := *after["idle"].Reclaim; got != (Reclaim{}) {
			t.Errorf("who does nothing: %+v", got)
		}
		// In PSI's time is also that in which it waits for pages that it had before; and it is an average of CPUs on
		// which the group did anything, so that other threads of these processes lower it.
		if pressure != nil && (r.Limit > psi+psi/10 || r.Limit < psi/2) {
			t.Errorf("counted are %v, by PSI it waited for %v", r.Limit, psi)
		}
		return r, wall
	}
	one, _ := read(1)
	if one.LimitThreads < one.Limit || one.LimitThreads > one.Limit+one.Limit/20 { // threads of its runtime, too
		t.Errorf("of one thread: %+v", one)
	}
	two, wall := read(2)
	if two.LimitThreads <= two.Limit || two.LimitThreads > 2*wall {
		t.Errorf("of two threads: %+v in %v", two, wall)
	}
	check(t, c.Watch(map[string][]uint64{"idle": b.ids["idle"]}))
	now, err := c.Read()
	check(t, err)
	if now["victim"] != nil {
		t.Errorf("it is not watched: %+v", now["victim"])
	}
}

// Where programs of reclaim cannot be loaded, all else is counted, and it is said why.
func TestReclaimIsLeftOut(t *testing.T) {
	whole := reclaimObject
	reclaimObject = reclaimObject[:100]
	defer func() { reclaimObject = whole }()
	c := counting(t)
	check(t, c.Watch(map[string][]uint64{"a": {1 << 40}}))
	got, err := c.Read()
	check(t, err)
	var why *MissingError
	if got["a"] == nil || got["a"].Reclaim != nil || !errors.As(got["a"].NoReclaim, &why) {
		t.Errorf("%+v", got["a"])
	}
}

// Who reads files on a host that has too little free memory is in reclaim because of that, and not because of a limit.
// The test fills all memory with page cache: it is for a virtual machine of the lab alone.
func TestReclaimBecauseOfTheHost(t *testing.T) {
	if os.Getenv("BULKHEAD_LAB") == "" {
		t.Skip("it would slow down all of this machine: `make lab MODE=unified PKG=./internal/linux/bpfcount`")
	}
	c := counting(t)
	b := groupsOf(t, "victim", "idle")
	memory, err := os.ReadFile("/proc/meminfo")
	check(t, err)
	all := number(t, strings.Fields(string(memory))[1]) << 10
	file := onDisk(t, 0) // what is read of a hole is page cache
	check(t, os.Truncate(file, 3*all))
	var readers []reader
	for cpu := range runtime.NumCPU() {
		readers = append(readers, b.rereader(t, file, cpu))
	}
	before := stalled(t)
	b.watchReclaim(t, c)
	var r *Reclaim
	for range 20 {
		for _, one := range readers {
			one.read(t, 5*time.Second)
		}
		for _, one := range readers {
			one.done(t)
		}
		now, err := c.Read()
		check(t, err)
		if r = now["victim"].Reclaim; r.HostStalls > 0 {
			break
		}
	}
	t.Logf("%+v; by /proc/vmstat %d times", r, stalled(t)-before)
	if r.Host <= 0 || r.HostThreads < r.Host || r.Limit > 0 || r.LimitStalls > 0 ||
		r.HostStalls+r.Lost > uint64(stalled(t)-before) {
		t.Errorf("%+v", r)
	}
}

// stalled is how often threads of this host were in reclaim because of it, by its statistics.
func stalled(t testing.TB) (sum int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/vmstat")
	check(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "allocstall") {
			sum += number(t, strings.Fields(line)[1])
		}
	}
	return sum
}

// BenchmarkStall is what it costs to count that a thread was in reclaim once, at as many times as this host does.
func BenchmarkStall(b *testing.B) {
	c := counting(b)
	g := groupsOf(b, "victim")
	one := g.rereader(b, onDisk(b, 64<<20), 0)
	g.hold(b, "victim", 16<<20)
	g.watchReclaim(b, c)
	stats, err := CountCost()
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close()
	begun := time.Now()
	for b.Loop() {
		one.read(b, time.Second)
		one.done(b)
	}
	var took, stalls float64
	for _, name := range reclaimPrograms {
		s, err := c.reclaim.loaded.Programs[name].Stats()
		check(b, err)
		took += float64(s.Runtime)
		if strings.HasSuffix(name, "_end") {
			stalls += float64(s.RunCount)
		}
	}
	b.ReportMetric(took/stalls, "ns/stall")
	b.ReportMetric(stalls/time.Since(begun).Seconds(), "stalls/s")
}
