package verify

import (
	"bulkhead/internal/classify"
	"bulkhead/internal/metrics"
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// amountProbes measure limits on how much of something a group may have.
type amountProbes struct{ *run }

// memory measures how much memory a load gets: with memory that the kernel may take back, which it does at a limit,
// nothing is killed.
func (p amountProbes) memory(g classify.Group, s policy.Setting) *Measurement {
	asked, ok := s.Value.(policy.Bytes)
	if !ok || len(p.snap.wanted(g.Path, s)) == 0 {
		return nil
	}
	most := int64(mostMemory)
	if info, err := p.Host.MemInfo(); err == nil {
		most = min(most, info["MemAvailable"]/4)
	}
	beyond := int64(asked) + max(int64(asked)/10, 4<<20)
	if beyond > most {
		p.leave(g.Path, s, "a probe takes at most %s of memory here", policy.Bytes(most).Human())
		return nil
	}
	hard := p.o.Destructive && s.Key == policy.KeyMemoryMax
	l := &Measurement{Key: s.Key, Takes: time.Second}
	l.What = fmt.Sprintf("a process touches %s in steps, which the kernel may take back", policy.Bytes(beyond).Human())
	if hard {
		l.What = fmt.Sprintf("a process touches %s in steps and keeps them, which ends in its kill",
			policy.Bytes(beyond).Human())
	}
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, "to the limit")
		if hard {
			r.How = "over the limit"
		}
		begin := time.Now()
		peak, killed, err := p.touch(ctx, g.Path, beyond, hard)
		if err != nil {
			return []Result{r.failed(err)}
		}
		rate := probe.Rate{
			Asked: float64(asked), InForce: p.snap.inForce(g.Path, policy.Settings{s}),
			Measured: float64(peak), Grain: 1 << 20,
		}
		r = r.judged(rate, policy.Bytes(peak).Human(), time.Since(begin), p.why(g.Path, s))
		if killed && !r.Verdict.Fault() {
			r.Reason = "the kernel killed the load there, and nothing else"
		}
		return []Result{r}
	}
	return l
}

// touch has a load touch memory beside a group, and gives the most that was charged.
func (p amountProbes) touch(ctx context.Context, group string, beyond int64, hard bool) (
	peak int64, killed bool, err error,
) {
	pl, err := p.places.beside(group, recipe{controllers: []string{"memory"}})
	err = p.loads.with(ctx, pl, err, func(l Load) error {
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
			u, err := metrics.Read(p.snap.Tree, pl.into[0])
			if err != nil || u.Memory.Current == nil {
				return fmt.Errorf("read how much is charged: %w", err)
			}
			peak = max(peak, *u.Memory.Current)
		}
		return nil
	})
	return peak, killed, err
}

// tasks measures how many tasks there may be.
func (p amountProbes) tasks(g classify.Group, s policy.Setting) *Measurement {
	asked, ok := s.Value.(policy.Count)
	if !ok || len(p.snap.wanted(g.Path, s)) == 0 {
		return nil
	}
	beyond := int(asked) + int(asked)/16 + 8
	if beyond > probe.MostTasks {
		p.leave(g.Path, s, "a probe starts at most %d tasks", probe.MostTasks)
		return nil
	}
	l := &Measurement{Key: s.Key, Takes: time.Second}
	l.What = fmt.Sprintf("a process starts up to %d others that sleep", beyond)
	l.run = func(ctx context.Context) []Result {
		r := p.result(g.Path, s, "to the limit")
		var a probe.Answer
		pl, err := p.places.beside(g.Path, recipe{controllers: []string{"pids"}})
		err = p.loads.with(ctx, pl, err, func(load Load) (err error) {
			a, err = load.Do(ctx, probe.Order{Fork: &probe.Fork{Tasks: beyond}}, 2*time.Second)
			return err
		})
		if errors.Is(err, probe.ErrEnded) {
			err = errors.New("the limit leaves the load's own threads no room")
		}
		if err != nil {
			return []Result{r.failed(err)}
		}
		if a.Refused && a.Ops == 0 { // its own threads are more already
			a.Count = min(a.Count, int(asked))
		}
		rate := probe.Rate{
			Asked: float64(asked), InForce: p.snap.inForce(g.Path, policy.Settings{s}),
			Measured: float64(a.Count), Grain: 0.5,
		}
		return []Result{r.judged(rate, strconv.Itoa(a.Count)+" tasks", a.Took, p.why(g.Path, s))}
	}
	return l
}
