package record

import (
	"math"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/observe"
)

// Key names one figure: the metric and the values of its labels, with a zero byte between them.
type Key string

// KeyOf makes a key.
func KeyOf(metric string, labels ...string) Key {
	n := len(metric)
	for _, l := range labels {
		n += 1 + len(l)
	}
	b := make([]byte, 0, n)
	b = append(b, metric...)
	for _, l := range labels {
		b = append(b, 0)
		b = append(b, l...)
	}
	return Key(b)
}

// Split gives what a key names.
func (k Key) Split() (metric string, labels []string) {
	words := strings.Split(string(k), "\x00")
	return words[0], words[1:]
}

// Figure is a figure with its name.
type Figure struct {
	Key   Key
	Value float64
}

// Part is what one collector told in one reading.
type Part struct {
	Name    observe.Part
	Read    time.Time // when the reading began, to the millisecond
	Figures []Figure
}

// Tick is what was new in one sample: the readings that had ended since the one before.
type Tick struct {
	At    time.Time // of the sample, to the millisecond
	Parts []Part
}

// TimeOf is when a sample was, as its tick has it.
func TimeOf(s *observe.Sample) time.Time { return s.At.Truncate(time.Millisecond).Round(0) }

// TickOf takes from a sample what is new in it. The figures are rounded by Canonical.
func TickOf(s *observe.Sample, fresh []observe.Part) Tick {
	t := Tick{At: TimeOf(s)}
	for _, name := range fresh {
		at := slices.IndexFunc(s.Collectors, func(c observe.Reading) bool { return c.Name == name })
		if at < 0 || !s.Collectors[at].Told {
			continue
		}
		p := Part{Name: name, Read: t.At.Add(-s.Collectors[at].Age.Round(time.Millisecond))}
		for i := range observe.Table {
			if r := &observe.Table[i]; r.Part == name {
				r.Each(s, func(value float64, labels ...string) {
					p.Figures = append(p.Figures, Figure{KeyOf(r.Name, labels...), Canonical(value)})
				})
			}
		}
		t.Parts = append(t.Parts, p)
	}
	return t
}

// scales are what figures are multiplied by so that they become whole numbers. They are kept as whole numbers wherever
// one of these does.
var scales = [...]float64{1, 100, 1000, 1e6, 1e9}

// exactTo is how large a whole number may be where it was multiplied. nearly is how far a figure may be from what is
// kept of it, as a part of it: what dividing microseconds by a million leaves in the last digits.
const (
	exactTo = 1 << 50
	nearly  = 1e-14
)

// whole is the figure as a whole number at the smallest scale that fits, from one on; the scale is -1 when none does.
func whole(v float64, from int) (n int64, scale int) {
	for i := max(from, 0); i < len(scales); i++ {
		r := math.Round(v * scales[i])
		if math.IsNaN(r) || math.Abs(r) >= exactTo && (i > 0 || math.Abs(r) >= 1<<53) {
			break
		}
		if math.Abs(r/scales[i]-v) <= nearly*math.Abs(v) {
			return int64(r), i
		}
	}
	return 0, -1
}

// Canonical is the figure as it is kept, so that what is shown of a sample and of its record is the same.
func Canonical(v float64) float64 {
	n, scale := whole(v, 0)
	if scale < 0 {
		return v
	}
	return float64(n) / scales[scale]
}
