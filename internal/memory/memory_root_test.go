//go:build root

package memory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// toucher says what a copy of the test binary touches: bytes of its own, a range of what is shared, a number of pages
// of a pool, their size, and the node for it.
const toucher = "BULKHEAD_TOUCH"

func TestMain(m *testing.M) {
	if order := os.Getenv(toucher); order != "" {
		if err := touch(order); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func touch(order string) error {
	var own, from, to, pool, size, node int
	if _, err := fmt.Sscan(order, &own, &from, &to, &pool, &size, &node); err != nil {
		return err
	}
	runtime.LockOSThread()
	mask := uint64(1) << node
	const bind, again = 2, "BULKHEAD_TOUCH_BOUND=1" // MPOL_BIND, set_mempolicy(2)
	if !slices.Contains(os.Environ(), again) {
		if _, _, e := unix.Syscall(unix.SYS_SET_MEMPOLICY, bind, uintptr(unsafe.Pointer(&mask)), 64); e != 0 {
			return fmt.Errorf("set_mempolicy: %w", e)
		}
		// Memory that the runtime takes at its start is to be on the node, too.
		return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), again))
	}
	const write = unix.PROT_READ | unix.PROT_WRITE
	mine, err := unix.Mmap(-1, 0, own, write, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	if err := unix.Madvise(mine, unix.MADV_NOHUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	shared, err := unix.Mmap(3, 0, 32*mib, write, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i := 0; i < own; i += 4 * kib {
		mine[i] = 1
	}
	for i := from; i < to; i += 4 * kib {
		shared[i] = 1
	}
	if pool > 0 {
		var file unix.Stat_t
		if err := unix.Fstat(4, &file); err != nil {
			return err
		}
		huge, err := unix.Mmap(4, 0, int(file.Size), write, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map pages of the pool: %w", err)
		}
		for i := range pool {
			huge[i*size] = 1
		}
	}
	fmt.Println("done")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	runtime.KeepAlive(mine)
	return nil
}

// start starts a copy of the test binary that touches memory, and returns when it has.
func start(t *testing.T, order string, files ...*os.File) engine.Member {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), toucher+"="+order)
	c.ExtraFiles = files
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "done\n" {
		t.Fatalf("%q touched nothing: %s", order, line)
	}
	return engine.Member{ID: testhost.Identify(t, c.Process.Pid), Part: engine.PartMain}
}

func poolOf(size int64) string {
	return fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", size/kib)
}

var poolFile = poolOf(hugePage)

// pool has some huge pages of 2 MiB more, for as long as the test takes; false where the kernel gives none.
func pool(t *testing.T, more int64) bool { t.Helper(); return grow(t, poolFile, more) }

// grow does the same with the pool that a file tells.
func grow(t *testing.T, file string, more int64) bool {
	t.Helper()
	read := func() int64 {
		text, err := os.ReadFile(file)
		if err != nil {
			return -1
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		text, _ = os.ReadFile(filepath.Join(filepath.Dir(file), "surplus_hugepages"))
		surplus, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n - surplus // which go when who uses them ends
	}
	before := read()
	if before < 0 {
		return false
	}
	// Whoever waits for the end of its input gives the pool its size back, also when the test is killed.
	guard := exec.Command("sh", "-c", fmt.Sprintf("cat; echo %d > %s", before, file))
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := guard.StdinPipe()
	if err := errors.Join(err, guard.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), guard.Wait()); err != nil || read() != before {
			t.Errorf("give the pool its size back: %v, it has %d", err, read())
		}
	})
	write(t, file, before+more)
	return read() == before+more
}

// onlyPool does the same where nobody has a pool.
func onlyPool(t *testing.T, more int64) bool {
	t.Helper()
	text, err := os.ReadFile(poolFile)
	return err == nil && string(text) == "0\n" && pool(t, more)
}

// setPool makes the pool of a size, that pool gives back at the end of the test.
func setPool(t *testing.T, pages int64) { t.Helper(); write(t, poolFile, pages) }

func write(t *testing.T, file string, pages int64) {
	t.Helper()
	if err := os.WriteFile(file, []byte(fmt.Sprint(pages)), 0); err != nil {
		t.Fatal(err)
	}
}

