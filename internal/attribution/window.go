package attribution

import (
	"path"
	"slices"
	"time"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
	"bulkhead/internal/policy"
)

// Parts are the collectors whose figures a window is made of.
var Parts = []observe.Part{observe.CPU, observe.Pressure, observe.IO, observe.Memory, observe.MemoryStat, observe.Tasks,
	observe.Threads, observe.EachCPU, observe.Network, observe.Limits, observe.Stat, observe.MemInfo, observe.VMStat,
	observe.DiskStats, observe.Blamed}

// WithoutBPF are those that the kernel's files tell.
var WithoutBPF = slices.DeleteFunc(slices.Clone(Parts), func(p observe.Part) bool { return p == observe.Blamed })

// Between makes a window of what was known at two times, in this order.
func Between(before, after record.Tick) *Window {
	w := WindowOf((*top.State)(nil).Next(before).Next(after))
	w.From, w.To = before.At, after.At
	return w
}

// WindowOf takes the figures of a window out of a state: the rates between its last two readings.
func WindowOf(s *top.State) *Window {
	w := &Window{From: from(s), To: s.At, Holders: s.Holders}
	w.Host.EachCPU, w.Host.Disks = byNumber(s, "bulkhead_host_cpu_each_seconds_total", ""), map[string]Disk{}
	if n := value(s, "bulkhead_host_cpus", ""); n != nil {
		w.Host.CPUs = int(*n)
	}
	for _, f := range s.Figures("bulkhead_host_vm_events_total", "") {
		switch event := f.Labels[0]; {
		case !f.Rated:
		case event == "pgfault":
			w.Host.Faults = &f.Rate
		case event == "pgscan_kswapd" || event == "pgscan_direct": // others tell the same once more
			w.Host.Scanned = sum(w.Host.Scanned, &f.Rate)
		}
	}
	for metric, why := range map[string]*string{observe.CountsWaits: &w.Host.NotCounting,
		observe.CountsDisks: &w.Host.NotCountingDisks, observe.CountsReclaim: &w.Host.NotCountingReclaim} {
		for _, f := range s.Figures(metric, "") {
			if f.Value == 0 {
				*why = f.Labels[0]
			}
		}
	}
	disks(s, w.Host.Disks)
	groups := s.Groups()
	known := map[string]int{}
	for _, g := range groups {
		known[g.Name] = len(w.Groups)
		w.Groups = append(w.Groups, groupOf(s, g))
	}
	// Names are sorted: what is taken off a group is whole until those below it were taken off itself.
	whole := make([]Group, len(w.Groups))
	copy(whole, w.Groups)
	for i := range whole {
		for above := path.Dir(whole[i].Name); above != "."; above = path.Dir(above) {
			if at, there := known[above]; there {
				w.Groups[at].without(&whole[i])
				w.Groups[at].Above = true
				break
			}
		}
	}
	for i := range w.Groups {
		for above := path.Dir(w.Groups[i].Name); above != "."; above = path.Dir(above) {
			if at, there := known[above]; there {
				w.Groups[i].Throttled += whole[at].Throttled * whole[i].wanted(&whole[at])
			}
		}
	}
	return w
}

// from is the newest of the times since which rates are.
func from(s *top.State) (at time.Time) {
	for _, p := range Parts {
		if before := s.Before(p); before.After(at) {
			at = before
		}
	}
	return at
}

// holders are the limits that held v back, or a group above it.
func (w *Window) holders(v *Group) []top.Holder {
	if w.Holders == nil {
		return nil
	}
	return w.Holders(v.Name)
}

// wanted is the part of what a group above wanted to run that g did: so much of what a limit held back there was its.
func (g *Group) wanted(above *Group) float64 {
	if g.CPU == nil || g.Waited == nil || above.CPU == nil || above.Waited == nil || *above.CPU+*above.Waited <= 0 {
		return 1
	}
	return min(1, max(0, (*g.CPU+*g.Waited)/(*above.CPU+*above.Waited)))
}

