package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
)

// ProbeOptions of Probe.
type ProbeOptions struct {
	Groups []string // none: all
	// Inside has loads share the group's own budget; else they get directories beside the group's, with the same limits.
	Inside bool
	// Destructive goes over limits on memory with memory that cannot be taken back, which ends in a kill of the load.
	Destructive bool
	Peer        string        // ADDRESS:PORT of `verify --listen`, for limits on interfaces
	Span        time.Duration // of one measurement; 0 is 2 s
	// Agent says that an agent runs: it shares limits by use.
	Agent bool
	// Begin is told what will be done before the first load starts; an error ends it there.
	Begin func(ProbePlan) error
}

// The bounds of a measurement's span, and the usual one.
const (
	LeastProbeSpan = 500 * time.Millisecond
	MostProbeSpan  = 10 * time.Second
	probeSpan      = 2 * time.Second
)

// What a probe takes at most.
const (
	mostProbeBytes  = 1 << 30  // read or written by one load
	mostProbeMemory = 1 << 30  // touched by one load, and no more than a quarter of what is available
	mostProbeFile   = 16 << 20 // size of a file that is read
	mostDirtyBytes  = 256 << 20
)

// ProbePlan is what a probe will do.
type ProbePlan struct {
	Loads []ProbeLoad   `json:"loads"`
	Takes time.Duration `json:"takes_ns"` // about
	Bytes int64         `json:"bytes"`    // read, written and sent, at most
	// Left are the limits that it only reads back, and why.
	Left []ProbeLeft `json:"only_read_back,omitempty"`
}

// ProbeLoad is one measurement.
type ProbeLoad struct {
	Group  string        `json:"group"`
	Key    policy.Key    `json:"key"`
	On     string        `json:"on,omitempty"` // as the policy names it
	Device string        `json:"device,omitempty"`
	What   string        `json:"what"`  // for people
	Where  string        `json:"where"` // "beside" or "inside" the group
	Takes  time.Duration `json:"takes_ns"`
	Bytes  int64         `json:"bytes,omitempty"` // at most

	run func(ctx context.Context) []Probed
}

// ProbeLeft is a limit that is only read back.
type ProbeLeft struct {
	Group string     `json:"group"`
	Key   policy.Key `json:"key"`
	On    string     `json:"on,omitempty"`
	Why   string     `json:"why"`
}

// Probed is one limit measured, or read back alone.
type Probed struct {
	Group  string     `json:"group"`
	Key    policy.Key `json:"key"`
	On     string     `json:"on,omitempty"`
	Device string     `json:"device,omitempty"`
	// How it was measured: "alone", "contended", "direct", "buffered", "to the limit", "read back", …
	How      string `json:"how"`
	Asked    string `json:"asked"`
	Measured string `json:"measured,omitempty"`
	// Difference is by how much a part of what was asked more was measured, or for a share how much more of the whole.
	Difference *float64      `json:"difference,omitempty"`
	Verdict    probe.Verdict `json:"verdict"`
	Reason     string        `json:"reason,omitempty"`
	Took       time.Duration `json:"took_ns,omitempty"`
}

// Probe measures what the kernel enforces of the limits of groups, with short loads of its own. What differs when it is read back is among
// the results, measured or not.
func (c *Controller) Probe(ctx context.Context, o ProbeOptions) ([]Probed, error) {
	switch {
	case len(c.probe) == 0 && o.Begin == nil:
		return nil, errors.New("there is nothing to start loads with")
	case o.Span == 0:
		o.Span = probeSpan
	case o.Span < LeastProbeSpan || o.Span > MostProbeSpan:
		return nil, fail(CodeUsage, "", "a span of %s: a measurement takes %s to %s", o.Span, LeastProbeSpan, MostProbeSpan)
	}
	back, err := c.Verify(ctx, o.Groups)
	if err != nil {
		return nil, err
	}
	v, s, err := c.current(ctx, look{})
	if err != nil {
		return nil, err
	}
	p := &prober{c: c, v: v, o: o, left: map[limitID]string{}}
	var loads []ProbeLoad
	for _, g := range v.Classified.Groups {
		if len(o.Groups) > 0 && !covers(o.Groups, g.Path) || isReleased(s.Released, g.Path) {
			continue
		}
		loads = append(loads, p.loads(g)...)
	}
	if o.Begin != nil {
		if err := o.Begin(p.plan(loads, back)); err != nil {
			return nil, err
		}
	}
	if err := c.sweepProbes(v.Tree, v.Names, false); err != nil {
		return nil, fail(CodeFailed, "", "remove what an earlier probe left: %w", err)
	}
	defer func() { // what a load that was slow to end kept
		if err := c.sweepProbes(v.Tree, v.Names, false); err != nil {
			c.Log.Warn("what the probe made is removed by the next one", "err", err)
		}
	}()
	var all []Probed
	for _, l := range loads {
		all = append(all, insisting(ctx, l)...)
		if err := context.Cause(ctx); err != nil {
			return nil, fail(CodeFailed, "", "probe %s of %s: %w", l.Key, l.Group, err)
		}
	}
	return p.withReadBack(all, back), nil
}

