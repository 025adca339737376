//go:build placement

package placement

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/testhost"
)

var (
	part   = flag.Float64("placement.part", 1, "the `part` of the starts to make: 0.1 is a tenth")
	report = flag.String("placement.report", "", "write the tables to this `file` too")
	fast   = flag.Bool("placement.fast", false,
		"have the policy ask for fast moves, which some kernels keep until the next boot")
)

// rates are the starts of each arm, as many a second.
var rates = []struct{ perSecond, starts int }{{20, 1000}, {300, 10000}, {1000, 50000}}

const (
	// rounds is how often each arm runs at each rate, in turn; an even number, so that each arm can be held against
	// itself.
	rounds = 4
	// life is how long a program waits to be placed.
	life = 200 * time.Millisecond
	// short is the life of which none may be missed with fast moves, and half and most are what their percentiles 50
	// and 99 may be then.
	short = 10 * time.Millisecond
	half  = 100 * time.Microsecond
	most  = 3 * time.Millisecond
)

// TestPlacement starts programs that watch their own control groups, and has them placed by our agent and by
// libcgroup's daemon with the same rule, in turn. It fails when ours is worse beyond what one arm differs from itself.
func TestPlacement(t *testing.T) {
	testhost.RequireRoot(t)
	b := newBench(t)
	b.say("| starts/s | placed by | starts | p50 | p99 | not within %v | never | CPU per start | CPU per stranger |\n",
		short)
	b.say("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	var verdicts []string
	for _, r := range rates {
		starts := max(40, int(float64(r.starts)**part)) / rounds
		all := map[string][]sample{}
		for range rounds {
			for _, arm := range []string{ours, theirs} {
				all[arm] = append(all[arm], b.round(arm, r.perSecond, starts))
			}
		}
		for _, arm := range []string{ours, theirs} {
			s := join(all[arm])
			b.say("| %d | %s | %d | %s | %s | %d | %d | %.0f µs | %.0f µs |\n", r.perSecond, arm, s.starts,
				ms(s.percentile(50)), ms(s.percentile(99)), s.later(short), s.never, s.cpu, s.stranger)
		}
		verdicts = append(verdicts, b.judge(r.perSecond, all)...)
		if *fast {
			verdicts = append(verdicts, b.judgeFast(r.perSecond, join(all[ours])))
		}
	}
	b.say("\n")
	for _, v := range verdicts {
		b.say("- %s\n", v)
	}
	if *report != "" {
		if err := os.WriteFile(*report, b.text.Bytes(), 0o644); err != nil {
			t.Error(err)
		}
	}
}

const (
	ours   = "bulkhead"
	theirs = "cgrulesengd"
)

type bench struct {
	t                          *testing.T
	dir, program, pace, binary string
	other                      string // a copy of the program that no rule matches
	root                       string // of our groups
	group                      string // of theirs
	text                       bytes.Buffer
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(io.MultiWriter(os.Stdout, &b.text), format, args...)
}

func newBench(t *testing.T) *bench {
	t.Helper()
	// /etc and the programs are for cgrulesengd too, which others started: no private directory.
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, program: filepath.Join(dir, "placed"), pace: filepath.Join(dir, "pace"),
		other:  filepath.Join(dir, "stranger"),
		binary: filepath.Join(dir, "bulkhead"), root: testhost.Root(t), group: testhost.Root(t)}
	b.run("gcc", "-O2", "-static", "-Wall", "-Werror", "-o", b.program, "testdata/watch.c")
	for _, copied := range []string{b.pace, b.other} {
		b.run("cp", b.program, copied)
	}
	b.run("go", "build", "-o", b.binary, "bulkhead/cmd/bulkhead")
	moving := "off"
	if *fast {
		moving = "on"
	}
	b.write("policy.yaml",
		fmt.Sprintf("version: 1\nhost: {root: %s}\nagent: {fast_moves: %s}\ngroups:\n  placed: {match: [{exe: %s}], "+
			"cpu: {limit: 2}}\n", b.root, moving, b.program))
	b.run(b.binary, b.flags("apply")...)
	t.Cleanup(func() { b.run(b.binary, b.flags("release", "--all")...) })
	b.prepareTheirs()
	load, _ := os.ReadFile("/proc/loadavg")
	b.say("%s; load average at the start %s; each arm %d rounds in turn; moves are %s.\n\n", kernel(),
		strings.Join(strings.Fields(string(load))[:3], " "), rounds, moves(t))
	return b
}

func (b *bench) flags(verb ...string) []string {
	return append([]string{"--state", b.dir + "/state", "--socket", b.dir + "/s", "--policy", b.dir + "/policy.yaml"},
		verb...)
}