func groupOf(s *top.State, of top.Group) Group {
	g := Group{Name: of.Name, Role: of.Role, Engine: of.Engine, Pressure: map[string]float64{}, IO: map[string]IO{},
		CPU:      rate(s, "bulkhead_group_cpu_seconds_total", of.Name),
		EachCPU:  byNumber(s, "bulkhead_group_cpu_each_seconds_total", of.Name),
		Waited:   rate(s, "bulkhead_group_cpu_waiting_seconds_total", of.Name),
		Faults:   rate(s, "bulkhead_group_threads_faults_total", of.Name),
		Refaults: rate(s, "bulkhead_group_memory_refaults_total", of.Name),
		HasHigh:  value(s, "bulkhead_group_memory_high_hits_total", of.Name) != nil,
	}
	for metric, to := range map[string]*float64{"bulkhead_group_threads": &g.Threads,
		"bulkhead_group_memory_charged_bytes": &g.Memory} {
		if v := value(s, metric, of.Name); v != nil {
			*to = *v
		}
	}
	if g.EachCPU == nil {
		g.EachCPU = g.scaled(byNumber(s, "bulkhead_group_threads_run_seconds_total", of.Name))
		g.Seen = g.EachCPU != nil
	}
	if v := rate(s, "bulkhead_group_cpu_throttled_seconds_total", of.Name); v != nil {
		g.Throttled = *v
	}
	for _, f := range s.Figures("bulkhead_group_limit_held", of.Name) {
		g.Idle = g.Idle || f.Labels[0] == string(policy.KeyCPUIdle) && f.Value == 1
	}
	for _, f := range s.Figures("bulkhead_group_cpus", of.Name) {
		g.CPUs, _ = idset.Parse(f.Labels[0]) // one that cannot be read restricts nothing
	}
	for _, f := range s.Figures("bulkhead_group_pressure_seconds_total", of.Name) {
		if f.Rated && f.Labels[1] == "some" {
			g.Pressure[f.Labels[0]] = min(f.Rate, 1)
		}
	}
	each(s, "bulkhead_group_io_bytes_total", of.Name, func(device, direction string, rate float64) {
		io := g.IO[device]
		*io.bytes(direction) = rate
		g.IO[device] = io
	})
	each(s, "bulkhead_group_io_operations_total", of.Name, func(device, direction string, rate float64) {
		io := g.IO[device]
		*io.requests(direction) = rate
		g.IO[device] = io
	})
	each(s, "bulkhead_group_threads_io_bytes_total", of.Name, func(direction, _ string, rate float64) {
		if g.Tasks == nil {
			g.Tasks = &IO{}
		}
		*g.Tasks.bytes(direction) = rate
	})
	each(s, "bulkhead_group_threads_io_operations_total", of.Name, func(direction, _ string, rate float64) {
		if g.Tasks != nil {
			*g.Tasks.requests(direction) = rate
		}
	})
	g.Blame, g.DiskBlame, g.Reclaim = blameOf(s, of.Name), diskBlameOf(s, of.Name), reclaimOf(s, of.Name)
	return g
}

// blameOf is what was counted of whom a group waited for; nil where that was not counted twice.
func blameOf(s *top.State, group string) *Blame {
	b := &Blame{}
	groups, rest, known := blamed(s, group, observe.BlamedSeconds, observe.SuspectSeconds, map[string]*float64{
		observe.BlamedLimit: &b.Limited, observe.BlamedOwn: &b.Own, observe.BlamedOutside: &b.Outside,
		observe.BlamedNobody: &b.Nobody})
	if !known {
		return nil
	}
	b.Groups = groups
	b.Nobody += rest
	return b
}

