package slo

import (
	"cmp"
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
	for _, group := range []string{"a", "b", "backup", "mysql"} {
		role := policy.RoleBatch
		switch group {
		case "mysql":
			role = policy.RoleDatabase
		case "backup":
			role = policy.RoleHelper
		}
		for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyCPUWeight, policy.KeyIOReadBandwidth,
			policy.KeyMemoryMax, policy.KeyCPUCPUs} {
			if rapid.IntRange(0, 4).Draw(t, "left out") == 0 {
				continue
			}
			all = append(all, Candidate{Knob: Knob{Group: group, Key: key}, Role: role,
				Bounds: Bounds{Floor: rapid.SampledFrom([]float64{0, 0.2, 1}).Draw(t, "floor"),
					Ceiling: rapid.SampledFrom([]float64{2, 16, 1e6}).Draw(t, "ceiling")},
				Share:  rapid.SampledFrom([]float64{0, 0.04, 0.3, 1, math.NaN()}).Draw(t, "share"),
				Use:    rapid.SampledFrom([]float64{0, 1, 16, 1e7}).Draw(t, "use"),
				Wanted: rapid.SampledFrom([]float64{0, 0.5, 3, 1e7}).Draw(t, "wanted")})
		}
	}
	return all
}

// keeper holds what a loop has done against what it promises, from its actions alone.
type keeper struct {
	inForce map[Knob]float64
	changes map[string][]int
	barred  map[Knob]int
	last    int // second of the last change
	all     int // changes
	missing int
}

func (k *keeper) check(t *rapid.T, now, passed int, o Observation, actions []Action) {
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
				t.Fatalf("second %d: %+v on a knob that is not the loop's", now, a)
			}
			if a.Value < c.floor() || a.Value > c.Ceiling {
				t.Fatalf("second %d: %+v outside of %+v", now, a, c.Bounds)
			}
			was, held := k.inForce[a.Knob]
			if a.Verb == Squeeze && (!blamable || held && a.Value >= was || now < k.barred[a.Knob]) {
				t.Fatalf("second %d: %+v squeezes blindly, upwards or a barred knob", now, a)
			}
			if a.Verb == Give && (!held || a.Value <= was) {
				t.Fatalf("second %d: %+v gives nothing", now, a)
			}
			if k.last > 0 && float64(now-k.last) < math.Max(settleTime, o.Span) {
				t.Fatalf("second %d: %+v does not wait after second %d", now, a, k.last)
			}
			k.inForce[a.Knob] = a.Value
		case Release:
			if _, held := k.inForce[a.Knob]; !held {
				t.Fatalf("second %d: %+v releases what is not held", now, a)
			}
			delete(k.inForce, a.Knob)
			if strings.HasSuffix(a.Reason, "brought nothing") {
				k.barred[a.Knob] = now + barTime
			}
		default:
			continue
		}
		k.changes[a.Knob.Group], k.all = append(k.changes[a.Knob.Group], now), k.all+1
	}
	if moves > 1 {
		t.Fatalf("second %d: %d knobs were moved: %+v", now, moves, actions)
	}
	for _, a := range actions {
		if a.Verb == Squeeze || a.Verb == Give || a.Verb == Release {
			k.last = now
		}
	}
	for group, seconds := range k.changes {
		inWindow := 0
		for _, at := range seconds {
			if at > now-ChangeWindow {
				inWindow++
			}
		}
		if inWindow > MostChanges {
			t.Fatalf("second %d: %d changes of %s in an hour", now, inWindow, group)
		}
	}
	if k.missing += passed; o.Known && finite(o.Value) {
		k.missing = 0
	}
	if k.missing >= MissingLimit && len(k.inForce) > 0 {
		t.Fatalf("second %d: %v held %d s after the last observation", now, k.inForce, k.missing)
	}
}

func TestStepKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		loop := Loop{Mode: Act, Target: Target{Value: 1,
			Signal: rapid.SampledFrom([]Signal{P95, Heartbeat, Waits, Work}).Draw(t, "signal")}}
		k := keeper{inForce: map[Knob]float64{}, changes: map[string][]int{}, barred: map[Knob]int{}}
		var s State
		now, hot, cold := 0, 0, 0
		for phases := rapid.IntRange(1, 40).Draw(t, "phases"); phases > 0; phases-- {
			o := Observation{Known: rapid.IntRange(0, 9).Draw(t, "known") > 0,
				Value:      rapid.SampledFrom([]float64{0, 0.3, 0.9, 1, 1.2, 7, math.NaN()}).Draw(t, "value"),
				Span:       rapid.SampledFrom([]float64{0, 1, 2, 10}).Draw(t, "span"),
				Candidates: drawCandidates(t)}
			late := rapid.IntRange(0, 3).Draw(t, "late")
			for range rapid.IntRange(1, 100).Draw(t, "looks") {
				passed := max(s.Next, HotLook) + late
				if now += passed; s.Next == HotLook {
					hot += passed
				} else {
					cold++
				}
				before := s.copied()
				next, actions := loop.Step(s, now, o)
				if !reflect.DeepEqual(before, s.copied()) {
					t.Fatal("Step changed the state that it was given")
				}
				k.check(t, now, passed, o, actions)
				if len(k.inForce) != len(next.Held) {
					t.Fatalf("second %d: holds %v, actions say %v", now, next.Held, k.inForce)
				}
				for knob, held := range next.Held {
					if k.inForce[knob] != held.Value {
						t.Fatalf("second %d: holds %v, actions say %v", now, next.Held, k.inForce)
					}
				}
				if next.Next != Look && next.Next != HotLook {
					t.Fatalf("second %d: the next look is in %d s", now, next.Next)
				}
				s = next
			}
			// One look is begun before the stretch is over, and each look may be late.
			if most := MostHot + cold + (hotAgain+4)*k.all + 4; hot > most {
				t.Fatalf("second %d: %d s of hot looks, beside %d cold looks and %d changes", now, hot, cold, k.all)
			}
		}
		if _, actions := (Loop{Mode: Off}).Step(s, now+1, Observation{}); len(actions) != len(s.Held) {
			t.Fatalf("off: %d held, %d actions", len(s.Held), len(actions))
		}
	})
}

// steps gives the same observation at n looks and returns what was done.
func steps(l Loop, s State, o Observation, n int) (State, []Action) {
	var all []Action
	for range n {
		next, actions := l.Step(s, s.Now+cmp.Or(s.Next, Look), o)
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
		looks int
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
			if _, got := steps(c.loop, c.state, c.seen, c.looks); !reflect.DeepEqual(verbs(got), c.want) {
				t.Fatalf("did %+v, not %v", got, c.want)
			}
		})
	}
}

// A weight goes down to its floor at once, before the limit of its group, and comes back in parts after it, later.
func TestWeight(t *testing.T) {
	weight := Candidate{Knob: Knob{Group: "reports", Key: policy.KeyCPUWeight}, Role: policy.RoleBatch, Share: 0.5,
		Bounds: Bounds{Floor: 10, Ceiling: 3000}, Use: 3000}
	o := Observation{Known: true, Value: 0.5, Candidates: []Candidate{batch(cpu, 2), weight}}
	helper := weight
	helper.Role, helper.Floor = policy.RoleHelper, 0
	of := Observation{Known: true, Value: 0.5, Candidates: []Candidate{helper}}
	if _, all := steps(waits, State{}, of, 1); !reflect.DeepEqual(verbs(all), []Verb{Nobody}) {
		t.Fatalf("did %+v to a helper whose floor nobody named", all)
	}
	s, all := steps(waits, State{}, o, 1)
	if want := []Action{{Squeeze, weight.Knob, 10, "the target is missed"}}; !reflect.DeepEqual(all, want) {
		t.Fatalf("did %+v, not %+v", all, want)
	}
	s, all = steps(waits, s, o, 15)
	if !reflect.DeepEqual(verbs(all), []Verb{Squeeze}) || all[0].Knob != cpu || s.Held[weight.Knob].Value != 10 {
		t.Fatalf("did %+v", all)
	}
	o.Value = 0.01
	if _, all = steps(waits, s, o, 10); len(all) == 0 || all[0].Verb != Give || all[0].Knob != cpu {
		t.Fatalf("with slack it did %+v", all)
	}
	delete(s.Held, cpu)
	if s, all = steps(waits, s, o, 20); len(all) > 0 {
		t.Fatalf("with slack for less than two minutes it did %+v", all)
	}
	if _, all = steps(waits, s, o, 20); len(all) == 0 || all[0].Verb != Give || all[0].Value != 310 {
		t.Fatalf("with slack, and the limit given back, it did %+v", all)
	}
}

