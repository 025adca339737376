// Package exposition shows what an agent sampled in the formats of Prometheus, by observe.Table.
//
// A Server asks for a sample when somebody scrapes, and, while Keep runs, as often as the agent takes one. It never
// makes a scrape wait long for it: the answer has what was got before, or says that there is none. It may be used from
// any goroutine.
package exposition

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
)

// Options of a Server. Zero values are the defaults.
type Options struct {
	// Fetch gets the last sample from the agent.
	Fetch func(context.Context) (*observe.Sample, error)
	// Changed is called when samples cease to come, with the reason, and with nil when they come again.
	Changed func(error)
	Version string
	// PerGroup and Series bound how many figures of one group, and of all, an answer has. Default 70 and 10,000.
	PerGroup, Series int
}

// Server answers scrapes.
type Server struct {
	o       Options
	last    last
	dropped atomic.Int64
}

// New makes a server.
func New(o Options) *Server {
	o.PerGroup, o.Series = cmp.Or(o.PerGroup, 70), cmp.Or(o.Series, 10_000)
	if o.Changed == nil {
		o.Changed = func(error) {}
	}
	return &Server{o: o, last: last{fetch: o.Fetch, changed: o.Changed, wait: scrapeWaits}}
}

// Keep asks for samples by itself until ctx ends: a scrape that cannot wait for a busy agent then finds a young one,
// however seldom somebody scrapes.
func (s *Server) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		s.last.get(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(s.last.every()):
		}
	}
}

// ServeHTTP answers a scrape: collect[] names the collectors whose figures to give, or exclude[] those not to give; hr,
// mr and lr stand for all of a tier.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts, err := choose(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	promhttp.HandlerFor(s.Gatherer(r.Context(), parts...), promhttp.HandlerOpts{EnableOpenMetrics: true}).
		ServeHTTP(w, r)
}

// Gatherer gives the figures of the last sample, those of the parts only when some are named.
func (s *Server) Gatherer(ctx context.Context, parts ...observe.Part) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		return s.families(s.last.get(ctx), parts), nil
	})
}

// choose reads which parts a scrape asks for; nil is all.
func choose(query map[string][]string) (parts []observe.Part, err error) {
	only, but := query["collect[]"], query["exclude[]"]
	if len(only) > 0 && len(but) > 0 {
		return nil, fmt.Errorf("collect[] and exclude[] cannot be used together")
	}
	named := map[observe.Part]bool{}
	for _, name := range slices.Concat(only, but) {
		found := observe.PartsOf(name)
		if len(found) == 0 {
			return nil, fmt.Errorf("there are no figures of %q; there are %s", name, known())
		}
		for _, p := range found {
			named[p] = true
		}
	}
	if len(named) == 0 {
		return nil, nil
	}
	for _, p := range observe.Parts {
		if named[p] == (len(only) > 0) {
			parts = append(parts, p)
		}
	}
	if len(but) > 0 && len(parts) == 0 {
		return nil, fmt.Errorf("exclude[] leaves nothing")
	}
	return parts, nil
}

// known lists what collect[] and exclude[] may name.
func known() string {
	var names []string
	for _, p := range observe.Parts {
		names = append(names, string(p))
	}
	for _, t := range observe.Tiers {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// family is a row of the table as it is exposed.
type family struct {
	row *observe.Row
	// names are those of the labels in the order of Prometheus, and at says which of the values that are told is whose.
	names []*string
	at    []int
	kind  dto.MetricType
}

// families are all rows in the order of the table, the server's own ones first. A registry of collectors would check
// and sort every figure of each answer anew, which is more work than all the rest; here the table is checked by its
// tests.
var families = func() (all []family) {
	add := func(r *observe.Row) {
		f := family{row: r, kind: dto.MetricType_GAUGE}
		if r.Kind == metrics.Counter {
			f.kind = dto.MetricType_COUNTER
		}
		labels := r.AllLabels()
		for _, name := range slices.Sorted(slices.Values(labels)) {
			f.names = append(f.names, &name)
			f.at = append(f.at, slices.Index(labels, name))
		}
		all = append(all, f)
	}
	for i := range observe.Own {
		add(&observe.Own[i])
	}
	for i := range observe.Table {
		if r := &observe.Table[i]; !r.Recorded {
			add(r)
		}
	}
	return all
}()

// metric is one figure with the values of its labels as they are told.
func (f *family) metric(value float64, labels []string) *dto.Metric {
	m := &dto.Metric{Label: make([]*dto.LabelPair, len(f.names))}
	pairs := make([]dto.LabelPair, len(f.names))
	for i, at := range f.at {
		text := strings.ToValidUTF8(labels[at], "\uFFFD")
		pairs[i].Name, pairs[i].Value = f.names[i], &text
		m.Label[i] = &pairs[i]
	}
	if f.kind == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &value}
	} else {
		m.Gauge = &dto.Gauge{Value: &value}
	}
	return m
}

// families gives the answer, as many figures as there is room for.
func (s *Server) families(now state, parts []observe.Part) (all []*dto.MetricFamily) {
	room, dropped := s.o.Series, int64(0)
	ofGroup := map[string]int{}
	own := s.own(now)
	for i := range families {
		f := &families[i]
		out := &dto.MetricFamily{Name: &f.row.Name, Help: &f.row.Help, Type: &f.kind}
		switch {
		case i < len(own):
			own[i](func(value float64, labels ...string) {
				out.Metric = append(out.Metric, f.metric(value, labels))
			})
		case now.sample == nil || len(parts) > 0 && !slices.Contains(parts, f.row.Part):
		default:
			f.row.Each(now.sample, func(value float64, labels ...string) {
				if f.row.OfGroup() {
					ofGroup[labels[0]]++
				}
				if room <= 0 || f.row.OfGroup() && ofGroup[labels[0]] > s.o.PerGroup {
					dropped++
					return
				}
				room--
				out.Metric = append(out.Metric, f.metric(value, labels))
			})
		}
		if len(out.Metric) > 0 {
			all = append(all, out)
		}
	}
	sum := float64(s.dropped.Add(dropped))
	for _, f := range all {
		if f.GetName() == "bulkhead_series_dropped_total" {
			f.Metric[0].Counter.Value = &sum
		}
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// own tells the figures of the rows of observe.Own, in their order.
func (s *Server) own(now state) []func(observe.Tell) {
	return []func(observe.Tell){
		func(tell observe.Tell) {
			if now.sample != nil {
				tell(1)
			} else {
				tell(0)
			}
		},
		func(tell observe.Tell) {
			if now.known {
				tell(now.age.Seconds())
			}
		},
		func(tell observe.Tell) { tell(0) }, // known at the end
		func(tell observe.Tell) { tell(1, s.o.Version) },
	}
}
