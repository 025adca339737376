// Package exposition shows what an agent sampled in the formats of Prometheus, by observe.Table.
//
// A Server asks for a sample when somebody scrapes, and, while Keep runs, every 10 s where nobody does. It never
// makes a scrape wait long for it: the answer has what was got before, or says that there is none. It may be used from
// any goroutine.
package exposition

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
)

// Options of a Server. Zero values are the defaults.
type Options struct {
	// Fetch gets the figures of the last sample from the agent. Of those that were got before, which may be nil, it may
	// give a copy with the new age. It is called by one goroutine at a time.
	Fetch func(ctx context.Context, had *figures.Set) (*figures.Set, error)
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
	texts   texts
}

// New makes a server.
func New(o Options) *Server {
	o.PerGroup, o.Series = cmp.Or(o.PerGroup, 70), cmp.Or(o.Series, 10_000)
	if o.Changed == nil {
		o.Changed = func(error) {}
	}
	return &Server{o: o, last: last{fetch: o.Fetch, changed: o.Changed, wait: scrapeWaits}}
}

// Keep asks for samples by itself until ctx ends, when no scrape has for a while: one that cannot wait for a busy agent
// then finds a young one, however seldom somebody scrapes.
func (s *Server) Keep(ctx context.Context) {
	for ctx.Err() == nil {
		rest := s.last.rest()
		if rest <= 0 {
			s.last.get(ctx)
			rest = s.last.rest()
		}
		select {
		case <-ctx.Done():
		case <-time.After(max(rest, freshFor)):
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
	if s.answer(w, r, parts) {
		return
	}
	promhttp.HandlerFor(s.Gatherer(r.Context(), parts...), promhttp.HandlerOpts{EnableOpenMetrics: true}).
		ServeHTTP(w, r)
}

// answer answers as text or as OpenMetrics; false: something else is asked for.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, parts []observe.Part) bool {
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
	kind := format.FormatType()
	if kind != expfmt.TypeTextPlain && kind != expfmt.TypeOpenMetrics || r.URL.Query().Has("name[]") {
		return false
	}
	now, q := s.last.get(r.Context()), question{open: kind == expfmt.TypeOpenMetrics, parts: names(parts)}
	zip := takesGzip(r.Header)
	all := s.texts.get(now.sample, q, zip, func(tell told) int64 { return s.figures(now.sample, parts, tell) })
	whole := interleave(all.sections, ownText(s.own(now, s.dropped.Add(all.dropped)), q.open))
	h := w.Header()
	h.Set("Content-Type", string(format))
	h.Add("Vary", "Accept")
	h.Add("Vary", "Accept-Encoding")
	var body []byte
	if zip {
		body = gzipped(whole, all.zipped)
		h.Set("Content-Encoding", "gzip")
	} else {
		body = bytes.Join(whole, nil)
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a scraper that went away
	return true
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

// figures tells those of a sample, which may be nil, as many as there is room for; dropped counts the others.
func (s *Server) figures(of *figures.Set, parts []observe.Part, tell told) (dropped int64) {
	room := s.o.Series
	ofGroup := map[string]int{}
	for i := len(observe.Own); i < len(families) && of != nil; i++ {
		row := families[i].row
		if len(parts) > 0 && !slices.Contains(parts, row.Part) {
			continue
		}
		of.Layout.Each(row, func(at int, labels []string) {
			if row.OfGroup() {
				ofGroup[labels[0]]++
			}
			if room <= 0 || row.OfGroup() && ofGroup[labels[0]] > s.o.PerGroup {
				dropped++
				return
			}
			room--
			tell(i, at, labels)
		})
	}
	return dropped
}

// families gives the answer.
func (s *Server) families(now state, parts []observe.Part) (all []*dto.MetricFamily) {
	told := make([]*dto.MetricFamily, len(families))
	tell := func(i int, value float64, labels []string) {
		f := &families[i]
		if told[i] == nil {
			told[i] = &dto.MetricFamily{Name: &f.row.Name, Help: &f.row.Help, Type: &f.kind}
		}
		told[i].Metric = append(told[i].Metric, f.metric(value, labels))
	}
	dropped := s.figures(now.sample, parts, func(i, at int, labels []string) {
		tell(i, now.sample.Values[at], labels)
	})
	for i, own := range s.own(now, s.dropped.Add(dropped)) {
		own(func(value float64, labels ...string) { tell(i, value, labels) })
	}
	for _, i := range byName {
		if told[i] != nil {
			all = append(all, told[i])
		}
	}
	return all
}

// own tells the figures of the rows of observe.Own, in their order.
func (s *Server) own(now state, dropped int64) []func(observe.Tell) {
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
		func(tell observe.Tell) { tell(float64(dropped)) },
		func(tell observe.Tell) { tell(1, s.o.Version) },
	}
}
