package exposition

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/observetest"
)

// What is written here is what Prometheus's own library writes of the same figures, in both formats, whatever is in
// labels and values.
func TestTextIsThatOfPrometheus(t *testing.T) {
	one := observetest.Sample(t)
	odd := one.Groups[0]
	odd.Group, odd.Role = "quo\"te\\back\nline \xff", ""
	one.Groups = append(one.Groups, odd)
	one.Groups[0].Limits[0].Asked, one.Groups[0].Limits[0].Held = new(math.Inf(1)), new(math.NaN())
	one.Host.Load = 1e-9
	s := patient(Options{Fetch: always(one), Version: "1.2.3", Series: 400})
	families, err := s.Gatherer(t.Context()).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for accept, format := range map[string]expfmt.Format{
		"":                             expfmt.NewFormat(expfmt.TypeTextPlain),
		"application/openmetrics-text": expfmt.NewFormat(expfmt.TypeOpenMetrics),
	} {
		var want bytes.Buffer
		e := expfmt.NewEncoder(&want, format)
		for _, f := range families {
			if f.GetName() == "bulkhead_series_dropped_total" { // each answer counts its own
				f.Metric[0].Counter.Value = new(float64(s.dropped.Load() * 2))
			}
			if err := e.Encode(f); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.(expfmt.Closer).Close(); err != nil {
			t.Fatal(err)
		}
		s := patient(Options{Fetch: always(one), Version: "1.2.3", Series: 400})
		s.dropped.Store(0)
		r, w := httptest.NewRequest("GET", "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		s.ServeHTTP(httptest.NewRecorder(), r)
		s.ServeHTTP(w, r)
		got, lines := strings.Split(w.Body.String(), "\n"), strings.Split(want.String(), "\n")
		if len(got) != len(lines) {
			t.Fatalf("%q: %d lines, want %d", accept, len(got), len(lines))
		}
		for i := range lines {
			if got[i] != lines[i] && !strings.HasPrefix(lines[i], "bulkhead_sample_age_seconds ") {
				t.Errorf("%q: %q, want %q", accept, got[i], lines[i])
			}
		}
	}
}

// A scraper that takes gzip gets the same text as one that does not, and one that forbids it does not get it.
func TestGzip(t *testing.T) {
	s := patient(Options{Fetch: always(observetest.Sample(t))})
	_, _, want := scraped(t, s, "/metrics", "")
	for encodings, zipped := range map[string]bool{"gzip": true, "br, gzip;q=0.5": true, "gzip; q=0": false,
		"identity": false, "gzip;q=nonsense": true} {
		r, w := httptest.NewRequest("GET", "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept-Encoding", encodings)
		s.ServeHTTP(w, r)
		text, size := w.Body.Bytes(), w.Body.Len()
		if is := w.Header().Get("Content-Encoding") == "gzip"; is != zipped {
			t.Errorf("%q: it is zipped: %v", encodings, is)
			continue
		}
		if zipped {
			unzip, err := gzip.NewReader(w.Body)
			if err == nil {
				unzip.Multistream(false) // one file, for readers that know no more
				text, err = io.ReadAll(unzip)
			}
			if err != nil || w.Body.Len() != 0 || size*4 > len(text) {
				t.Errorf("%q: %v, %d bytes for %d, and %d behind", encodings, err, size, len(text), w.Body.Len())
			}
		}
		age := "bulkhead_sample_age_seconds "
		from, _, _ := strings.Cut(string(text), age)
		wanted, _, _ := strings.Cut(want, age)
		if from != wanted || len(text) < len(want)/2 {
			t.Errorf("%q: it is another text:\n%.300s", encodings, text)
		}
	}
}

// The text of a sample is made once for all who ask the same, and anew for the next sample.
func TestTextIsMadeOnce(t *testing.T) {
	one := observetest.Sample(t)
	s := patient(Options{Fetch: func(_ context.Context, had *figures.Set) (*figures.Set, error) {
		return sent(one, had)
	}})
	made := func(target string) *text {
		t.Helper()
		s.last.mu.Lock()
		s.last.tried = time.Time{} // so that the agent is asked
		s.last.mu.Unlock()
		if code, _, text := scraped(t, s, target, ""); code != 200 {
			t.Fatalf("answered %d %s", code, text)
		}
		for q, text := range s.texts.all {
			if (q.parts != "") == strings.Contains(target, "collect") {
				return text
			}
		}
		t.Fatalf("%s is not kept", target)
		return nil
	}
	first := made("/metrics")
	if made("/metrics") != first {
		t.Error("of the same sample the text was made twice")
	}
	if made("/metrics?collect%5B%5D=cpu") == first || made("/metrics") != first {
		t.Error("another question has the same text, or took the place of the first")
	}
	one.At = one.At.Add(time.Second)
	if made("/metrics") == first || len(s.texts.all) != 1 {
		t.Errorf("of the next sample there is the text of the one before, or %d are kept", len(s.texts.all))
	}
	for i, p := range observe.Parts {
		made("/metrics?collect%5B%5D=" + string(p))
		if len(s.texts.all) > mostTexts {
			t.Fatalf("%d texts are kept", len(s.texts.all))
		}
		if i > mostTexts-4 {
			break // what comes beyond is made and not kept
		}
	}
}

// The frame of an answer is kept as long as there are the same figures, and each answer is as one without a frame.
func TestFrame(t *testing.T) {
	one := observetest.Sample(t)
	at := one.At
	s := patient(Options{Version: "1.2.3", Fetch: func(_ context.Context, had *figures.Set) (*figures.Set, error) {
		return sent(one, had)
	}})
	for _, accept := range []string{"", "application/openmetrics-text"} {
		for _, test := range []struct {
			name   string
			change func(*observe.Sample)
			kept   bool
		}{
			{"at first", func(*observe.Sample) {}, false},
			{"other values", func(s *observe.Sample) { s.Host.Load, s.Revision = 1e9, 77 }, true},
			{"another label", func(s *observe.Sample) { s.Groups[0].Role = "other" }, false},
			{"a group less", func(s *observe.Sample) { s.Groups = s.Groups[1:] }, false},
		} {
			q := question{open: accept != ""}
			before := s.texts.frames[q]
			one, at = observetest.Sample(t), at.Add(time.Second)
			one.At = at
			test.change(one)
			s.last.mu.Lock()
			s.last.tried = time.Time{} // so that the agent is asked
			s.last.mu.Unlock()
			_, _, got := scraped(t, s, "/metrics", accept)
			_, _, want := scraped(t, patient(Options{Version: "1.2.3", Fetch: always(one)}), "/metrics", accept)
			if got != want || len(got) < 1000 {
				t.Errorf("%q, %s: the answer is not that of a new server:\n%.500s", accept, test.name, got)
			}
			if kept := s.texts.frames[q] == before; kept != test.kept {
				t.Errorf("%q, %s: the frame is the same: %t", accept, test.name, kept)
			}
		}
	}
}
