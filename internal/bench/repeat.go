package bench

import (
	"context"
	"strings"
	"time"

	"bulkhead/internal/scenario"
)

// Subject is what a scenario measures alone: its databases under the loads of its control arm.
type Subject struct {
	run   *run
	Text  string   // "11.8.2-MariaDB on port 40331"
	Disk  string   // the whole disk that its files lie on, by its number: "253:0"
	Mount string   // where the file system that holds them is mounted
	Loads []string // their names, the first of the arm first
}

// Repeat starts what a scenario measures alone, and hands it to do, which measures it as often as it likes and
// meanwhile changes what it likes. What it promises of its end is what Run does, and do learns of signals by its
// context.
func Repeat(ctx context.Context, s *scenario.Scenario, o Options, do func(context.Context, *Subject) error) error {
	return carry(ctx, s.Alone(), o, func(ctx context.Context, r *run) error {
		of := &Subject{run: r, Text: r.where(), Disk: r.machine.disk.Number, Mount: r.machine.mount.Point}
		for _, l := range r.scenario.Loads {
			of.Loads = append(of.Loads, l.Name)
		}
		return do(ctx, of)
	})
}

// EstimateRepeat is about how long Repeat takes with so many measurements, all else as the scenario or o says.
func EstimateRepeat(s *scenario.Scenario, o Options, measurements int) time.Duration {
	o = o.withDefaults(s)
	return setUpTime + time.Duration(measurements)*(o.length()+time.Second)
}

// Measure measures once. Text says which time it is, done how many were before it, and of how many there are to be. The
// figures are those of the loads: "client.tps", "client.p99" (milliseconds).
func (s *Subject) Measure(ctx context.Context, text string, done, of int) (map[string]float64, error) {
	s.run.progress.Arm(done, of)
	s.run.progress.Phase(text)
	t, err := s.run.measure(ctx, s.run.scenario.Arms[0])
	if err != nil {
		return nil, interruption(ctx, err)
	}
	figures := map[string]float64{}
	for name, x := range t.figures {
		if load, _, _ := strings.Cut(name, "."); t.outcomes[load].Transactions > 0 {
			figures[name] = x
		}
	}
	return figures, nil
}

// Note says something that stays on the screen, between two measurements.
func (s *Subject) Note(text string) { s.run.progress.Note(text) }
