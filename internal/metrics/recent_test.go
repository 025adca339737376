package metrics

import (
	"errors"
	"testing"
	"time"
)

// Samples of the time before count, and only of that time; a database that did not answer leaves nothing known.
func TestRecent(t *testing.T) {
	var r Recent
	start := time.Now().Add(-time.Minute)
	at := func(seconds float64, cpu int64) Sample {
		s := Sample{At: start.Add(time.Duration(seconds * float64(time.Second))), Found: true}
		s.Usage.CPU.Total = &cpu
		return s
	}
	rate := func(d Delta) float64 { return d.Rate(d.CPU.Total) / 1e6 }
	if r.Windows("app", time.Hour) != nil {
		t.Error("something is known from the start")
	}
	r.add("app", at(0, 0), time.Minute)
	r.add("app", at(10, 1e6), time.Minute)
	r.add("app", at(30, 21e6), time.Minute)
	if d := r.Windows("app", time.Hour); len(d) != 2 || rate(d[0]) != 0.1 || rate(d[1]) != 1 {
		t.Errorf("of all of it: %+v", d)
	}
	r.add("app", at(31, 22e6), 25*time.Second)
	if d := r.Windows("app", time.Hour); len(d) != 2 || rate(d[0]) != 1 || d[0].Span != 20*time.Second {
		t.Errorf("of the last 25 s: %+v", d)
	}
	if r.Windows("app", time.Second) != nil {
		t.Error("what is old counts")
	}
	failed := at(32, 23e6)
	failed.WorkErr = errors.New("timeout")
	r.add("app", failed, time.Minute)
	if r.Windows("app", time.Hour) != nil {
		t.Error("what is not known counts")
	}
}
