//go:build root

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procevents"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// byEvents is an agent that looks at no fixed time: what it does, events made it do.
var byEvents = Options{Every: time.Hour, Full: time.Hour}

// outside lists the processes with an argument that are not in a group of the site.
func (s *site) outside(argument, group string) (outside []int, all int) {
	s.t.Helper()
	procs, err := host.New("/").Proc.Processes(procfs.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range procs {
		if p.State == 'Z' || !slices.Contains(p.Args, argument) {
			continue
		}
		all++
		if p.Cgroups["cpu"] != "/"+s.root+"/"+group {
			outside = append(outside, p.PID)
		}
	}
	return outside, all
}

func TestEveryStartIsPlacedWhileItLives(t *testing.T) {
	const starts = 200
	s := newSite(t)
	long, longRule := mark(63001)
	short, shortRule := fmt.Sprintf("%d-short", os.Getpid()), fmt.Sprintf("^sh -c .* %d-short$", os.Getpid())
	s.startWith(byEvents)
	s.apply("groups:\n  a: {match: [{cmdline: '" + longRule + "'}], cpu: {limit: 2}}\n  b: {match: [{cmdline: '" +
		shortRule + "'}], cpu: {limit: 2}}\n")
	var wait sync.WaitGroup
	missed := make(chan string, starts)
	for range starts {
		testhost.Spawn(t, "sleep", long)
		// It tells where it is at the end of its life, which is short for a machine that is busy otherwise.
		wait.Go(func() {
			out, err := exec.Command("sh", "-c", "sleep 3; while read -r line; do echo $line; done </proc/$$/cgroup",
				short).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "/"+s.root+"/b") {
				missed <- fmt.Sprintf("%v\n%s", err, out)
			}
		})
		time.Sleep(10 * time.Millisecond)
	}
	wait.Wait()
	if len(missed) > 0 {
		t.Errorf("%d of %d short-lived ones were not placed; the first: %s", len(missed), starts, <-missed)
	}
	soon(t, "all to be placed", func() bool {
		outside, all := s.outside(long, "a")
		return all == starts && len(outside) == 0
	})
	a := s.status().Agent
	if a.Source != "events of the kernel" || a.Lost != 0 || a.Error != "" || a.Moved < 2*starts || a.Mistaken != 0 ||
		a.Gone != 0 || a.Events < 4*starts {
		t.Errorf("agent: %+v", a)
	}
	p := a.Placement
	if p == nil || p.Count < 2*starts*9/10 || p.Count > a.Moved || p.Slowest <= 0 || p.Slowest > time.Minute ||
		p.Share(0.5) > p.Share(0.99) {
		t.Fatalf("placement: %+v", p)
	}
	t.Logf("%d events, %d looks, %d moves; half placed within %v, 99 %% within %v, the slowest after %v", a.Events,
		a.Looks, a.Moved, p.Share(0.5), p.Share(0.99), p.Slowest)
}

// What a shell forked before it was inside matches no rule itself, and has run another program since.
func TestCatchesAForkStormWhole(t *testing.T) {
	const children = 300
	s := newSite(t)
	argument, _ := mark(63002)
	s.startWith(byEvents)
	s.apply("groups:\n  a: {match: [{cmdline: '^sh -c .* " + strings.ReplaceAll(argument, ".", "[.]") +
		" storm$'}], cpu: {limit: 2}}\n")
	// Each child forks a grandchild and is gone before that: only events know whose it is.
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep $0 & (sleep $0 &); i=$((i+1)); done; wait", children)
	shell := testhost.Spawn(t, "sh", "-c", script, argument, "storm")
	soon(t, "every one to be in the group", func() bool {
		outside, all := s.outside(argument, "a")
		return all == 2*children+1 && len(outside) == 0
	})
	if got := s.group(shell.PID); got != "a" {
		t.Errorf("the shell is in %s", got)
	}
	a := s.status().Agent
	if a.Lost != 0 || a.Error != "" {
		t.Errorf("agent: %+v", a)
	}
	t.Logf("%d events, %d looks, %d of %d moved, the rest was born inside", a.Events, a.Looks, a.Moved, 2*children+1)
}

// A process that forked before it ran the program that matches: those children are nobody's.
func TestLeavesTheForksOfAnotherProgramAlone(t *testing.T) {
	s := newSite(t)
	child, _ := mark(63003)
	argument, rule := mark(63004)
	s.startWith(byEvents)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 2}}\n")
	shell := testhost.Spawn(t, "sh", "-c", "sleep $0 & exec sleep $1", child, argument)
	soon(t, "the program to be placed", func() bool { return s.group(shell.PID) == "a" })
	soon(t, "the child to run its program", func() bool { _, all := s.outside(child, "a"); return all == 1 })
	if outside, _ := s.outside(child, "a"); len(outside) != 1 {
		t.Error("what was forked before is in the group")
	}
}