// probeTries is how often something is measured that comes out wrong with nothing wrong to be found: on a host that is busy with other
// things one measurement proves little, and a limit that is not enforced is so each time.
const probeTries = 3

// insisting runs a load, again where it has to be.
func insisting(ctx context.Context, l ProbeLoad) (rows []Probed) {
	for range probeTries {
		rows = l.run(ctx)
		if !slices.ContainsFunc(rows, func(r Probed) bool { return r.Verdict.Fault() && r.Reason == whyUnknown }) || ctx.Err() != nil {
			break
		}
	}
	return rows
}

// whyUnknown is the reason of what is not enforced while everything looks as it should.
const whyUnknown = "no reason could be found: the kernel's files hold what was asked, and it was measured more than once"

// limitID names a limit of a group.
type limitID struct {
	group string
	key   policy.Key
	on    string
}

// prober is one probe on its way.
type prober struct {
	c    *Controller
	v    *View
	o    ProbeOptions
	left map[limitID]string // why a limit is only read back
}

// leave notes why a limit is only read back.
func (p *prober) leave(group string, s policy.Setting, format string, args ...any) {
	p.left[limitID{group, s.Key, limitOf(p.v, group, s).On}] = fmt.Sprintf(format, args...)
}

// plan says what will be done.
func (p *prober) plan(loads []ProbeLoad, back []Verification) ProbePlan {
	pl := ProbePlan{Loads: loads}
	for _, l := range loads {
		pl.Takes += l.Takes
		pl.Bytes += l.Bytes
	}
	for _, b := range back {
		if b.OK && !p.measures(loads, b) {
			pl.Left = append(pl.Left, ProbeLeft{b.Group, b.Key, b.On, p.whyLeft(b)})
		}
	}
	return pl
}

