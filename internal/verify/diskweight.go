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
	l := &Measurement{Key: s.Key, On: p.snap.Limit(g.Path, s).On, Device: d.Name, Takes: warmUp + 2*p.o.Span,
		Bytes: 8 * mostBytes}
	l.What = fmt.Sprintf("two processes contend for reads of %s, one with the group's weight and one with another",
		d.Name)
	l.run = func(ctx context.Context) []Result {
		broken := p.noWeight(s)
		why := func() string { return cmp.Or(broken, p.snap.why(g.Path, s, false)) }
		r := contended(p.result(g.Path, s, "contended"), why, func(alike bool) (probe.Contest, error) {
			return p.contend(ctx, g.Path, w, d, alike, broken != "")
		})
		if broken != "" && r.Verdict != probe.NotMeasured {
			r.Verdict, r.Reason = probe.NotEnforced, broken
		}
		return []Result{r}
	}
	return l
}

// A load that contends for a disk has so many requests at a time, of so many bytes. Loads that wait for the CPU contend
// for no disk: most requests of the two have to wait there.
const (
	contendDepth = 4
	contendSize  = 256 << 10
	leastQueued  = 0.75 * 2 * contendDepth
)

// contend has two loads read a disk.
func (p diskProbes) contend(ctx context.Context, group string, w plan.Wanted, disk blockdev.Device,
	alike, broken bool) (c probe.Contest, err error) {
	weight := knob.ParseNumber(w.Row.Parse(w.Value))
	rival := max(1, int64(weight)/10)
	if weight < 10 {
		rival = int64(weight) * 10
	}
	how, file := recipe{controllers: []string{"blkio"}}, w.File()
	if broken { // then the kernel takes no weight
		how.without = []string{file.Name}
	}
	theirs := how
	if !alike {
		theirs.values = map[string]string{file.Name: file.Key + " " + strconv.FormatInt(rival, 10)}
	}
	d := probe.Disk{Device: "/dev/" + disk.Name, Size: contendSize, Depth: contendDepth, Most: 4 * mostBytes}
	d.Warm, d.Span = warmUp, 2*p.o.Span
	before, _ := p.Host.Block.Reads(disk.Number) // without them nothing was at the disk
	answers, err := p.rivals(ctx, group, how, theirs, probe.Order{Disk: &d}, d.Warm+d.Span)
	if err != nil {
		return c, err
	}
	after, _ := p.Host.Block.Reads(disk.Number)
	// What ran out of bytes first left the other one alone: rates, not bytes, are compared.
	var rates [2]float64
	for i, a := range answers {
		rates[i], c.Took = float64(a.Bytes)/a.Took.Seconds(), max(c.Took, a.Took)
	}
	c.Asked, c.Measured = probe.ShareOf(weight, float64(rival)), probe.ShareOf(rates[0], rates[1])
	c.Tolerance = probe.ToleranceDisk
	if n := after.Since(before).Queued(contendSize, warmUp+c.Took); n < leastQueued {
		c.Idle = fmt.Sprintf("what holds weights is in its place, and of the %d requests that the two loads had at a "+
			"time only %.1f were at the disk: a weight shows where most of them wait there; other work on the host, "+
			"or a limit of the group, can keep them from it", 2*contendDepth, n)
	}
	return c, nil
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
