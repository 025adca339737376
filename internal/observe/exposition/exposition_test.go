package exposition

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/api"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/observetest"
)

var update = flag.Bool("update", false, "write testdata/metrics.txt anew")

// patient is a server whose scrapes wait for the agent however busy this machine is.
func patient(o Options) *Server {
	s := New(o)
	s.last.wait = time.Minute
	return s
}

// sent are the figures of a sample as they come from an agent to who has others already.
func sent(s *observe.Sample, had *figures.Set) (*figures.Set, error) {
	return figures.Read(figures.Of(s).Append(nil), had)
}

// always gives the same sample.
func always(s *observe.Sample) func(context.Context, *figures.Set) (*figures.Set, error) {
	return func(_ context.Context, had *figures.Set) (*figures.Set, error) { return sent(s, had) }
}

// scraped is an answer: its status, type and text without what differs from one to the next.
func scraped(t *testing.T, s *Server, target string, accept string) (int, string, string) {
	t.Helper()
	r, w := httptest.NewRequest("GET", target, nil), httptest.NewRecorder()
	r.Header.Set("Accept", accept)
	s.ServeHTTP(w, r)
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "bulkhead_sample_age_seconds ") {
			line = "bulkhead_sample_age_seconds 2.5\n"
		}
		lines = append(lines, line)
	}
	return w.Code, w.Header().Get("Content-Type"), strings.Join(lines, "")
}

