package dump

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
)

var update = flag.Bool("update", false, "write testdata anew")

var start = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// recorded are segments of three samples, of which each tells less than the one before.
func recorded(t *testing.T) *bytes.Reader {
	t.Helper()
	s := observetest.Sample(t)
	var b bytes.Buffer
	err := record.Write(&b, func(yield func(record.Tick) error) error {
		for i, fresh := range [][]observe.Part{observe.Parts, {observe.CPU, observe.Memory}, {observe.CPU}} {
			s.At = start.Add(time.Duration(i) * 5 * time.Second)
			*s.Groups[0].Usage.CPU.Total += int64(i) * 1_234_567
			s.Groups[1].Group = "a \"quoted\"\nname"
			if err := yield(record.TickOf(s, fresh)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

func written(t *testing.T, format string, from, to time.Time) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, format, recorded(t), from, to); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for _, format := range Formats {
		file := "testdata/" + format + ".txt"
		got := written(t, format, start, start.Add(time.Hour))
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != got {
			t.Errorf("%s is not %s (%v): go test ./internal/observe/dump -update", format, file, err)
		}
	}
}

// The three formats have the same figures, and only those of the time that is asked for.
func TestSameFigures(t *testing.T) {
	from := start.Add(time.Second)
	open := 0
	for line := range strings.Lines(written(t, "openmetrics", from, from.Add(time.Hour))) {
		if !strings.HasPrefix(line, "#") {
			open++
		}
	}
	rows, err := csv.NewReader(strings.NewReader(written(t, "csv", from, from.Add(time.Hour)))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	figures := 0
	for text := range strings.Lines(written(t, "json", from, from.Add(time.Hour))) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.At.Before(from) {
			t.Errorf("%v: %v", l.At, err)
		}
		figures += len(l.Figures)
	}
	if open != figures || len(rows)-1 != figures || figures < 15 {
		t.Errorf("%d figures as OpenMetrics, %d as CSV, %d as JSON", open, len(rows)-1, figures)
	}
	if text := written(t, "csv", from.Add(time.Hour), from.Add(2*time.Hour)); strings.Count(text, "\n") != 1 {
		t.Errorf("of an hour without a tick: %s", text)
	}
}

func TestDamaged(t *testing.T) {
	for _, format := range Formats {
		other := strings.NewReader("no record, but long enough for a begin")
		err := Write(&strings.Builder{}, format, other, start, start)
		if err == nil || errors.Is(err, ErrTooMany) {
			t.Errorf("%s of something else: %v", format, err)
		}
	}
}

// Where the clock was set back OpenMetrics, in which times only grow, has the first figure of a time alone, the other
// formats all.
func TestClockSetBack(t *testing.T) {
	var b bytes.Buffer
	err := record.Write(&b, func(yield func(record.Tick) error) error {
		for i, second := range []int{10, 20, 15, 20, 25} {
			at := start.Add(time.Duration(second) * time.Second)
			if err := yield(record.Tick{At: at, Parts: []record.Part{{Name: observe.LoadAverage, Read: at,
				Figures: []record.Figure{{Key: "bulkhead_host_load1", Value: float64(i)}}}}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]int{"openmetrics": 3 + 3, "csv": 1 + 5, "json": 5} {
		var text strings.Builder
		err := Write(&text, format, bytes.NewReader(b.Bytes()), start, start.Add(time.Minute))
		if n := strings.Count(text.String(), "\n"); err != nil || n != want {
			t.Errorf("%s has %d lines, want %d: %v\n%s", format, n, want, err, &text)
		}
	}
}

// OpenMetrics is written of so many figures, and of one more nothing is.
func TestBoundOfOpenMetrics(t *testing.T) {
	begin, end := start, start.Add(time.Hour)
	n := 0
	if err := record.Segments(recorded(t), begin, end, func(s *record.Segment) error {
		n += s.Values
		return nil
	}); err != nil || n < 10 {
		t.Fatal(n, err)
	}
	for most, want := range map[int]error{n: nil, n - 1: ErrTooMany} {
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		err := openMetrics(w, recorded(t), begin, end, most)
		_ = w.Flush()
		if !errors.Is(err, want) || (b.Len() == 0) != (want != nil) {
			t.Errorf("of %d figures, where %d may be: %v, %d bytes", n, most, err, b.Len())
		}
	}
}