func TestFollowsExecUserAndName(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63005)
	name := fmt.Sprintf("bh-%d", os.Getpid())
	s.startWith(byEvents)
	s.apply("groups:\n" +
		"  first: {match: [{cmdline: '^sh -c .* " + name + "$'}], cpu: {limit: 1}}\n" +
		"  second: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n" +
		"  user: {match: [{user: nobody, cmdline: '" + name + "-user'}], cpu: {limit: 1}}\n" +
		"  title: {match: [{cmdline: '^" + name + "-title'}], cpu: {limit: 1}}\n")
	id := testhost.Spawn(t, "sh", "-c", "read x </proc/self/stat; sleep 1; exec sleep "+argument, name)
	soon(t, "the first program to be placed", func() bool { return s.group(id.PID) == "first" })
	soon(t, "the second program to be placed", func() bool { return s.group(id.PID) == "second" })
	id = testhost.Spawn(t, "perl", "-e", "$> = 65534; sleep 600", name+"-user")
	soon(t, "another user to be placed", func() bool { return s.group(id.PID) == "user" })
	id = testhost.Spawn(t, "perl", "-e", "$0 = $ARGV[0]; sleep 600", name+"-title")
	soon(t, "another name to be placed", func() bool { return s.group(id.PID) == "title" })
	if looks := s.status().Agent.Looks; looks > 200 {
		t.Errorf("%d looks for four processes", looks)
	}
}

// What matches no rule costs no look at the whole: the agent glances at it and goes on.
func TestStrangersCostNoLook(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63009)
	s.startWith(byEvents)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	s.status()
	before := s.status().Agent
	for range 50 {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	// What concerns nobody waits in the kernel until something does; what that could not deliver is counted, too.
	id := testhost.Spawn(t, "sleep", argument)
	soon(t, "one that matches to be placed", func() bool { return s.group(id.PID) == "a" })
	soon(t, "the events of all", func() bool {
		now := s.status().Agent
		return now.Events+now.Lost >= before.Events+before.Lost+150
	})
	if after := s.status().Agent; after.Looks > before.Looks+
		10 { // for the one, and others on this machine may be of concern
		t.Errorf("%d looks for 50 strangers and one of ours", after.Looks-before.Looks)
	}
}

func TestALossIsAnsweredByALookAtAll(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63006)
	o := byEvents
	o.events = func() (source, error) { return procevents.Open(procevents.Options{Buffer: 1, Lazy: lazily}) }
	s.startWith(o)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 2}}\n")
	started := 0
	soon(t, "an overrun", func() bool {
		for range 20 {
			testhost.Spawn(t, "sleep", argument)
			started++
		}
		return s.status().Agent.Lost > 0 || started > 2000
	})
	soon(t, "all to be placed", func() bool {
		outside, all := s.outside(argument, "a")
		return all == started && len(outside) == 0
	})
	a := s.status().Agent
	if a.Lost == 0 || a.Error != "" {
		t.Errorf("agent: %+v", a)
	}
	t.Logf("%d of at least %d events lost over %d starts, %d looks", a.Lost, a.Lost+a.Events, started, a.Looks)
}

// Five hundred starts a second, for as long as CHURN says (20 s unless it does), with a buffer for events that is far
// too small: what comes out at the end is what a fresh look at /proc would say.
func TestChurnWithLosses(t *testing.T) {
	d := 8 * time.Second
	if text := os.Getenv("CHURN"); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(t)
	long, longRule := mark(63021)
	brief, briefRule := fmt.Sprintf("%d-brief", os.Getpid()), fmt.Sprintf("^sh -c .* %d-brief$", os.Getpid())
	stranger := fmt.Sprintf("%d-stranger", os.Getpid())
	o := byEvents
	o.events = func() (source, error) { return procevents.Open(procevents.Options{Buffer: 1, Lazy: lazily}) }
	s.startWith(o)
	s.apply("groups:\n  a: {match: [{cmdline: '" + longRule + "'}], cpu: {limit: 2}}\n  b: {match: [{cmdline: '" +
		briefRule + "'}], cpu: {limit: 2}}\n")

	const population = 100
	var alive []*exec.Cmd
	end := func(c *exec.Cmd) { _ = c.Process.Kill(); _ = c.Wait() }
	t.Cleanup(func() {
		for _, c := range alive {
			end(c)
		}
	})
	starts, errs := 0, make(chan error, 1)
	var wait sync.WaitGroup
	run := func(name string, args ...string) {
		starts++
		wait.Go(func() {
			if err := exec.Command(name, args...).Run(); err != nil {
				select {
				case errs <- err:
				default:
				}
			}
		})
	}
	begin := time.Now()
	for tick := time.NewTicker(10 * time.Millisecond); time.Since(begin) < d; <-tick.C {
		for range 3 {
			run("true", stranger)
		}
		run("sh", "-c", "sleep 0.05; :", brief)
		c := exec.Command("sleep", long)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		starts++
		if alive = append(alive, c); len(alive) > population {
			end(alive[0])
			alive = alive[1:]
		}
	}
	took := time.Since(begin)
	wait.Wait()
	if len(errs) > 0 {
		t.Fatalf("the churn itself failed: %v", <-errs)
	}
	soon(t, "membership to be that of a fresh look", func() bool {
		outside, all := s.outside(long, "a")
		return all == len(alive) && len(outside) == 0 && slices.Equal(s.inside("a"), pidsOf(alive)) &&
			len(s.inside("b")) == 0
	})
	a := s.status().Agent
	if a.Lost == 0 || a.Error != "" || a.Mistaken != 0 {
		t.Errorf("agent: %+v", a)
	}
	t.Logf("%d starts in %v, %.0f a second; at least %d of %d events lost, %d looks, %d moves", starts,
		took.Round(time.Second), float64(starts)/took.Seconds(), a.Lost, a.Lost+a.Events, a.Looks, a.Moved)
}

