// Package sampler samples what groups, databases and the machine use while an arm of a proof runs, and makes figures of
// it. A [Sampler] reads on a goroutine of its own between Start and Stop; Figures and Series are for afterwards, Kills
// for any time.
package sampler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/metrics"
	"bulkhead/internal/proof"
)

// reading is what counters said at one moment.
type reading struct {
	at       time.Time
	groups   map[string]metrics.Sample
	database map[string]processUse
	activity host.Activity
	free     int64 // bytes of memory that could be allocated
	between  bool  // it was asked for, between those of each second
}

// Sampler reads what groups, databases and the machine use, every second and whenever asked.
type Sampler struct {
	Host        *host.Host
	Tree        *cgroup.Tree
	Hierarchies []host.Hierarchy
	Groups      []string
	Databases   []*database.Instance
	// members gives processes that are in a group, to find where it is.
	Members func(group string) []int
	// prefixes are what stands before a group's name in the paths of groups that are not systemd's.
	Prefixes []string
	// governed says that the groups are there.
	Governed bool
	// changing says that a policy comes or goes meanwhile.
	Changing bool
	Traffic  *TrafficMeter    // nil: of no interest
	Killed   map[string]int64 // OOM kills of groups before the arm, by name: where the policy stays, so do the groups
	Nodes    []int            // NUMA nodes of which it is of interest how much memory of databases is there

	mu       sync.Mutex
	places   map[string]map[string]string // by group: its path in each hierarchy
	readings []reading
	errs     []error
	where    map[string]map[int]int64 // the memory of each database by NUMA node at the end, bytes
	stopping chan struct{}
	gone     chan struct{}
}

// Start reads once and then every second until stop.
func (s *Sampler) Start(ctx context.Context) {
	s.places, s.stopping, s.gone = map[string]map[string]string{}, make(chan struct{}), make(chan struct{})
	s.read(false)
	if s.Traffic != nil {
		s.Traffic.start(ctx)
	}
	go func() {
		defer close(s.gone)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-s.stopping:
				return
			case <-ctx.Done():
				return
			case <-t.C:
				s.read(false)
			}
		}
	}()
}

// Stop reads a last time.
func (s *Sampler) Stop() error {
	close(s.stopping)
	<-s.gone
	s.read(false)
	if len(s.Nodes) > 0 {
		s.readNodes()
	}
	if s.Traffic != nil {
		// A limit that comes and goes may be too short to be met.
		if err := s.Traffic.stop(); !s.Changing {
			s.errs = append(s.errs, err)
		}
	}
	return errors.Join(s.errs...)
}

// Read reads now, beside what is read every second.
func (s *Sampler) Read() { s.read(true) }

func (s *Sampler) read(between bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := reading{at: time.Now(), between: between, groups: map[string]metrics.Sample{},
		database: map[string]processUse{}}
	var err error
	if r.activity, err = s.Host.Activity(); err != nil {
		s.errs = append(s.errs, err)
	}
	if info, err := s.Host.MemInfo(); err == nil {
		r.free = info["MemFree"]
	}
	for _, in := range s.Databases {
		if pid := in.PID(); pid > 0 {
			// One that ends meanwhile is not read: its group still is.
			if use, err := useOf(s.Host.Proc, pid); err == nil {
				r.database[in.Name] = use
			}
		}
	}
	if s.Governed {
		for _, g := range s.Groups {
			if sample := s.group(g); sample.Found {
				r.groups[g] = sample
			}
		}
	}
	s.readings = append(s.readings, r)
}

// readNodes notes where the memory of databases is.
func (s *Sampler) readNodes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.where = map[string]map[int]int64{}
	for _, in := range s.Databases {
		if pid := in.PID(); pid > 0 {
			nodes, err := pagemap.ByNode(s.Host.Proc, pid)
			if err != nil {
				s.errs = append(s.errs, err)
			}
			s.where[in.Name] = nodes
		}
	}
}

// group samples one group in all hierarchies.
func (s *Sampler) group(name string) metrics.Sample {
	// While policies change, a group gets directories in further hierarchies.
	if s.Changing || s.places[name] == nil {
		s.find(name)
	}
	var dirs [][]cgroup.Dir
	for hierarchy, path := range s.places[name] {
		dirs = append(dirs, []cgroup.Dir{{Hierarchy: hierarchy, Path: path}})
	}
	sample := metrics.Sample{At: time.Now()}
	sample.Usage, sample.Found = metrics.Group{Dirs: dirs}.Read(s.Tree)
	return sample
}

