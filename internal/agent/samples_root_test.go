//go:build root

package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/api"
	"bulkhead/internal/host"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/collect"
	"bulkhead/internal/testhost"
)

// sampled waits for a sample of which something is true.
func (s *site) sampled(what string, is func(*observe.Sample) bool) (one *observe.Sample) {
	s.t.Helper()
	soon(s.t, what, func() bool {
		var err error
		one, err = s.client.NewerSample(context.Background(), time.Time{})
		return err == nil && is(one)
	})
	return one
}

// The agent samples by itself what status shows, with the limits as numbers, and no group after a release. Nothing is
// read because somebody asks.
func TestSamples(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61031)
	id := testhost.Spawn(t, "sleep", argument)
	s.startWith(Options{Every: every, Full: 200 * time.Millisecond, Sample: 100 * time.Millisecond})
	s.sampled("a sample without a policy", func(one *observe.Sample) bool {
		return len(one.Groups) == 0 && one.Revision == 0 && one.Host.Busy > 0 && one.Agent.CPU > 0 &&
			one.Agent.Memory > 0 && one.Every == 100*time.Millisecond
	})
	s.apply("groups:\n  a: {match: [{cmdline: '" + rule + "'}], cpu: {limit: 1.5}, tasks: 50, memory: {max: 64MiB}}\n")
	one := s.sampled("the limits", func(one *observe.Sample) bool {
		if len(one.Groups) != 1 || len(one.Groups[0].Limits) != 3 || one.Groups[0].Processes != 1 {
			return false
		}
		of := one.Groups[0].Usage // its collectors read a moment later
		return of.Tasks.Current != nil && of.CPU.Total != nil && of.Memory.Anonymous != nil
	})
	want := map[string]float64{"cpu.limit": 1.5, "tasks": 50, "memory.max": 64 << 20}
	for _, l := range one.Groups[0].Limits {
		if l.Asked == nil || l.Held == nil || *l.Asked != want[l.Key] || *l.Held != want[l.Key] || !l.InForce {
			t.Errorf("%s: %+v", l.Key, l)
		}
	}
	of := s.status().Groups[0].Usage
	if g := one.Groups[0]; *g.Usage.Tasks.Current != *of.Tasks.Current || *g.Usage.CPU.Total > *of.CPU.Total ||
		g.Usage.Memory.Anonymous == nil || one.Revision != 1 {
		t.Errorf("the sample has %+v, status %+v", g, of)
	}
	if later, err := s.client.NewerSample(context.Background(), one.At); err != nil || !later.At.After(one.At) {
		t.Errorf("the sample after that of %v is %+v: %v", one.At, later, err)
	}
	set, err := s.client.Figures(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	limits := map[string]float64{}
	set.Layout.Each(observe.RowOf("bulkhead_group_limit_held"), func(at int, labels []string) {
		limits[labels[0]+" "+labels[3]] = set.Values[at]
	})
	if !maps.Equal(limits, map[string]float64{"a cpu.limit": 1.5, "a tasks": 50, "a memory.max": 64 << 20}) {
		t.Errorf("scrapers get the limits %v", limits)
	}
	s.must(api.Request{Verb: "release", All: true})
	s.sampled("no group", func(one *observe.Sample) bool { return len(one.Groups) == 0 && one.Revision == 0 })
	if at := s.group(id.PID); at != "-" {
		t.Errorf("released, the process is in %s", at)
	}
}

