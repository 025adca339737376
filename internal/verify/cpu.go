package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How long loads work before they are measured: a throttle that was idle lets the first requests through, a connection
// fills its buffers.
const (
	warmUp    = 300 * time.Millisecond
	warmUpNet = 700 * time.Millisecond
)

// cpuProbes measure limits on CPU time.
type cpuProbes struct{ *run }

// tick is the kernel's at its slowest usual rate (CONFIG_HZ=250).
const tick = 4 * time.Millisecond

// mostThreads is how many threads burn CPU at most.
const mostThreads = 256

// The files of CPU time that a load beside a group does not get: it is to disturb nobody more than its measurement
// needs.
var (
	cpuWeights = []string{"cpu.shares", "cpu.weight", "cpu.idle"}
	cpuQuotas  = []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.max", "cpu.max.burst"}
)

// limit measures how much CPU there is alone, and on which CPUs.
func (p cpuProbes) limit(g classify.Group) *Measurement {
	limit, limited := g.Settings.Get(policy.KeyCPULimit, "")
	cores, limited2 := limit.Value.(policy.Cores)
	limited = limited && limited2
	set, bound := p.set(g)
	if !limited && !bound {
		return nil
	}
	l := &Measurement{Key: policy.KeyCPULimit, Takes: warmUp + p.o.Span}
	if !limited {
		l.Key = set.Key
	}
	threads := min(len(p.snap.Facts.CPUs), mostThreads)
	l.What = fmt.Sprintf("%d threads burn CPU", threads)
	l.run = func(ctx context.Context) (all []Result) {
		var a probe.Answer
		pl, err := p.place(g.Path)
		err = p.loads.with(ctx, pl, err, func(load Load) (err error) {
			spin := &probe.Spin{Threads: threads, Warm: warmUp, Span: p.o.Span}
			a, err = load.Do(ctx, probe.Order{Spin: spin}, l.Takes)
			return err
		})
		if limited {
			r := p.result(g.Path, limit, "alone")
			if err != nil {
				r = r.failed(err)
			} else {
				got := a.CPU.Seconds() / a.Took.Seconds()
				// A quota is charged by the tick: on each CPU one may be on either side of the moments between which is
				// measured.
				grain := float64(len(p.snap.Facts.CPUs)) * tick.Seconds() / a.Took.Seconds()
				rate := probe.Rate{
					Asked: cores.Float(), InForce: p.snap.coresInForce(g.Path), Measured: got, Grain: grain,
				}
				r = r.judged(rate, fmt.Sprintf("%.3f cores", got), a.Took, p.why(g.Path, limit))
			}
			all = append(all, r)
		}
		if bound {
			all = append(all, p.cpusSeen(g.Path, set, a, err))
		}
		return all
	}
	if p.o.Inside {
		l.Where = "inside"
	}
	return l
}

// place is where a load burns CPU.
func (p cpuProbes) place(group string) (*place, error) {
	if p.o.Inside {
		return p.places.inside(group, "cpu", "cpuset")
	}
	return p.places.beside(group, recipe{
		controllers: []string{"cpu", "cpuset"}, without: []string{"cpu.idle"},
		values: map[string]string{"cpu.shares": "2", "cpu.weight": "1"}, // the load gives way to everybody
	})
}

// set is the setting that says on which CPUs a group may run.
func (p cpuProbes) set(g classify.Group) (policy.Setting, bool) {
	for _, key := range []policy.Key{policy.KeyCPUCPUs, policy.KeyCPUNUMA} {
		if s, ok := g.Settings.Get(key, ""); ok {
			if _, ok := s.Value.(policy.IDs); ok {
				return s, true
			}
		}
	}
	return policy.Setting{}, false
}

// cpusSeen judges on which CPUs a load might run, and ran.
func (p cpuProbes) cpusSeen(group string, s policy.Setting, a probe.Answer, err error) Result {
	r := p.result(group, s, "alone")
	var asked idset.Set
	for _, w := range p.snap.wanted(group, s) {
		if strings.HasPrefix(w.File().Name, "cpuset.cpus") {
			asked, _ = idset.Parse(w.Value)
		}
	}
	if err == nil && len(asked) == 0 {
		err = errors.New("no file of the kernel holds it")
	}
	if err != nil {
		return r.failed(err)
	}
	r.Measured, r.Verdict = "may run on "+idset.Set(a.May).String()+", ran on "+idset.Set(a.Ran).String(), probe.Held
	if more := probe.Wider(asked, append(slices.Clone(a.May), a.Ran...)); len(more) > 0 {
		slices.Sort(more)
		r.Verdict = probe.NotEnforced
		r.Reason = fmt.Sprintf("CPU %s is open to it, too; %s", idset.Set(slices.Compact(more)),
			p.snap.why(group, s, false))
	}
	return r
}

