package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
)

// While a sample is under way the next ones are skipped, counted and said once; answers have the last one, older and
// older.
func TestSamplesThatTakeLong(t *testing.T) {
	var log bytes.Buffer
	s := samples{every: 10 * time.Second, log: slog.New(slog.NewTextHandler(&log, nil))}
	if a := s.answer(); a.Sample != nil || api.CodeOf(a.Error.err()) != api.CodeFailed || a.Error.Hint == "" {
		t.Errorf("before the first sample: %+v", a)
	}
	now := time.Now()
	if !s.begin(now) {
		t.Fatal("the first sample does not begin")
	}
	s.end(&observe.Sample{At: now, Revision: 7}, nil)
	began := now.Add(-time.Minute)
	if !s.begin(began) || s.begin(now) || s.begin(now) {
		t.Error("a sample begins while one is under way, or not after one")
	}
	a := s.answer().Sample
	if a.Revision != 7 || a.Skipped != 2 || a.Waiting < time.Minute || a.Age <= 0 {
		t.Errorf("the answer meanwhile: %+v", a)
	}
	if n := strings.Count(log.String(), "takes too long"); n != 1 {
		t.Errorf("said %d times: %s", n, &log)
	}
	s.end(nil, errors.New("no such disk"))
	if a := s.answer().Sample; a.Revision != 7 || a.Waiting != 0 || !strings.Contains(log.String(), "no such disk") {
		t.Errorf("after one that failed: %+v, %s", a, &log)
	}
	s.begin(now)
	s.end(&observe.Sample{At: time.Now(), Revision: 8}, nil)
	if a := s.answer().Sample; a.Revision != 8 || a.Skipped != 2 || s.said != "" {
		t.Errorf("after one that was taken: %+v", a)
	}
}
