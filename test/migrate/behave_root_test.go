//go:build root

package migrate

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
)

// The shapes that are compared: limits of groups, and rules that lead there. %[1]s to %[9]s are outermost groups,
// %[10]s is the directory of the programs.
const (
	shapes = `# shares beside what is outside of all groups
group %[1]s { cpu { cpu.shares = 102; } }
# shares inside of a group
group %[2]s/a { cpu { cpu.shares = 300; } }
group %[2]s/b { cpu { cpu.shares = 100; } }
# a quota
group %[3]s { cpu { cpu.cfs_quota_us = 10000; cpu.cfs_period_us = 100000; } }
# a quota over two groups
group %[4]s { cpu { cpu.cfs_quota_us = 8000; } }
group %[4]s/x { cpu { cpu.shares = 1024; } }
group %[4]s/y { cpu { cpu.cfs_quota_us = 3000; } }
# groups of rules: by script, by directory, by user, by a template
group %[5]s { cpu { cpu.cfs_quota_us = 6000; } }
group %[6]s { cpu { cpu.cfs_quota_us = 5000; cpu.cfs_period_us = 50000; } }
group %[7]s { cpu { cpu.cfs_quota_us = 6000; } }
template %[8]s/%%u { cpu { cpu.cfs_quota_us = 6000; } }
# memory
group %[9]s { memory { memory.limit_in_bytes = 32M; } }
`
	shapeRules = `*:shared      cpu     %[1]s
*:inner-a     cpu     %[2]s/a
*:inner-b     cpu     %[2]s/b
*:quota       cpu     %[3]s
*:nested-x    cpu     %[4]s/x
*:nested-y    cpu     %[4]s/y
*:backup.sh   cpu     %[5]s
daemon        cpu     %[7]s
*:other       cpu     %[1]s
*:%[10]s/opt/* cpu    %[6]s
games         cpu     %[8]s/%%u
*:memory      memory  %[9]s
`
)

// worker is a process of a shape: the program, who runs it, and on which CPU.
type worker struct {
	program, as string
	cpu         int
	controller  string
}

var workers = []worker{
	{"outside", "", 1, "cpu"}, {"shared", "", 1, "cpu"},
	{"inner-a", "", 0, "cpu"}, {"inner-b", "", 0, "cpu"},
	{"quota", "", 0, "cpu"}, {"nested-x", "", 0, "cpu"}, {"nested-y", "", 0, "cpu"},
	{"backup.sh", "", 0, "cpu"}, {"opt/deep/tool", "", 0, "cpu"}, {"plain", "daemon", 0, "cpu"},
	{"other", "daemon", 0, "cpu"}, {"plain", "games", 0, "cpu"},
}

// figures are what is compared, each a share of the CPU or of something else.
type figures map[string]float64

// figuresOf makes them of the CPU time of each worker and of the length of the time.
func figuresOf(used []float64, length float64) figures {
	return figures{
		"share beside outside work": used[1] / (used[0] + used[1]),
		"share inside a group":      used[2] / (used[2] + used[3]),
		"quota":                     used[4] / length,
		"quota over two groups":     (used[5] + used[6]) / length,
		"quota of one of these":     used[6] / length,
		"rule by script":            used[7] / length,
		"rule by directory":         used[8] / length,
		"rule by user":              (used[9] + used[10]) / length,
		"template by user":          used[11] / length,
	}
}

// TestBehavesAsLibcgroup has the same processes placed and limited by libcgroup's parser and daemon, and by bulkhead
// with what it imports of the same files, one after the other: they are in the same groups, and get the same within
// 5 %.
func TestBehavesAsLibcgroup(t *testing.T) {
	testhost.RequireRoot(t)
	if len(v1(t)) == 0 {
		t.Skip("there is no hierarchy of cgroup v1 here, and libcgroup's sources name its files")
	}
	b := newBehaviour(t)
	var theirs, ours figures
	for round := range 3 {
		theirs, ours = b.arm(false), b.arm(true)
		worst := 0.0
		for name, want := range theirs {
			worst = max(worst, math.Abs(ours[name]/want-1))
		}
		if worst <= 0.05 {
			break
		}
		t.Logf("round %d: %.1f %% apart: %v and %v", round, 100*worst, theirs, ours)
	}
	var names []string
	for name := range theirs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		want, got := theirs[name], ours[name]
		t.Logf("%-26s libcgroup %.4f, bulkhead %.4f (%+.1f %%)", name, want, got, 100*(got/want-1))
		if want == 0 || math.Abs(got/want-1) > 0.05 {
			t.Errorf("%s: %.4f with libcgroup, %.4f with bulkhead", name, want, got)
		}
	}
	if !slices.Equal(b.places[0], b.places[1]) {
		t.Errorf("libcgroup places %v, bulkhead %v", b.places[0], b.places[1])
	}
	if share := ours["share beside outside work"]; math.Abs(share/(102.0/(1024+102))-1) > 0.1 {
		t.Errorf("102 shares beside one task of 1024 get %.3f", share)
	}
}

