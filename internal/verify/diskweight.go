package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// weight measures which part of a contended disk a group's weight gives it, beside a rival of another weight.
func (p diskProbes) weight(g classify.Group, s policy.Setting) *Measurement {
	wants := p.snap.wanted(g.Path, s)
	i := slices.IndexFunc(wants, func(w plan.Wanted) bool {
		return w.Row.PerDevice && strings.Contains(w.File().Name, "weight")
	})
	d, ok := p.snap.Facts.Device(s.Dev)
	switch {
	case i < 0 || !ok:
		return nil
	case p.o.Inside:
		p.leave(g.Path, s, "a weight is measured beside the group, against a rival of ours, not inside")
		return nil
	}
	w := wants[i]
	l := &Measurement{
		Key: s.Key, On: p.snap.Limit(g.Path, s).On, Device: d.Name, Takes: warmUp + 2*p.o.Span, Bytes: 8 * mostBytes,
	}
	l.What = fmt.Sprintf("two processes contend for reads of %s, one with the group's weight and one with another",
		d.Name)
	l.run = func(ctx context.Context) []Result {
		contend := func(how contention) (contest, error) { return p.contend(ctx, g.Path, w, d, how) }
		return []Result{weighed(p.result(g.Path, s, "contended"), p.noWeight(s), p.why(g.Path, s), contend)}
	}
	return l
}

// contention is how two loads contend for a disk.
type contention int

const (
	byWeight   contention = iota // the second one has another weight than the group
	alike                        // both have the group's
	weightless                   // where the kernel takes no weight
)

// contest is what came of two loads that contended for a disk.
type contest struct {
	probe.Share
	took time.Duration
	// queued is how many of their requests were at the disk on average.
	queued float64
}

// A load that contends for a disk has so many requests at a time, of so many bytes. Loads that wait for the CPU contend
// for no disk: most requests of the two have to wait there.
const (
	contendDepth = 4
	contendSize  = 256 << 10
	leastQueued  = 0.75 * 2 * contendDepth
)

// weighed judges a weight by loads that contend. broken says why no weight counts, and why what differs.
func weighed(r Result, broken string, why func() string, contend func(contention) (contest, error)) Result {
	how := byWeight
	if broken != "" {
		how = weightless
	}
	c, err := contend(how)
	if err != nil {
		return r.failed(err)
	}
	unknown := broken == "" && c.Judge().Fault() && why() == whyUnknown
	if unknown && c.queued >= leastQueued { // no file tells why, so it may be the host's other work
		same, err := contend(alike)
		if err != nil {
			return r.failed(unconfirmed(c.Share, err))
		}
		c.Alike, c.took = same.Measured, c.took+same.took
	}
	r = r.shared(c.Share, c.took, why)
	switch {
	case broken != "":
		r.Verdict, r.Reason = probe.NotEnforced, broken
	case unknown && c.queued < leastQueued:
		r.Verdict = probe.NotDecided
		r.Reason = fmt.Sprintf("what holds weights is in its place, and of the %d requests that the two loads had at "+
			"a time only %.1f were at the disk: a weight shows where most of them wait there; other work on the "+
			"host, or a limit of the group, can keep them from it", 2*contendDepth, c.queued)
	}
	return r
}

// contend has two loads read a disk.
func (p diskProbes) contend(ctx context.Context, group string, w plan.Wanted, disk blockdev.Device, how contention) (
	c contest, err error,
) {
	weight := knob.ParseNumber(w.Row.Parse(w.Value))
	rival := max(1, int64(weight)/10)
	if weight < 10 {
		rival = int64(weight) * 10
	}
	ours, file := recipe{controllers: []string{"blkio"}}, w.File()
	if how == weightless {
		ours.without = []string{file.Name}
	}
	theirs := ours
	if how == alike {
		rival = int64(weight)
	} else {
		theirs.values = map[string]string{file.Name: file.Key + " " + strconv.FormatInt(rival, 10)}
	}
	d := probe.Disk{Device: "/dev/" + disk.Name, Size: contendSize, Depth: contendDepth, Most: 4 * mostBytes,
		Warm: warmUp, Span: 2 * p.o.Span}
	before, err := p.Host.Block.Reads(disk.Number)
	if err != nil {
		return c, err
	}
	answers, err := p.rivals(ctx, group, ours, theirs, probe.Order{Disk: &d}, warmUp+2*p.o.Span)
	if err != nil {
		return c, err
	}
	after, err := p.Host.Block.Reads(disk.Number)
	if err != nil {
		return c, err
	}
	// What ran out of bytes first left the other one alone: rates, not bytes, are compared.
	var rates [2]float64
	for i, a := range answers {
		rates[i], c.took = float64(a.Bytes)/a.Took.Seconds(), max(c.took, a.Took)
	}
	c.Share = probe.Share{
		Asked: probe.ShareOf(weight, float64(rival)), Measured: probe.ShareOf(rates[0], rates[1]),
		Tolerance: probe.ToleranceDisk,
	}
	c.queued = queued(before, after, warmUp+c.took)
	return c, nil
}

// queued is how many requests of a load were at a disk on average. What the kernel has joined or split counts as the
// load made it.
func queued(before, after blockdev.Reads, over time.Duration) float64 {
	requests := after.Requests - before.Requests
	if requests <= 0 || over <= 0 {
		return 0
	}
	each := (after.Waited - before.Waited).Seconds() / float64(requests)
	return each * float64(after.Bytes-before.Bytes) / contendSize / over.Seconds()
}

// rivals has two loads do the same at a time, in two places beside a group.
func (p *run) rivals(ctx context.Context, group string, ours, theirs recipe, o probe.Order, takes time.Duration) (
	[]probe.Answer, error,
) {
	one, err := p.places.beside(group, ours)
	if err != nil {
		return nil, err
	}
	defer one.close()
	other, err := p.places.beside(group, theirs)
	if err != nil {
		return nil, err
	}
	defer other.close()
	return p.loads.together(ctx, []*place{one, other}, []probe.Order{o, o}, takes)
}

// whyDiffers explains what a kernel's file holds instead of what was asked.
func (p *run) whyDiffers(b Reading) string {
	for _, g := range p.snap.Groups {
		for _, s := range g.Settings {
			if s.Key == policy.KeyIOWeight && s.Key == b.Key && g.Path == b.Group &&
				p.snap.Limit(g.Path, s).On == b.On {
				return cmp.Or(p.noWeight(s), p.snap.whyDiffers(b))
			}
		}
	}
	return p.snap.whyDiffers(b)
}

// noWeight says why no weight on a disk counts; "" when nothing is wrong with the disk.
func (p *run) noWeight(s policy.Setting) string {
	d, _ := p.snap.Facts.Device(s.Dev)
	now, err := blockdev.Queues{Block: p.Host.Block}.Scheduler(s.Dev)
	if at := strings.Index(now, "["); err == nil && at >= 0 {
		now, _, _ = strings.Cut(now[at+1:], "]")
	}
	switch {
	case s.Via == policy.ViaIOCost && !d.Cost.On():
		return "iocost is off on " + d.Name + ", so nothing honours weights there"
	case s.Via == policy.ViaBFQ && now != "bfq":
		return fmt.Sprintf("the scheduler of %s is %s, which honours no weight: bfq does", d.Name,
			cmp.Or(now, "not known"))
	}
	return ""
}
