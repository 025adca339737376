package cgroupfake

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake/kstrto"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
)

func v1(controllers ...string) host.Hierarchy {
	id := strings.Join(controllers, ",")
	return host.Hierarchy{ID: id, Version: 1, Controllers: controllers, Mount: "/sys/fs/cgroup/" + id, Root: "/"}
}

var (
	legacy = []host.Hierarchy{v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("blkio"), v1("pids"), v1("hugetlb"),
		v1("freezer")}
	unified = []host.Hierarchy{{ID: procfs.UnifiedID, Version: 2, Mount: "/sys/fs/cgroup", Root: "/",
		Controllers: []string{"blkio", "cpu", "cpuset", "hugetlb", "memory", "pids"}}}
)

func dir(hierarchy, path string) cgroup.Dir { return cgroup.Dir{Hierarchy: hierarchy, Path: path} }

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestNumberParsers(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "010": 8, "0x10": 16, "0X1f": 31, "+9": 9, "12\n": 12,
		"18446744073709551615": math.MaxUint64} {
		if got, err := kstrto.Unsigned(text); got != want || err != nil {
			t.Errorf("kstrto.Unsigned(%q) = %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]error{"": syscall.EINVAL, "\n": syscall.EINVAL, " 1": syscall.EINVAL,
		"1 ": syscall.EINVAL, "-1": syscall.EINVAL,
		"0x": syscall.EINVAL, "08": syscall.EINVAL, "1\n\n": syscall.EINVAL, "18446744073709551616": syscall.ERANGE} {
		if got, err := kstrto.Unsigned(text); !errors.Is(err, want) {
			t.Errorf("kstrto.Unsigned(%q) = %d, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]int64{"-1": -1, "-9223372036854775808": math.MinInt64,
		"9223372036854775807": math.MaxInt64} {
		if got, err := kstrto.Signed(text); got != want || err != nil {
			t.Errorf("kstrto.Signed(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"-+1", "--1", "9223372036854775808", "-9223372036854775809"} {
		if got, err := kstrto.Signed(text); err == nil {
			t.Errorf("kstrto.Signed(%q) = %d", text, got)
		}
	}
	for text, want := range map[string]int64{"": 0, "1k": 0, "8K": 8192, "3M": 3 << 20, "2g": 2 << 30,
		"-1":                   9223372036854771712,
		"99999999999999999999": 7766279631452237824} { // wraps, as measured
		if got, err := kstrto.Memory(text, "-1", 4096); got != want || err != nil {
			t.Errorf("kstrto.Memory(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
}

func FuzzNumberParsers(f *testing.F) {
	for _, text := range []string{"0x1f", "-1", "10M", " 5 ", "18446744073709551616", "8e", "max"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := kstrto.Unsigned(text); err == nil {
			if again, err := kstrto.Unsigned(fmt.Sprint(n)); again != n || err != nil {
				t.Errorf("%q is %d, which is %d, %v", text, n, again, err)
			}
		}
		if n, err := kstrto.Signed(text); err == nil {
			if again, err := kstrto.Signed(fmt.Sprint(n)); again != n || err != nil {
				t.Errorf("%q is %d, which is %d, %v", text, n, again, err)
			}
		}
		if n, err := kstrto.Memory(text, "max", 4096); err == nil && (n < 0 || n%4096 != 0) {
			t.Errorf("kstrto.Memory(%q) = %d", text, n)
		}
	})
}

// TestWritingBackChangesNothing: over any tree that any writes made, writing what a file reads as is
// accepted and leaves the whole state as it is, in a suitable order for the files that depend on others.
func TestWritingBackChangesNothing(t *testing.T) {
	values := []string{"0", "1", "3", "-1", "max", "1000", "50000", "100000", "200000", "8M", "64M", "0-1", "1", "",
		"FROZEN", "+cpu +memory +pids +blkio +cpuset +hugetlb",
		"-cpu", "8:0 1048576", "8:16 0", "8:0 rbps=5 wiops=7", "7:0 rbps=max", "50000 200000", "4194304"}
	rapid.Check(t, func(t *rapid.T) {
		hierarchies := rapid.SampledFrom([][]host.Hierarchy{legacy, unified}).Draw(t, "hierarchies")
		k := New(hierarchies, Options{})
		p := k.Spawn()
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			h := rapid.SampledFrom(hierarchies).Draw(t, "hierarchy")
			d := dir(h.ID, rapid.SampledFrom([]string{"/a", "/a/b", "/c", "/"}).Draw(t, "group"))
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				k.Make(d)
			case 3:
				k.Remove(d)
			case 4:
				k.Move(d, p)
			default:
				if files := k.knobs(d); len(files) > 0 {
					k.write(d, rapid.SampledFrom(files).Draw(t, "file"), rapid.SampledFrom(values).Draw(t, "value"))
				}
			}
		}
		before := k.Dump()
		for _, h := range hierarchies {
			dirs, err := k.Walk(dir(h.ID, "/"))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range dirs {
				k.writeBack(t, d)
			}
		}
		if after := k.Dump(); after != before {
			t.Fatalf("writing back changed\n%s\ninto\n%s", before, after)
		}
	})
}

// knobs gives the names of the files of d that Dump shows.
func (k *Kernel) knobs(d cgroup.Dir) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	if g := k.at(d); g != nil {
		for name, f := range k.files(g) {
			if f.holds() {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// write writes to a file as the kernel would get it, past what cgroup.Tree refuses itself.
func (k *Kernel) write(d cgroup.Dir, name, value string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(d)
	return k.file(g, name).write(k.kernel, g, value+"\n")
}

func (k *Kernel) writeBack(t *rapid.T, d cgroup.Dir) {
	for _, name := range k.knobs(d) {
		text, err := k.Read(d.File(name))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case d.Path == "/":
			continue // limits there are not writable
		case name == "cpu.shares" || name == "cpu.weight":
			if idle, _ := k.Read(d.File("cpu.idle")); idle == "1" {
				continue // not writable while idle
			}
		case name == "memory.oom_control":
			text = cgroup.Line(text, "oom_kill_disable")
		case name == "freezer.state", name == "cgroup.subtree_control":
			continue // an ancestor's state, and a list of changes
		case strings.HasPrefix(name, "hugetlb.") && text == "9223372036854771712":
			continue // a fresh limit is not a whole number of huge pages, and the kernel rounds what is written
		case strings.HasPrefix(name, "cpuset.") && text == "":
			continue
		}
		for _, line := range strings.Split(text, "\n") {
			if line == "" {
				continue
			}
			if err := k.write(d, name, line); err != nil {
				t.Fatalf("write %q back to %s: %v", line, d.File(name), err)
			}
		}
	}
}

func TestFailNthFailsOneChange(t *testing.T) {
	k := New(legacy, Options{})
	a := dir("pids", "/a")
	must(t, k.Make(a))
	k.FailNth(2, syscall.EIO)
	must(t, k.Write(a.File("pids.max"), "5"))
	before := k.Dump()
	if err := k.Write(a.File("pids.max"), "6"); !errors.Is(err, syscall.EIO) {
		t.Errorf("the second write: %v", err)
	}
	if k.Dump() != before {
		t.Error("a failed write changed something")
	}
	must(t, k.Write(a.File("pids.max"), "7"))
	var got []string
	for _, o := range k.Changes() {
		got = append(got, fmt.Sprint(o.N, " ", o))
	}
	want := []string{"1 mkdir pids:/a", "2 write pids:/a/pids.max 5", "3 write pids:/a/pids.max 6",
		"4 write pids:/a/pids.max 7"}
	if !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestVanishSendsProcessesUp(t *testing.T) {
	k := New(unified, Options{})
	a := dir(procfs.UnifiedID, "/a")
	before := k.Dump()
	must(t, k.Make(a), k.Make(a.Child("b")))
	p := k.Spawn()
	must(t, k.Move(a.Child("b"), p))
	k.Vanish(a)
	if got := k.Membership(p.PID)[procfs.UnifiedID]; got != "/" {
		t.Errorf("the process is in %q", got)
	}
	k.Exit(p.PID)
	if after := k.Dump(); after != before {
		t.Errorf("left over:\n%s", after)
	}
	k.Vanish(dir(procfs.UnifiedID, "/absent"))
	k.Vanish(dir(procfs.UnifiedID, "/"))
	if len(k.Processes()) != 0 || k.Dump() != before {
		t.Error("vanishing what cannot vanish changed something")
	}
}

func TestTasksLimitHoldsForksAndThreads(t *testing.T) {
	k := New(legacy, Options{})
	top, a := dir("pids", "/top"), dir("pids", "/top/a")
	must(t, k.Make(top), k.Make(a), k.Write(top.File("pids.max"), "2"))
	p := k.Spawn()
	must(t, k.Move(a, p))
	child, err := k.Fork(p.PID)
	must(t, err)
	if got := k.Membership(child.PID)["pids"]; got != "/top/a" {
		t.Errorf("the child starts in %q", got)
	}
	if _, err := k.Thread(p.PID); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a third task: %v", err)
	}
	if _, err := k.Fork(p.PID); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a third process: %v", err)
	}
	u, err := metrics.Read(k.Tree, top)
	if must(t, err); *u.Tasks.Current != 2 || *u.Tasks.LimitHits != 2 {
		t.Errorf("tasks %d, refused %d", *u.Tasks.Current, *u.Tasks.LimitHits)
	}
}

func TestMemoryLimitTakesCacheBeforeItKills(t *testing.T) {
	for _, hierarchies := range [][]host.Hierarchy{legacy, unified} {
		k := New(hierarchies, Options{})
		id, limit := "memory", "memory.limit_in_bytes"
		if hierarchies[0].Version == 2 {
			id, limit = procfs.UnifiedID, "memory.max"
			must(t, k.Enable(dir(id, "/"), []string{"memory"}))
		}
		a := dir(id, "/a")
		must(t, k.Make(a), k.Write(a.File(limit), "64M"))
		small, big := k.Spawn(), k.Spawn()
		must(t, k.Move(a, small), k.Move(a, big))
		must(t, k.Charge(small.PID, Anonymous, 8<<20), k.Charge(big.PID, Anonymous, 36<<20),
			k.Charge(big.PID, File, 60<<20))
		u, err := metrics.Read(k.Tree, a)
		if must(t, err); *u.Memory.Current > 64<<20 || *u.Memory.Anonymous != 44<<20 || *u.Memory.OOMKills != 0 {
			t.Errorf("%s: after filling with page cache: %d of anonymous %d", id, *u.Memory.Current,
				*u.Memory.Anonymous)
		}
		must(t, k.Charge(small.PID, Anonymous, 25<<20)) // the bigger one goes
		if k.Alive(big) || !k.Alive(small) {
			t.Errorf("%s: big alive %v, small alive %v", id, k.Alive(big), k.Alive(small))
		}
		if err := k.Charge(small.PID, Anonymous, 128<<20); !errors.Is(err, ErrKilled) {
			t.Errorf("%s: beyond the limit alone: %v", id, err)
		}
		u, err = metrics.Read(k.Tree, a)
		if must(t, err); *u.Memory.OOMKills != 2 {
			t.Errorf("%s: %d kills", id, *u.Memory.OOMKills)
		}
	}
}

func TestOOMPauseHoldsTheProcess(t *testing.T) {
	k := New(legacy, Options{})
	a := dir("memory", "/a")
	must(t, k.Make(a), k.Write(a.File("memory.limit_in_bytes"), "8M"), k.Write(a.File("memory.oom_control"), "1"))
	p := k.Spawn()
	must(t, k.Move(a, p))
	if err := k.Charge(p.PID, Anonymous, 16<<20); !errors.Is(err, syscall.EAGAIN) || !k.Alive(p) {
		t.Errorf("with the killer off: %v, alive %v", err, k.Alive(p))
	}
}

func TestOldKernelsLackFiles(t *testing.T) {
	k := New(legacy, Options{Kernel: host.Version{Major: 3, Minor: 10},
		Without: []string{"memory.memsw.limit_in_bytes"}})
	for hierarchy, names := range map[string][]string{"cpu,cpuacct": {"cpu.idle", "cpu.cfs_burst_us"},
		"memory": {"memory.memsw.limit_in_bytes"}} {
		d := dir(hierarchy, "/a")
		must(t, k.Make(d))
		for _, name := range names {
			if err := k.Write(d.File(name), "1"); !errors.Is(err, cgroup.ErrNoKnob) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if text, err := k.Read(dir("memory", "/a").File("memory.oom_control")); err != nil ||
		strings.Contains(text, "oom_kill ") {
		t.Errorf("oom_control of kernel 3.10 is %q, %v", text, err)
	}
	// Without memsw the limit stands alone.
	must(t, k.Write(dir("memory", "/a").File("memory.limit_in_bytes"), "8M"))
}

func TestCoMountedControllersRefuseTogether(t *testing.T) {
	k := New([]host.Hierarchy{v1("cpu", "cpuset")}, Options{})
	a := dir("cpu,cpuset", "/a")
	must(t, k.Make(a))
	p := k.Spawn()
	if err := k.Move(a, p); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("into an unseeded co-mount: %v", err)
	}
	must(t, k.Write(a.File("cpuset.cpus"), "0"), k.Write(a.File("cpuset.mems"), "0"), k.SetRealtime(p.PID, true))
	if err := k.Move(a, p); !errors.Is(err, cgroup.ErrRealtime) {
		t.Errorf("a real-time process into a co-mount: %v", err)
	}
}
