package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

// hostile is a name as somebody would choose who wants to run a script in the page.
const hostile = `</script><img src=x onerror="document.title='broken'">&<b>`

// begin is when the samples of tests begin.
var begin = time.Date(2026, 11, 20, 2, 0, 0, 0, time.UTC)

// sampleAt is the n-th sample of tests, every 5 s: a database that its CPU limit holds back, a backup below it, reports
// beside it, and one with a hostile name. From the 30th on another policy is in force, which the guard watches until
// the 36th; at the 40th a window opens, and somebody sets an override; from the 60th to the 80th a target is missed.
func sampleAt(t testing.TB, n float64) *observe.Sample {
	t.Helper()
	s := observetest.Sample(t)
	s.At = begin.Add(time.Duration(n * 5 * float64(time.Second))).Truncate(time.Millisecond)
	db := &s.Groups[0]
	u := &db.Usage
	u.CPU.Total, u.CPU.Periods, u.CPU.ThrottledPeriods = grown(n, 6.1e6), grown(n, 50), grown(n, 31)
	u.Memory.Current = new(int64((7.2 + 0.3*math.Sin(n/7)) * (1 << 30)))
	u.Memory.LimitHits = new(int64(5))
	u.IO[0].ReadBytes, u.IO[0].WrittenBytes = *grown(n, 180e6), *grown(n, 41e6)
	for i, resource := range metrics.Resources {
		u.Pressure[resource].Some.Total = *grown(n, float64(3-i)*0.6e6)
	}
	pages := map[string]float64{"usual": 0.9, "transparent": 0.3, "64KB": 0, "2MB": 5.2, "32MB": 0, "1GB": 0,
		"cache": 0.5} // with the pools of an arm64
	for node := range db.Nodes {
		for kind, gib := range pages {
			db.Nodes[node][kind] = int64(gib / float64(1+node) * (1 << 30))
		}
	}
	for i := range s.Host.Figures {
		if f := &s.Host.Figures[i]; f.Name == "numa_memory_bytes" {
			f.Value = map[string]float64{"total": 32 << 30, "free": 9 << 30}[f.Labels[1]]
		}
	}
	s.Groups[1].Usage.CPU.Total = grown(n, 2.1e6)
	s.Groups = append(s.Groups, observe.Group{Group: hostile, Role: `<i>`,
		Usage: metrics.Usage{CPU: metrics.CPU{Total: grown(n, 3e6)}}})
	for i := range 3 {
		s.Groups = append(s.Groups, observe.Group{Group: fmt.Sprint("reports", i), Role: "batch", Usage: metrics.Usage{
			CPU:    metrics.CPU{Total: new(int64(2e6*(n+40) + 9e6*math.Sin((n+float64(40*i))/9)))},
			Memory: metrics.Memory{Current: new(int64(i+1) << 29)}}})
	}
	s.Host.Busy, s.Host.Idle = time.Duration(n*19e9), time.Duration(n*21e9)
	db = &s.Groups[0]
	db.Work.Done = int64(5 * (1200*n + 1800*(1-math.Cos(n/9))))
	waited := time.Duration(float64(300*time.Millisecond) * (1.2*n + 8*(1-math.Cos(n/11))))
	db.Threads.Waited, db.Threads.Voluntary = &waited, uint64(n*4000)
	s.Agent.Guarded, s.Windows, db.Overrides = n >= 30 && n < 36, nil, 0
	if n >= 30 {
		s.Revision++
		db.Limits[1].Asked, db.Limits[1].Held = new(1.25), new(1.25)
	}
	if n >= 40 {
		s.Windows, db.Overrides = []string{"nights"}, 1
	}
	if n >= 60 && n < 80 {
		db.SLO.Value, db.SLO.Slack = new(0.028), new(-0.4)
	}
	return s
}

// grown is a counter that grows by so much from one sample to the next.
func grown(n, by float64) *int64 { return new(int64(n * by)) }

// tickOf is what is recorded of the n-th sample: memory and the like of every second one alone.
func tickOf(t testing.TB, n int) record.Tick {
	t.Helper()
	tick := record.TickOf(sampleAt(t, float64(n)), observe.Parts)
	tick.Parts = slices.DeleteFunc(tick.Parts, func(p record.Part) bool {
		return n%2 == 1 && !slices.Contains(observe.PartsOf(string(observe.High)), p.Name)
	})
	return tick
}

