package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"
)

// Options of Probe.
type Options struct {
	Groups []string // none: all
	// Inside has loads share the group's own budget; else they get directories beside the group's, with the same
	// limits.
	Inside bool
	// Destructive goes over limits on memory with memory that cannot be taken back, which ends in a kill of the load.
	Destructive bool
	Peer        string        // ADDRESS:PORT of `verify --listen`, for limits on interfaces
	Span        time.Duration // of one measurement; 0 is 2 s
	// Agent says that an agent runs: it shares limits by use.
	Agent bool
	// Begin is told what will be done before the first load starts; an error ends it there.
	Begin func(Plan) error
}

// The bounds of a measurement's span, and the usual one.
const (
	LeastSpan = 500 * time.Millisecond
	MostSpan  = 10 * time.Second
	usualSpan = 2 * time.Second
)

// What a probe takes at most.
const (
	mostBytes      = 1 << 30  // read or written by one load
	mostMemory     = 1 << 30  // touched by one load, and no more than a quarter of what is available
	mostFile       = 16 << 20 // size of a file that is read
	mostDirtyBytes = 256 << 20
)

// Prober measures limits.
type Prober struct {
	Host  *host.Host
	Self  procfs.ID // this process: what it makes is removed when it is gone
	Start Start
	// Ways names the interfaces through which what is sent from an address of this host leaves.
	Ways func(from netip.Addr) ([]string, error)
	// Sweep removes what earlier probes, and loads of this one that were slow to end, left behind.
	Sweep func() error
	Log   *slog.Logger
}

// Check says what is wrong with the options.
func (o Options) Check() error {
	if o.Span != 0 && (o.Span < LeastSpan || o.Span > MostSpan) {
		return fmt.Errorf("a span of %s: a measurement takes %s to %s", o.Span, LeastSpan, MostSpan)
	}
	return nil
}

// Probe measures what the kernel enforces of the limits of groups, with short loads of its own. What differs in what
// was read back is among the results, measured or not.
func (p *Prober) Probe(ctx context.Context, v *Snapshot, groups []classify.Group, back []Reading, o Options) (
	[]Result, error,
) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.Span = cmp.Or(o.Span, usualSpan)
	r := &run{
		Prober: p, snap: v, o: o, left: map[limitID]string{},
		places: placer{v, p.Self}, loads: launcher{p.Host, v.Tree, p.Start},
	}
	var all []Measurement
	for _, g := range groups {
		all = append(all, r.measurements(g)...)
	}
	if o.Begin != nil {
		if err := o.Begin(r.plan(all, back)); err != nil {
			return nil, err
		}
	}
	if err := p.Sweep(); err != nil {
		return nil, fmt.Errorf("remove what an earlier probe left: %w", err)
	}
	defer func() {
		if err := p.Sweep(); err != nil {
			p.Log.Warn("what the probe made is removed by the next one", "err", err)
		}
	}()
	var results []Result
	for _, m := range all {
		results = append(results, repeated(ctx, m)...)
		if err := context.Cause(ctx); err != nil {
			return nil, fmt.Errorf("probe %s of %s: %w", m.Key, m.Group, err)
		}
	}
	return r.withReadBack(results, back), nil
}

// tries is how often something is measured that comes out wrong with nothing wrong to be found: on a host that is busy
// with other things one measurement proves little, and a limit that is not enforced is so each time.
const tries = 3

// repeated runs a load, again where it has to be.
func repeated(ctx context.Context, l Measurement) (rows []Result) {
	for range tries {
		rows = l.run(ctx)
		unexplained := func(r Result) bool {
			return r.Verdict.Fault() && r.Reason == whyUnknown || r.Verdict == probe.NotDecided
		}
		if !slices.ContainsFunc(rows, unexplained) || ctx.Err() != nil {
			break
		}
	}
	return rows
}

// run is one probe.
type run struct {
	*Prober
	snap   *Snapshot
	o      Options
	places placer
	loads  launcher
	left   map[limitID]string // why a limit is only read back
}

// limitID names a limit of a group.
type limitID struct {
	group string
	key   policy.Key
	on    string
}

// leave notes why a limit is only read back.
func (p *run) leave(group string, s policy.Setting, format string, args ...any) {
	p.left[limitID{group, s.Key, p.snap.Limit(group, s).On}] = fmt.Sprintf(format, args...)
}

// plan says what will be done.
func (p *run) plan(loads []Measurement, back []Reading) Plan {
	pl := Plan{Loads: loads}
	for _, l := range loads {
		pl.Takes += l.Takes
		pl.Bytes += l.Bytes
	}
	for _, b := range back {
		if b.OK && !p.measures(loads, b) {
			pl.Left = append(pl.Left, Unmeasured{b.Group, b.Key, b.On, p.whyLeft(b)})
		}
	}
	return pl
}

