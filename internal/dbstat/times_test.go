package dbstat

import (
	"reflect"
	"testing"
	"time"
)

func TestFoldPutsBucketsIntoTheFirstThatHoldsThem(t *testing.T) {
	got := fold([]Bucket{
		{3 * time.Microsecond, 1, time.Microsecond}, {10 * time.Microsecond, 2, 2 * time.Microsecond},
		{11 * time.Microsecond, 4, 3 * time.Microsecond}, {9 * time.Second, 8, time.Minute},
		{11 * time.Second, 16, time.Hour}, {Longest, 32, time.Hour},
	})
	want := []Bucket{
		{10 * time.Microsecond, 3, 3 * time.Microsecond}, {20 * time.Microsecond, 4, 3 * time.Microsecond},
		{10 * time.Second, 8, time.Minute}, {Longest, 48, 2 * time.Hour},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// MariaDB 10.11 writes its bounds and sums so.
func TestResponseTimeOfMariaDB(t *testing.T) {
	for _, c := range []struct {
		bound, total string
		want         Bucket
		bad          bool
	}{
		{"      0.000100", "      0.001234", Bucket{100 * time.Microsecond, 7, 1234 * time.Microsecond}, false},
		{" 100000.000000", "      0.000000", Bucket{100_000 * time.Second, 7, 0}, false},
		{"TOO LONG", "TOO LONG", Bucket{Longest, 7, 0}, false},
		{"soon", "1", Bucket{}, true},
		{"-1", "1", Bucket{}, true},
		{"1e300", "1", Bucket{}, true},
	} {
		got, err := responseTime(c.bound, c.total, 7)
		if (err != nil) != c.bad || !c.bad && got != c.want {
			t.Errorf("%q: %v, %v, want %v", c.bound, got, err, c.want)
		}
	}
}

// The answer of a Redis is of maps, or of lists, by the protocol.
func TestPairsOfBothProtocols(t *testing.T) {
	want := [][2]any{{int64(1), int64(5)}, {int64(4), int64(9)}}
	if got := pairs(map[any]any{int64(4): int64(9), int64(1): int64(5)}); !reflect.DeepEqual(got, want) {
		t.Errorf("of a map: %v", got)
	}
	if got := pairs([]any{int64(1), int64(5), int64(4), int64(9), int64(7)}); !reflect.DeepEqual(got, want) {
		t.Errorf("of a list: %v", got)
	}
	if got := pairs("nothing"); got != nil {
		t.Errorf("of a text: %v", got)
	}
}
