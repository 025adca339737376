// Package exposition shows what an agent sampled in the formats of Prometheus, by observe.Table.
//
// A Server asks for a sample when somebody scrapes, and never makes a scrape wait long for it: the answer has what was
// got before, or says that there is none. It may be used from any goroutine.
package exposition

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

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
	return &Server{o: o, last: last{fetch: o.Fetch, changed: o.Changed}}
}

// ServeHTTP answers a scrape: collect[] names the kinds of figures to give, or exclude[] those not to give.
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
	reg := prometheus.NewRegistry()
	reg.MustRegister(&scrape{server: s, parts: parts, now: s.last.get(ctx)})
	return reg
}

// choose reads which parts a scrape asks for; nil is all.
func choose(query map[string][]string) (parts []observe.Part, err error) {
	only, but := query["collect[]"], query["exclude[]"]
	if len(only) > 0 && len(but) > 0 {
		return nil, fmt.Errorf("collect[] and exclude[] cannot be used together")
	}
	for _, name := range slices.Concat(only, but) {
		if !slices.Contains(observe.Parts, observe.Part(name)) {
			var known []string
			for _, p := range observe.Parts {
				known = append(known, string(p))
			}
			return nil, fmt.Errorf("there are no figures of %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	for _, p := range observe.Parts {
		if slices.Contains(only, string(p)) || len(but) > 0 && !slices.Contains(but, string(p)) {
			parts = append(parts, p)
		}
	}
	if len(but) > 0 && len(parts) == 0 {
		return nil, fmt.Errorf("exclude[] leaves nothing")
	}
	return parts, nil
}

// descriptions are made once: a Desc is checked and hashed when it is made.
var descriptions = func() map[string]*prometheus.Desc {
	all := map[string]*prometheus.Desc{}
	for _, r := range slices.Concat(observe.Table, observe.Own) {
		all[r.Name] = prometheus.NewDesc(r.Name, r.Help, r.AllLabels(), nil)
	}
	return all
}()

// scrape is the collector of one answer.
type scrape struct {
	server *Server
	parts  []observe.Part
	now    state
}

// Describe implements prometheus.Collector. It is left to each answer which figures there are.
func (c *scrape) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *scrape) Collect(out chan<- prometheus.Metric) {
	tell := func(r *observe.Row, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if r.Kind == metrics.Counter {
			kind = prometheus.CounterValue
		}
		for i := range labels {
			labels[i] = strings.ToValidUTF8(labels[i], "�")
		}
		m, err := prometheus.NewConstMetric(descriptions[r.Name], kind, value, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(descriptions[r.Name], err)
		}
		out <- m
	}
	if c.now.sample != nil {
		c.figures(tell)
	}
	up := 0.0
	if c.now.sample != nil {
		up = 1
	}
	tell(&observe.Own[0], up)
	if c.now.known {
		tell(&observe.Own[1], c.now.age.Seconds())
	}
	tell(&observe.Own[2], float64(c.server.dropped.Load()))
	tell(&observe.Own[3], 1, c.server.o.Version)
}

// figures tells those of the sample, as many as there is room for.
func (c *scrape) figures(tell func(*observe.Row, float64, ...string)) {
	all, dropped := 0, 0
	ofGroup := map[string]int{}
	for i := range observe.Table {
		r := &observe.Table[i]
		if c.parts != nil && !slices.Contains(c.parts, r.Part) {
			continue
		}
		r.Each(c.now.sample, func(value float64, labels ...string) {
			if r.OfGroup() {
				ofGroup[labels[0]]++
			}
			if all >= c.server.o.Series || r.OfGroup() && ofGroup[labels[0]] > c.server.o.PerGroup {
				dropped++
				return
			}
			all++
			tell(r, value, labels...)
		})
	}
	c.server.dropped.Add(int64(dropped))
}