// weight measures which part of a contended CPU a group's weight gives it, beside a rival of another weight.
func (p cpuProbes) weight(g classify.Group) *Measurement {
	s, ok := g.Settings.Get(policy.KeyCPUWeight, "")
	idle, isIdle := g.Settings.Get(policy.KeyCPUIdle, "")
	if v, is := idle.Value.(policy.Flag); isIdle && is && bool(v) && len(p.snap.wanted(g.Path, idle)) > 0 {
		s, ok = idle, true
	}
	wants := p.snap.wanted(g.Path, s)
	if !ok || len(wants) == 0 {
		return nil
	}
	if p.o.Inside {
		p.leave(g.Path, s, "a weight is measured beside the group, against a rival of ours, not inside")
		return nil
	}
	l := &Measurement{Key: s.Key, Takes: warmUp + p.o.Span}
	l.What = "two threads contend for one CPU, one with the group's weight and one with another"
	l.run = func(ctx context.Context) []Result {
		asked, theirs := p.rival(s, wants)
		contend := func(alike bool) (c probe.Contest, err error) {
			if alike {
				theirs = p.ours()
			}
			c.Asked = asked
			c.Measured, c.Took, err = p.contend(ctx, g.Path, theirs)
			return c, err
		}
		return []Result{contended(p.result(g.Path, s, "contended"), p.why(g.Path, s), contend)}
	}
	return l
}

// ours is a directory like that of the group, without the limits that would keep its load from contending.
func (p cpuProbes) ours() recipe {
	return recipe{controllers: []string{"cpu", "cpuset"}, without: cpuQuotas}
}

// rival is the directory of who contends with a group, and the part that the group's weight gives it beside that one.
func (p cpuProbes) rival(s policy.Setting, wants []plan.Wanted) (asked float64, theirs recipe) {
	row, want := wants[0].Row, wants[0].Value
	theirs = p.ours()
	if s.Key == policy.KeyCPUIdle { // a rival of the usual weight
		theirs.without = append(slices.Clone(cpuQuotas), cpuWeights...)
		return probe.ShareOf(3, 1024), theirs
	}
	theirs.without = append(slices.Clone(cpuQuotas), "cpu.idle")
	file, low, high := "cpu.weight", int64(1), int64(10000)
	if row.Version == 1 {
		file, low, high = "cpu.shares", 2, 1<<18
	}
	rival := probe.Rival(int64(knob.ParseNumber(want)), low, high)
	theirs.values = map[string]string{file: strconv.FormatInt(rival, 10)}
	return probe.ShareOf(knob.ParseNumber(want), float64(rival)), theirs
}

// contend has two loads contend for one CPU, in a directory like the group's and in a rival's, and gives the part that
// the first one got.
func (p cpuProbes) contend(ctx context.Context, group string, theirs recipe) (
	got float64, took time.Duration, err error,
) {
	var cpu [2]time.Duration
	spin := &probe.Spin{Threads: 1, On: []int{p.oneCPU(group)}, Warm: warmUp, Span: p.o.Span}
	answers, err := p.rivals(ctx, group, p.ours(), theirs, probe.Order{Spin: spin}, warmUp+p.o.Span)
	if err != nil {
		return 0, 0, err
	}
	for i, a := range answers {
		cpu[i], took = a.CPU, max(took, a.Took)
		if a.Took > 0 { // both over the same span
			cpu[i] = time.Duration(float64(a.CPU) / a.Took.Seconds() * p.o.Span.Seconds())
		}
	}
	if cpu[0]+cpu[1] < p.o.Span/leastContended {
		text := "others left the two too little of that CPU to tell their parts"
		if above := p.snap.idleAbove(group); above != "" {
			text += ": " + above + " is 1, so that whatever else is busy on the host goes first"
		}
		return 0, 0, errors.New(text)
	}
	return probe.ShareOf(float64(cpu[0]), float64(cpu[1])), took, nil
}

// leastContended: two loads that contend for a CPU have to get a quarter of it together. Of less, the parts are chance.
const leastContended = 4

// oneCPU is a CPU on which a group may run, the last one: the first has more interrupts to serve.
func (p cpuProbes) oneCPU(group string) int {
	cpus := p.snap.Facts.CPUs
	if h, ok := p.snap.Facts.HierarchyOf("cpuset"); ok {
		if own, ok := p.snap.Layout.Own(group)[h.ID]; ok {
			text, err := p.snap.Tree.Read(own.File("cpuset.cpus"))
			if set, err2 := idset.Parse(text); err == nil && err2 == nil && len(set) > 0 {
				cpus = set
			}
		}
	}
	return cpus[len(cpus)-1]
}