// behaviour is the stage of both arms.
type behaviour struct {
	t             *testing.T
	dir, program  string
	groups        []any
	config, rules string
	places        [2][]string // where the workers were, by libcgroup and by bulkhead
}

func newBehaviour(t *testing.T) *behaviour {
	t.Helper()
	dir, err := os.MkdirTemp("", "migrate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &behaviour{t: t, dir: dir, program: os.Getenv("BULKHEAD_PROGRAM")}
	if err := os.Chmod(dir, 0o755); err != nil { // programs are for users, too
		t.Fatal(err)
	}
	if b.program == "" {
		b.program = filepath.Join(dir, "bulkhead")
		b.run("go", "build", "-o", b.program, "bulkhead/cmd/bulkhead")
	}
	for range 9 {
		b.groups = append(b.groups, testhost.Root(t))
	}
	args := append(slices.Clone(b.groups), any(dir))
	b.config, b.rules = fmt.Sprintf(shapes, args[:9]...), fmt.Sprintf(shapeRules, args...)
	shell, err := exec.LookPath("dash")
	if err != nil {
		t.Fatal(err)
	}
	b.write("backup.sh", "#!"+shell+"\nwhile :; do :; done\n", 0o755)
	text, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range append(workers, worker{program: "memory"}) {
		if filepath.Ext(w.program) != ".sh" {
			b.write(w.program, string(text), 0o755)
		}
	}
	b.write("etc/cgconfig.conf", b.config, 0o644)
	b.write("etc/cgrules.conf", b.rules, 0o644)
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "ld.so.cache"} {
		if text, err := os.ReadFile("/etc/" + name); err == nil {
			b.write("etc/"+name, string(text), 0o644)
		}
	}
	for _, empty := range []string{"etc/cgconfig.d", "etc/cgrules.d", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, empty), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r, err := libcgroup.Import([]policy.Source{{Path: "cgconfig.conf", Text: b.config}},
		[]policy.Source{{Path: "cgrules.conf", Text: b.rules}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Left) > 0 {
		t.Fatalf("left: %v", r.Left)
	}
	b.write("policy.yaml", r.Policy, 0o600)
	return b
}

func (b *behaviour) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	name = filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *behaviour) run(name string, args ...string) {
	b.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		b.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func (b *behaviour) bulkhead(verb ...string) []string {
	return append([]string{"--policy", b.dir + "/policy.yaml", "--state", b.dir + "/state", "--socket", b.dir + "/s"},
		verb...)
}

// arm runs every worker in the groups of one side and gives what they got.
func (b *behaviour) arm(ours bool) figures {
	b.t.Helper()
	daemon := exec.Command("sh", "-c",
		`mount --bind "$0/etc" /etc && mount --bind "$0/run" /run && exec cgrulesengd -n -Q`, b.dir)
	daemon.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	side := 0
	if ours {
		side = 1
		b.run(b.program, b.bulkhead("apply")...)
		defer b.run(b.program, b.bulkhead("release", "--all")...)
		daemon = exec.Command(b.program, b.bulkhead("agent")...)
		daemon.SysProcAttr = &syscall.SysProcAttr{}
	} else if out, err := load(b.t, []string{b.config}); err != nil {
		b.t.Fatalf("cgconfigparser: %v\n%s", err, out)
	}
	daemon.SysProcAttr.Pdeathsig = syscall.SIGKILL
	log, err := os.Create(filepath.Join(b.dir, "daemon.log"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		b.t.Fatal(err)
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}()
	b.awake()
	var pids []int
	for _, w := range workers {
		c := b.start(w, "while :; do :; done")
		defer b.end(c)
		pids = append(pids, c.Process.Pid)
	}
	b.settle(side, pids)
	const length = 4 * time.Second
	before, begin := b.used(pids), time.Now()
	time.Sleep(length)
	after, took := b.used(pids), time.Since(begin).Seconds()
	used := make([]float64, len(pids))
	for i := range pids {
		used[i] = after[i] - before[i]
	}
	f := figuresOf(used, took)
	f["memory"] = b.memory()
	return f
}

// start starts a worker.
func (b *behaviour) start(w worker, script string) *exec.Cmd {
	b.t.Helper()
	c := exec.Command(filepath.Join(b.dir, w.program), "-c", script)
	if filepath.Ext(w.program) == ".sh" {
		c.Args = c.Args[:1]
	}
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if w.as != "" {
		u, err := user.Lookup(w.as)
		if err != nil {
			b.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if err := c.Start(); err != nil {
		b.t.Fatal(err)
	}
	var set unix.CPUSet
	set.Set(w.cpu)
	if err := unix.SchedSetaffinity(c.Process.Pid, &set); err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *behaviour) end(c *exec.Cmd) {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// awake waits until the daemon places: a program is started until one is in its group.
func (b *behaviour) awake() {
	b.t.Helper()
	testhost.WaitFor(b.t, "a daemon that places", func() bool {
		c := b.start(workers[4], "sleep 1; :")
		defer b.end(c)
		for range 20 {
			if b.place(c.Process.Pid, "cpu") != "/" {
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	})
}

// settle waits until every worker is somewhere that a rule leads to, and remembers where.
func (b *behaviour) settle(side int, pids []int) {
	b.t.Helper()
	places := make([]string, len(pids))
	testhost.WaitFor(b.t, "workers in their groups", func() bool {
		for i, pid := range pids {
			places[i] = b.place(pid, workers[i].controller)
			if i > 0 && places[i] == "/" {
				return false
			}
		}
		return true
	})
	time.Sleep(300 * time.Millisecond) // a second look of the agent would move what the first one put wrong
	for i, pid := range pids {
		places[i] = strings.TrimPrefix(b.place(pid, workers[i].controller), "/")
		places[i] = strings.TrimPrefix(places[i], "bulkhead.")
	}
	b.places[side] = places
}

// place is the path of a process in the hierarchy of a controller; that of the test itself is "/".
func (b *behaviour) place(pid int, controller string) string {
	at := pathIn(pid, controller)
	if at == pathIn(os.Getpid(), controller) {
		return "/"
	}
	return at
}

func pathIn(pid int, controller string) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // "" when it has ended
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), controller) {
			return fields[2]
		}
	}
	return "/"
}

// used is the CPU time of processes so far, in seconds.
func (b *behaviour) used(pids []int) (all []float64) {
	b.t.Helper()
	for _, pid := range pids {
		var ns int64
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err == nil {
			_, err = fmt.Sscan(string(text), &ns)
		}
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, float64(ns)/1e9)
	}
	return all
}

// memory has a program take memory without end in the group of 32 MiB, and gives how much it had when it was killed, in
// MiB.
func (b *behaviour) memory() float64 {
	b.t.Helper()
	c := exec.Command(filepath.Join(b.dir, "memory"), "-c", "read go; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	defer b.end(c)
	testhost.WaitFor(b.t, "the program in the group with a limit on memory", func() bool {
		return b.place(c.Process.Pid, "memory") != "/"
	})
	group := b.place(c.Process.Pid, "memory")
	if _, err := in.Write([]byte("go\n")); err != nil {
		b.t.Fatal(err)
	}
	err = c.Wait()
	if status, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		b.t.Errorf("the program above the limit on memory ended with %v", err)
	}
	for _, h := range v1(b.t) {
		if h.Has("memory") {
			text, err := os.ReadFile(filepath.Join(h.Mount, group, "memory.max_usage_in_bytes"))
			if err != nil {
				b.t.Fatal(err)
			}
			n, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			return n / (1 << 20)
		}
	}
	b.t.Fatal("memory is no controller of cgroup v1 here")
	return 0
}