// measures says whether something is measured or needs no measurement.
func (p *run) measures(loads []Measurement, b Reading) bool {
	return b.Key == KeyMembers || slices.ContainsFunc(loads, func(l Measurement) bool {
		return l.Group == b.Group && l.On == b.On && measuredWith(l.Key, b.Key)
	})
}

// measuredWith says whether the load for one key measures another one, too.
func measuredWith(load, key policy.Key) bool {
	switch load {
	case policy.KeyCPULimit, policy.KeyCPUCPUs, policy.KeyCPUNUMA:
		return key == policy.KeyCPULimit || key == policy.KeyCPUCPUs || key == policy.KeyCPUNUMA
	case policy.KeyCPUWeight, policy.KeyCPUIdle:
		return key == policy.KeyCPUWeight || key == policy.KeyCPUIdle
	}
	return load == key
}

// whyLeft says why a limit is only read back.
func (p *run) whyLeft(b Reading) string {
	if why := p.left[limitID{b.Group, b.Key, b.On}]; why != "" {
		return why
	}
	if b.Group == layout.RootGroup {
		return "it is of the root group, which holds the groups that are measured"
	}
	return "no probe for it: what it does shows only when memory is short, in real-time tasks, or over a longer time"
}

// withReadBack adds what was not measured, and what differs, to what was measured. Members that are all inside are no
// news.
func (p *run) withReadBack(all []Result, back []Reading) []Result {
	measured := func(b Reading) bool {
		return slices.ContainsFunc(all, func(r Result) bool {
			return r.Group == b.Group && r.On == b.On && r.Key == b.Key && r.Verdict != probe.NotMeasured
		})
	}
	var more []Result
	for _, b := range back {
		r := Result{
			Group: b.Group, Key: b.Key, On: b.On, How: "read back",
			Asked: b.Asked, Measured: b.InForce, Reason: b.Reason,
		}
		switch {
		case b.Void:
			r.Verdict = probe.NotMeasured
		case !b.OK:
			r.Verdict = probe.NotEnforced
			r.Reason = cmp.Or(b.Reason, p.whyDiffers(b))
		case measured(b) || b.Key == KeyMembers:
			continue
		default:
			r.Verdict, r.Reason = probe.NotMeasured, cmp.Or(p.left[limitID{b.Group, b.Key, b.On}], p.whyLeft(b))
			if slices.ContainsFunc(all, func(o Result) bool {
				return o.Group == b.Group && o.On == b.On && o.Key == b.Key
			}) {
				continue // and its own row says why
			}
		}
		more = append(more, r)
	}
	all = append(all, more...)
	order := map[string]int{"": -1}
	for i, g := range p.snap.Groups {
		order[g.Path] = i
	}
	slices.SortStableFunc(all, func(a, b Result) int { return cmp.Compare(order[a.Group], order[b.Group]) })
	return all
}

// measurements are those of the limits of a group.
func (p *run) measurements(g classify.Group) []Measurement {
	var all []Measurement
	add := func(m *Measurement) {
		if m != nil {
			m.Group = g.Path
			m.Where = cmp.Or(m.Where, "beside")
			all = append(all, *m)
		}
	}
	add(cpuProbes{p}.limit(g))
	add(cpuProbes{p}.weight(g))
	for _, key := range []policy.Key{policy.KeyMemoryMax, policy.KeyMemoryHigh} {
		if s, ok := g.Settings.Get(key, ""); ok {
			add(amountProbes{p}.memory(g, s))
		}
	}
	if s, ok := g.Settings.Get(policy.KeyTasks, ""); ok {
		add(amountProbes{p}.tasks(g, s))
	}
	for _, t := range (diskProbes{p}).targets(g) {
		for _, m := range (diskProbes{p}).rates(g, t) {
			add(&m)
		}
	}
	for _, s := range g.Settings {
		switch {
		case s.Key == policy.KeyIOWeight:
			add(diskProbes{p}.weight(g, s))
		case s.Key == policy.KeyNetworkEgressMax || s.Key == policy.KeyNetworkIngressMax:
			add(trafficProbes{p}.rate(g, s))
		}
	}
	return all
}

// result begins the row of a measurement.
func (p *run) result(group string, s policy.Setting, how string) Result {
	l := p.snap.Limit(group, s)
	r := Result{Group: group, Key: s.Key, On: l.On, How: how, Asked: l.Asked}
	if d, ok := p.snap.Facts.Device(s.Dev); ok {
		r.Device = d.Name
	}
	return r
}

// where says where loads run.
func (p *run) where() string {
	if p.o.Inside {
		return "inside"
	}
	return "beside"
}

// why gives the reason why a limit is not held, for when it is needed.
func (p *run) why(group string, s policy.Setting) func() string {
	return func() string { return p.snap.why(group, s, false) }
}
