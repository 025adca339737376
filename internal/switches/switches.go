// Package switches tells how often the CPUs of a host switch between threads: in all, on each CPU, and of each control
// group, database and process, those that end meanwhile included; and how often they can (Sweep).
//
// A switch counts for the thread that it leaves. Measure looks twice, some time apart, at the status of every thread of
// the host: about 10 µs of CPU for each. It keeps nothing and may be called concurrently.
package switches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"bulkhead/internal/dbstat"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/procfs"
)

// Use is what one of several did meanwhile.
type Use struct {
	Name  string          `json:"name"`
	PID   int             `json:"pid,omitempty"` // of a process, and of the main one of an instance
	Count ctxswitch.Count `json:"switches"`
	Rate  float64         `json:"per_second"`

	Group    string `json:"group,omitempty"`    // of a process: its directory of the CPU controller
	Instance string `json:"instance,omitempty"` // of a process
}

// Queries is what an instance did meanwhile by its own count.
type Queries struct {
	Instance string  `json:"instance"`
	Counter  string  `json:"counter"` // "Questions", "transactions"
	Done     int64   `json:"done"`
	PerQuery float64 `json:"switches_per_query"` // 0 when there was none
	Trouble  string  `json:"trouble,omitempty"`  // why it is not known
}

// CPU is one CPU.
type CPU struct {
	ID   int     `json:"cpu"`
	Rate float64 `json:"per_second"`
}

// Report is a measurement.
type Report struct {
	Span   time.Duration `json:"span_ns"`
	Total  uint64        `json:"switches"` // of the machine, its idle threads included
	PerCPU float64       `json:"per_second_and_cpu"`
	CPUs   []CPU         `json:"cpus,omitempty"` // none where the kernel does not tell
	// ThreadSpan is the time between two looks at all threads, which is that of all below.
	ThreadSpan time.Duration `json:"threads_span_ns"`
	Seen       uint64        `json:"of_threads"` // without the machine's idle threads
	Groups     []Use         `json:"groups"`
	Servers    []Use         `json:"instances"`
	Procs      []Use         `json:"processes"` // those that ended, and were not seen before, count for one without PID
	Queries    []Queries     `json:"queries"`
	// Notes say what is not counted.
	Notes []string `json:"notes"`
}

// look is the state of the host's threads at a moment.
type look struct {
	at      time.Time // its middle
	procs   map[int]procfs.Process
	threads map[int]map[int]ctxswitch.Count // by process and thread
	owner   map[int]int                     // by thread
	inst    map[int]string                  // by process
	servers []engine.Instance
}

func lookAt(h *host.Host) (*look, error) {
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return nil, err
	}
	began := time.Now()
	l := &look{procs: map[int]procfs.Process{}, threads: map[int]map[int]ctxswitch.Count{}, owner: map[int]int{},
		inst: map[int]string{}}
	for _, p := range procs {
		threads, err := ctxswitch.Threads(h.Root, p.ID.PID)
		if err != nil {
			return nil, err
		}
		l.procs[p.ID.PID], l.threads[p.ID.PID] = p, threads
		for tid := range threads {
			l.owner[tid] = p.ID.PID
		}
	}
	l.at = began.Add(time.Since(began) / 2)
	l.servers = slices.DeleteFunc(recognise.Instances(procs, recognise.SourceOf(h)), engine.Instance.Sentinel)
	for _, i := range l.servers {
		for _, m := range i.Members {
			l.inst[m.ID.PID] = i.Name()
		}
	}
	return l, nil
}

// Measure counts for a time. Sources ask instances, by name, for their work; they are not closed. Without the right to
// hear of threads that end, or to count by CPU, a note says so.
func Measure(ctx context.Context, h *host.Host, facts *host.Facts, span time.Duration, sources map[string]*dbstat.Source,
) (*Report, error) {
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
	m := &merger{over: map[int]bool{}}
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

// rate is of threads.
func (r *Report) rate(n uint64) float64 { return float64(n) / r.ThreadSpan.Seconds() }

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
