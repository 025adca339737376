package inspect

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// Watched says what is to be sampled: the groups of one view, where their figures are, and their limits as of that
// view. It does not change after it was made, and shares nothing with the view that others change.
type Watched struct {
	tree    *cgroup.Tree
	groups  []watchedGroup
	traffic *trafficSource // nil when no interface is governed
	devices map[string]string
	cpus    int
}

// watchedGroup is one group with what does not have to be read again.
type watchedGroup struct {
	observe.Group

	from metrics.Group
}

// Watch finds what is to be sampled of a view that has limits and a plan. It reads nothing.
func Watch(v *transaction.View) *Watched {
	w := &Watched{tree: v.Tree, traffic: trafficSourceOf(v), devices: map[string]string{}, cpus: len(v.Facts.CPUs)}
	processes := map[string]int{}
	for _, p := range v.Members {
		processes[p.Group]++
	}
	verifiable := Verifiable(v)
	for _, g := range v.Classified.Groups {
		one := watchedGroup{from: v.Counted(g.Path), Group: observe.Group{
			Group: g.Path, Role: string(g.Role), Released: policy.Released(v.Released, g.Path),
			Processes: processes[g.Path], Limits: []observe.Limit{},
		}}
		if g.Instance != "" {
			one.Engine, _, _ = strings.Cut(g.Instance, " ")
		}
		if !one.Released {
			one.Limits = append(one.Limits, limitsOf(verifiable.Amounts(g.Path))...)
		}
		w.groups = append(w.groups, one)
	}
	for _, d := range v.Facts.Devices {
		w.devices[d.Number] = d.Name
	}
	return w
}

func limitsOf(all []verify.Amount) (limits []observe.Limit) {
	for _, a := range all {
		limits = append(limits, observe.Limit{Key: string(a.Key), Device: a.Device, Asked: a.Asked, Held: a.Held,
			InForce: a.OK, Void: a.Void || a.Default})
	}
	return limits
}

// Sampler takes samples of what is watched. It is for one goroutine at a time.
type Sampler struct {
	Host   *host.Host
	reader metrics.Reader
	whole  time.Time // when the dear files were read
}

// DearEvery is the time between two reads of files that cost the kernel much.
const DearEvery = time.Minute

// Take reads what the groups of a host use; w may be nil: then there are none. It ends early when ctx does.
func (s *Sampler) Take(ctx context.Context, w *Watched) (*observe.Sample, error) {
	began := time.Now()
	one := &observe.Sample{Groups: []observe.Group{}}
	if w != nil {
		if err := s.groups(ctx, w, one); err != nil {
			return nil, err
		}
	}
	if err := s.host(&one.Host); err != nil {
		return nil, err
	}
	one.At = time.Now()
	one.Took = one.At.Sub(began)
	return one, nil
}

func (s *Sampler) groups(ctx context.Context, w *Watched, one *observe.Sample) error {
	now := time.Now()
	whole := now.Sub(s.whole) >= DearEvery
	if whole {
		s.whole = now
	}
	s.reader.Begin()
	one.Devices, one.Host.CPUs = w.devices, w.cpus
	one.Groups = slices.Grow(one.Groups, len(w.groups))
	for _, g := range w.groups {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		g.Usage, _ = s.reader.Read(w.tree, g.from, whole)
		one.Groups = append(one.Groups, g.Group)
		runtime.Gosched() // a process may have come that waits for its group
	}
	if w.traffic == nil {
		return nil
	}
	counted, err := w.traffic.read()
	if err != nil {
		return err
	}
	for i := range one.Groups {
		if t, known := counted.groups[one.Groups[i].Group]; known && (t.Counted || len(t.On) > 0) {
			one.Groups[i].Traffic = &t
		}
	}
	return nil
}

// host reads what the whole machine does.
func (s *Sampler) host(h *observe.Host) error {
	a, err := s.Host.Activity()
	if err != nil {
		return err
	}
	h.Busy, h.Idle, h.Load, h.Blocked = a.Busy, a.Idle, a.Load, a.Blocked
	info, err := s.Host.MemInfo()
	if err != nil {
		return err
	}
	h.Memory = observe.MemoryOf(info)
	for _, resource := range metrics.Resources {
		if p := metrics.ParsePressure(s.Host.Pressure(resource)); p != (metrics.Pressure{}) {
			if h.Pressure == nil {
				h.Pressure = map[string]metrics.Pressure{}
			}
			h.Pressure[resource] = p
		}
	}
	return nil
}