func (p *prober) measures(loads []ProbeLoad, b Verification) bool {
	return b.Key == keyMembers || slices.ContainsFunc(loads, func(l ProbeLoad) bool { return l.Group == b.Group && l.On == b.On && measuredWith(l.Key, b.Key) })
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

func (p *prober) whyLeft(b Verification) string {
	if why := p.left[limitID{b.Group, b.Key, b.On}]; why != "" {
		return why
	}
	if b.Group == plan.RootGroup {
		return "it is of the root group, which holds the groups that are measured"
	}
	return "no probe for it: what it does shows only when memory is short, in real-time tasks, or over a longer time"
}

// withReadBack adds what was not measured, and what differs, to what was measured. Members that are all inside are no news.
func (p *prober) withReadBack(all []Probed, back []Verification) []Probed {
	measured := func(b Verification) bool {
		return slices.ContainsFunc(all, func(r Probed) bool {
			return r.Group == b.Group && r.On == b.On && r.Key == b.Key && r.Verdict != probe.NotMeasured
		})
	}
	var more []Probed
	for _, b := range back {
		r := Probed{Group: b.Group, Key: b.Key, On: b.On, How: "read back", Asked: b.Asked, Measured: b.InForce, Reason: b.Reason}
		switch {
		case !b.OK:
			r.Verdict = probe.NotEnforced
			r.Reason = cmp.Or(b.Reason, p.whyReadBack(b))
		case measured(b) || b.Key == keyMembers:
			continue
		default:
			r.Verdict, r.Reason = probe.NotMeasured, cmp.Or(p.left[limitID{b.Group, b.Key, b.On}], p.whyLeft(b))
			if slices.ContainsFunc(all, func(o Probed) bool { return o.Group == b.Group && o.On == b.On && o.Key == b.Key }) {
				continue // and its own row says why
			}
		}
		more = append(more, r)
	}
	all = append(all, more...)
	order := map[string]int{"": -1}
	for i, g := range p.v.Classified.Groups {
		order[g.Path] = i
	}
	slices.SortStableFunc(all, func(a, b Probed) int { return cmp.Compare(order[a.Group], order[b.Group]) })
	return all
}

// loads are those that measure the limits of a group.
func (p *prober) loads(g classify.Group) []ProbeLoad {
	var loads []ProbeLoad
	add := func(l *ProbeLoad) {
		if l != nil {
			l.Group = g.Path
			l.Where = cmp.Or(l.Where, "beside")
			loads = append(loads, *l)
		}
	}
	add(p.cpuLoad(g))
	add(p.weightLoad(g))
	for _, key := range []policy.Key{policy.KeyMemoryMax, policy.KeyMemoryHigh} {
		if s, ok := g.Settings.Get(key, ""); ok {
			add(p.memoryLoad(g, s))
		}
	}
	if s, ok := g.Settings.Get(policy.KeyTasks, ""); ok {
		add(p.tasksLoad(g, s))
	}
	for _, t := range p.targets(g) {
		for _, l := range p.diskLoads(g, t) {
			add(&l)
		}
	}
	for _, s := range g.Settings {
		switch {
		case s.Key == policy.KeyIOWeight:
			add(p.diskWeightLoad(g, s))
		case s.Key == policy.KeyNetworkEgressMax || s.Key == policy.KeyNetworkIngressMax:
			add(p.trafficLoad(g, s))
		}
	}
	return loads
}

// result begins the row of a measurement.
func (p *prober) result(group string, s policy.Setting, how string) Probed {
	l := limitOf(p.v, group, s)
	r := Probed{Group: group, Key: s.Key, On: l.On, How: how, Asked: l.Asked}
	if d, ok := p.v.Facts.Device(s.Dev); ok {
		r.Device = d.Name
	}
	return r
}

// failed is the row of a measurement that did not come about.
func (r Probed) failed(err error) Probed {
	r.Verdict, r.Reason = probe.NotMeasured, err.Error()
	return r
}

// judged fills in what a rate came to. why says why, of one that is not held.
func (r Probed) judged(rate probe.Rate, measured string, took time.Duration, why func() string) Probed {
	d := rate.Difference()
	r.Verdict, r.Measured, r.Difference, r.Took = rate.Judge(), measured, &d, took
	switch {
	case r.Verdict.Fault() && why != nil:
		r.Reason = why()
	case r.Verdict == probe.NotReached:
		r.Reason = fmt.Sprintf("the host gave it only %s while it was measured; what is above was not tried", measured)
	}
	return r
}

// start starts a load and puts it where it is to run.
func (p *prober) start(ctx context.Context, pl *place) (*probe.Load, error) {
	args := slices.Clone(p.c.probe)
	if pl.enter != "" {
		args = append(args, "--enter", pl.enter)
	}
	l, err := probe.Start(ctx, p.c.Host, args)
	if err != nil {
		return nil, err
	}
	// Where memory is short it goes first. A kernel that does not let us say so is no reason not to measure.
	_ = p.c.Host.Proc.WriteOOMScoreAdj(l.ID, 1000)
	if err := p.v.Tree.MoveAll(l.ID, nil, nil, pl.into...); err != nil {
		l.Close()
		return nil, fmt.Errorf("put the load into the group: %w", err)
	}
	return l, nil
}

// with has a load, put in its place, do something, and gives back what there was.
func (p *prober) with(ctx context.Context, pl *place, err error, do func(l *probe.Load) error) error {
	if err != nil {
		return err
	}
	defer pl.close()
	l, err := p.start(ctx, pl)
	if err != nil {
		return err
	}
	defer l.Close()
	return do(l)
}

// daemonReload is what to say of a file of a unit's directory that does not hold what was written to it.
const daemonReload = "; systemd owns this directory, and a daemon-reload takes back what is written to it by hand: a limit has to be a property of the unit"

// whyDiffers explains a limit that the kernel's file does not hold.
func (p *prober) whyDiffers(b Verification) string {
	text := fmt.Sprintf("the kernel holds %s", cmp.Or(b.InForce, "nothing"))
	if b.File != "" {
		text += " (" + b.File + ")"
	}
	text += ": somebody has changed it since"
	if p.ofUnit(b.Group) {
		text += daemonReload
	}
	return text + "; the agent, or `bulkhead apply`, puts it right"
}

// ofUnit says whether the directory that carries a group's limits is a unit's.
func (p *prober) ofUnit(group string) bool {
	for _, d := range p.v.Layout.Own(group) {
		if p.v.Layout.Unit(d) != "" {
			return true
		}
	}
	return slices.ContainsFunc(p.v.Facts.Hierarchies, func(h host.Hierarchy) bool { return len(p.v.Layout.Outside(group, h.ID)) > 0 })
}

// why looks for the reason why a limit is not held as asked: what differs in the kernel's files, a limit on another device, members
// below the directory that carries it.
func (p *prober) why(group string, s policy.Setting, buffered bool) string {
	var found []string
	l := limitOf(p.v, group, s)
	if !l.OK {
		found = append(found, cmp.Or(l.Reason, p.whyDiffers(Verification{group, l})))
	}
	for _, w := range wantedFor(p.v, group, s) {
		if others := p.otherDevices(group, w.Dir, w.Row); len(others) > 0 {
			found = append(found, fmt.Sprintf("%s has a limit on %s, which the policy does not ask for: the wrong device", w.File, strings.Join(others, ", ")))
		}
		if below := p.below(group, w.Dir); below != w.Dir && !w.Row.Descends {
			found = append(found, fmt.Sprintf("its processes sit in %s, below %s which carries the limit, and %s of cgroup v1 holds only those of the very directory",
				p.v.Tree.Abs(below), p.v.Tree.Abs(w.Dir), w.File))
		}
		if w.Row.Reach != "" && buffered && len(found) == 0 {
			found = append(found, w.File+": "+w.Row.Reach)
		}
	}
	if len(found) == 0 {
		return whyUnknown
	}
	return strings.Join(slices.Compact(found), "; ")
}
