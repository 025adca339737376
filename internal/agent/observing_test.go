package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"bulkhead/internal/agent/wire"
	"bulkhead/internal/host"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/sampling"
)

// Who asks for figures gets those of the last sample, and who does not, as an older `serve`, the sample in JSON. Who
// has it already gets JSON with its age.
func TestFiguresOfTheLastSample(t *testing.T) {
	o := sampling.NewObserver(sampling.Options{Host: host.New("/"), State: t.TempDir(), Every: 50 * time.Millisecond,
		Self:  func() (observe.Agent, error) { return observe.Agent{}, nil },
		Tasks: func() (map[string]metrics.TaskStates, metrics.Loads) { return nil, nil }})
	s := &server{agent: &Agent{observer: o}}
	ask := func(accept, query string) (kind string, body []byte) {
		r, w := httptest.NewRequest(http.MethodGet, "/v1/samples"+query, nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		s.samples(w, r)
		return w.Header().Get("Content-Type"), w.Body.Bytes()
	}
	sample := func(body []byte) *observe.Sample {
		t.Helper()
		var a wire.Answer
		if err := json.Unmarshal(body, &a); err != nil || a.Sample == nil {
			t.Fatalf("%v: %.300s", err, body)
		}
		return a.Sample
	}
	if kind, body := ask(figures.Type, ""); kind != wire.JSON {
		t.Errorf("before the first sample it answers %q %q", kind, body)
	}
	o.See(t.Context(), sampling.Nothing(nil))
	for began := time.Now(); o.Last() == nil || !o.Last().Has(observe.Stat); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("no sample is taken")
		}
	}
	kind, body := ask(figures.Type, "")
	set, err := figures.Read(body, nil)
	if err != nil || kind != figures.Type {
		t.Fatalf("it answers %q, %v", kind, err)
	}
	busy := 0.0
	set.Layout.Each(observe.RowOf("bulkhead_host_cpu_seconds_total"), func(at int, labels []string) {
		if labels[0] == "busy" {
			busy = set.Values[at]
		}
	})
	kind, body = ask("", "")
	if whole := sample(body); kind != wire.JSON || busy <= 0 || busy > whole.Host.Busy.Seconds() {
		t.Errorf("it answers %q, busy for %v, and figures of %v s", kind, whole.Host.Busy, busy)
	}
	for range 100 { // until none is taken in between
		kind, body = ask(figures.Type, fmt.Sprint("?unless=", o.Last().At.UnixNano()))
		if kind == wire.JSON {
			break
		}
	}
	if same := sample(body); !same.Same || len(same.Collectors) != 0 {
		t.Errorf("who has it gets %+v", same)
	}
}