// gathered are the figures of an answer by name and labels: `bulkhead_group_threads{engine="mysql",…}`.
func gathered(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	families, err := s.Gatherer(t.Context()).Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_COUNTER {
				value = m.GetCounter().GetValue()
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			all[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return all
}

// The whole answer on one sample, as text and as OpenMetrics, with nothing that promlint objects to.
func TestGolden(t *testing.T) {
	const file = "testdata/metrics.txt"
	s := patient(Options{Fetch: always(observetest.Sample(t)), Version: "1.2.3"})
	code, kind, text := scraped(t, s, "/metrics", "")
	if code != 200 || !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Fatalf("answered %d %q: %s", code, kind, text)
	}
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != text {
		t.Errorf("the answer is not %s (%v): go test ./internal/observe/exposition -update\n%s", file, err, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint finds %v, %v", problems, err)
	}
	code, kind, text = scraped(t, s, "/metrics", "application/openmetrics-text; version=1.0.0")
	if code != 200 || !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") ||
		!strings.HasSuffix(text, "# EOF\n") || !strings.Contains(text, "# TYPE bulkhead_group_cpu_seconds counter\n") {
		t.Errorf("answered %d %q: %.300s…%s", code, kind, text, text[max(0, len(text)-80):])
	}
}

// Every figure of a group is the same in the JSON of status, in the answer, and by the table.
func TestFiguresAgree(t *testing.T) {
	one := observetest.Sample(t)
	shown := gathered(t, patient(Options{Fetch: always(one)}))
	text, err := json.Marshal(api.GroupStatus{Group: one.Groups[0].Group, Usage: one.Groups[0].Usage})
	var status struct{ Usage map[string]any }
	if err == nil {
		err = json.Unmarshal(text, &status)
	}
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, r := range observe.Table {
		for _, f := range r.Fields {
			if r.Recorded {
				continue
			}
			for device, value := range inJSON(t, status.Usage, f.Field.Name) {
				labels := map[string]string{"group": "mysql3306", "role": "database", "engine": "mysql"}
				values := f.Labels
				if device != "" {
					values = append([]string{one.Devices[device]}, values...)
				}
				for i, name := range r.Labels {
					labels[name] = values[i]
				}
				var pairs []string
				for name, value := range labels {
					pairs = append(pairs, fmt.Sprintf("%s=%q", name, value))
				}
				slices.Sort(pairs)
				key := r.Name + "{" + strings.Join(pairs, ",") + "}"
				if f.Field.Unit == metrics.Microseconds {
					value /= 1e6
				}
				if got, there := shown[key]; !there || math.Abs(got-value) > 1e-9*value {
					t.Errorf("%s is %v in status and %s %v (%v) in the answer", f.Field.Name, value, key, got, there)
				}
				compared++
			}
		}
	}
	if compared != 37 {
		t.Errorf("%d figures were compared", compared)
	}
}

// inJSON finds the figures of a field by its path in JSON: one, or one for each device.
func inJSON(t *testing.T, usage map[string]any, name string) map[string]float64 {
	t.Helper()
	if key, ofDevice := strings.CutPrefix(name, "io[]."); ofDevice {
		all := map[string]float64{}
		for _, io := range usage["io"].([]any) {
			io := io.(map[string]any)
			all[io["device"].(string)] = io[key].(float64)
		}
		return all
	}
	var at any = usage
	for key := range strings.SplitSeq(name, ".") {
		at = at.(map[string]any)[key]
	}
	n, is := at.(float64)
	if !is {
		t.Fatalf("the sample has no %s", name)
	}
	return map[string]float64{"": n}
}

// BenchmarkScrape is what an answer with fifty groups costs where each has a new sample, the agent's part aside.
func BenchmarkScrape(b *testing.B) {
	set := figures.Of(observetest.Groups(b, 50, 3))
	s := patient(Options{Fetch: func(context.Context, *figures.Set) (*figures.Set, error) {
		next := set.Aged(0)
		next.At = time.Now()
		return next, nil
	}})
	b.ReportAllocs()
	for b.Loop() {
		s.last.tried = time.Time{} // so that there is a new sample
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Accept-Encoding", "gzip")
		s.ServeHTTP(httptest.NewRecorder(), r)
	}
}

func TestCollect(t *testing.T) {
	s := patient(Options{Fetch: always(observetest.Sample(t))})
	for query, want := range map[string]struct {
		code     int
		has, not string
	}{
		"collect[]=cpu":                   {200, "bulkhead_group_cpu_seconds_total", "bulkhead_group_memory_bytes"},
		"collect[]=cpu&collect[]=memory":  {200, "bulkhead_group_memory_charged_bytes", "bulkhead_group_io_bytes"},
		"exclude[]=cpu":                   {200, "bulkhead_group_memory_bytes", "bulkhead_group_cpu_seconds_total"},
		"collect[]=hr":                    {200, "bulkhead_group_cpu_seconds_total", "bulkhead_group_threads"},
		"collect[]=mr":                    {200, "bulkhead_group_threads", "bulkhead_group_cpu_seconds_total"},
		"collect[]=lr&collect[]=cpu":      {200, "bulkhead_group_cpu_seconds_total", "bulkhead_group_threads"},
		"exclude[]=lr":                    {200, "bulkhead_group_threads", "bulkhead_group_memory_bytes"},
		"collect[]=diskstats":             {200, "bulkhead_host_disk_bytes_total", "bulkhead_group_"},
		"collect[]=agent":                 {200, "bulkhead_agent_looks_total", "bulkhead_group_"},
		"collect[]=disks":                 {400, "cpu, pressure, io", "bulkhead_up"},
		"exclude[]=cpu&exclude[]=nothing": {400, "uname, zfs, hr, mr, lr", "bulkhead_up"},
		"collect[]=cpu&exclude[]=io":      {400, "together", "bulkhead_up"},
	} {
		code, _, text := scraped(t, s, "/metrics?"+strings.NewReplacer("[", "%5B", "]", "%5D").Replace(query), "")
		if code != want.code || !strings.Contains(text, want.has) || strings.Contains(text, want.not) {
			t.Errorf("%s: %d %.400s", query, code, text)
		}
		if up := strings.Contains(text, "\nbulkhead_up 1\n"); up != (code == 200) {
			t.Errorf("%s: up is told: %v", query, up)
		}
	}
}

// Beyond the bounds figures are left out, counted, and the rest is whole.
func TestBounds(t *testing.T) {
	one := observetest.Sample(t)
	whole := gathered(t, patient(Options{Fetch: always(one)}))
	s := patient(Options{Fetch: always(one), PerGroup: 5})
	few := gathered(t, s)
	ofGroup := 0
	for key := range few {
		if strings.HasPrefix(key, "bulkhead_group_") && strings.Contains(key, `group="mysql3306",`) {
			ofGroup++
		}
	}
	if ofGroup != 5 {
		t.Errorf("the group has %d figures", ofGroup)
	}
	if dropped := few["bulkhead_series_dropped_total{}"]; int(dropped) != len(whole)-len(few) || dropped < 50 {
		t.Errorf("%v were dropped, of %d there are %d", dropped, len(whole), len(few))
	}
	few = gathered(t, patient(Options{Fetch: always(one), Series: 20}))
	if len(few) != 20+len(observe.Own) {
		t.Errorf("there are %d figures", len(few))
	}
}

// A group that uses many disks loses figures of disks, and none that alerts are about.
func TestManyDisks(t *testing.T) {
	one := observetest.Sample(t)
	group := &one.Groups[0]
	for i := range 60 {
		group.Usage.IO = append(group.Usage.IO, group.Usage.IO[0])
		group.Usage.IO[len(group.Usage.IO)-1].Device = fmt.Sprintf("300:%d", i)
	}
	all := gathered(t, patient(Options{Fetch: always(one)}))
	kinds := map[string]bool{}
	for key := range all {
		if strings.Contains(key, fmt.Sprintf("group=%q", group.Group)) {
			name, _, _ := strings.Cut(key, "{")
			kinds[name] = true
		}
	}
	for _, want := range []string{"bulkhead_group_limits_not_in_force", "bulkhead_group_limit_held",
		"bulkhead_group_pressure_seconds_total", "bulkhead_group_forks_refused_total",
		"bulkhead_group_io_bytes_total"} {
		if !kinds[want] {
			t.Errorf("there is no %s", want)
		}
	}
	for i := range 6000 { // the host has as many, which leave room for all groups
		disk := []string{fmt.Sprint("dm-", i)}
		one.Host.Figures = append(one.Host.Figures, observe.Figure{Name: "disk_busy_seconds", Labels: disk},
			observe.Figure{Name: "disk_requests", Labels: disk})
	}
	for key := range gathered(t, patient(Options{Fetch: always(one)})) {
		if strings.Contains(key, "bulkhead_group_") {
			delete(all, key)
		}
	}
	for key := range all {
		if strings.Contains(key, "bulkhead_group_") {
			t.Errorf("disks of the host displace %s", key)
		}
	}
	if all["bulkhead_series_dropped_total{}"] == 0 {
		t.Error("nothing was left out")
	}
}

// changes keeps what Changed was told.
type changes struct {
	mu  sync.Mutex
	all []error
}

func (c *changes) told(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, err)
}

// Without an agent, and with one that samples no more, there is no figure of a group, and the age goes on.
func TestNoStaleFigures(t *testing.T) {
	one, away := observetest.Sample(t), false
	var said changes
	s := patient(Options{Changed: said.told, Fetch: func(_ context.Context, had *figures.Set) (*figures.Set, error) {
		if away {
			return nil, errors.New("no agent")
		}
		return sent(one, had)
	}})
	stale := func(all map[string]float64) bool {
		return slices.ContainsFunc(keys(all), func(key string) bool { return strings.Contains(key, "_group_") })
	}
	if all := gathered(t, s); all["bulkhead_up{}"] != 1 || !stale(all) {
		t.Errorf("with an agent: %v", all)
	}
	away = true
	s.last.tried = time.Time{} // so that it is asked again at once
	first := gathered(t, s)
	age, known := first["bulkhead_sample_age_seconds{}"]
	if up, there := first["bulkhead_up{}"]; up != 0 || !there || stale(first) || !known || age < 2.5 {
		t.Errorf("without an agent: %v", first)
	}
	if later := gathered(t, s)["bulkhead_sample_age_seconds{}"]; later <= age {
		t.Errorf("the age was %v, and is %v", age, later)
	}
	away = false
	one.Age = 31 * time.Second
	s.last.tried = time.Time{}
	if all := gathered(t, s); all["bulkhead_up{}"] != 0 || stale(all) || all["bulkhead_sample_age_seconds{}"] < 31 {
		t.Errorf("with an old sample: %v", all)
	}
	one.Age = 0
	s.last.tried = time.Time{}
	if all := gathered(t, s); all["bulkhead_up{}"] != 1 || !stale(all) {
		t.Errorf("with an agent again: %v", all)
	}
	if len(said.all) != 3 || said.all[0] == nil || !errors.Is(said.all[1], errOld) || said.all[2] != nil {
		t.Errorf("said %v", said.all)
	}
}

func keys(all map[string]float64) (names []string) {
	for name := range all {
		names = append(names, name)
	}
	return names
}

// While the agent hangs, scrapes answer with what there is, however many come, and ask it once.
func TestHangingAgent(t *testing.T) {
	one := observetest.Sample(t)
	var mu sync.Mutex
	asked, hang := 0, make(chan struct{})
	s := patient(Options{Fetch: func(_ context.Context, had *figures.Set) (*figures.Set, error) {
		mu.Lock()
		asked++
		first := asked == 1
		mu.Unlock()
		if !first {
			<-hang
		}
		return sent(one, had)
	}})
	gathered(t, s)
	s.last.mu.Lock()
	s.last.tried, s.last.wait = time.Time{}, scrapeWaits
	s.last.mu.Unlock()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if up := gathered(t, s)["bulkhead_up{}"]; up != 1 {
				t.Errorf("up is %v with a sample that is 2.5 s old", up)
			}
		})
	}
	all.Wait() // nothing of this waits for the agent
	mu.Lock()
	defer mu.Unlock()
	if asked != 2 {
		t.Errorf("the agent was asked %d times", asked)
	}
	close(hang)
}
