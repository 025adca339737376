package slo

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/policy"
)

var (
	waits = Loop{Mode: Act, Target: Target{Signal: Waits, Value: 0.05}}
	cpu   = Knob{Group: "reports", Key: policy.KeyCPULimit}
)

func batch(k Knob, use float64) Candidate {
	return Candidate{Knob: k, Bounds: Bounds{Ceiling: 2}, Role: policy.RoleBatch, Share: 0.5, Use: use}
}

// drawCandidates draws candidates that a loop may hold beside those that it must not.
func drawCandidates(t *rapid.T) []Candidate {
	var all []Candidate
	for _, group := range []string{"a", "b", "mysql"} {
		role := policy.RoleBatch
		if group == "mysql" {
			role = policy.RoleDatabase
		}
		for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyIOReadBandwidth, policy.KeyMemoryMax,
			policy.KeyCPUCPUs} {
			if rapid.IntRange(0, 4).Draw(t, "left out") == 0 {
				continue
			}
			all = append(all, Candidate{Knob: Knob{Group: group, Key: key}, Role: role,
				Bounds: Bounds{Floor: rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(t, "floor"),
					Ceiling: rapid.SampledFrom([]float64{2, 16, 1e6}).Draw(t, "ceiling")},
				Share: rapid.SampledFrom([]float64{0, 0.04, 0.3, 1, math.NaN()}).Draw(t, "share"),
				Use:   rapid.SampledFrom([]float64{0, 1, 16, 1e7}).Draw(t, "use")})
		}
	}
	return all
}

// keeper holds what a loop has done against what it promises, from its actions alone.
type keeper struct {
	inForce map[Knob]float64
	changes map[string][]int
	barred  map[Knob]int
	last    int // tick of the last change
	missing int
}

func (k *keeper) check(t *rapid.T, tick int, o Observation, actions []Action) {
	candidates, blamable, moves := map[Knob]Candidate{}, false, 0
	for _, c := range o.Candidates {
		candidates[c.Knob] = c
		blamable = blamable || c.Share >= leastShare
	}
	for _, a := range actions {
		c := candidates[a.Knob]
		switch a.Verb {
		case Squeeze, Give:
			moves++
			if !a.Knob.allowed() || c.Role == policy.RoleDatabase || c.Role == "" {
				t.Fatalf("tick %d: %+v on a knob that is not the loop's", tick, a)
			}
			if a.Value < c.floor(a.Knob) || a.Value > c.Ceiling {
				t.Fatalf("tick %d: %+v outside of %+v", tick, a, c.Bounds)
			}
			was, held := k.inForce[a.Knob]
			if a.Verb == Squeeze && (!blamable || held && a.Value >= was || tick < k.barred[a.Knob]) {
				t.Fatalf("tick %d: %+v squeezes blindly, upwards or a barred knob", tick, a)
			}
			if a.Verb == Give && (!held || a.Value <= was) {
				t.Fatalf("tick %d: %+v gives nothing", tick, a)
			}
			if k.last > 0 && tick-k.last <= waitTicks {
				t.Fatalf("tick %d: %+v does not wait after tick %d", tick, a, k.last)
			}
			k.inForce[a.Knob] = a.Value
		case Release:
			if _, held := k.inForce[a.Knob]; !held {
				t.Fatalf("tick %d: %+v releases what is not held", tick, a)
			}
			delete(k.inForce, a.Knob)
			if strings.HasSuffix(a.Reason, "brought nothing") {
				k.barred[a.Knob] = tick + barTicks
			}
		default:
			continue
		}
		k.changes[a.Knob.Group] = append(k.changes[a.Knob.Group], tick)
	}
	if moves > 1 {
		t.Fatalf("tick %d: %d knobs were moved: %+v", tick, moves, actions)
	}
	for _, a := range actions {
		if a.Verb == Squeeze || a.Verb == Give || a.Verb == Release {
			k.last = tick
		}
	}
	for group, ticks := range k.changes {
		inWindow := 0
		for _, at := range ticks {
			if at > tick-ChangeWindow {
				inWindow++
			}
		}
		if inWindow > MostChanges {
			t.Fatalf("tick %d: %d changes of %s in an hour", tick, inWindow, group)
		}
	}
	if k.missing++; o.Known && finite(o.Value) {
		k.missing = 0
	}
	if k.missing >= MissingLimit && len(k.inForce) > 0 {
		t.Fatalf("tick %d: %v held %d ticks after the last observation", tick, k.inForce, k.missing)
	}
}

func TestStepKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loop := Loop{Mode: Act, Target: Target{Value: 1,
			Signal: rapid.SampledFrom([]Signal{P95, Heartbeat, Waits, Work}).Draw(t, "signal")}}
		k := keeper{inForce: map[Knob]float64{}, changes: map[string][]int{}, barred: map[Knob]int{}}
		var s State
		for tick, phases := 0, rapid.IntRange(1, 40).Draw(t, "phases"); phases > 0; phases-- {
			o := Observation{Known: rapid.IntRange(0, 9).Draw(t, "known") > 0,
				Value:      rapid.SampledFrom([]float64{0, 0.3, 0.9, 1, 1.2, 7, math.NaN()}).Draw(t, "value"),
				Candidates: drawCandidates(t)}
			for range rapid.IntRange(1, 40).Draw(t, "ticks") {
				tick++
				before := s.copied()
				next, actions := loop.Step(s, o)
				if !reflect.DeepEqual(before, s.copied()) {
					t.Fatal("Step changed the state that it was given")
				}
				k.check(t, tick, o, actions)
				if len(k.inForce) != len(next.Held) {
					t.Fatalf("tick %d: holds %v, actions say %v", tick, next.Held, k.inForce)
				}
				for knob, held := range next.Held {
					if k.inForce[knob] != held.Value {
						t.Fatalf("tick %d: holds %v, actions say %v", tick, next.Held, k.inForce)
					}
				}
				s = next
			}
		}
		if _, actions := (Loop{Mode: Off}).Step(s, Observation{}); len(actions) != len(s.Held) {
			t.Fatalf("off: %d held, %d actions", len(s.Held), len(actions))
		}
	})
}

// steps gives the same observation n times and returns what was done.
func steps(l Loop, s State, o Observation, n int) (State, []Action) {
	var all []Action
	for range n {
		next, actions := l.Step(s, o)
		s, all = next, append(all, actions...)
	}
	return s, all
}

func verbs(actions []Action) (out []Verb) {
	for _, a := range actions {
		out = append(out, a.Verb)
	}
	return out
}

