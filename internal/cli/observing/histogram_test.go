package observing

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// answers is a tick in which a database tells calls and seconds by upper bounds.
func answers(at time.Time, group string, all map[float64]bucket) record.Tick {
	p := record.Part{Name: observe.Databases, Read: at}
	for upTo, b := range all {
		bound := strconv.FormatFloat(upTo, 'g', -1, 64)
		p.Figures = append(p.Figures,
			record.Figure{Key: record.KeyOf(observe.StatementCalls, group, "database", "mysql", bound),
				Value: b.calls},
			record.Figure{Key: record.KeyOf(observe.StatementSeconds, group, "database", "mysql", bound),
				Value: b.seconds})
	}
	return record.Tick{At: at, Parts: []record.Part{p}}
}

func TestHistogramOfTwoReadings(t *testing.T) {
	begin := time.Date(2026, 11, 26, 2, 0, 0, 0, time.UTC)
	before := answers(begin, "db", map[float64]bucket{0.001: {100, 0.05}, 0.1: {10, 0.5}})
	after := answers(begin.Add(time.Minute), "db",
		map[float64]bucket{0.001: {190, 0.09}, 0.1: {20, 1.1}, math.Inf(1): {1, 30}})
	h, err := histogramBetween(before, after, "db")
	if err != nil {
		t.Fatal(err)
	}
	if h.Total.Calls != 101 || math.Abs(h.Total.Seconds-30.64) > 1e-9 || len(h.Rows) != 3 {
		t.Errorf("%+v", h)
	}
	if r := h.Rows[1]; r.Over != 0.001 || *r.UpTo != 0.1 || r.Calls != 10 {
		t.Errorf("the second row is %+v", r)
	}
	if r := h.Rows[2]; r.UpTo != nil || r.Over != 0.1 || r.Calls != 1 {
		t.Errorf("the last row is %+v", r)
	}
	var out bytes.Buffer
	Session{Out: &out}.printHistogram(h)
	for _, want := range []string{"up to 1 ms", "89.1 %", "over 100 ms", "97.9 %", "all", "101"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A server that was restarted counts from nothing: what it has counted since is what there is.
func TestHistogramOverARestart(t *testing.T) {
	begin := time.Date(2026, 11, 26, 2, 0, 0, 0, time.UTC)
	h, err := histogramBetween(answers(begin, "db", map[float64]bucket{0.001: {100, 0.05}}),
		answers(begin.Add(time.Minute), "db", map[float64]bucket{0.001: {30, 0.02}}), "db")
	if err != nil || h.Total.Calls != 30 || h.Total.Seconds != 0.02 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestHistogramOfNothing(t *testing.T) {
	begin := time.Date(2026, 11, 26, 2, 0, 0, 0, time.UTC)
	known := answers(begin, "db", map[float64]bucket{0.001: {100, 0.05}})
	later := answers(begin.Add(time.Minute), "db", map[float64]bucket{0.001: {1, 1}})
	for what, c := range map[string]struct {
		before, after record.Tick
		group         string
	}{
		"of another group":   {known, later, "other"},
		"of one reading":     {known, known, "db"},
		"of nothing at all":  {record.Tick{At: begin}, record.Tick{At: begin.Add(time.Minute)}, "db"},
		"of nothing earlier": {record.Tick{At: begin}, known, "db"},
	} {
		h, err := histogramBetween(c.before, c.after, c.group)
		var wrong *api.Error
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Hint, "dsn") {
			t.Errorf("%s: %+v, %v", what, h, err)
		}
	}
}
