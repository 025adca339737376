package proof

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	nan := math.NaN()
	tests := []struct{ got, want string }{
		{Number(0), "0"}, {Number(999.4), "999"}, {Number(999.5), "1,000"}, {Number(1234567), "1,234,567"},
		{Number(-1234), "-1,234"}, {Number(-0.2), "0"}, {Number(nan), "-"},
		{milliseconds(0.354), "0.35 ms"}, {milliseconds(9.994), "9.99 ms"}, {milliseconds(15.83), "15.8 ms"},
		{milliseconds(nan), "-"},
		{percent(98.76), "98.8 %"}, {percent(nan), "-"},
		{BytesText(0), "0 B"}, {BytesText(1023), "1023 B"}, {BytesText(20 << 20), "20 MiB"},
		{BytesText(3 << 29), "1.5 GiB"}, {BytesText(-2048), "-2 KiB"},
		{Clock(0), "0:00"}, {Clock(65400 * time.Millisecond), "1:05"}, {Clock(time.Hour), "60:00"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	got := table([][]string{{"a", "rate"}, {"größer", "1,000"}, {"b"}}, 1)
	want := "a        rate\ngrößer  1,000\nb\n"
	if got != want {
		t.Errorf("table is\n%s want\n%s", got, want)
	}
}

func TestMedian(t *testing.T) {
	if got := Median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three is %v", got)
	}
	if got := Median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four is %v", got)
	}
	if got := Median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 30).Draw(t, "values")
		m := Median(values)
		below, above := 0, 0
		for _, v := range values {
			if v <= m {
				below++
			}
			if v >= m {
				above++
			}
		}
		if 2*below < len(values) || 2*above < len(values) {
			t.Fatalf("median of %v is %v: %d below, %d above", values, m, below, above)
		}
	})
}

func TestImpact(t *testing.T) {
	if got := Impact(15, 0.5); got != 2900 {
		t.Errorf("impact of 15 ms over 0.5 ms is %v %%", got)
	}
	if got := Impact(0.4, 0.5); got != 0 {
		t.Errorf("a latency that fell has an impact of %v %%", got)
	}
}

func TestWrap(t *testing.T) {
	if got, want := wrap("one two three four", 11, " "), " one two\n   three\n   four\n"; got != want {
		t.Errorf("wrapped as %q, want %q", got, want)
	}
	if got, want := wrap("incompressible", 5, ""), "incompressible\n"; got != want {
		t.Errorf("wrapped as %q, want %q", got, want)
	}
}

// What a group sends and receives is in the table of use, and the machine's row has its own columns.
func TestUseOfNetwork(t *testing.T) {
	over := func(x float64) Range { return Over([]float64{x}) }
	result := &Result{Scenario: "x", Arms: []Arm{{Name: "limited", Text: "limited", Figures: map[string]Range{
		"busy": over(1.25), "load": over(3.5), "blocked": over(2), "g.cpu": over(0.5), "g.sent": over(12 << 20),
		"g.wire_out": over(12.5e6), "g.drops": over(7),
	}}}}
	var b bytes.Buffer
	if err := result.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12 MiB", "100.0 Mbit/s", "drops", "load  in state D", "3.5         2.0"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
