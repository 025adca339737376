// Package switches tells how often the CPUs of a host switch between threads: in all, on each CPU, and of each control
// group, database and process, those that end meanwhile included; and how often they can (Sweep).
//
// A switch counts for the thread that it leaves. Measure looks twice, some time apart, at the status of every thread of
// the host: about 10 µs of CPU for each. It keeps nothing and may be called concurrently.
package switches

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/dbstat"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
)

// Measure counts for a time. Sources ask instances, by name, for their work; they are not closed. Without the right to
// hear of threads that end, or to count by CPU, a note says so.
func Measure(ctx context.Context, h *host.Host, facts *host.Facts, span time.Duration,
	sources map[string]*dbstat.Source) (*Report, error) {
	return measure(ctx, h, facts, sources, func(hear func() error) error {
		end := time.NewTimer(span)
		defer end.Stop()
		tick := time.NewTicker(100 * time.Millisecond) // the kernel keeps only so much of what ended
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-end.C:
				return nil
			case <-tick.C:
				if err := hear(); err != nil {
					return err
				}
			}
		}
	})
}

// measure counts while during runs, which calls hear several times a second.
func measure(ctx context.Context, h *host.Host, facts *host.Facts, sources map[string]*dbstat.Source,
	during func(hear func() error) error) (*Report, error) {
	r := &Report{Groups: []Use{}, Servers: []Use{}, Procs: []Use{}, Queries: []Queries{}, Notes: []string{}}
	drain := func(func(ctxswitch.Exit)) error { return nil }
	exits, err := ctxswitch.OpenExits(facts.CPUs)
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("threads that ended meanwhile are not counted: %v", err))
	} else {
		defer exits.Close()
		drain = exits.Drain
	}
	cpus, err := ctxswitch.CountCPUs(facts.CPUs)
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("no figures by CPU: %v", err))
		cpus = &ctxswitch.CPUs{}
	}
	defer cpus.Close()
	m := newMerger()
	if m.first, err = lookAt(h); err != nil {
		return nil, err
	}
	if err := drain(func(x ctxswitch.Exit) {
		if _, seen := m.first.owner[x.TID]; seen { // others ended before the look was over
			m.endsEarly(x)
		}
	}); err != nil {
		return nil, err
	}
	work := askAll(ctx, sources)
	began, total, before, err := now(h, cpus)
	if err != nil {
		return nil, err
	}
	if err := during(func() error { return drain(m.endsEarly) }); err != nil {
		return nil, err
	}
	ended, last, after, err := now(h, cpus)
	if err != nil {
		return nil, err
	}
	r.Span = ended.Sub(began)
	r.Total = last - total
	r.PerCPU = float64(r.Total) / r.Span.Seconds() / float64(max(1, len(facts.CPUs)))
	for _, id := range slices.Sorted(maps.Keys(after)) {
		r.CPUs = append(r.CPUs, CPU{id, float64(after[id]-before[id]) / r.Span.Seconds()})
	}
	done := askAll(ctx, sources)
	if err := drain(m.endsEarly); err != nil { // what is heard of later may be in the second look, too
		return nil, err
	}
	if m.second, err = lookAt(h); err != nil {
		return nil, err
	}
	if err := drain(m.endsLate); err != nil {
		return nil, err
	}
	if exits != nil && exits.Lost {
		r.Notes = append(r.Notes, "more threads ended at a time than the kernel could tell: some are not counted")
	}
	if m.homeless > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("this kernel, before 5.19, does not say of which process a thread was: "+
			"%d that began and ended meanwhile count for the parent of their process", m.homeless))
	}
	r.ThreadSpan = m.second.at.Sub(m.first.at)
	m.fill(r, facts)
	r.ask(sources, work, done)
	return r, nil
}

// now reads the counts of the machine.
func now(h *host.Host, cpus *ctxswitch.CPUs) (at time.Time, total uint64, each map[int]uint64, err error) {
	if each, err = cpus.Read(); err != nil {
		return at, 0, nil, err
	}
	total, err = ctxswitch.Total(h.Root)
	return time.Now(), total, each, err
}

// answer is what an instance said of its work.
type answer struct {
	n   int64
	at  time.Time
	err error
}

// askTime is how long a server may take to say what it did.
const askTime = 3 * time.Second

func askAll(ctx context.Context, sources map[string]*dbstat.Source) map[string]answer {
	all := map[string]answer{}
	for name, s := range sources {
		one, stop := context.WithTimeout(ctx, askTime)
		n, err := s.Work(one)
		stop()
		all[name] = answer{n, time.Now(), err}
	}
	return all
}

func (r *Report) ask(sources map[string]*dbstat.Source, before, after map[string]answer) {
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		q := Queries{Instance: name, Counter: sources[name].Counter, Done: after[name].n - before[name].n}
		if err := cmp.Or(before[name].err, after[name].err); err != nil {
			q.Done, q.Trouble = 0, err.Error()
		} else if q.Done < 0 {
			q.Done, q.Trouble = 0, "the server started anew meanwhile"
		}
		at := slices.IndexFunc(r.Servers, func(u Use) bool { return u.Name == name })
		if at >= 0 && q.Done > 0 {
			q.PerQuery = r.Servers[at].Rate / float64(q.Done) * after[name].at.Sub(before[name].at).Seconds()
		}
		r.Queries = append(r.Queries, q)
	}
}
