package prove

import (
	"cmp"
	"context"
	"slices"
	"time"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/bench"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/scenario"
)

// ThrowAway measures what a scenario measures alone, on throw-away databases of its own.
type ThrowAway struct {
	Scenario *scenario.Scenario
	Options  bench.Options
}

// longest is how long a load may take at most, of so many seconds (load.Driver.Run), with what stands around it.
func longest(seconds int) time.Duration { return time.Duration(3*seconds)*time.Second + time.Minute }

// Estimate is about how long all of it takes.
func (t ThrowAway) Estimate(rounds int) time.Duration {
	return bench.EstimateRepeat(t.Scenario, t.Options, 2*rounds+1)
}

// Open starts the databases and takes them away again.
func (t ThrowAway) Open(ctx context.Context, do func(context.Context, Subject) error) error {
	h := host.New("/")
	return bench.Repeat(ctx, t.Scenario, t.Options, func(ctx context.Context, s *bench.Subject) error {
		facts, err := h.Facts()
		if err != nil {
			return err
		}
		disks, tunables := disksBelow(facts, s.Disk), tunable.Host{Root: h.Root}
		return do(ctx, Subject{Text: "scenario " + t.Scenario.Name + ", " + s.Text, Rows: rowsOf(s.Loads),
			Longest: longest(t.Options.Seconds),
			Apart: func(name string) string {
				return cmp.Or(ofService(name), ofPool(name), ofOption(name, nil), ofMount(name, s.Mount),
					ofDisk(tunables, name, disks))
			},
			Measure: func(ctx context.Context, text string, done, of int) (proved.Sample, error) {
				figures, err := s.Measure(ctx, text, done, of)
				return withIdle(figures, s.Loads), err
			}})
	})
}

// withIdle adds that loads without a transaction did none: it counts as worse than few.
func withIdle(figures proved.Sample, loads []string) proved.Sample {
	for _, l := range loads {
		if _, did := figures[tps(l)]; !did && figures != nil {
			figures[tps(l)] = 0
		}
	}
	return figures
}

func tps(load string) string { return load + ".tps" }

// rowsOf are the figures of loads.
func rowsOf(loads []string) (rows []proved.Row) {
	for _, l := range loads {
		rows = append(rows, proved.Row{Key: tps(l), Name: l + ", transactions", Unit: "/s"},
			proved.Row{Key: l + ".p50", Name: l + ", median latency", Unit: "ms", Latency: true},
			proved.Row{Key: l + ".p99", Name: l + ", p99 latency", Unit: "ms", Latency: true})
	}
	return rows
}

// disksBelow are the names of a block device and of all that it lies on.
func disksBelow(facts *host.Facts, number string) (names []string) {
	d, known := facts.Device(number)
	if !known {
		return nil
	}
	names = []string{d.Name}
	lower := slices.Clone(d.Slaves)
	if d.Disk != d.Number {
		lower = append(lower, d.Disk)
	}
	for _, n := range lower {
		names = append(names, disksBelow(facts, n)...)
	}
	return names
}