// inside gives the processes in a group's directory of the cpu controller, by pid.
func (s *site) inside(group string) []int {
	s.t.Helper()
	procs, err := host.New("/").Proc.Processes(procfs.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	var pids []int
	for _, p := range procs {
		if p.Cgroups["cpu"] == "/"+s.root+"/"+group {
			pids = append(pids, p.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

func pidsOf(all []*exec.Cmd) []int {
	var pids []int
	for _, c := range all {
		pids = append(pids, c.Process.Pid)
	}
	slices.Sort(pids)
	return pids
}

func noEvents() (source, error) { return nil, fmt.Errorf("%w: for a test", procevents.ErrUnavailable) }

// Without a connector the tracepoints tell as much: of programs that start, and of a storm of forks that starts
// outside.
func TestPlacesByTracepoints(t *testing.T) {
	const children = 200
	s := newSite(t)
	argument, rule := mark(63031)
	stormed, _ := mark(63032)
	o := byEvents
	o.events = noEvents
	s.startWith(o)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 2}}\n" +
		"  b: {match: [{cmdline: '^sh -c .* " + strings.ReplaceAll(stormed, ".", "[.]") +
		" storm$'}], cpu: {limit: 2}}\n")
	for range 50 {
		testhost.Spawn(t, "sleep", argument)
	}
	testhost.Spawn(t, "sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep $0 & (sleep $0 &); i=$((i+1)); done; wait", children), stormed,
		"storm")
	soon(t, "all to be placed", func() bool {
		outside, all := s.outside(argument, "a")
		return all == 50 && len(outside) == 0
	})
	soon(t, "the storm to be caught whole", func() bool {
		outside, all := s.outside(stormed, "b")
		return all == 2*children+1 && len(outside) == 0
	})
	soon(t, "the events to be read", func() bool { return s.status().Agent.Events >= 4*children })
	a := s.status().Agent
	if a.Source != "BPF programs on tracepoints (no process events: for a test)" || a.Lost != 0 || a.Error != "" {
		t.Errorf("agent: %+v", a)
	}
	if a.Looks > 200 {
		t.Errorf("%d looks", a.Looks)
	}
}

func TestWithoutEventsTheLookEverySecondStays(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63007)
	o := Options{Every: every, Full: time.Hour}
	o.events = noEvents
	o.traces = noEvents
	s.startWith(o)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	id := testhost.Spawn(t, "sleep", argument)
	soon(t, "it to be placed", func() bool { return s.group(id.PID) == "a" })
	if a := s.status().Agent; a.Source != "a look every 50ms (no process events: for a test; by BPF: no process "+
		"events: for a test)" || a.Events != 0 {
		t.Errorf("agent: %+v", a)
	}
}

// After a move the forks that were on their way are asked for, whether an event led to it or a look.
func TestForksAreReadSoonAfterAMove(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63009)
	events := &scripted{reads: make(chan []procevents.Event), within: make(chan time.Duration, 100)}
	t.Cleanup(func() { close(events.reads) })
	o := Options{Every: time.Hour, Full: time.Hour}
	o.events = func() (source, error) { return events, nil }
	s.startWith(o)
	// The first of a group is moved by a look, and the second, which comes from where it came from, without one.
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	for _, way := range []string{"by a look", "as an event told of it"} {
		id := testhost.Spawn(t, "sleep", argument)
		for len(events.within) > 0 {
			<-events.within
		}
		events.reads <- []procevents.Event{{Kind: procevents.Exec, PID: id.PID, Time: 1}}
		soon(t, "it to be placed "+way, func() bool { return s.group(id.PID) == "a" })
		select {
		case d := <-events.within:
			if d != eagerly {
				t.Errorf("%s: asked for within %v", way, d)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: nobody asked", way)
		}
	}
}

func TestEventsThatEndAreReplacedByLooks(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(63008)
	events := &scripted{reads: make(chan []procevents.Event)}
	o := Options{Every: every, Full: time.Hour}
	o.events = func() (source, error) { return events, nil }
	s.startWith(o)
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1}}\n")
	events.reads <- nil
	if a := s.status().Agent; a.Source != "events of the kernel" {
		t.Errorf("agent: %+v", a)
	}
	close(events.reads)
	soon(t, "the source to be given up", func() bool {
		return strings.HasPrefix(s.status().Agent.Source, "a look every 50ms (the events of the kernel ended")
	})
	id := testhost.Spawn(t, "sleep", argument)
	soon(t, "it to be placed", func() bool { return s.group(id.PID) == "a" })
}
