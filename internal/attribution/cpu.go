package attribution

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/observe/top"
)

// cpu divides the time for which threads of v could run and had no CPU.
//
// In U CPU-seconds of each second threads of v were runnable on a CPU. In R of them one of its threads ran there, in T
// its limit held it back, in C somebody else ran. On average n = (W+R)/U threads were runnable, W waiting. So its limit
// has T·n of W, others have C·n, and its own threads, all but the one that ran, R·(n-1): W together. Only C is not
// counted: others ran when v did not want to, too. It is at most what they used of the CPUs of v; of that the part when
// v was throttled does not count, nor what they used when no thread of v waited, which PSI bounds.
// Of groups that yield to v nothing counts: they ran when v did not want to.
func cpu(w *Window, v *Group) Resource {
	if v.Blame != nil && v.CPU != nil {
		return cpuCounted(w, v)
	}
	one := Resource{Name: "cpu", Source: "`schedstat` of threads", Grade: Counted}
	if v.Waited == nil || v.CPU == nil {
		one.Source = "the collectors cpu and threads have not read twice, or this kernel has no schedstat"
		one.Grade = ""
		return one
	}
	waited, ran := max(*v.Waited, 0), max(*v.CPU, 0)
	one.Waited = waited
	one.Part = partOfCPU(waited, ran)
	on := share(w, v)
	one.Source += "; " + on.source
	if w.Host.NotCounting != "" {
		one.Source += "; no BPF programs count (" + w.Host.NotCounting + ")"
	}
	contended := contended(v, on, waited, ran)
	b := &blame{}
	n := 0.0
	if all := v.Throttled + ran + contended; all > 0 {
		n = (waited + ran) / all
	}
	if n < 1 { // it did not always want to run
		b.limit = min(waited, v.Throttled)
		contended = waited - b.limit
		n = 1
	} else {
		n = min(n, max(v.Threads, 1))
		b.limit = min(waited, n*v.Throttled)
		b.own = (n - 1) * ran
		contended *= n
	}
	b.others = map[string]float64{}
	if on.weight > 0 {
		for name, weight := range on.weights {
			b.others[name] = contended * weight / on.weight
		}
		b.outside = contended * on.outside / on.weight
	}
	return resource(one, b, func(row *Row) {
		if row.Who == OwnLimit && n <= 1 {
			row.Grade = Counted
		}
		w.describeCPU(v, on, row)
	})
}

// cpuCounted is what BPF programs counted of that: for each time that a thread of v waited on a CPU, who ran there
// meanwhile. A limit of its own has the part in which the kernel held the group back.
func cpuCounted(w *Window, v *Group) Resource {
	one := Resource{Name: "cpu", Source: "BPF programs on the switches of threads", Grade: Counted}
	c := v.Blame
	one.Waited = c.Limited + c.Own + c.Outside + c.Nobody
	b := &blame{limit: c.Limited, own: c.Own, outside: c.Outside, others: map[string]float64{}}
	for name, d := range c.Groups {
		one.Waited += d
		b.others[name] = d
	}
	one.Part = partOfCPU(one.Waited, max(*v.CPU, 0))
	on := share(w, v)
	return resource(one, b, func(row *Row) {
		row.Grade = Counted
		w.describeCPU(v, on, row)
	})
}

// describeCPU says what a row did on the CPUs of v.
func (w *Window) describeCPU(v *Group, on *usage, row *Row) {
	switch row.Who {
	case Other:
		g := w.group(row.Group)
		row.Role, row.Engine = g.Role, g.Engine
		if g.CPU == nil {
			return
		}
		row.Did = fmt.Sprintf("uses %s CPUs, %s of them where %s runs", cores(*g.CPU), cores(on.used[g.Name]),
			v.Name)
		if g.Threads > 0 {
			row.Did += ", with " + counted(g.Threads, "thread")
		}
		if *g.CPU >= 0.1 && !g.Above {
			row.Command = top.Command(g.Name, "cpu.limit", "",
				strconv.FormatFloat(math.Ceil(*g.CPU*5)/10, 'f', -1, 64))
		}
	case Outside:
		row.Did = fmt.Sprintf("the kernel and processes of no group use %s CPUs there", cores(on.usedOutside))
	case OwnLimit:
		row.Did, row.Command = w.holds(v, "cpu.limit")
	case OwnLoad:
		row.Did = fmt.Sprintf("its own %s use %s CPUs and wait for each other", counted(v.Threads, "thread"),
			cores(max(*v.CPU, 0)))
	}
}