func (b *bench) run(name string, args ...string) {
	b.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		b.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	name = filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// prepareTheirs gives libcgroup's daemon an /etc of its own with the same rule, for the same hierarchies that our
// policy needs, and makes its groups.
func (b *bench) prepareTheirs() {
	b.t.Helper()
	if _, err := exec.LookPath("cgrulesengd"); err != nil {
		b.t.Fatal("cgrulesengd is missing: apt-get install cgroup-tools")
	}
	tree := testhost.Tree(b.t)
	var controllers []string
	for _, h := range testhost.Hierarchies(b.t) {
		if there, err := tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: "/" + b.root + "/placed"}); err != nil ||
			!there {
			continue
		}
		if h.Version != 1 {
			b.t.Fatalf("the daemon's groups are made for v1 alone, and our policy needs %q", h.ID)
		}
		controllers = append(controllers, h.Controllers...)
		d := cgroup.Dir{Hierarchy: h.ID, Path: "/" + b.group}
		for _, d := range []cgroup.Dir{d, d.Child("placed")} {
			if err := tree.Make(d); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	b.write("etc/cgrules.conf", fmt.Sprintf("*:%s %s %s/placed\n", b.program, strings.Join(controllers, ","), b.group))
	b.write("etc/cgconfig.conf", "")
	for _, dir := range []string{"etc/cgconfig.d", "etc/cgrules.d", "run"} {
		if err := os.MkdirAll(filepath.Join(b.dir, dir), 0o755); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "ld.so.cache"} {
		if text, err := os.ReadFile("/etc/" + name); err == nil {
			b.write("etc/"+name, string(text))
		}
	}
}

// daemon starts an arm's daemon and waits until it places.
func (b *bench) daemon(arm string) (cmd *exec.Cmd, needle string) {
	b.t.Helper()
	switch arm {
	case ours:
		cmd, needle = exec.Command(b.binary, b.flags("agent")...), "/"+b.root+"/placed"
	default: // in a mount namespace of its own
		cmd = exec.Command("sh", "-c",
			`mount --bind "$0/etc" /etc && mount --bind "$0/run" /run && exec cgrulesengd -n -Q`, b.dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		needle = "/" + b.group + "/placed"
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	log, err := os.Create(filepath.Join(b.dir, arm+".log"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	for try := 0; ; try++ {
		took := b.starts(b.program, 10, 3, needle)
		if !slices.Contains(took, -1) {
			break
		}
		if try == 30 {
			text, _ := os.ReadFile(log.Name())
			b.t.Fatalf("%s places nothing:\n%s", arm, text)
		}
	}
	time.Sleep(2 * time.Second) // what its start took
	return cmd, needle
}

// starts has a program started so often, and gives how long each took to be placed, in microseconds; -1: never.
func (b *bench) starts(program string, perSecond, count int, needle string) []int32 {
	b.t.Helper()
	args := []string{program, fmt.Sprint(perSecond), fmt.Sprint(count)}
	if needle != "" {
		args = append(args, needle, fmt.Sprint(life.Microseconds()))
	}
	cmd := exec.Command(b.pace, args...)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("start %s: %v", program, err)
	}
	took := make([]int32, len(out)/4)
	if _, err := binary.Decode(out, binary.NativeEndian, took); err != nil {
		b.t.Fatal(err)
	}
	if needle != "" && len(took) != count {
		b.t.Fatalf("%d of %d programs reported", len(took), count)
	}
	return took
}

// sample is what one or more rounds of an arm gave.
type sample struct {
	starts, never int
	took          []int32 // sorted, of those that were placed
	cpu, stranger float64 // µs per start
}

// round runs an arm once at a rate: programs that match, then as many strangers for a while.
func (b *bench) round(arm string, perSecond, count int) sample {
	b.t.Helper()
	cmd, needle := b.daemon(arm)
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	s := sample{starts: count}
	before := b.cpu(cmd.Process.Pid)
	all := b.starts(b.program, perSecond, count, needle)
	s.cpu = float64(b.cpu(cmd.Process.Pid)-before) / float64(time.Microsecond) / float64(count)
	for _, us := range all {
		if us < 0 {
			s.never++
		} else {
			s.took = append(s.took, us)
		}
	}
	slices.Sort(s.took)
	strangers := min(count, 5*perSecond)
	before = b.cpu(cmd.Process.Pid)
	b.starts(b.other, perSecond, strangers, "")
	s.stranger = float64(b.cpu(cmd.Process.Pid)-before) / float64(time.Microsecond) / float64(strangers)
	return s
}

// cpu is the CPU time of a process so far: of the threads that live, to the nanosecond.
func (b *bench) cpu(pid int) (used time.Duration) {
	b.t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(names) == 0 {
		b.t.Fatalf("process %d has ended", pid)
	}
	for _, name := range names {
		var ns int64
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			b.t.Fatal(err)
		}
		used += time.Duration(ns)
	}
	return used
}

func join(list []sample) (all sample) {
	for _, s := range list {
		all.starts, all.never = all.starts+s.starts, all.never+s.never
		all.took = append(all.took, s.took...)
		all.cpu, all.stranger = all.cpu+s.cpu/float64(len(list)), all.stranger+s.stranger/float64(len(list))
	}
	slices.Sort(all.took)
	return all
}

// percentile counts those that were never placed as slower than all others.
func (s sample) percentile(p int) time.Duration {
	at := (s.starts - 1) * p / 100
	if at >= len(s.took) {
		return life
	}
	return time.Duration(s.took[at]) * time.Microsecond
}

func (s sample) later(than time.Duration) int {
	at, _ := slices.BinarySearch(s.took, int32(than.Microseconds())+1)
	return s.starts - at
}

func ms(d time.Duration) string {
	if d >= life {
		return fmt.Sprintf("> %v", life)
	}
	return fmt.Sprintf("%.3f ms", d.Seconds()*1e3)
}

// judge holds ours against theirs, and allows for what an arm differs from itself: the largest ratio between its rounds
// of odd and of even number (A/A).
func (b *bench) judge(perSecond int, all map[string][]sample) (said []string) {
	for _, figure := range []struct {
		name string
		of   func(sample) float64
	}{
		{"p50", func(s sample) float64 { return s.percentile(50).Seconds() * 1e3 }},
		{"p99", func(s sample) float64 { return s.percentile(99).Seconds() * 1e3 }},
		{"CPU per start", func(s sample) float64 { return s.cpu }},
		{"CPU per stranger", func(s sample) float64 { return s.stranger }},
	} {
		spread := 1.0
		for _, rounds := range all {
			var odd, even []sample
			for i := range rounds {
				if i%2 == 0 {
					odd = append(odd, rounds[i])
				} else {
					even = append(even, rounds[i])
				}
			}
			ratio := figure.of(join(odd)) / figure.of(join(even))
			spread = max(spread, ratio, 1/ratio)
		}
		ratio := figure.of(join(all[ours])) / figure.of(join(all[theirs]))
		verdict := "no worse"
		if ratio > spread {
			verdict = "WORSE"
			b.t.Errorf("%d/s: %s of %s is %.2f of %s's, beyond the spread of %.2f", perSecond, figure.name, ours, ratio,
				theirs, spread)
		}
		said = append(said, fmt.Sprintf("%d/s, %s: %.2f of %s's; one arm against itself up to %.2f: %s", perSecond,
			figure.name, ratio, theirs, spread, verdict))
	}
	return said
}

// judgeFast holds ours against what fast moves promise.
func (b *bench) judgeFast(perSecond int, s sample) string {
	verdict := "holds"
	if s.percentile(50) > half || s.percentile(99) > most || s.later(short) > 0 {
		verdict = "DOES NOT HOLD"
		b.t.Errorf("%d/s: with fast moves p50 is %s, p99 %s, and %d were not placed within %v", perSecond,
			ms(s.percentile(50)), ms(s.percentile(99)), s.later(short), short)
	}
	return fmt.Sprintf("%d/s with fast moves: p50 at most %v, p99 at most %v, none after %v: %s", perSecond, half, most,
		short, verdict)
}

func kernel() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return "unknown kernel"
	}
	var release []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c))
	}
	cpus, _ := os.ReadFile("/sys/devices/system/cpu/online")
	return fmt.Sprintf("Kernel %s, CPUs %s, %s", release, strings.TrimSpace(string(cpus)),
		time.Now().Format(time.DateOnly))
}

// moves says whether the kernel's fast moves are on, or were on since the boot: some kernels cannot go back.
func moves(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	log, err := exec.Command("dmesg").Output()
	switch {
	case strings.Contains(string(mounts), "favordynmods"):
		return "fast (favordynmods)"
	case err != nil:
		return "not fast now; whether they were since the boot cannot be told: " + err.Error()
	case strings.Contains(string(log), "per threadgroup rwsem mechanism"):
		return "not fast now, but were since the boot, which some kernels cannot take back: compare nothing but the " +
			"two arms"
	}
	return "not fast, and were not since the boot"
}