// diskBlameOf is the same of disks.
func diskBlameOf(s *top.State, group string) *DiskBlame {
	b := &DiskBlame{}
	groups, rest, known := blamed(s, group, observe.DiskBlamedSeconds, observe.DiskSuspectSeconds,
		map[string]*float64{observe.BlamedService: &b.Service, observe.BlamedOwn: &b.Own,
			observe.BlamedOutside: &b.Outside, observe.BlamedWritten: &b.WrittenBack})
	if !known {
		return nil
	}
	b.Groups, b.Nobody = groups, rest
	return b
}

// reclaimOf is how long a group was in reclaim; nil where that was not counted twice.
func reclaimOf(s *top.State, group string) *Reclaim {
	why := map[string]float64{}
	each(s, observe.ReclaimSeconds, group, func(kind, _ string, rate float64) { why[kind] = rate })
	if len(why) < 2 {
		return nil
	}
	return &Reclaim{why[observe.ReclaimLimit], why[observe.ReclaimHost]}
}

// blamed fills in the rates of rows of a metric, and gives those of other groups one by one, and of groups of which
// each has too little to be listed.
func blamed(s *top.State, group, metric, suspects string, rows map[string]*float64) (groups map[string]float64,
	rest float64, known bool) {
	rows[observe.BlamedGroups] = &rest
	left := len(rows)
	for _, f := range s.Figures(metric, group) {
		if to := rows[f.Labels[0]]; to != nil && f.Rated {
			*to = f.Rate
			left--
		}
	}
	groups = map[string]float64{}
	for _, f := range s.Figures(suspects, group) {
		if !f.Rated { // it was not listed before
			continue
		}
		rate := min(f.Rate, rest)
		groups[f.Labels[0]] = rate
		rest -= rate
	}
	return groups, rest, left <= 0
}

// scaled brings what its threads used of each CPU to what the group used: threads that ended are not in the former.
func (g *Group) scaled(each map[int]float64) map[int]float64 {
	var all float64
	for _, used := range each {
		all += used
	}
	if g.CPU == nil || all <= 0 {
		return nil
	}
	for id := range each {
		each[id] *= *g.CPU / all
	}
	return each
}

// disks fills in what block devices did.
func disks(s *top.State, all map[string]Disk) {
	each(s, "bulkhead_host_disk_bytes_total", "", func(device, direction string, rate float64) {
		d := all[device]
		*d.bytes(direction) = rate
		all[device] = d
	})
	each(s, "bulkhead_host_disk_operations_total", "", func(device, direction string, rate float64) {
		d := all[device]
		*d.requests(direction) = rate
		all[device] = d
	})
	each(s, "bulkhead_host_disk_operation_seconds_total", "", func(device, _ string, rate float64) {
		d := all[device]
		d.Seconds += rate
		all[device] = d
	})
}

// each gives the rates of a metric by device and direction.
func each(s *top.State, metric, group string, do func(device, direction string, rate float64)) {
	for _, f := range s.Figures(metric, group) {
		if f.Rated {
			do(f.Labels[0], f.Labels[len(f.Labels)-1], f.Rate)
		}
	}
}

// byNumber gives the rates of a metric by CPU; nil where there are none.
func byNumber(s *top.State, metric, group string) map[int]float64 {
	var all map[int]float64
	for _, f := range s.Figures(metric, group) {
		ids, err := idset.Parse(f.Labels[0])
		if !f.Rated || err != nil || len(ids) != 1 {
			continue
		}
		if all == nil {
			all = map[int]float64{}
		}
		all[ids[0]] = f.Rate
	}
	return all
}

func rate(s *top.State, metric, group string) *float64 {
	for _, f := range s.Figures(metric, group) {
		if f.Rated {
			return &f.Rate
		}
	}
	return nil
}

func value(s *top.State, metric, group string) *float64 {
	for _, f := range s.Figures(metric, group) {
		return &f.Value
	}
	return nil
}

func sum(a, b *float64) *float64 {
	if a == nil {
		return b
	}
	return new(*a + *b)
}
