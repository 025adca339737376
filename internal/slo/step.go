package slo

import (
	"maps"
	"slices"
	"strings"
)

// Loop is what one database is promised and how far the loop may go for it.
type Loop struct {
	Mode   Mode
	Target Target
}

// Held is a knob that the loop holds.
type Held struct {
	Value  float64
	Before float64 // the load when it was squeezed last
	Vain   int     // squeezes in a row that gained nothing
	Judge  bool    // the last squeeze has not been judged yet
	Given  bool    // the last change raised it
	Prior  float64 // its value before it was raised
	Rest   int     // ticks for which nothing is given after a give that was too much
	Until  int     // the tick before which nothing is given
}

// State is what the loop remembers from one step to the next. Its zero value is that of a loop that begins.
type State struct {
	Tick    int
	Load    float64 // smoothed since the last change; 1 is on the target
	Missing int     // ticks in a row without an observation
	Recent  []bool  // the last ticks, newest last: missed
	Calm    int     // ticks in a row with slack
	Wait    int     // ticks until a change may follow
	Held    map[Knob]Held
	Barred  map[Knob]int     // until which tick
	Changes map[string][]int // ticks of changes of each group, within ChangeWindow
	Said    Action           // the last thing that was said and not done, so that it is said once
}

// run is one step under way.
type run struct {
	Loop
	State
	actions []Action
}

// Step is one tick: it returns s with what was seen in the tick, and what is to be done now. In another mode than act,
// what s holds is handed back first.
func (l Loop) Step(s State, o Observation) (State, []Action) {
	r := &run{Loop: l, State: s.copied()}
	r.Tick++
	r.forget()
	switch {
	case l.Mode != Act && len(r.Held) > 0:
		r.releaseAll("the loop does not act any more")
	case l.Mode == Off || l.Target.Value <= 0:
	case !o.Known || !finite(o.Value):
		r.missing()
	default:
		r.seen(o)
	}
	return r.State, r.actions
}

// copied is the state with maps and lists of its own.
func (s State) copied() State {
	held, barred, changes := map[Knob]Held{}, map[Knob]int{}, map[string][]int{}
	maps.Copy(held, s.Held)
	maps.Copy(barred, s.Barred)
	for group, ticks := range s.Changes {
		changes[group] = slices.Clone(ticks)
	}
	s.Held, s.Barred, s.Changes, s.Recent = held, barred, changes, slices.Clone(s.Recent)
	return s
}

// forget drops what is too old to count.
func (r *run) forget() {
	maps.DeleteFunc(r.Barred, func(_ Knob, until int) bool { return until <= r.Tick })
	for group, ticks := range r.Changes {
		ticks = slices.DeleteFunc(ticks, func(t int) bool { return t <= r.Tick-ChangeWindow })
		if r.Changes[group] = ticks; len(ticks) == 0 {
			delete(r.Changes, group)
		}
	}
}

// missing is a tick without an observation.
func (r *run) missing() {
	r.Missing++
	r.Recent, r.Calm = nil, 0
	if r.Missing >= MissingLimit {
		r.releaseAll("nothing was observed for a minute")
	}
}

// seen is a tick with an observation.
func (r *run) seen(o Observation) {
	raw := r.Target.load(o.Value)
	if r.Missing > 0 || r.Load == 0 {
		r.Load = raw
	}
	r.Missing = 0
	easing := raw < falling*r.Load
	r.Load += smoothing * (raw - r.Load)
	r.count()
	byKnob := map[Knob]Candidate{}
	for _, c := range o.Candidates {
		if c.fits() {
			byKnob[c.Knob] = c
		}
	}
	for _, k := range r.heldKnobs() {
		c, there := byKnob[k]
		if !there || r.Held[k].Value < c.floor(k) || r.Held[k].Value >= c.Ceiling {
			r.release(k, "its group or its bounds have changed")
		}
	}
	if len(r.actions) > 0 {
		return
	}
	if r.Wait > 0 {
		r.Wait--
		return
	}
	switch {
	case r.judged():
	case (r.misses() >= 2 || raw > heavy) && r.Load > 1-lowSlack && !easing:
		r.squeeze(byKnob)
	case r.Calm >= calmTicks:
		r.Said = Action{}
		r.give(byKnob)
	}
}

// misses counts those of the last ticks that were missed.
func (r *run) misses() (n int) {
	for _, missed := range r.Recent {
		if missed {
			n++
		}
	}
	return n
}

// count keeps the ticks that were missed, and those with slack, by the smoothed load.
func (r *run) count() {
	slack := 1 - r.Load
	r.Recent = append(r.Recent, slack < lowSlack)
	if len(r.Recent) > 3 {
		r.Recent = r.Recent[len(r.Recent)-3:]
	}
	r.Calm++
	if slack <= highSlack {
		r.Calm = 0
	}
}

// judged looks at what the last squeeze brought, once. It tells whether it gave a useless knob back.
func (r *run) judged() bool {
	for _, k := range r.heldKnobs() {
		held := r.Held[k]
		if !held.Judge {
			continue
		}
		held.Judge = false
		held.Vain++
		if r.Load < held.Before*(1-leastGain) || r.Load <= 1-lowSlack {
			held.Vain = 0
		}
		r.Held[k] = held
		if held.Vain >= mostVain {
			r.bar(k, "three squeezes in a row brought nothing")
			return true
		}
	}
	return false
}

