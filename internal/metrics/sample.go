package metrics

import (
	"math"
	"time"
)

// Sample is what a group had used at one moment. It is not changed once it was taken.
type Sample struct {
	At    time.Time
	Usage Usage
	Found bool // false: none of the group's directories was there
	// Work is how much the group's database has done so far, by its own counter, and WorkErr why that is not known.
	// Zero without a database.
	Work    int64
	WorkErr error
}

// Delta is what a group did between two samples: in its Usage counters are by how much they grew, gauges are those of
// the later sample.
type Delta struct {
	Usage
	Span time.Duration
	Work int64 // of the database; 0 where it was not asked or did not answer
	// Anew says that a counter of the group went backwards: its directory was removed and made again meanwhile.
	Anew bool
}

// Grown is by how much a counter grew. One that is lower than before began anew: its group was made again, or the
// server was started again. It then counted from nothing, so that what it shows is what was counted since.
func Grown[N int64 | uint64](before, after N) N {
	if after < before {
		return after
	}
	return after - before
}

// Since is what happened between an earlier sample of the same group and this one. A figure that the earlier one lacks
// counts from nothing: the directory that has it was made meanwhile.
func (s Sample) Since(earlier Sample) Delta {
	d := Delta{Usage: s.Usage, Span: s.At.Sub(earlier.At), Anew: s.At.Before(earlier.At)}
	if s.WorkErr == nil && earlier.WorkErr == nil { // else it would be all that it did since it began
		d.Work = Grown(earlier.Work, s.Work)
	}
	grow := func(before, after int64) int64 {
		d.Anew = d.Anew || after < before
		return Grown(before, after)
	}
	d.IO = nil
	for _, io := range s.Usage.IO {
		was := earlier.Usage.OnDevice(io.Device)
		for _, f := range ioFields {
			*f.device(&io) = grow(*f.device(&was), *f.device(&io))
		}
		d.IO = append(d.IO, io)
	}
	for _, f := range Fields {
		if f.value == nil || f.Kind != Counter {
			continue
		}
		before, after := *f.value(&earlier.Usage), f.value(&d.Usage)
		if before != nil && *after != nil {
			*after = new(grow(*before, **after))
		}
	}
	if s.Usage.Pressure != nil {
		d.Pressure = map[string]Pressure{}
	}
	stall := func(before, after *Stall) *Stall {
		if before == nil || after == nil {
			return after
		}
		grown := *after
		grown.Total = grow(before.Total, after.Total)
		return &grown
	}
	for resource, p := range s.Usage.Pressure {
		was := earlier.Usage.Pressure[resource]
		d.Pressure[resource] = Pressure{Some: stall(was.Some, p.Some), Full: stall(was.Full, p.Full)}
	}
	return d
}

// Rate is so much in a second of the delta's span; NaN for a figure that is not there or no time.
func (d Delta) Rate(n *int64) float64 {
	if n == nil || d.Span <= 0 {
		return math.NaN()
	}
	return float64(*n) / d.Span.Seconds()
}

// Value is a figure, or 0 where it is not there.
func Value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
