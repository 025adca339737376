package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	nan := math.NaN()
	tests := []struct{ got, want string }{
		{number(0), "0"}, {number(999.4), "999"}, {number(999.5), "1,000"}, {number(1234567), "1,234,567"},
		{number(-1234), "-1,234"}, {number(-0.2), "0"}, {number(nan), "-"},
		{milliseconds(0.354), "0.35 ms"}, {milliseconds(9.994), "9.99 ms"}, {milliseconds(15.83), "15.8 ms"}, {milliseconds(nan), "-"},
		{percent(98.76), "98.8 %"}, {percent(nan), "-"}, {rise(3554.2), "+3,554 %"}, {rise(nan), "-"},
		{cores(1), "1 core"}, {cores(0.5), "0.50 cores"}, {cores(16), "16 cores"},
		{bytesText(0), "0 B"}, {bytesText(1023), "1023 B"}, {bytesText(20 << 20), "20 MiB"}, {bytesText(3 << 29), "1.5 GiB"}, {bytesText(-2048), "-2 KiB"},
		{times(1), "once"}, {times(3), "3 times"},
		{clock(0), "0:00"}, {clock(65400 * time.Millisecond), "1:05"}, {clock(time.Hour), "60:00"},
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
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median of three is %v", got)
	}
	if got := median([]float64{4, 1, 2, 3}); got != 2.5 {
		t.Errorf("median of four is %v", got)
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing is %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 30).Draw(t, "values")
		m := median(values)
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
	if got := impact(15, 0.5); got != 2900 {
		t.Errorf("impact of 15 ms over 0.5 ms is %v %%", got)
	}
	if got := impact(0.4, 0.5); got != 0 {
		t.Errorf("a latency that fell has an impact of %v %%", got)
	}
}

func TestLastLines(t *testing.T) {
	if got := lastLines("a\nb\nc\n", 2); got != "b\nc" {
		t.Errorf("last two lines are %q", got)
	}
	if got := lastLines("a", 5); got != "a" {
		t.Errorf("last lines of one line are %q", got)
	}
	if got := lastLines(strings.Repeat("x\n", 100), 3); got != "x\nx\nx" {
		t.Errorf("last three lines are %q", got)
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