// Kills are the OOM kills that groups had in all when they were read last, by name.
func (s *Sampler) Kills() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	kills := map[string]int64{}
	for _, r := range s.readings {
		for name, u := range r.groups {
			if n := u.Usage.Memory.OOMKills; n != nil {
				kills[name] = *n
			}
		}
	}
	return kills
}

// find looks where a group is, by a process that is in it: slices of systemd, directories of ours and of a peer alike.
// A member that is not there yet is in a directory that does not bear the name.
func (s *Sampler) find(name string) bool {
	// Without systemd the place is known, also while a member that its limit killed is not there.
	for _, prefix := range s.Prefixes {
		path := prefix + name
		places := map[string]string{}
		for _, h := range s.Hierarchies {
			if there, err := s.Tree.Exists(cgroup.Dir{Hierarchy: h.ID, Path: path}); err == nil && there {
				places[h.ID] = path
			}
		}
		if len(places) > 0 {
			s.places[name] = places
			return true
		}
	}
	pids := s.Members(name)
	if len(pids) == 0 {
		return false
	}
	processes, err := s.Host.Proc.Processes(procfs.Options{PIDs: pids})
	if err != nil {
		return false
	}
	for _, p := range processes {
		places := map[string]string{}
		for hierarchy, path := range p.Cgroups {
			if at := upTo(path, name); at != "" {
				places[hierarchy] = at
			}
		}
		if len(places) > 0 {
			s.places[name] = places
			return true
		}
	}
	return false
}

// upTo cuts a path behind the element that bears the group's name; "" when none does. The keepers and leaves below it
// are part of the group.
func upTo(path, name string) string {
	var at strings.Builder
	for element := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at.WriteString("/" + element)
		plain := strings.TrimSuffix(element, ".slice")
		plain = plain[strings.LastIndexByte(plain, '-')+1:]
		if plain == name {
			return at.String()
		}
	}
	return ""
}

// window are the readings of a span: those that are nearest to its begin and to its end.
func (s *Sampler) window(from, to time.Time) (first, last reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, last = s.readings[0], s.readings[0]
	for _, r := range s.readings {
		if r.at.Sub(from).Abs() <= first.at.Sub(from).Abs() {
			first = r
		}
		if r.at.Sub(to).Abs() < last.at.Sub(to).Abs() {
			last = r
		}
	}
	return first, last
}

// appeared is the first sample of a group in a span, where it had none at its begin. One that came while policies
// change was made in the span, and counts from nothing.
func (s *Sampler) appeared(name string, first, last reading) metrics.Sample {
	for _, r := range s.inside(first.at, last.at) {
		if sample, there := r.groups[name]; there && !s.Changing {
			return sample
		}
	}
	return metrics.Sample{At: first.at}
}

// inside are the readings of a span, without the one at its begin.
func (s *Sampler) inside(from, to time.Time) (readings []reading) {
	for _, r := range s.readings {
		if r.at.After(from) && !r.at.After(to) {
			readings = append(readings, r)
		}
	}
	return readings
}

// level is the load average that the machine would come to if all went on as in some readings: the number of tasks that
// run or are in state D (also where they wait for no disk, which /proc/stat does not count). The kernel moves its
// average of a minute every 5 s by 1-exp(-5/60) of the way towards that number, so it is known from two of these moves;
// NaN without.
func level(readings []reading) float64 {
	from, to := -1, -1
	for i := 1; i < len(readings); i++ {
		if readings[i].activity.Load != readings[i-1].activity.Load {
			if to = i; from < 0 {
				from = i
			}
		}
	}
	if from < 0 || from == to {
		return math.NaN()
	}
	a, b := readings[from], readings[to]
	moves := math.Round(float64(b.at.Sub(a.at)) / float64(metrics.LoadEvery))
	keep := math.Exp(-moves * float64(metrics.LoadEvery) / float64(time.Minute))
	return max(0, (b.activity.Load-a.activity.Load*keep)/(1-keep))
}

func amount(n *int64) float64 {
	if n == nil {
		return math.NaN()
	}
	return float64(*n)
}

// groupFigures are the figures of one group between two samples. One that was not there at the first counts from
// nothing.
func groupFigures(before, after metrics.Sample, idleCores float64) map[string]float64 {
	d := after.Since(before)
	f := map[string]float64{
		"cpu":         d.Rate(d.CPU.Total) / 1e6,
		"throttled":   100 * d.Rate(d.CPU.Throttled) / 1e6,
		"memory":      amount(d.Memory.Current),
		"memory_peak": amount(d.Memory.Peak),
		"swap":        amount(d.Memory.Swap),
		"oom_kills":   amount(after.Usage.Memory.OOMKills),
	}
	if d.IO != nil {
		io := d.AllIO()
		f["read"], f["written"] = d.Rate(&io.ReadBytes), d.Rate(&io.WrittenBytes)
		f["read_ops"], f["write_ops"] = d.Rate(&io.Reads), d.Rate(&io.Writes)
	}
	for resource, p := range d.Pressure {
		if p.Some != nil {
			f[resource+"_pressure"] = 100 * d.Rate(&p.Some.Total) / 1e6
		}
	}
	// What the group got of what nobody else used.
	f["conservation"] = 100 * f["cpu"] / (f["cpu"] + idleCores)
	return f
}