// contended are the seconds in which others ran on a CPU where threads of v waited.
func contended(v *Group, on *usage, waited, ran float64) float64 {
	others := on.usedOutside
	for name := range on.weights {
		others += on.used[name]
	}
	if free := on.cpus - ran; v.Throttled > 0 && free > 0 {
		others *= max(0, 1-v.Throttled/free)
	}
	if some, known := v.Pressure["cpu"]; known && others > 0 {
		own := ran
		if v.Threads <= 1 {
			own = 0 // it runs or waits
		}
		waiting := max(0, some*on.cpus-v.Throttled)
		others = min(others, max(waiting*others/(others+own), (waited-v.Throttled)/max(v.Threads, 1)))
	}
	return max(0, others)
}

// usage is what others use of the CPUs of a group.
type usage struct {
	cpus   float64 // how many CPUs the group runs on
	source string
	// used are CPU-seconds on them, and weights the same by how much the group itself runs on each, without those that
	// yield to it; weight is the sum of these, those outside of all groups included.
	used, weights        map[string]float64
	usedOutside, outside float64
	weight               float64
}

// rare is the part of a group's CPU time below which it does not count as running on a CPU.
const rare = 0.01

// share finds what others use of the CPUs on which v runs.
func share(w *Window, v *Group) *usage {
	on := &usage{used: map[string]float64{}, weights: map[string]float64{}}
	may := func(g *Group, id int) bool { return len(g.CPUs) == 0 || g.CPUs.Contains(id) }
	presence, sum := map[int]float64{}, 0.0
	for id, ran := range v.EachCPU {
		if may(v, id) {
			presence[id] = ran
			sum += ran
		}
	}
	each := sum > 0
	if each {
		on.source = "CPU time by CPU from `cpuacct.usage_percpu`"
		if v.Seen {
			on.source = "CPU time by CPU from where threads were seen"
		}
		for id, ran := range presence {
			if presence[id] = ran / sum; presence[id] < rare {
				delete(presence, id)
			}
		}
	} else {
		on.source = "CPU time by CPU is not told: spread over the CPUs on which each may run"
		for id := range w.cpus() {
			if may(v, id) {
				presence[id] = 1
			}
		}
		for id := range presence {
			presence[id] = 1 / float64(len(presence))
		}
	}
	on.cpus = float64(len(presence))
	left := map[int]float64{}
	for id := range presence {
		left[id] = w.Host.EachCPU[id]
	}
	for i := range w.Groups {
		g := &w.Groups[i]
		for id, used := range g.spread(w) {
			part, is := presence[id]
			if !is {
				continue
			}
			left[id] -= used
			if g.Name == v.Name {
				continue
			}
			on.add(g.Name, used, part, w.yields(g, v))
		}
	}
	for id, used := range left {
		if used > 0 {
			on.usedOutside += used
			on.outside += used * presence[id]
			on.weight += used * presence[id]
		}
	}
	return on
}

// add adds what a group used of a CPU on which the part of v's time is that it runs there.
func (on *usage) add(group string, used, part float64, yields bool) {
	on.used[group] += used
	if !yields {
		on.weights[group] += used * part
		on.weight += used * part
	}
}

// yields says whether the scheduler takes a CPU from g at once when a thread of v wakes up there: where the paths of
// both part, the one that g is in is idle, and the one that v is in is not (find_matching_se, kernel/sched/fair.c).
func (w *Window) yields(g, v *Group) bool {
	return w.group(parting(g.Name, v.Name)).Idle && !w.group(parting(v.Name, g.Name)).Idle
}

// parting is the first group on the path of a group that is not on that of another one; "" where all are.
func parting(of, other string) string {
	at := ""
	for name := range strings.SplitSeq(of, "/") {
		if at = path.Join(at, name); at != other && !strings.HasPrefix(other, at+"/") {
			return at
		}
	}
	return ""
}

// spread is what a group used of each CPU; where only the sum is told, the same of each on which it may run.
func (g *Group) spread(w *Window) map[int]float64 {
	if g.CPU == nil || *g.CPU <= 0 {
		return nil
	}
	if len(g.EachCPU) > 0 {
		return g.EachCPU
	}
	all := map[int]float64{}
	for id := range w.cpus() {
		if len(g.CPUs) == 0 || g.CPUs.Contains(id) {
			all[id] = 0
		}
	}
	for id := range all {
		all[id] = *g.CPU / float64(len(all))
	}
	return all
}

// cpus are the CPUs of the host.
func (w *Window) cpus() map[int]float64 {
	if len(w.Host.EachCPU) > 0 {
		return w.Host.EachCPU
	}
	all := map[int]float64{}
	for id := range w.Host.CPUs {
		all[id] = 0
	}
	return all
}

// partOfCPU is the part of the time, in which a group ran or could have run, that it waited for CPUs; both are seconds
// in a second. Who waits for less than a hundredth of a second hardly runs: it is the part of the whole time then, and
// less than Harm.
func partOfCPU(waited, ran float64) float64 {
	if waited < 0.01 {
		return waited
	}
	return waited / (waited + ran)
}
