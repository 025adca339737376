package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"context"
	"fmt"
	"strings"
	"time"
)

// buffered measures what is written through the page cache: a load in the group makes pages dirty, and this process has
// them written to the disk, as the kernel's own threads do.
func (p diskProbes) buffered(g classify.Group, t *diskTarget, parts policy.Settings) Measurement {
	s, asked := parts[0], p.snap.asked(g.Path, parts)
	bytes := int64(min(max(1.5*asked*p.o.Span.Seconds(), 4<<20), mostDirtyBytes))
	l := Measurement{
		Key: s.Key, On: p.snap.Limit(g.Path, s).On, Device: strings.Join(t.paths, " "), Where: p.where(), Bytes: bytes,
	}
	l.Takes = time.Duration(float64(bytes) / asked * float64(time.Second))
	l.What = fmt.Sprintf("%s written into the page cache for %s, and from there to the disk",
		policy.Bytes(bytes).Human(), p.what(t))
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, "buffered")
		var took time.Duration
		pl, err := p.place(g.Path)
		err = p.loads.with(ctx, pl, err, func(load Load) error {
			begin := time.Now()
			a, err := load.Do(ctx, probe.Order{Dirty: &probe.Dirty{Dir: t.dir, Bytes: bytes}}, 4*l.Takes)
			if err == nil {
				bytes = a.Bytes
				err = load.WriteBack(a.File)
			}
			took = time.Since(begin)
			return err
		})
		if err != nil {
			return []Result{r.failed(err)}
		}
		got := float64(bytes) / took.Seconds()
		rate := probe.Rate{
			Asked: asked, InForce: p.snap.inForce(g.Path, parts), Measured: got, Tolerance: probe.ToleranceBuffered,
		}
		why := func() string { return p.snap.why(g.Path, s, true) }
		return []Result{r.judged(rate, rateText(s.Key, got), took, why)}
	}
	return l
}