// Memory of a group on the nodes of the host is, within 1 %, what the group is charged for memory without files.
func TestSampledNodes(t *testing.T) {
	if _, err := os.Stat("/proc/self/numa_maps"); err != nil {
		if _, err := os.Stat("/sys/devices/system/node"); err == nil {
			t.Fatal("this kernel has NUMA, and no /proc/self/numa_maps")
		}
		t.Skip("this kernel has no NUMA: there is no /sys/devices/system/node")
	}
	s := newSite(t)
	argument, rule := mark(61037)
	waits := filepath.Join(t.TempDir(), argument)
	if err := unix.Mkfifo(waits, 0o600); err != nil {
		t.Fatal(err)
	}
	const buffer = 50_000_000 // is in memory when somebody reads, and stays there
	testhost.Spawn(t, "dd", "if=/dev/zero", fmt.Sprint("bs=", buffer), "count=1", "of="+waits)
	s.startWith(Options{Every: every, Full: 200 * time.Millisecond, Sample: 100 * time.Millisecond})
	s.apply("groups:\n  a: {match: [{cmdline: '" + strings.TrimPrefix(rule, "^sleep ") + "'}], memory: {max: 1GiB}}\n")
	s.sampled("the group", func(one *observe.Sample) bool {
		return len(one.Groups) == 1 && one.Groups[0].Processes > 0
	})
	reader, err := os.OpenFile(waits, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var on, charged int64
	defer func() { t.Logf("%d bytes on nodes, %d charged", on, charged) }()
	s.sampled("its memory on nodes", func(one *observe.Sample) bool {
		if len(one.Groups) != 1 || one.Groups[0].Usage.Memory.Anonymous == nil {
			return false
		}
		g := &one.Groups[0]
		on, charged = 0, *g.Usage.Memory.Anonymous
		if shared := g.Usage.Memory.Shared; shared != nil {
			charged += *shared
		}
		for _, pages := range g.Nodes {
			on += pages[observe.PagesUsual] + pages[observe.PagesTransparent]
		}
		return charged > buffer && on > charged*99/100 && on < charged*101/100
	})
	s.must(api.Request{Verb: "release", All: true})
}

// Collectors are switched while the agent runs: the next sample has what they tell, an unknown name changes nothing,
// and a restart neither.
func TestCollectors(t *testing.T) {
	ctx := context.Background()
	s := newSite(t)
	options := Options{Every: every, Full: 200 * time.Millisecond, Sample: 100 * time.Millisecond}
	s.startWith(options)
	has := func(what string, want, not observe.Part) {
		t.Helper()
		s.sampled(what, func(one *observe.Sample) bool { return one.Has(want) && !one.Has(not) })
	}
	s.sampled("every collector but the one that has to be asked for", func(one *observe.Sample) bool {
		for _, p := range observe.Parts {
			if one.Has(p) == (p == observe.Blamed) {
				return false
			}
		}
		return len(one.Host.Figures) > 0
	})
	if _, err := s.client.SwitchCollectors(ctx, collect.Change{Verb: collect.Set,
		Names: []string{"diskstats", "meminfo"}, For: time.Hour}); err != nil {
		t.Fatal(err)
	}
	has("disks and no CPU", observe.DiskStats, observe.CPU)
	_, err := s.client.SwitchCollectors(ctx, collect.Change{Verb: collect.Enable, Names: []string{"cpu", "no-such"}})
	if api.CodeOf(err) != api.CodeUsage || api.HintOf(err) == "" {
		t.Errorf("an unknown name: %v", err)
	}
	has("disks and no CPU, still", observe.DiskStats, observe.CPU)
	s.stop()
	s.startWith(options)
	has("disks and no CPU after a restart", observe.DiskStats, observe.CPU)
	all, err := s.client.Collectors(ctx)
	if err != nil || len(all) != len(observe.Parts) {
		t.Fatalf("%d collectors: %v", len(all), err)
	}
	for _, c := range all {
		if on := c.Name == observe.DiskStats || c.Name == observe.MemInfo; c.On != on || c.Until == nil {
			t.Errorf("after a restart: %+v", c)
		}
	}
	if _, err := s.client.SwitchCollectors(ctx, collect.Change{Verb: collect.Reset}); err != nil {
		t.Fatal(err)
	}
	has("CPU after a reset", observe.CPU, "")
}

// How long a group waits is counted wherever there is a cgroup2, beside v1 too.
func TestWaiting(t *testing.T) {
	s := newSite(t)
	argument, rule := mark(61032)
	busy := "^sh -c while :; do :; done " + strings.TrimPrefix(rule, "^sleep ")
	s.startWith(Options{Every: every, Full: 200 * time.Millisecond, Sample: 100 * time.Millisecond})
	for range 2 * runtime.NumCPU() {
		testhost.Spawn(t, "sh", "-c", "while :; do :; done", argument)
	}
	s.apply("groups:\n  a: {match: [{cmdline: '" + busy + "'}], cpu: {limit: 50%}}\n")
	s.sampled("threads that wait and are switched", func(one *observe.Sample) bool {
		if len(one.Groups) != 1 || one.Groups[0].Threads == nil {
			return false
		}
		did := one.Groups[0].Threads
		return did.Waited != nil && *did.Waited > 0 && did.Involuntary > 0
	})
	cgroup2 := slices.ContainsFunc(testhost.Hierarchies(t), func(h host.Hierarchy) bool { return h.Version == 2 })
	if _, err := os.Stat("/proc/pressure/cpu"); err != nil || !cgroup2 {
		t.Skip("this kernel does not count how long groups wait")
	}
	var first int64
	s.sampled("a wait", func(one *observe.Sample) bool {
		if len(one.Groups) != 1 || one.Groups[0].Usage.Pressure["cpu"].Some == nil {
			return false
		}
		now := one.Groups[0].Usage.Pressure["cpu"].Some.Total
		first = cmp.Or(first, now)
		return now > first
	})
	s.must(api.Request{Verb: "release", All: true})
}
