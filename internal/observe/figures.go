package observe

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
)

// one is a row with a single figure.
func one(value func(s *Sample) float64) func(*Sample, Tell) {
	return func(s *Sample, tell Tell) { tell(value(s)) }
}

// agentCount is a row that counts what the agent did since it started.
func agentCount(name, help string, value func(*Agent) int64) Row {
	return Row{Name: "bulkhead_agent_" + name + "_total", Part: OfAgent, Kind: metrics.Counter, Source: "the agent",
		Help: help, sample: one(func(s *Sample) float64 { return float64(value(&s.Agent)) })}
}

func trials(s *Sample, tell Tell) {
	for _, t := range []struct {
		is   bool
		kind string
	}{{s.Agent.Guarded, "guard"}, {s.Agent.Confirms, "confirm"}} {
		n := 0.0
		if t.is {
			n = 1
		}
		tell(n, t.kind)
	}
}

func slowest(s *Sample, tell Tell) {
	if p := s.Agent.Placement; p != nil {
		tell(p.Slowest.Seconds())
	}
}

func hostPressure(s *Sample, tell Tell) {
	for _, resource := range slices.Sorted(maps.Keys(s.Host.Pressure)) {
		p := s.Host.Pressure[resource]
		if p.Some != nil {
			tell(float64(p.Some.Total)/1e6, resource, "some")
		}
		if p.Full != nil {
			tell(float64(p.Full.Total)/1e6, resource, "full")
		}
	}
}

func hostCPUs(s *Sample, tell Tell) {
	if s.Host.CPUs > 0 {
		tell(float64(s.Host.CPUs))
	}
}

func hostCPU(s *Sample, tell Tell) {
	tell(s.Host.Busy.Seconds(), "busy")
	tell(s.Host.Idle.Seconds(), "idle")
}

// eachCPU tells a time for each CPU, by its number.
func eachCPU(all map[int]time.Duration, tell Tell) {
	for _, id := range slices.Sorted(maps.Keys(all)) {
		tell(all[id].Seconds(), strconv.Itoa(id))
	}
}

// memoryKinds are those of /proc/meminfo that are shown.
var memoryKinds = []struct{ kind, name string }{
	{"total", "MemTotal"}, {"available", "MemAvailable"}, {"free", "MemFree"}, {"cached", "Cached"},
	{"dirty", "Dirty"}, {"writeback", "Writeback"}, {"swap_total", "SwapTotal"}, {"swap_free", "SwapFree"},
	{"committed", "Committed_AS"}, {"page_tables", "PageTables"}, {"huge", "Hugetlb"},
}

// MemoryOf picks what is shown of /proc/meminfo.
func MemoryOf(info map[string]int64) map[string]int64 {
	shown := make(map[string]int64, len(memoryKinds))
	for _, k := range memoryKinds {
		if n, known := info[k.name]; known {
			shown[k.name] = n
		}
	}
	return shown
}

func hostMemory(s *Sample, tell Tell) {
	for _, k := range memoryKinds {
		if n, known := s.Host.Memory[k.name]; known {
			tell(float64(n), k.kind)
		}
	}
}

// promised is a row of what a group's database is promised.
func promised(value func(*api.SLO) *float64) func(*Sample, *Group, Tell) {
	return func(_ *Sample, g *Group, tell Tell) {
		if g.SLO == nil {
			return
		}
		if v := value(g.SLO); v != nil {
			tell(*v, g.SLO.Signal)
		}
	}
}

// held is when the last of the groups that are lowered would end.
func held(s *api.SLO) (last *float64) {
	for _, h := range s.Held {
		if h.Ends != nil && (last == nil || float64(h.Ends.Unix()) > *last) {
			last = new(float64(h.Ends.Unix()))
		}
	}
	return last
}

func groupTasks(_ *Sample, g *Group, tell Tell) {
	if g.Tasks != nil {
		tell(float64(g.Tasks.Running), "runnable")
		tell(float64(g.Tasks.Blocked), "blocked")
	}
}

func groupLoad(_ *Sample, g *Group, tell Tell) {
	if g.Load != nil {
		tell(g.Load[0])
	}
}

func groupWaiting(_ *Sample, g *Group, tell Tell) {
	if g.Threads != nil && g.Threads.Waited != nil {
		tell(g.Threads.Waited.Seconds())
	}
}

// statements is a row with a figure of each bucket of response times.
func statements(value func(*Statements) float64) func(*Sample, *Group, Tell) {
	return func(_ *Sample, g *Group, tell Tell) {
		if g.Work == nil {
			return
		}
		for i := range g.Work.Statements {
			upTo := "+Inf"
			if s := &g.Work.Statements[i]; s.UpTo > 0 {
				upTo = strconv.FormatFloat(s.UpTo.Seconds(), 'g', -1, 64)
			}
			tell(value(&g.Work.Statements[i]), upTo)
		}
	}
}

func groupSwitches(_ *Sample, g *Group, tell Tell) {
	if g.Threads != nil {
		tell(float64(g.Threads.Voluntary), "voluntary")
		tell(float64(g.Threads.Involuntary), "involuntary")
	}
}

func networkBytes(_ *Sample, g *Group, tell Tell) {
	if t := g.Traffic; t != nil && t.Counted {
		tell(float64(t.Out.Bytes), "egress")
		tell(float64(t.In.Bytes), "ingress")
	}
}

// interfaces is a row with a figure of each interface that counts for the group's limits.
func interfaces(value func(*metrics.InterfaceTraffic) float64) func(*Sample, *Group, Tell) {
	return func(_ *Sample, g *Group, tell Tell) {
		if g.Traffic == nil {
			return
		}
		for i := range g.Traffic.On {
			if on := &g.Traffic.On[i]; !on.Policed {
				tell(value(on), on.Device, on.Direction)
			}
		}
	}
}

func notInForce(_ *Sample, g *Group, tell Tell) {
	n := 0
	for i := range g.Limits {
		if l := &g.Limits[i]; !l.InForce && !l.Void {
			n++
		}
	}
	tell(float64(n))
}

// limits is a row with a figure of each limit.
func limits(value func(*Limit) *float64) func(*Sample, *Group, Tell) {
	return func(_ *Sample, g *Group, tell Tell) {
		for i := range g.Limits {
			l := &g.Limits[i]
			told := func(o Limit) bool { return o.Key == l.Key && o.Device == l.Device && value(&o) != nil }
			if n := value(l); n != nil && !slices.ContainsFunc(g.Limits[:i], told) {
				tell(*n, l.Key, l.Device)
			}
		}
	}
}