func TestSteps(t *testing.T) {
	missed := Observation{Known: true, Value: 0.5, Candidates: []Candidate{batch(cpu, 2)}}
	low := Observation{Known: true, Value: 0.5, Candidates: []Candidate{batch(cpu, 0.15)}}
	innocent := Observation{Known: true, Value: 0.5, Candidates: []Candidate{{Knob: cpu, Bounds: Bounds{Ceiling: 2},
		Role: policy.RoleBatch, Share: 0.01, Use: 0.02}}}
	held := State{Held: map[Knob]Held{cpu: {Value: 1}}}
	for _, c := range []struct {
		name  string
		loop  Loop
		state State
		seen  Observation
		ticks int
		want  []Verb
	}{
		{"a knob that does not help is given back and barred", waits, State{}, missed, 100,
			[]Verb{Squeeze, Squeeze, Squeeze, Release, Nobody}},
		{"a knob that does not help down to its floor is given back and barred", waits, State{}, low, 100,
			[]Verb{Squeeze, Squeeze, Release, Nobody}},
		{"twice the target is answered at once", waits, State{}, missed, 1, []Verb{Squeeze}},
		{"less is answered when it was missed twice", waits, State{},
			Observation{Known: true, Value: 0.08, Candidates: []Candidate{batch(cpu, 2)}}, 1, nil},
		{"advice is said once, and nothing is held", Loop{Mode: Advise, Target: waits.Target}, State{}, missed, 100,
			[]Verb{Suggest}},
		{"off does nothing", Loop{Mode: Off, Target: waits.Target}, State{}, missed, 100, nil},
		{"nobody to blame is said once", waits, State{}, innocent, 100, []Verb{Nobody}},
		{"a quiet half hour", waits, State{}, Observation{Known: true, Value: 0.045}, 360, nil},
		{"what is held in the band stays", waits, held,
			Observation{Known: true, Value: 0.045, Candidates: []Candidate{batch(cpu, 1)}}, 360, nil},
		{"slack, and the limit binds no more", waits, held,
			Observation{Known: true, Value: 0.01, Candidates: []Candidate{batch(cpu, 0.1)}}, 20, []Verb{Release}},
		{"slack, and the limit binds", waits, held,
			Observation{Known: true, Value: 0.01, Candidates: []Candidate{batch(cpu, 2)}}, 100,
			[]Verb{Give, Give, Give, Give, Release}},
		{"no observation for a minute", waits, held, Observation{}, 12, []Verb{Release}},
		{"no observation for less", waits, held, Observation{}, 11, nil},
		{"a group that is gone", waits, held, Observation{Known: true, Value: 0.045}, 1, []Verb{Release}},
		{"act no more", Loop{Mode: Advise, Target: waits.Target}, held, missed, 1, []Verb{Release}},
		{"a group that was changed often enough", waits,
			State{Changes: map[string][]int{"reports": {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}}, missed, 100, []Verb{Spent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, got := steps(c.loop, c.state, c.seen, c.ticks); !reflect.DeepEqual(verbs(got), c.want) {
				t.Fatalf("did %+v, not %v", got, c.want)
			}
		})
	}
}

// TestPlant closes the loop over a queue: two cores, a database whose load changes in steps, a batch that takes all it
// gets. The p95 of the database is that of a queue at the use of both.
func TestPlant(t *testing.T) {
	const cores, solo, stepTicks = 2.0, 0.010, 120
	loop := Loop{Mode: Act, Target: Target{Signal: P95, Value: 0.030}}
	var s State
	inForce, missed, judged, work, best := cores, 0, 0, 0.0, 0.0
	for tick := range 6 * stepTicks {
		demand := []float64{0.3, 0.8, 0.5, 1, 0.4, 0.3}[tick/stepTicks]
		use := math.Min(inForce, cores-demand)
		p95 := solo / (1 - math.Min(0.99, (demand+use)/cores))
		oracle := cores*(1-solo/loop.Target.Value) - demand
		if tick%stepTicks >= 12 {
			judged++
			if p95 > loop.Target.Value {
				missed++
			}
		}
		work, best = work+use, best+oracle
		next, actions := loop.Step(s, Observation{Known: true, Value: p95, Candidates: []Candidate{batch(cpu, use)}})
		s = next
		for _, a := range actions {
			switch a.Verb {
			case Squeeze, Give:
				inForce = a.Value
			case Release:
				inForce = cores
			}
		}
	}
	t.Logf("missed %d of %d ticks a minute after a step, batch %.2f of the oracle's", missed, judged, work/best)
	if missed*20 > judged || work < 0.6*best {
		t.Fatalf("missed %d of %d ticks, batch has %.2f of what an oracle gives", missed, judged, work/best)
	}
}

func TestSlack(t *testing.T) {
	for _, c := range []struct {
		target Target
		value  float64
		want   float64
	}{
		{Target{P95, 0.02}, 0.02, 0}, {Target{P95, 0.02}, 0.01, 0.5}, {Target{Waits, 0.05}, 0.1, -1},
		{Target{Work, 100}, 200, 0.5}, {Target{Work, 100}, 50, -1}, {Target{Work, 100}, 0, 1 - highestLoad},
	} {
		if got := c.target.Slack(c.value); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v at %g: slack %g, not %g", c.target, c.value, got, c.want)
		}
	}
}
