package sampler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/netshape"
)

// trafficReading is what `status` said at one moment that the groups have sent and received so far.
type trafficReading struct {
	at     time.Time
	groups map[string]*api.GroupTraffic
}

// TrafficMeter asks bulkhead's status for the traffic of groups, again and again, while an arm runs.
type TrafficMeter struct {
	Read func(context.Context) (map[string]*api.GroupTraffic, error)

	mu       sync.Mutex
	readings []trafficReading
	last     error // of the last try
	stopping context.CancelFunc
	gone     chan struct{}
}

// meterPeriod is from the begin of one reading to that of the next.
const meterPeriod = time.Second

// start reads until stop.
func (m *TrafficMeter) start(ctx context.Context) {
	ctx, m.stopping = context.WithCancel(ctx)
	m.gone = make(chan struct{})
	go func() {
		defer close(m.gone)
		for ctx.Err() == nil {
			began := time.Now()
			m.once(ctx)
			process.Sleep(ctx, time.Until(began.Add(meterPeriod)))
		}
	}()
}

func (m *TrafficMeter) once(ctx context.Context) {
	groups, err := m.Read(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil { // it was told to stop in the midst of it
		return
	}
	if m.last = err; err == nil {
		// The counters are read last of all.
		m.readings = append(m.readings, trafficReading{time.Now(), groups})
	}
}

// stop ends it. That nothing at all could be read is an error.
func (m *TrafficMeter) stop() error {
	m.stopping()
	<-m.gone
	if len(m.readings) == 0 && m.last != nil {
		return fmt.Errorf("measure the traffic of groups: %w", m.last)
	}
	return nil
}

// figures are those of all groups between the first and the last reading inside a span: what lies outside of it is of a
// time in which the load did not run. By name: GROUP.FIGURE.
func (m *TrafficMeter) figures(from, to time.Time) map[string]float64 {
	f := map[string]float64{}
	if m == nil {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var inside []trafficReading
	for _, r := range m.readings {
		if !r.at.Before(from) && !r.at.After(to) {
			inside = append(inside, r)
		}
	}
	// A single second is what the two readings nearest to it say.
	if i := len(m.readings) - 1; to.Sub(from) < 2*meterPeriod && i > 0 {
		for ; i > 1 && !m.readings[i-1].at.Before(to); i-- {
		}
		inside = m.readings[i-1 : i+1]
	}
	if len(inside) < 2 {
		return f
	}
	first, last := inside[0], inside[len(inside)-1]
	for name, after := range last.groups {
		before := first.groups[name]
		if before == nil {
			continue
		}
		for figure, x := range trafficFigures(before, after, last.at.Sub(first.at)) {
			f[name+"."+figure] = x
		}
	}
	return f
}

// trafficFigures are those of one group: over all interfaces as the programs on its directory count (bytes and packets
// a second), and on limited ones as their classes do (bytes a second with all headers, packets that were dropped in the
// whole span).
func trafficFigures(before, after *api.GroupTraffic, span time.Duration) map[string]float64 {
	f := map[string]float64{}
	d := after.Since(before.Traffic, span)
	per := func(n uint64) float64 { return float64(n) / span.Seconds() }
	// The programs do not see what sockets from before the group do.
	if before.Counted && after.Counted && after.Outside == 0 {
		f["sent"], f["packets_sent"] = per(d.Out.Bytes), per(d.Out.Packets)
		f["received"], f["packets_received"] = per(d.In.Bytes), per(d.In.Packets)
	}
	for _, on := range d.On {
		if on.Policed {
			continue
		}
		name := "wire_out"
		if on.Direction == netshape.Ingress.String() {
			name = "wire_in"
		}
		f[name] += per(on.Bytes)
		f["drops"] += float64(on.Drops)
	}
	return f
}
