package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/metrics"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
)

// How long loads work before they are measured: a throttle that was idle lets the first requests through, a connection fills its buffers.
const (
	warmUp    = 300 * time.Millisecond
	warmUpNet = 700 * time.Millisecond
)

// tick is the kernel's at its slowest usual rate (CONFIG_HZ=250).
const tick = 4 * time.Millisecond

// mostProbeThreads is how many threads burn CPU at most.
const mostProbeThreads = 256

// The files of CPU time that a load beside a group does not get: it is to disturb nobody more than its measurement needs.
var (
	cpuWeights = []string{"cpu.shares", "cpu.weight", "cpu.idle"}
	cpuQuotas  = []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us", "cpu.max", "cpu.max.burst"}
)

// cpuLoad measures how much CPU there is alone, and on which CPUs.
func (p *prober) cpuLoad(g classify.Group) *ProbeLoad {
	limit, limited := g.Settings.Get(policy.KeyCPULimit, "")
	cores, limited2 := limit.Value.(policy.Cores)
	limited = limited && limited2
	set, bound := p.cpuSet(g)
	if !limited && !bound {
		return nil
	}
	l := &ProbeLoad{Key: policy.KeyCPULimit, Takes: warmUp + p.o.Span}
	if !limited {
		l.Key = set.Key
	}
	threads := min(len(p.v.Facts.CPUs), mostProbeThreads)
	l.What = fmt.Sprintf("%d threads burn CPU", threads)
	l.run = func(ctx context.Context) (all []Probed) {
		var a probe.Answer
		pl, err := p.cpuPlace(g.Path)
		err = p.with(ctx, pl, err, func(load *probe.Load) (err error) {
			a, err = load.Do(ctx, probe.Order{Spin: &probe.Spin{Threads: threads, Warm: warmUp, Span: p.o.Span}}, l.Takes)
			return err
		})
		if limited {
			r := p.result(g.Path, limit, "alone")
			if err != nil {
				r = r.failed(err)
			} else {
				got := a.CPU.Seconds() / a.Took.Seconds()
				// A quota is charged by the tick: on each CPU one may be on either side of the moments between which is measured.
				rate := probe.Rate{Asked: cores.Float(), InForce: p.coresInForce(g.Path), Measured: got, Grain: float64(len(p.v.Facts.CPUs)) * tick.Seconds() / a.Took.Seconds()}
				r = r.judged(rate, fmt.Sprintf("%.3f cores", got), a.Took, func() string { return p.why(g.Path, limit, false) })
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

func (p *prober) cpuPlace(group string) (*place, error) {
	if p.o.Inside {
		return p.inside(group, "cpu", "cpuset")
	}
	return p.beside(group, recipe{controllers: []string{"cpu", "cpuset"}, without: []string{"cpu.idle"}, values: map[string]string{"cpu.shares": "2", "cpu.weight": "1"}})
}

// cpuSet is the setting that says on which CPUs a group may run.
func (p *prober) cpuSet(g classify.Group) (policy.Setting, bool) {
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
func (p *prober) cpusSeen(group string, s policy.Setting, a probe.Answer, err error) Probed {
	r := p.result(group, s, "alone")
	var asked idset.Set
	for _, w := range wantedFor(p.v, group, s) {
		if strings.HasPrefix(w.File, "cpuset.cpus") {
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
		r.Reason = fmt.Sprintf("CPU %s is open to it, too; %s", idset.Set(slices.Compact(more)), p.why(group, s, false))
	}
	return r
}

// coresInForce is the CPU limit that the kernel's files hold; 0 is not known.
func (p *prober) coresInForce(group string) float64 {
	h, ok := p.v.Facts.HierarchyOf("cpu")
	own, ok2 := p.v.Layout.Own(group)[h.ID]
	if !ok || !ok2 {
		return 0
	}
	files, err := p.v.Tree.ReadMany(own, []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"})
	if err != nil {
		return 0
	}
	quota, period := files["cpu.cfs_quota_us"], files["cpu.cfs_period_us"]
	if h.Version == 2 {
		quota, period, _ = strings.Cut(files["cpu.max"], " ")
	}
	each := number(period)
	if each <= 0 || math.IsInf(each, 1) {
		return 0
	}
	return number(quota) / each
}

// number reads an amount from a file of the kernel: +Inf is no limit, 0 not known.
func number(text string) float64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	switch {
	case strings.TrimSpace(text) == "max" || err == nil && (n < 0 || n >= math.MaxInt64/2):
		return math.Inf(1)
	case err != nil:
		return 0
	}
	return float64(n)
}

// weightLoad measures which part of a contended CPU a group's weight gives it, beside a rival of another weight.
func (p *prober) weightLoad(g classify.Group) *ProbeLoad {
	s, ok := g.Settings.Get(policy.KeyCPUWeight, "")
	idle, isIdle := g.Settings.Get(policy.KeyCPUIdle, "")
	if v, is := idle.Value.(policy.Flag); isIdle && is && bool(v) && len(wantedFor(p.v, g.Path, idle)) > 0 {
		s, ok = idle, true
	}
	wants := wantedFor(p.v, g.Path, s)
	if !ok || len(wants) == 0 {
		return nil
	}
	if p.o.Inside {
		p.leave(g.Path, s, "a weight is measured beside the group, against a rival of ours, not inside")
		return nil
	}
	l := &ProbeLoad{Key: s.Key, Takes: warmUp + p.o.Span, What: "two threads contend for one CPU, one with the group's weight and one with another"}
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "contended")
		asked, got, took, err := p.contendCPU(ctx, g.Path, s, wants)
		if err != nil {
			return []Probed{r.failed(err)}
		}
		return []Probed{r.shared(probe.Share{Asked: asked, Measured: got}, took, func() string { return p.why(g.Path, s, false) })}
	}
	return l
}

// shared fills in what a share came to.
func (r Probed) shared(s probe.Share, took time.Duration, why func() string) Probed {
	d := s.Measured - s.Asked
	r.Asked = fmt.Sprintf("%s: %.1f %% beside a rival", r.Asked, 100*s.Asked)
	r.Verdict, r.Measured, r.Difference, r.Took = s.Judge(), fmt.Sprintf("%.1f %%", 100*s.Measured), &d, took
	if r.Verdict.Fault() {
		r.Reason = why()
	}
	return r
}

func (p *prober) contendCPU(ctx context.Context, group string, s policy.Setting, wants []plan.Wanted) (asked, got float64, took time.Duration, err error) {
	row, want := wants[0].Row, wants[0].Value
	values := map[string]string{}
	switch {
	case s.Key == policy.KeyCPUIdle: // a rival of the usual weight
		asked, values = probe.ShareOf(3, 1024), nil
	case row.Version == 1:
		rival := probe.Rival(int64(number(want)), 2, 1<<18)
		asked, values["cpu.shares"] = probe.ShareOf(number(want), float64(rival)), strconv.FormatInt(rival, 10)
	default:
		rival := probe.Rival(int64(number(want)), 1, 10000)
		asked, values["cpu.weight"] = probe.ShareOf(number(want), float64(rival)), strconv.FormatInt(rival, 10)
	}
	controllers := []string{"cpu", "cpuset"}
	without := slices.Clone(cpuQuotas)
	ours, err := p.beside(group, recipe{controllers: controllers, without: without})
	if err != nil {
		return 0, 0, 0, err
	}
	defer ours.close()
	if values == nil {
		without = append(without, cpuWeights...)
	} else {
		without = append(without, "cpu.idle")
	}
	theirs, err := p.beside(group, recipe{controllers: controllers, without: without, values: values})
	if err != nil {
		return 0, 0, 0, err
	}
	defer theirs.close()
	var cpu [2]time.Duration
	spin := &probe.Spin{Threads: 1, On: []int{p.oneCPU(group)}, Warm: warmUp, Span: p.o.Span}
	answers, err := p.together(ctx, []*place{ours, theirs}, probe.Order{Spin: spin}, warmUp+p.o.Span)
	if err != nil {
		return 0, 0, 0, err
	}
	for i, a := range answers {
		cpu[i], took = a.CPU, max(took, a.Took)
		if a.Took > 0 { // both over the same span
			cpu[i] = time.Duration(float64(a.CPU) / a.Took.Seconds() * p.o.Span.Seconds())
		}
	}
	if cpu[0]+cpu[1] < p.o.Span/leastContended {
		return 0, 0, 0, errors.New("others left the two too little of that CPU to tell their parts")
	}
	return asked, probe.ShareOf(float64(cpu[0]), float64(cpu[1])), took, nil
}

// leastContended is which part of a CPU two loads that contend for it have to get together, at least a quarter: of less the parts are chance.
const leastContended = 4

// oneCPU is a CPU on which a group may run, the last one: the first has more interrupts to serve.
func (p *prober) oneCPU(group string) int {
	cpus := p.v.Facts.CPUs
	if h, ok := p.v.Facts.HierarchyOf("cpuset"); ok {
		if own, ok := p.v.Layout.Own(group)[h.ID]; ok {
			text, err := p.v.Tree.Read(own.File("cpuset.cpus"))
			if set, err2 := idset.Parse(text); err == nil && err2 == nil && len(set) > 0 {
				cpus = set
			}
		}
	}
	return cpus[len(cpus)-1]
}

// together has a load in each place do the same at the same time.
func (p *prober) together(ctx context.Context, places []*place, o probe.Order, takes time.Duration) ([]probe.Answer, error) {
	return p.togetherAs(ctx, places, func(int) probe.Order { return o }, takes)
}

func (p *prober) togetherAs(ctx context.Context, places []*place, order func(i int) probe.Order, takes time.Duration) (answers []probe.Answer, err error) {
	var loads []*probe.Load
	defer func() {
		for _, l := range loads {
			l.Close()
		}
	}()
	for _, pl := range places {
		l, err := p.start(ctx, pl)
		if err != nil {
			return nil, err
		}
		loads = append(loads, l)
	}
	for i, l := range loads {
		if err := l.Begin(order(i)); err != nil {
			return nil, err
		}
	}
	for _, l := range loads {
		a, err := l.Wait(ctx, takes)
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// memoryLoad measures how much memory a load gets: with memory that the kernel may take back, which it does at a limit, nothing is killed.
func (p *prober) memoryLoad(g classify.Group, s policy.Setting) *ProbeLoad {
	asked, ok := s.Value.(policy.Bytes)
	if !ok || len(wantedFor(p.v, g.Path, s)) == 0 {
		return nil
	}
	most := int64(mostProbeMemory)
	if info, err := p.c.Host.MemInfo(); err == nil {
		most = min(most, info["MemAvailable"]/4)
	}
	beyond := int64(asked) + max(int64(asked)/10, 4<<20)
	if beyond > most {
		p.leave(g.Path, s, "a probe takes at most %s of memory here", policy.Bytes(most).Human())
		return nil
	}
	hard := p.o.Destructive && s.Key == policy.KeyMemoryMax
	l := &ProbeLoad{Key: s.Key, Takes: time.Second, What: fmt.Sprintf("a process touches %s in steps, which the kernel may take back", policy.Bytes(beyond).Human())}
	if hard {
		l.What = fmt.Sprintf("a process touches %s in steps and keeps them, which ends in its kill", policy.Bytes(beyond).Human())
	}
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "to the limit")
		if hard {
			r.How = "over the limit"
		}
		begin := time.Now()
		peak, killed, err := p.touch(ctx, g.Path, beyond, hard)
		if err != nil {
			return []Probed{r.failed(err)}
		}
		rate := probe.Rate{Asked: float64(asked), InForce: p.inForce(g.Path, policy.Settings{s}), Measured: float64(peak), Grain: 1 << 20}
		r = r.judged(rate, policy.Bytes(peak).Human(), time.Since(begin), func() string { return p.why(g.Path, s, false) })
		if killed && !r.Verdict.Fault() {
			r.Reason = "the kernel killed the load there, and nothing else"
		}
		return []Probed{r}
	}
	return l
}

// touch has a load touch memory beside a group, and gives the most that was charged.
func (p *prober) touch(ctx context.Context, group string, beyond int64, hard bool) (peak int64, killed bool, err error) {
	pl, err := p.beside(group, recipe{controllers: []string{"memory"}})
	err = p.with(ctx, pl, err, func(l *probe.Load) error {
		const steps = 24
		step := (beyond/steps + 4095) / 4096 * 4096
		for done := int64(0); done < beyond; done += step {
			_, err := l.Do(ctx, probe.Order{Touch: &probe.Touch{Bytes: step, Hard: hard}}, time.Second)
			killed = errors.Is(err, probe.ErrEnded)
			if err != nil && !killed {
				return err
			}
			if killed { // the last step did not end: what was charged before it is known, and it was in force
				peak = max(peak, min(done+step, peak+step))
				return nil
			}
			u, err := metrics.Read(p.v.Tree, pl.into[0])
			if err != nil || u.Memory.Current == nil {
				return fmt.Errorf("read how much is charged: %w", err)
			}
			peak = max(peak, *u.Memory.Current)
		}
		return nil
	})
	return peak, killed, err
}

// tasksLoad measures how many tasks there may be.
func (p *prober) tasksLoad(g classify.Group, s policy.Setting) *ProbeLoad {
	asked, ok := s.Value.(policy.Count)
	if !ok || len(wantedFor(p.v, g.Path, s)) == 0 {
		return nil
	}
	beyond := int(asked) + int(asked)/16 + 8
	if beyond > probe.MostTasks {
		p.leave(g.Path, s, "a probe starts at most %d tasks", probe.MostTasks)
		return nil
	}
	l := &ProbeLoad{Key: s.Key, Takes: time.Second, What: fmt.Sprintf("a process starts up to %d others that sleep", beyond)}
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, "to the limit")
		var a probe.Answer
		pl, err := p.beside(g.Path, recipe{controllers: []string{"pids"}})
		err = p.with(ctx, pl, err, func(load *probe.Load) (err error) {
			a, err = load.Do(ctx, probe.Order{Fork: &probe.Fork{Tasks: beyond}}, 2*time.Second)
			return err
		})
		if errors.Is(err, probe.ErrEnded) {
			err = errors.New("the limit leaves the load's own threads no room")
		}
		if err != nil {
			return []Probed{r.failed(err)}
		}
		if a.Refused && a.Ops == 0 { // its own threads are more already
			a.Count = min(a.Count, int(asked))
		}
		rate := probe.Rate{Asked: float64(asked), InForce: p.inForce(g.Path, policy.Settings{s}), Measured: float64(a.Count), Grain: 0.5}
		return []Probed{r.judged(rate, strconv.Itoa(a.Count)+" tasks", a.Took, func() string { return p.why(g.Path, s, false) })}
	}
	return l
}

// inForce sums up what the kernel's files hold of settings that share a limit; 0 is not known.
func (p *prober) inForce(group string, all policy.Settings) (sum float64) {
	for _, s := range all {
		for _, w := range wantedFor(p.v, group, s) {
			text, err := p.v.Tree.Read(w.Dir.File(w.File))
			if err != nil || w.Setting.Key != s.Key && !w.Row.PerDevice {
				continue
			}
			n := amount(w.Row, s.Key, w.Row.Line(text, w.Key))
			if n == 0 {
				return 0
			}
			sum += n
			break
		}
	}
	return sum
}

// asked sums up what the kernel's files ought to hold of settings that share a limit.
func (p *prober) asked(group string, all policy.Settings) (sum float64) {
	for _, s := range all {
		for _, w := range wantedFor(p.v, group, s) {
			sum += amount(w.Row, s.Key, w.Value)
			break
		}
	}
	return sum
}

// amount reads a limit from the text of a file: +Inf is none, 0 not known.
func amount(row *knob.Row, key policy.Key, text string) float64 {
	if row.File == "io.max" {
		fields := map[policy.Key]string{
			policy.KeyIOReadBandwidth: "rbps", policy.KeyIOWriteBandwidth: "wbps", policy.KeyIOReadIOPS: "riops", policy.KeyIOWriteIOPS: "wiops",
		}
		for field := range strings.FieldsSeq(text) {
			if name, value, _ := strings.Cut(field, "="); name == fields[key] {
				return number(value)
			}
		}
		return math.Inf(1)
	}
	text = row.Parse(text)
	if row.PerDevice && (text == "" || text == "0") {
		return math.Inf(1)
	}
	return number(text)
}

// trafficLoad measures how fast a load in the group sends or receives through an interface.
func (p *prober) trafficLoad(g classify.Group, s policy.Setting) *ProbeLoad {
	asked, ok := s.Value.(policy.BitRate)
	if !ok || s.Dev == "" {
		return nil
	}
	const loopback = "lo"
	switch {
	case !p.o.Inside:
		p.leave(g.Path, s, "what is sent and received is counted for the group itself: --inside measures it there, from the group's own budget")
		return nil
	case p.o.Peer == "" && s.Dev != loopback:
		p.leave(g.Path, s, "it takes a peer beyond %s: `bulkhead verify --listen :PORT` there, and --peer ADDRESS:PORT here", s.Dev)
		return nil
	case p.byPorts(g.Path, s):
		p.leave(g.Path, s, "the group's traffic is told by the ports that it listens on, which a load has not")
		return nil
	}
	send := s.Key == policy.KeyNetworkEgressMax
	l := &ProbeLoad{Key: s.Key, On: limitOf(p.v, g.Path, s).On, Device: s.Dev, Where: "inside", Takes: warmUpNet + p.o.Span}
	l.Bytes = min(mostProbeBytes, int64(2*float64(asked)/8*l.Takes.Seconds())+8<<20)
	l.What = fmt.Sprintf("4 connections with %s %s", p.o.Peer, map[bool]string{true: "send", false: "receive"}[send])
	l.run = func(ctx context.Context) []Probed {
		r := p.result(g.Path, s, map[bool]string{true: "sent", false: "received"}[send])
		r.Device = s.Dev
		a, err := p.transfer(ctx, g.Path, &probe.Traffic{Peer: p.o.Peer, Send: send, Most: l.Bytes, Warm: warmUpNet, Span: p.o.Span}, l.Takes)
		if err == nil && !p.goesThrough(a.Local, s.Dev) {
			err = fmt.Errorf("the way to %s does not lead through %s, but from %s", p.o.Peer, s.Dev, a.Local)
		}
		if err != nil {
			return []Probed{r.failed(err)}
		}
		got := 8 * float64(a.Bytes) / a.Took.Seconds()
		held, _ := heldFor(p.v, g.Path, s)
		rate := probe.Rate{Asked: float64(asked), InForce: float64(held.Max), Measured: got, Tolerance: probe.Tolerance}
		if held.Policed {
			rate.Tolerance = probe.ToleranceBuffered
		}
		return []Probed{r.judged(rate, fmt.Sprintf("%.1f Mbit/s", got/1e6), a.Took, func() string { return p.why(g.Path, s, false) })}
	}
	return l
}

// transfer has a load in the group's own directories send or receive. Without a peer it is one of ours, on this host.
func (p *prober) transfer(ctx context.Context, group string, t *probe.Traffic, takes time.Duration) (a probe.Answer, err error) {
	if t.Peer == "" {
		var stop func()
		if t.Peer, stop, err = localSink(ctx); err != nil {
			return a, err
		}
		defer stop()
	}
	pl, err := p.insideUnified(group)
	err = p.with(ctx, pl, err, func(l *probe.Load) (err error) {
		a, err = l.Do(ctx, probe.Order{Traffic: t}, takes)
		return err
	})
	return a, err
}

// insideUnified is where the group's own processes are in cgroup2: traffic is told apart there.
func (p *prober) insideUnified(group string) (*place, error) {
	h, ok := p.v.Facts.Unified()
	d, there := p.v.Layout.Member(group)[h.ID]
	units := p.v.Layout.Outside(group, h.ID)
	switch {
	case !ok || !there && len(units) == 0:
		return nil, errNoDir
	case len(units) > 0:
		d = units[0]
	case p.systemds(h, group):
		return &place{tree: p.v.Tree, enter: group}, nil
	}
	return &place{tree: p.v.Tree, into: []cgroup.Dir{d}}, nil
}

// byPorts says whether the traffic of a group is told by the ports that it listens on alone.
func (p *prober) byPorts(group string, s policy.Setting) bool {
	for _, w := range p.v.Plan.Network {
		for _, g := range w.Groups {
			if w.Device == s.Dev && g.Name == group {
				return g.Cgroup == "" || s.Key == policy.KeyNetworkIngressMax && len(g.Ports) > 0
			}
		}
	}
	return false
}

// goesThrough says whether a connection from an address of ours leads through an interface.
func (p *prober) goesThrough(local, device string) (through bool) {
	from, ok := addressOf(local)
	if !ok {
		return true // cannot be told
	}
	err := p.c.withNetwork(func(k *netshape.Kernel) error {
		names, err := k.LinksFrom(from)
		through = slices.Contains(names, device) || len(names) == 0
		return err
	})
	return err != nil || through
}