// databaseFigures are the same of one server's process, which is there without any group too.
func databaseFigures(before, after processUse, span time.Duration) map[string]float64 {
	return map[string]float64{
		"cpu":     (after.CPU - before.CPU).Seconds() / span.Seconds(),
		"memory":  float64(after.Resident),
		"read":    float64(after.Read-before.Read) / span.Seconds(),
		"written": float64(after.Written-before.Written) / span.Seconds(),
	}
}

// Figures are all figures of a span, by name: FIGURE of the machine, GROUP.FIGURE and DATABASE.FIGURE.
func (s *Sampler) Figures(from, to time.Time) map[string]float64 {
	f := s.Traffic.figures(from, to)
	first, last := s.window(from, to)
	span := last.at.Sub(first.at)
	f["load"], f["memory_free"] = last.activity.Load, float64(last.free)
	if span <= 0 {
		return f
	}
	f["idle"] = (last.activity.Idle - first.activity.Idle).Seconds() / span.Seconds()
	f["busy"] = (last.activity.Busy - first.activity.Busy).Seconds() / span.Seconds()
	inside := s.inside(first.at, last.at)
	f["load_level"] = level(inside)
	for _, r := range inside {
		f["blocked"] += float64(r.activity.Blocked) / float64(len(inside))
		for name, use := range r.database {
			f[name+".blocked"] += float64(use.Blocked) / float64(len(inside))
		}
	}
	for name, nodes := range s.where {
		var whole int64
		for _, bytes := range nodes {
			whole += bytes
		}
		if whole == 0 {
			continue
		}
		for _, node := range s.Nodes {
			f[fmt.Sprintf("%s.node%d", name, node)] = 100 * float64(nodes[node]) / float64(whole)
		}
	}
	for name, after := range last.groups {
		before, was := first.groups[name]
		if !was {
			before = s.appeared(name, first, last)
		}
		if before.At.Equal(after.At) {
			continue
		}
		for figure, x := range groupFigures(before, after, f["idle"]) {
			f[name+"."+figure] = x
		}
		if n := after.Usage.Memory.OOMKills; n != nil {
			f[name+".oom_kills"] = float64(metrics.Grown(s.Killed[name], *n))
		}
	}
	for name, after := range last.database {
		before, was := first.database[name]
		if !was {
			continue
		}
		for figure, x := range databaseFigures(before, after, span) {
			if _, taken := f[name+"."+figure]; !taken {
				f[name+"."+figure] = x
			}
		}
	}
	return f
}

// Series is every second of groups, databases and the machine.
func (s *Sampler) Series(began time.Time) (map[string][]proof.GroupSecond, []proof.HostSecond) {
	groups := map[string][]proof.GroupSecond{}
	var machine []proof.HostSecond
	steady := slices.DeleteFunc(slices.Clone(s.readings), func(r reading) bool { return r.between })
	for i := 1; i < len(steady); i++ {
		from, to := steady[i-1].at, steady[i].at
		if to.Sub(from) < 500*time.Millisecond {
			continue // the last one comes right behind that of its second
		}
		at := to.Sub(began).Seconds()
		f := s.Figures(from, to)
		fig := func(name string) proof.Figure {
			if x, found := f[name]; found {
				return proof.Figure(x)
			}
			return proof.Figure(math.NaN())
		}
		machine = append(machine, proof.HostSecond{At: at, Load: fig("load"),
			Blocked: proof.Figure(steady[i].activity.Blocked), Idle: fig("idle"), Free: fig("memory_free")})
		names := map[string]bool{}
		for name := range steady[i].groups {
			names[name] = true
		}
		for name := range steady[i].database {
			names[name] = true
		}
		for name := range names {
			groups[name] = append(groups[name], proof.GroupSecond{
				At: at, CPU: fig(name + ".cpu"), Memory: fig(name + ".memory"), Swap: fig(name + ".swap"),
				Read: fig(name + ".read"), Written: fig(name + ".written"), Sent: fig(name + ".sent"),
				Received: fig(name + ".received"),
			})
		}
	}
	return groups, machine
}