// While the target is missed it looks each second, but not without an end; and again after each change.
func TestNextLook(t *testing.T) {
	kept, missed := Observation{Known: true, Value: 0.03}, Observation{Known: true, Value: 0.06}
	s, _ := steps(waits, State{}, kept, 10)
	if s.Next != Look || s.Now != 50 {
		t.Fatalf("kept: %+v", s)
	}
	if s, _ = steps(waits, s, missed, 30); s.Next != HotLook || s.Now != 50+5+29 {
		t.Fatalf("missed, and nobody to blame: %+v", s)
	}
	if s, _ = steps(waits, s, missed, 1000); s.Now < 50+5+60+930*3-10 { // one of two looks is hot
		t.Fatalf("missed for long: %+v", s)
	}
	if s, _ = steps(waits, s, kept, 100); s.Next != Look || s.Hot != 0 {
		t.Fatalf("kept again: %+v", s)
	}
	missed.Candidates = []Candidate{batch(cpu, 2)}
	s, actions := steps(waits, s, missed, 6)
	if !reflect.DeepEqual(verbs(actions), []Verb{Squeeze}) || s.Next != HotLook {
		t.Fatalf("did %v: %+v", actions, s)
	}
	kept.Candidates = missed.Candidates
	for s.Next == HotLook {
		if s, actions = steps(waits, s, kept, 1); len(actions) > 0 {
			t.Fatalf("did %v", actions)
		}
	}
	if s.Now-s.Changed != gainTime {
		t.Errorf("after a change it looked each second for %d s", s.Now-s.Changed)
	}
	// What was seen is of before the change, too: nothing follows from it.
	s, _ = steps(waits, State{}, Observation{Known: true, Value: 0.5, Candidates: missed.Candidates}, 1)
	if _, actions = steps(waits, s, Observation{Known: true, Value: 0.01, Span: 30, Candidates: missed.Candidates},
		13); len(actions) > 0 {
		t.Errorf("did %v on what was seen before", actions)
	}
}

// TestPlant closes the loop over a queue: two cores, a database whose load changes in steps, a batch that takes all it
// gets. The p95 of the database is that of a queue at the use of both.
func TestPlant(t *testing.T) {
	const cores, solo, step = 2.0, 0.010, 600
	loop := Loop{Mode: Act, Target: Target{Signal: P95, Value: 0.030}}
	var s State
	inForce, missed, judged, work, best := cores, 0, 0, 0.0, 0.0
	for now := range 6 * step {
		demand := []float64{0.3, 0.8, 0.5, 1, 0.4, 0.3}[now/step]
		use := math.Min(inForce, cores-demand)
		p95 := solo / (1 - math.Min(0.99, (demand+use)/cores))
		oracle := cores*(1-solo/loop.Target.Value) - demand
		if now%step >= 60 {
			judged++
			if p95 > loop.Target.Value {
				missed++
			}
		}
		work, best = work+use, best+oracle
		if now < s.Now+s.Next {
			continue
		}
		next, actions := loop.Step(s, now, Observation{Known: true, Value: p95, Span: 1,
			Candidates: []Candidate{batch(cpu, use)}})
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
	t.Logf("missed %d of %d s a minute after a step, batch %.2f of the oracle's", missed, judged, work/best)
	if missed*20 > judged || work < 0.6*best {
		t.Fatalf("missed %d of %d s, batch has %.2f of what an oracle gives", missed, judged, work/best)
	}
}

// A backup beside a database gets at least half of what it would have had without the loop, so that it takes at most
// twice as long, but for the seconds in which it begins to want more: those until the next look, and until a change
// before it has shown what it brings.
func TestSqueezedJobEnds(t *testing.T) {
	const cores, solo, late = 8.0, 0.010, 2*Look + 3
	loop := Loop{Mode: Act, Target: Target{Signal: P95, Value: 0.030}}
	rapid.Check(t, func(t *rapid.T) {
		type phase struct{ wanted, work float64 }
		var phases []phase
		for range rapid.IntRange(1, 5).Draw(t, "phases") {
			phases = append(phases, phase{rapid.SampledFrom([]float64{0.1, 1, 2, 8}).Draw(t, "wants"),
				rapid.SampledFrom([]float64{10, 100, 1000}).Draw(t, "work")})
		}
		loads := rapid.SliceOfN(rapid.Float64Range(0, cores), 1, 30).Draw(t, "loads")
		every := rapid.SampledFrom([]int{10, 30, 600}).Draw(t, "every")
		knob := Knob{Group: "backup", Key: policy.KeyCPULimit}
		var s State
		inForce, got, would, owed := cores, 0.0, 0.0, 0.0
		for now := 1; len(phases) > 0 && now < 100_000; now++ {
			demand, p := loads[now/every%len(loads)], &phases[0]
			room := math.Max(0.05, cores-demand)
			use := math.Min(inForce, math.Min(p.wanted, room))
			got, would = got+use, would+math.Min(p.wanted, room)
			if p.work -= use; p.work <= 0 {
				if phases = phases[1:]; len(phases) > 0 {
					owed += late * phases[0].wanted / 2
				}
			}
			if now < s.Now+s.Next {
				continue
			}
			next, actions := loop.Step(s, now, Observation{Known: true, Span: 1,
				Value: solo / (1 - math.Min(0.99, (demand+use)/cores)), Candidates: []Candidate{{Knob: knob,
					Bounds: Bounds{Ceiling: cores}, Role: policy.RoleHelper, Share: 0.5, Use: use, Wanted: p.wanted}}})
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
		if len(phases) > 0 || got+owed < would/2 {
			t.Fatalf("of %.1f core seconds it got %.1f, %d phases are left", would, got, len(phases))
		}
	})
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