// squeeze lowers the knob of who is to blame most and can be lowered, or says that there is none.
func (r *run) squeeze(byKnob map[Knob]Candidate) {
	suspects := slices.SortedFunc(maps.Values(byKnob), func(a, b Candidate) int {
		if a.Share != b.Share {
			return map[bool]int{true: -1, false: 1}[a.Share > b.Share]
		}
		return order(a.Knob, b.Knob)
	})
	spent := ""
	for _, c := range suspects {
		value, able := r.lower(c)
		switch {
		case !able:
		case r.Mode == Advise:
			r.say(Action{Verb: Suggest, Knob: c.Knob, Value: value, Reason: "the target is missed"})
			return
		case !r.mayChange(c.Knob, 0):
			spent = c.Group
		default:
			held := r.Held[c.Knob]
			if held.Given {
				held.Rest = min(mostRest, max(leastRest, 2*held.Rest))
				held.Until = r.Tick + held.Rest
			}
			held.Value, held.Before, held.Judge, held.Given = value, r.Load, true, false
			r.Held[c.Knob] = held
			r.changed(Action{Verb: Squeeze, Knob: c.Knob, Value: value, Reason: "the target is missed"})
			return
		}
	}
	if spent != "" {
		r.say(Action{Verb: Spent, Knob: Knob{Group: spent}, Reason: "it was changed often enough in this hour"})
		return
	}
	if r.Mode == Act && r.undoVain() {
		return
	}
	r.say(Action{Verb: Nobody, Reason: "the target is missed, and no group that can be squeezed has a part in it"})
}

// undoVain gives back a knob that brought nothing and cannot be lowered more. There is nobody else to squeeze.
func (r *run) undoVain() bool {
	for _, k := range r.heldKnobs() {
		if r.Held[k].Vain > 0 {
			r.bar(k, "nothing more can be taken from it, and that brought nothing")
			return true
		}
	}
	return false
}

// bar gives a knob back that did not help, and leaves it alone for a while.
func (r *run) bar(k Knob, reason string) {
	r.Barred[k] = r.Tick + barTicks
	r.release(k, reason)
}

// lower is the next lower value of a candidate that is to blame.
func (r *run) lower(c Candidate) (float64, bool) {
	_, barred := r.Barred[c.Knob]
	if barred || c.Share < leastShare {
		return 0, false
	}
	now := min(c.Ceiling, c.Use)
	held, ok := r.Held[c.Knob]
	if ok {
		now = held.Value
	}
	value := now * min(shrink, max(deepest, aim/r.Load))
	if held.Given && r.Load < nearMiss {
		value = held.Prior
	}
	value = max(c.floor(c.Knob), value)
	return value, value < now
}

// give raises one knob that is held and in use, or hands it back.
func (r *run) give(byKnob map[Knob]Candidate) {
	for _, k := range r.heldKnobs() {
		held, c := r.Held[k], byKnob[k]
		more := growth * c.Ceiling
		if slack := 1 - r.Load; slack < wideSlack {
			more = min(more, max(leastGrowth*c.Ceiling, held.Value*slack/2))
		}
		value := held.Value + more
		switch {
		case c.Use < usedPart*held.Value && r.Calm < idleTicks:
		case c.Use < usedPart*held.Value:
			r.release(k, "there is slack, and the group does not use what it has")
			return
		case r.Tick < held.Until:
		case value > usedUp*c.Ceiling:
			r.release(k, "there is slack")
			return
		case r.mayChange(k, spare):
			held.Prior, held.Value, held.Judge, held.Vain, held.Given = held.Value, value, false, 0, true
			r.Held[k] = held
			r.changed(Action{Verb: Give, Knob: k, Value: value, Reason: "there is slack"})
			return
		}
	}
}

// mayChange tells whether the knob may be squeezed or raised: after it, each knob of the group that is held must still
// have one change left, to be given back with, and the group as many more as kept says.
func (r *run) mayChange(k Knob, kept int) bool {
	toRelease := 1 + kept
	for other := range r.Held {
		if other.Group == k.Group && other != k {
			toRelease++
		}
	}
	return len(r.Changes[k.Group])+1+toRelease <= MostChanges
}

func (r *run) releaseAll(reason string) {
	for _, k := range r.heldKnobs() {
		r.release(k, reason)
	}
}

func (r *run) release(k Knob, reason string) {
	delete(r.Held, k)
	r.changed(Action{Verb: Release, Knob: k, Reason: reason})
}

// changed notes a change: what was smoothed before it says nothing of what comes after.
func (r *run) changed(a Action) {
	r.actions = append(r.actions, a)
	r.Changes[a.Knob.Group] = append(r.Changes[a.Knob.Group], r.Tick)
	r.Wait, r.Load, r.Recent, r.Calm, r.Said = waitTicks, 0, nil, 0, Action{}
}

// say says what is not done, unless it was the last thing that was said.
func (r *run) say(a Action) {
	same := r.Said.Verb == a.Verb && r.Said.Knob == a.Knob
	if r.Said = a; !same {
		r.actions = append(r.actions, a)
	}
}

func (r *run) heldKnobs() []Knob { return slices.SortedFunc(maps.Keys(r.Held), order) }

func order(a, b Knob) int {
	return strings.Compare(a.Group+"\x00"+string(a.Key)+"\x00"+a.On, b.Group+"\x00"+string(b.Key)+"\x00"+b.On)
}