func memfd(t *testing.T, size int64, flags int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("touched", flags)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "touched")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// Two processes that share memory, touch known amounts of it on known nodes, and have some of their own: each is found,
// once, within 1 %, as smaps_rollup and numastat(8) have it.
func TestTouchedRoot(t *testing.T) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	last := facts.Nodes[len(facts.Nodes)-1].ID
	files := []*os.File{memfd(t, 32*mib, 0)}
	pages := 0
	if pool(t, int64(8*len(facts.Nodes))) { // the kernel gives each node as many
		pages = 8
		files = append(files, memfd(t, 16*mib, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB))
	} else {
		t.Log("this kernel gives no huge pages now: not tried")
	}
	const own = 48 * mib
	a := start(t, fmt.Sprintf("%d 0 %d %d %d %d", own, 24*mib, pages, hugePage, facts.Nodes[0].ID), files...)
	b := start(t, fmt.Sprintf("%d %d %d %d %d %d", own, 8*mib, 32*mib, pages/2, hugePage, last), files...)
	inst := engine.Instance{Engine: engine.PostgreSQL, Port: 1, Main: a.ID, Members: []engine.Member{a, b}}
	i, err := Read(t.Context(), h, facts, "never", inst)
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want int64) {
		t.Helper()
		if off := math.Abs(float64(got - want)); off > float64(want)/100 {
			t.Errorf("%s: %d bytes, want %d within 1 %%", what, got, want)
		}
	}
	near("shared", i.Pages[0].Shared, 32*mib)
	anon := int64(0)
	for _, m := range inst.Members {
		anon += anonymous(t, m.ID.PID)
	}
	if anon < 2*own {
		t.Errorf("smaps_rollup has %d bytes", anon)
	}
	near("private", i.Pages[0].Private, anon)
	if pages > 0 {
		if len(i.Pages) != 2 || i.Pages[1] != (Pages{2 * mib, 16 * mib, 0, 0, 16 * mib}) {
			t.Errorf("pages of the pool: %+v", i.Pages)
		}
	}
	if last != facts.Nodes[0].ID { // what was touched first is on the node of that process
		near("first node", i.Nodes[0].Bytes, i.All()-i.Nodes[len(i.Nodes)-1].Bytes)
		if n := i.Nodes[len(i.Nodes)-1].Bytes; n < own+8*mib {
			t.Errorf("node %d has %d bytes, and the second process touched %d", last, n, own+8*mib)
		}
	}
	if policy := i.Policies[0].Policy; !strings.HasPrefix(policy, "bind:") && policy != "default" {
		t.Errorf("policies %v", i.Policies)
	}
	numastat(t, i)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ended, h, facts, "never", inst); !errors.Is(err, context.Canceled) {
		t.Errorf("read after the end: %v", err)
	}
	inst.Members = []engine.Member{{ID: procfs.ID{PID: 1 << 30}}}
	if _, err := Read(t.Context(), h, facts, "never", inst); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("a process that ended: %v", err)
	}
}

// anonymous is Pss_Anon of /proc/PID/smaps_rollup: memory of its own that the kernel counts for a process.
func anonymous(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "Pss_Anon:"); is {
			n, err := procfs.ParseAmount(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("smaps_rollup of process %d has no Pss_Anon:\n%s", pid, text)
	return 0
}

// numastat compares each process with numastat -p.
func numastat(t *testing.T, i *Instance) {
	t.Helper()
	program, err := exec.LookPath("numastat")
	if err != nil {
		t.Log("numastat is not installed: not compared")
		return
	}
	for _, p := range i.Members {
		text, err := exec.Command(program, "-p", strconv.Itoa(p.PID)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", filepath.Base(program), err, text)
		}
		var total float64
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Total" {
				total, _ = strconv.ParseFloat(fields[len(fields)-1], 64)
			}
		}
		all := int64(0)
		for _, n := range p.Nodes {
			all += n
		}
		if off := math.Abs(float64(all)/mib - total); total == 0 || off > total/100 {
			t.Errorf("process %d: %.2f MiB, numastat says %.2f:\n%s", p.PID, float64(all)/mib, total, text)
		}
	}
}
