package metrics

import (
	"slices"
	"time"
)

// Traffic is what a group has sent and received so far.
type Traffic struct {
	// Out and In are counted over all interfaces by programs on the group's cgroup2 directory, limits or not, since
	// they were put there. Counted is false where that cannot be.
	Counted bool   `json:"counted"`
	Out     Volume `json:"out,omitzero"`
	In      Volume `json:"in,omitzero"`
	// On is what each interface counts for the group's limits.
	On []InterfaceTraffic `json:"on,omitempty"`
}

// Volume is an amount of traffic with its rate at the moment.
type Volume struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
	Rate    int64  `json:"bits_per_second"`
}

// InterfaceTraffic is what an interface counts for a group in one direction.
type InterfaceTraffic struct {
	Device    string `json:"device"`
	Direction string `json:"direction"`
	Policed   bool   `json:"policed,omitempty"` // then nothing is counted on the interface
	Volume
	Drops   uint64 `json:"drops"`
	Backlog uint64 `json:"backlog_bytes"`
}

// Since is the traffic between an earlier sample of the same group and this one, span apart, with the rate in it.
// Backlog stays as it is now.
func (t Traffic) Since(earlier Traffic, span time.Duration) Traffic {
	grow := func(was, now Volume) Volume {
		grown := Volume{Bytes: Grown(was.Bytes, now.Bytes), Packets: Grown(was.Packets, now.Packets)}
		if span > 0 {
			grown.Rate = int64(float64(grown.Bytes) * 8 / span.Seconds())
		}
		return grown
	}
	t.Out, t.In = grow(earlier.Out, t.Out), grow(earlier.In, t.In)
	t.On = slices.Clone(t.On)
	for i, now := range t.On {
		var was InterfaceTraffic
		for _, o := range earlier.On {
			if o.Device == now.Device && o.Direction == now.Direction {
				was = o
			}
		}
		t.On[i].Volume, t.On[i].Drops = grow(was.Volume, now.Volume), Grown(was.Drops, now.Drops)
	}
	return t
}

// WithRates is t with the rates of another traffic of the same group: what Since gives.
func (t Traffic) WithRates(of Traffic) Traffic {
	t.Out.Rate, t.In.Rate = of.Out.Rate, of.In.Rate
	t.On = slices.Clone(t.On)
	for i := range t.On {
		t.On[i].Rate = of.On[i].Rate
	}
	return t
}