// recordOf writes samples as a record, with a gap of five minutes after the hundredth.
func recordOf(t testing.TB, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "incident")
	f, err := os.Create(name)
	if err == nil {
		err = record.Write(f, func(yield func(record.Tick) error) error {
			for i := range n {
				if i >= 100 {
					i += 60
				}
				if err := yield(tickOf(t, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	return name
}

// past shows a record of so many samples.
func past(t testing.TB, n int) Options {
	t.Helper()
	name := recordOf(t, n)
	return Options{Of: "db7", Version: "1.2.3",
		Segments: func(_ context.Context, from, to time.Time) (io.ReadCloser, error) {
			return record.Open(name, from, to)
		},
		Reach: func(context.Context) (record.Reach, error) { return record.Survey(name) },
	}
}

func ask(t *testing.T, h *Handler, target string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w.Code, w.Body.String()
}

// answered asks for JSON.
func answered[T any](t *testing.T, h *Handler, target string) (v T) {
	t.Helper()
	code, text := ask(t, h, target)
	if err := json.Unmarshal([]byte(text), &v); code != 200 || err != nil {
		t.Fatalf("%s is answered %d %v: %.300s", target, code, err, text)
	}
	return v
}

// A record that does not come is waited for so long, and then it is said what to do; who stands behind it waits no
// longer.
func TestRecordThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{
			Segments: func(ctx context.Context, _, _ time.Time) (io.ReadCloser, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			Reach: func(ctx context.Context) (record.Reach, error) {
				<-ctx.Done()
				return record.Reach{}, ctx.Err()
			}})
		began := time.Now()
		for range 2 {
			go func() {
				code, text := ask(t, h, "/api/series?from=1&to=2")
				if code != 504 || !strings.Contains(text, "shorter") {
					t.Errorf("answered %d %s", code, text)
				}
			}()
		}
		var about struct{ Trouble struct{ Error string } }
		if code, text := ask(t, h, "/api/about"); code != 200 || json.Unmarshal([]byte(text), &about) != nil ||
			about.Trouble.Error == "" || time.Since(began) > reachTime {
			t.Errorf("after %s it is answered %d %s", time.Since(began), code, text)
		}
		time.Sleep(pastTime)
		synctest.Wait()
	})
}

// A chart has no more points than it can show, however long it is.
func TestWidth(t *testing.T) {
	for span := time.Second; span <= mostRange; span += span/50 + 300*time.Millisecond {
		w := widthOf(span)
		if span > points*w || w%time.Second > 0 || w > time.Second && span <= points*(w-time.Second) {
			t.Fatalf("of %s it is %s", span, w)
		}
	}
}

// All that is served may load nothing from elsewhere and run no script that stands in a page, and nothing does.
func TestHeaders(t *testing.T) {
	h := New(past(t, 2))
	for _, target := range []string{"/", "/assets/main.js", "/assets/page.css", "/assets/uplot/uPlot.iife.min.js",
		"/assets/icon.svg", "/api/about", "/api/at?at=1", "/nothing", "/assets/"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		of := w.Header()
		if p := of.Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'self'; ") ||
			strings.Contains(p, "unsafe") || of.Get("X-Content-Type-Options") != "nosniff" ||
			of.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s has the headers %v", target, of)
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader("x")))
			if w.Code != 405 && w.Code != 404 {
				t.Errorf("%s %s is answered %d", method, target, w.Code)
			}
		}
	}
	for _, name := range []string{"LICENSE", "../page.go", "uplot", "README.md"} {
		if code, _ := ask(t, h, "/assets/uplot/"+name); code == 200 {
			t.Errorf("%s is served", name)
		}
	}
	err := fs.WalkDir(assets, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "/uplot/") {
			return err
		}
		text, err := assets.ReadFile(name)
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
			"style=\"", "onclick=\"", "<script>", "http:" + "//", "https:" + "//"} {
			if strings.Contains(strings.ReplaceAll(string(text), "http:"+"//www.w3.org/2000/svg", ""), bad) {
				t.Errorf("%s has %q", name, bad)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// uPlot is the one that README.md names.
func TestVendored(t *testing.T) {
	list, err := os.ReadFile("assets/uplot/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"uPlot.iife.min.js", "uPlot.min.css", "LICENSE"} {
		text, err := assets.ReadFile("assets/uplot/" + name)
		sum := fmt.Sprintf("%x  %s\n", sha256.Sum256(text), name)
		if err != nil || !strings.Contains(string(list), sum) {
			t.Errorf("%s: %v: README.md does not say %s", name, err, sum)
		}
	}
}

// An asset that has not changed is not sent again.
func TestUnchanged(t *testing.T) {
	h := New(past(t, 2))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/assets/main.js", nil))
	r := httptest.NewRequest("GET", "/assets/main.js", nil)
	r.Header.Set("If-None-Match", w.Header().Get("ETag"))
	again := httptest.NewRecorder()
	h.ServeHTTP(again, r)
	if w.Code != 200 || w.Body.Len() == 0 || again.Code != 304 || again.Body.Len() != 0 {
		t.Errorf("answered %d and then %d", w.Code, again.Code)
	}
}

// A name of somebody else that leads to this host is refused where only this host may ask.
func TestNames(t *testing.T) {
	o := past(t, 2)
	for _, local := range []bool{true, false} {
		h := http.Handler(New(o))
		if local {
			h = OfThisHost(h, o.Of)
		}
		for host, good := range map[string]bool{"localhost:9786": true, "127.0.0.1:9786": true, "[::1]:9786": true,
			"DB7": true, "evil.example:9786": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false} {
			r := httptest.NewRequest("GET", "/api/about", nil)
			r.Host = host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if want := good || !local; (w.Code == 200) != want || !want && w.Code != 421 {
				t.Errorf("local %v: %s is answered %d", local, host, w.Code)
			}
		}
	}
}

// What was recorded is shown as `top` shows it, and a hostile name is JSON that no browser takes for HTML.
func TestAt(t *testing.T) {
	h := New(past(t, 60))
	at := begin.Add(50 * 5 * time.Second)
	target := fmt.Sprintf("/api/at?group=mysql3306&at=%d", at.UnixMilli()+1)
	got := answered[view](t, h, target)
	var reel top.Reel
	for i := range 51 {
		reel.Append(tickOf(t, i))
	}
	want, err := json.Marshal(viewOf(reel.State(50), "mysql3306"))
	text, _ := json.Marshal(got)
	if err != nil || !bytes.Equal(want, text) {
		t.Errorf("shown is %s\nand top has %s", text, want)
	}
	if !got.At.Equal(at) || got.Group.Holders[0].Key != "cpu.limit" || got.Groups[1].Group != "mysql3306" &&
		got.Groups[0].Group != "mysql3306" {
		t.Errorf("shown is %s", text)
	}
	if _, raw := ask(t, h, target); strings.ContainsAny(raw, "<>") || !strings.Contains(raw, `\u003cimg`) {
		t.Errorf("the answer has HTML: %.200s", raw)
	}
}

// Where a reading a minute is left of old times, charts of a quarter of an hour have lines, and waits are known.
func TestThinned(t *testing.T) {
	name := filepath.Join(t.TempDir(), "incident")
	f, err := os.Create(name)
	if err == nil {
		err = errors.Join(record.Write(f, func(yield func(record.Tick) error) error {
			for i := range 15 {
				if err := yield(tickOf(t, 12*i)); err != nil {
					return err
				}
			}
			return nil
		}), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	h := New(Options{Segments: func(_ context.Context, from, to time.Time) (io.ReadCloser, error) {
		return record.Open(name, from, to)
	}})
	s := answered[struct {
		series
		Host   map[string][]*float64            `json:"host"`
		Groups map[string]map[string][]*float64 `json:"groups"`
	}](t, h, fmt.Sprintf("/api/series?from=%d&to=%d&group=mysql3306", begin.UnixMilli(),
		begin.Add(15*time.Minute).UnixMilli()))
	if cpu := s.Groups["mysql3306"]["cpu"]; len(cpu) != 15 || slices.Contains(cpu[1:], nil) {
		t.Errorf("of 15 minutes it has %d points of CPU, the times %v", len(cpu), s.Times)
	}
	looks := 0
	for _, r := range s.Waiting.Turns {
		looks += r.Looks
	}
	if looks != 14 || s.Waiting.Stalls == nil {
		t.Errorf("of 14 looks it has %d: %+v", looks, s.Waiting)
	}
}

// Charts have the figures that `top` has, gaps, and what happened.
func TestSeries(t *testing.T) {
	h := New(past(t, 120))
	end := begin.Add(179 * 5 * time.Second)
	s := answered[struct {
		series
		Host   map[string][]*float64            `json:"host"`
		Groups map[string]map[string][]*float64 `json:"groups"`
	}](t, h, fmt.Sprintf("/api/series?from=%d&to=%d&group=mysql3306", begin.UnixMilli(), end.UnixMilli()))
	var reel top.Reel
	for i := range 100 {
		reel.Append(tickOf(t, i))
	}
	compared, cpu := 0, s.Groups["mysql3306"]["cpu"]
	for i, ms := range s.Times {
		at := reel.Find(time.UnixMilli(ms))
		if at < 1 || at == reel.Len()-1 {
			continue
		}
		cell := top.Columns[0].Cell(reel.State(at), "mysql3306")
		if cpu[i] == nil || math.Abs(*cpu[i]-cell.Value) > 1e-6*cell.Value {
			t.Errorf("at %d it is %v, and in top %v", ms, cpu[i], cell)
		}
		compared++
	}
	gap := slices.Index(s.Groups["mysql3306"]["memory"], nil) // without it a line would be drawn through
	if compared < 90 || gap != 100 || len(cpu) != len(s.Times) || len(s.Host["busy"]) != len(s.Times) {
		t.Errorf("%d were compared, the gap is at %d of %d", compared, gap, len(s.Times))
	}
	if s.Step != 3000 || len(s.Groups) != 1 || s.Groups["mysql3306"]["may cpu.limit"] == nil {
		t.Errorf("answered a step of %d ms, %d groups", s.Step, len(s.Groups))
	}
	var said []string
	for _, c := range s.Changes {
		said = append(said, c.At.Format(time.TimeOnly)+" "+c.Kind+" "+c.Group+" "+c.Text)
	}
	if want := []string{"02:02:30 apply  revision 18 of the policy is in force",
		"02:02:30 guard  the policy's guard watches a change",
		"02:02:30 limit mysql3306 cpu.limit 1.50 → 1.25",
		"02:03:00 guard  the guard watches no change any more",
		"02:03:20 window  window nights has opened",
		"02:03:20 override mysql3306 overrides in force: 0 → 1",
		"02:05:00 slo mysql3306 heartbeat: the target is missed",
		"02:06:40 slo mysql3306 heartbeat: the target is kept again"}; !slices.Equal(said, want) {
		t.Errorf("it says that %q happened", said)
	}
	// What was waited is that of all looks but the one over the gap.
	waited, waits := 0.0, 0.0
	for _, r := range s.Waiting.Turns {
		waited, waits = waited+r.Seconds, waits+r.Turns
	}
	at := func(n float64) float64 { return sampleAt(t, n).Groups[0].Threads.Waited.Seconds() }
	if want := at(98) + at(178) - at(160); math.Abs(waited-want) > 1e-3 || math.Abs(waits-4000*(98+18)) > 1 {
		t.Errorf("%v s were waited in %v turns, want %v", waited, waits, want)
	}
	if s.Groups["mysql3306"]["work"] == nil || s.Groups["mysql3306"]["slack"] == nil || s.Waiting.Stalls == nil {
		t.Error("there is no work, slack or stall")
	}
	all := answered[struct {
		Times  []int64
		Groups map[string]map[string][]*float64 `json:"groups"`
	}](t, h, fmt.Sprintf("/api/series?from=%d&to=%d", begin.UnixMilli(), begin.Add(24*time.Hour).UnixMilli()))
	for i, ms := range all.Times { // the last readings in an interval, not those of its last tick
		at := reel.Find(time.UnixMilli(ms))
		if at == reel.Len()-1 {
			continue
		}
		cell := top.Columns[3].Cell(reel.State(at), "mysql3306")
		if got := all.Groups["mysql3306"]["memory"][i]; got == nil || math.Abs(*got-cell.Value) > 1e-6*cell.Value {
			t.Errorf("of a day, at %d it has %v, and top %v", ms, got, cell)
		}
	}
	if last := all.Times[len(all.Times)-1]; last != end.UnixMilli() {
		t.Errorf("of a day, the last is at %d, and there is one at %d", last, end.UnixMilli())
	}
	if len(all.Groups) != 5 || all.Groups["mysql3306/backup"] != nil || len(all.Times) > 8 || len(all.Times) < 3 {
		t.Errorf("a day has %d times of %d groups", len(all.Times), len(all.Groups))
	}
}

// What cannot be asked for is said, and costs no look at the record.
func TestBounds(t *testing.T) {
	o := past(t, 2)
	o.Segments = func(context.Context, time.Time, time.Time) (io.ReadCloser, error) {
		t.Error("the record was read")
		return nil, io.EOF
	}
	h := New(o)
	for target, want := range map[string]string{
		"/api/series?from=1&to=604800002":         "seven days",
		"/api/series?from=5&to=5":                 "not before",
		"/api/series?from=5":                      "to is a time",
		"/api/series?from=x&to=5":                 "from is a time",
		"/api/series?from=-5&to=5":                "from is a time",
		"/api/series?from=1e3&to=5":               "from is a time",
		"/api/series?from=1&to=99999999999999999": "to is a time",
		"/api/at": "at is a time",
		"/api/at?at=1&group=" + strings.Repeat("a", mostName+1):      "too long",
		"/api/series?from=1&to=2&group=" + strings.Repeat("a", 2000): "too long",
		"/api/live?group=" + strings.Repeat("a", 2000):               "too long",
	} {
		if code, text := ask(t, h, target); code != 400 || !strings.Contains(text, want) {
			t.Errorf("%.60s is answered %d %s", target, code, text)
		}
	}
	if code, text := ask(t, h, "/api/live"); code != 404 || !strings.Contains(text, "a file is shown") {
		t.Errorf("without an agent it is answered %d %s", code, text)
	}
	if code, text := ask(t, New(past(t, 2)), "/api/at?at=1"); code != 404 || !strings.Contains(text, "nothing is rec") {
		t.Errorf("where there is no record it is answered %d %s", code, text)
	}
}
