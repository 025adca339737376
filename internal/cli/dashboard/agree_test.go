package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/exposition"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
	"bulkhead/internal/page"
	"bulkhead/internal/policy"
)

// scrape is what Prometheus gets of a sample: figures by name and the values of their labels but role and engine.
func scrape(t *testing.T, s *observe.Sample) map[string]float64 {
	t.Helper()
	fetch := func(context.Context, *figures.Set) (*figures.Set, error) { return figures.Of(s), nil }
	server := exposition.New(exposition.Options{Fetch: fetch})
	var families []*dto.MetricFamily
	for tries := 0; len(families) < 20 && tries < 100; tries++ { // a busy machine: the sample is not there in time
		var err error
		if families, err = server.Gatherer(t.Context()).Gather(); err != nil {
			t.Fatal(err)
		}
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if n := l.GetName(); n != "role" && n != "engine" && l.GetValue() != "" {
					labels = append(labels, l.GetValue())
				}
			}
			slices.Sort(labels)
			all[strings.Join(append([]string{f.GetName()}, labels...), " ")] = m.GetGauge().GetValue() +
				m.GetCounter().GetValue()
		}
	}
	return all
}

// onPage are the texts and numbers of a group's columns that the page shows of the last of these samples.
func onPage(t *testing.T, group string, samples ...*observe.Sample) (cells top.Cells) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "record")
	var text bytes.Buffer
	err := record.Write(&text, func(yield func(record.Tick) error) error {
		for _, s := range samples {
			if err := yield(record.TickOf(s, observe.Parts)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = os.WriteFile(name, text.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := page.New(page.Options{Segments: func(_ context.Context, from, to time.Time) (io.ReadCloser, error) {
		return record.Open(name, from, to)
	}})
	w, at := httptest.NewRecorder(), samples[len(samples)-1].At.UnixMilli()
	h.ServeHTTP(w, httptest.NewRequest("GET", fmt.Sprintf("/api/at?at=%d", at), nil))
	var shown struct{ Groups []top.OneGroup }
	if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil || w.Code != 200 {
		t.Fatalf("the page is answered %d %v: %s", w.Code, err, w.Body)
	}
	for _, g := range shown.Groups {
		if g.Group == group {
			cells = g.Cells
		}
	}
	return cells
}

// Each figure on `top`, on the page and on `status` is one of those that Prometheus gets, which are the rows of the
// table.
func TestFiguresAgree(t *testing.T) {
	var samples [2]*observe.Sample
	var reel top.Reel
	for i := range samples {
		s := observetest.Sample(t)
		s.At = s.At.Add(time.Duration(i) * 5 * time.Second)
		more(&s.Groups[0], int64(i))
		samples[i] = s
		reel.AppendSample(s)
	}
	state, before, now := reel.State(1), scrape(t, samples[0]), scrape(t, samples[1])
	group := samples[1].Groups[0].Group
	// sum adds up what Prometheus gets under a name of one group, of the lines that have a label.
	sum := func(of map[string]float64, name, label string) (sum float64) {
		found := false
		for key, v := range of {
			words := strings.Fields(key)
			if words[0] == "bulkhead_group_"+name && slices.Contains(words, group) && (label == "" ||
				slices.Contains(words, label)) {
				sum, found = sum+v, true
			}
		}
		if !found {
			t.Errorf("Prometheus gets no %s %s", name, label)
		}
		return sum
	}
	value := func(name, label string) float64 { return sum(now, name, label) }
	rate := func(name, label string) float64 { return (sum(now, name, label) - sum(before, name, label)) / 5 }
	pressure := func(resource string) float64 {
		key := "bulkhead_group_pressure_seconds_total " + strings.Join(slices.Sorted(slices.Values([]string{group,
			resource, "some"})), " ")
		return (now[key] - before[key]) / 5
	}
	want := map[string]float64{
		"cpu":    rate("cpu_seconds_total", ""),
		"wait":   max(pressure("cpu"), pressure("memory"), pressure("io")),
		"held":   rate("cpu_throttled_periods_total", "") / rate("cpu_periods_total", ""),
		"memory": value("memory_charged_bytes", ""),
		"read":   rate("io_bytes_total", "read"), "write": rate("io_bytes_total", "write"),
		"net": rate("network_bytes_total", ""), "tasks": value("threads", ""),
		"limits": value("limits_not_in_force", ""), "ops": rate("io_operations_total", ""),
		"used": value("memory_charged_bytes", "") / value("limit_held", "memory.max"),
		"run":  value("tasks", "runnable"), "blocked": value("tasks", "blocked"), "load": value("load1", ""),
		"work": rate("work_total", ""), "slack": value("slo_slack", ""),
	}
	page := onPage(t, group, samples[:]...)
	for i := range top.Columns {
		c := &top.Columns[i]
		if got := c.Cell(state, group); !got.Known || want[c.Name] == 0 ||
			math.Abs(got.Value-want[c.Name]) > 1e-9*want[c.Name] {
			t.Errorf("top says %s %v, Prometheus gets %v", c.Name, got, want[c.Name])
		} else if page.Shown[c.Name] != got.Text || math.Abs(page.Values[c.Name]-got.Value) > 1e-9*got.Value {
			t.Errorf("top says %s %v, the page %s %v", c.Name, got, page.Shown[c.Name], page.Values[c.Name])
		}
	}
	text := statusOf(samples[1])
	human := func(name, label string) string { return policy.Bytes(value(name, label)).Human() }
	for _, line := range []string{
		fmt.Sprintf("cpu: user %.1f s, system %.1f s, throttled in %.0f of %.0f periods for %.1f s",
			value("cpu_mode_seconds_total", "user"), value("cpu_mode_seconds_total", "system"),
			value("cpu_throttled_periods_total", ""), value("cpu_periods_total", ""),
			value("cpu_throttled_seconds_total", "")),
		fmt.Sprintf("memory: anonymous %s, file %s, shared %s, huge pages %s, swap %s; charged %s, peak %s, OOM kills "+
			"%.0f",
			human("memory_bytes", "anonymous"), human("memory_bytes", "file"), human("memory_bytes", "shared"),
			human("memory_bytes", "huge"), human("memory_bytes", "swap"), human("memory_charged_bytes", ""),
			human("memory_peak_bytes", ""), value("memory_oom_kills_total", "")),
		fmt.Sprintf("running now %.0f, in D state now %.0f; load average %.2f ", value("tasks", "runnable"),
			value("tasks", "blocked"), value("load1", "")),
		fmt.Sprintf("disk 8:0: read %s in %.0f, written %s in %.0f",
			policy.Bytes(now["bulkhead_group_io_bytes_total "+group+" read sda"]).Human(),
			now["bulkhead_group_io_operations_total "+group+" read sda"],
			policy.Bytes(now["bulkhead_group_io_bytes_total "+group+" sda write"]).Human(),
			now["bulkhead_group_io_operations_total "+group+" sda write"]),
	} {
		if !strings.Contains(text, line) {
			t.Errorf("status does not say what Prometheus gets, %q:\n%s", line, text)
		}
	}
	// The table of status, as `status --watch` prints it, has CPU and memory as top has.
	var out bytes.Buffer
	render.Status(&out, status(samples[1]), status(samples[0]), 5*time.Second)
	promised, ends := api.SLO{Signal: "heartbeat"}, *samples[1].Groups[0].SLO.Held[0].Ends
	for _, want := range []string{"heartbeat " + promised.Amount(value("slo_value", "")) + ", target " +
		promised.Amount(value("slo_target", "")) + fmt.Sprintf(", slack %.0f %%", 100*value("slo_slack", "")),
		"12 windows of 720 missed", "reports:cpu.limit=0.7 (policy: 2; when it ends is not known: ",
		"lowered reports:cpu.limit to 0.7", "holds mysql3306/backup:cpu.limit=0.5 (policy: no limit; ends about " +
			api.Moment(ends, time.Now()) + ", 62 % of /var/lib/mysql read)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status does not say what Prometheus gets, %q:\n%s", want, &out)
		}
	}
	why := strings.Join(state.Why(group), "\n")
	if want := "It is promised heartbeat " + promised.Amount(value("slo_target", "")) + ", and has " +
		promised.Amount(value("slo_value", "")); !strings.Contains(why, want) ||
		!strings.Contains(why, "2 limits of other groups lowered for it, the last of them ends about "+
			api.Moment(ends, samples[1].At)) {
		t.Errorf("top says\n%s\nnot %q", why, want)
	}
	line := text[:0]
	for l := range strings.Lines(out.String()) {
		if strings.HasPrefix(l, group+" ") {
			line = l
		}
	}
	if words := strings.Fields(line); len(words) < 6 || words[2] != top.Columns[0].Cell(state, group).Text ||
		words[5]+" "+words[6] != human("memory_charged_bytes", "") {
		t.Errorf("status --watch says\n%s\nand top %+v", &out, state)
	}
}

// more is the group some time later.
func more(g *observe.Group, n int64) {
	u := &g.Usage
	for _, p := range []**int64{&u.CPU.Total, &u.CPU.User, &u.CPU.System, &u.CPU.Throttled} {
		*p = new(**p + n*3_210_000)
	}
	u.CPU.Periods, u.CPU.ThrottledPeriods = new(*u.CPU.Periods+50*n), new(*u.CPU.ThrottledPeriods+20*n)
	for i := range u.IO {
		u.IO[i].ReadBytes += n * 7 << 20
		u.IO[i].WrittenBytes += n * 3 << 20
		u.IO[i].Reads += n * 100
	}
	for i, resource := range metrics.Resources {
		u.Pressure[resource].Some.Total += n * int64(i+1) * 100_000
	}
	g.Traffic.Out.Bytes += uint64(n) * 5000
	g.Work.Done += 700 * n
}

func statusOf(s *observe.Sample) string {
	var out bytes.Buffer
	st := status(s)
	st.Groups = st.Groups[:1]
	render.StatusOf(&out, st)
	return out.String()
}

// status is what `status` would say when the agent sees what is in a sample.
func status(s *observe.Sample) *api.Status {
	st := &api.Status{}
	for _, g := range s.Groups {
		if g.SLO != nil {
			st.SLO = append(st.SLO, *g.SLO)
		}
		one := api.GroupStatus{Group: g.Group, Usage: g.Usage, MemorySource: "cgroup", Load: g.Load}
		if g.Tasks != nil {
			one.Tasks = *g.Tasks
		}
		st.Groups = append(st.Groups, one)
	}
	return st
}
