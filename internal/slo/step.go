package slo

import (
	"maps"
	"math"
	"slices"
	"strings"

	"bulkhead/internal/policy"
)

// Loop is what one database is promised and how far the loop may go for it.
type Loop struct {
	Mode   Mode
	Target Target
}

// Held is a knob that the loop holds.
type Held struct {
	Value  float64
	Floor  float64 // the highest since it is held
	Before float64 // the load when it was squeezed last
	Vain   int     // squeezes in a row that gained nothing
	Judge  bool    // the last squeeze has not been judged yet
	Given  bool    // the last change raised it
	Prior  float64 // its value before it was raised
	Rest   int     // seconds for which nothing is given after a give that was too much
	Until  int     // the second before which nothing is given
}

// State is what the loop remembers from one step to the next. Its zero value is that of a loop that begins.
type State struct {
	Now     int     // the second of the last step
	Next    int     // in how many seconds the next step is due: Look or HotLook
	Load    float64 // smoothed since the last change; 1 is on the target
	Missing int     // seconds in a row without an observation
	Recent  []bool  // the last looks since the last change, newest last: missed
	Calm    int     // seconds in a row with slack
	Changed int     // the second of the last change; 0: none yet
	Hot     int     // seconds of hot looks that were spent; each cold look gives one back
	Held    map[Knob]Held
	Barred  map[Knob]int     // until which second
	Changes map[string][]int // seconds of changes of each group, within ChangeWindow
	Said    Action           // the last thing that was said and not done, so that it is said once
}

// run is one step under way.
type run struct {
	Loop
	State

	passed  int  // seconds since the step before
	near    bool // the target is missed, or all but: a closer look is due
	actions []Action
}

// Step is one look, in a second above 0 that is later than that of the step before: it returns s with what was seen,
// and what is to be done now. In another mode than act, what s holds is handed back first.
func (l Loop) Step(s State, now int, o Observation) (State, []Action) {
	r := &run{Loop: l, State: s.copied(), passed: max(0, now-s.Now)}
	if s.Now == 0 {
		r.passed = Look
	}
	r.Now = now
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
	r.pace()
	return r.State, r.actions
}

// pace says when the next look is due.
func (r *run) pace() {
	if r.State.Next == HotLook {
		r.Hot += r.passed
	} else {
		r.Hot = max(0, r.Hot-1)
	}
	r.State.Next = Look
	recent := r.Changed > 0 && r.Now-r.Changed < gainTime
	if len(r.actions) > 0 && recent {
		r.Hot = min(r.Hot, MostHot-hotAgain)
	}
	if (r.near || recent) && r.Mode != Off && r.Hot < MostHot {
		r.State.Next = HotLook
	}
}

// copied is the state with maps and lists of its own.
func (s State) copied() State {
	held, barred, changes := map[Knob]Held{}, map[Knob]int{}, map[string][]int{}
	maps.Copy(held, s.Held)
	maps.Copy(barred, s.Barred)
	for group, seconds := range s.Changes {
		changes[group] = slices.Clone(seconds)
	}
	s.Held, s.Barred, s.Changes, s.Recent = held, barred, changes, slices.Clone(s.Recent)
	return s
}

// forget drops what is too old to count.
func (r *run) forget() {
	maps.DeleteFunc(r.Barred, func(_ Knob, until int) bool { return until <= r.Now })
	for group, seconds := range r.Changes {
		seconds = slices.DeleteFunc(seconds, func(t int) bool { return t <= r.Now-ChangeWindow })
		if r.Changes[group] = seconds; len(seconds) == 0 {
			delete(r.Changes, group)
		}
	}
}

// missing is a look without an observation.
func (r *run) missing() {
	r.Missing += r.passed
	r.Recent, r.Calm = nil, 0
	if r.Missing >= MissingLimit {
		r.releaseAll("nothing was observed for a minute")
	}
}

// seen is a look with an observation.
func (r *run) seen(o Observation) {
	byKnob := r.candidates(o)
	raw := r.Target.load(o.Value)
	r.near = raw > 1-lowSlack
	begins := r.Missing > 0 || r.Load == 0
	r.Missing = 0
	ofBefore := r.Changed > 0 && float64(r.Now-r.Changed) < math.Max(settleTime, o.Span) // of before the change, too
	if len(r.actions) > 0 || ofBefore {
		return
	}
	if begins {
		r.Load = raw
	}
	easing := raw < falling*r.Load
	r.Load += smoothing * (raw - r.Load)
	r.count(raw)
	switch {
	case r.raised(byKnob) || r.judged():
	case (r.missed() || raw > heavy) && r.near && r.Load > 1-lowSlack && !easing:
		r.squeeze(byKnob, raw)
	case r.Calm >= calmTime:
		r.Said = Action{}
		r.give(byKnob)
	}
}

// candidates are those that may be held at all. What is held and may not be held so is given back.
func (r *run) candidates(o Observation) map[Knob]Candidate {
	byKnob := map[Knob]Candidate{}
	for _, c := range o.Candidates {
		if c.fits() {
			byKnob[c.Knob] = c
		}
	}
	for _, k := range r.heldKnobs() {
		c, there := byKnob[k]
		if !there || r.Held[k].Value < c.Bounds.floor(k) || r.Held[k].Value >= c.Ceiling {
			r.release(k, "its group or its bounds have changed")
		}
	}
	return byKnob
}

// missed says whether two of the last three looks were missed.
func (r *run) missed() bool {
	n := 0
	for _, missed := range r.Recent {
		if missed {
			n++
		}
	}
	return len(r.Recent) == 3 && n >= 2
}

// count keeps the looks that were missed, by the smoothed load and by what was seen, and the time with slack, by the
// smoothed load.
func (r *run) count(raw float64) {
	slack := 1 - r.Load
	r.Recent = append(r.Recent, slack < lowSlack && raw > 1-lowSlack)
	if len(r.Recent) > 3 {
		r.Recent = r.Recent[len(r.Recent)-3:]
	}
	r.Calm += r.passed
	if slack <= highSlack {
		r.Calm = 0
	}
}

// raised gives back what a group's floor has risen above. It tells whether it did.
func (r *run) raised(byKnob map[Knob]Candidate) bool {
	for _, k := range r.heldKnobs() {
		held, c := r.Held[k], byKnob[k]
		held.Floor = max(held.Floor, c.floor())
		r.Held[k] = held
		if held.Value >= held.Floor {
			continue
		}
		if !r.mayChange(k, 0) {
			r.release(k, "it wants more than it has, and was changed often enough in this hour")
			return true
		}
		held.Value, held.Judge, held.Vain, held.Given = min(c.Ceiling, raise*held.Floor), false, 0, false
		r.Held[k] = held
		r.changed(Action{Verb: Give, Knob: k, Value: held.Value, Reason: "it wants more, and keeps half of that"})
		return true
	}
	return false
}

// judged looks at what the last squeeze brought: a gain within gainTime, or none. It tells whether that is not known
// yet, or a useless knob was given back: then nothing else is done.
func (r *run) judged() bool {
	for _, k := range r.heldKnobs() {
		held := r.Held[k]
		if !held.Judge {
			continue
		}
		switch {
		case r.Load < held.Before*(1-leastGain) || r.Load <= 1-lowSlack:
			held.Judge, held.Vain = false, 0
		case r.Now-r.Changed < gainTime:
			return true
		default:
			held.Judge = false
			held.Vain++
		}
		r.Held[k] = held
		if held.Vain >= mostVain {
			r.bar(k, "three squeezes in a row brought nothing")
			return true
		}
	}
	return false
}

// squeeze lowers the knob of who is to blame most and can be lowered, or says that there is none. A weight goes before
// the limits of its group: it takes from the group only what others want at that moment, and it works all the time.
// Under a limit the group runs as hard as before for a part of each period (docs/slo.md has what was measured).
func (r *run) squeeze(byKnob map[Knob]Candidate, raw float64) {
	suspects := slices.SortedFunc(maps.Values(byKnob), func(a, b Candidate) int {
		if a.Share != b.Share {
			return map[bool]int{true: -1, false: 1}[a.Share > b.Share]
		}
		if weight := a.Key == policy.KeyCPUWeight; a.Group == b.Group && weight != (b.Key == policy.KeyCPUWeight) {
			return map[bool]int{true: -1, false: 1}[weight]
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
				held.Until = r.Now + held.Rest
			}
			held.Value, held.Before, held.Judge, held.Given = value, max(raw, r.Load), true, false
			held.Floor = max(held.Floor, c.floor())
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
	r.Barred[k] = r.Now + barTime
	r.release(k, reason)
}

// lower is the next lower value of a candidate that is to blame.
func (r *run) lower(c Candidate) (float64, bool) {
	_, barred := r.Barred[c.Knob]
	if barred || c.Share < leastShare {
		return 0, false
	}
	now, from := min(c.Ceiling, c.Use), c.Use
	held, ok := r.Held[c.Knob]
	if ok { // a limit that does not bind holds nothing
		now, from = held.Value, max(c.Use, deepest*held.Value)
	}
	value := min(now, from) * min(shrink, max(deepest, aim/r.Load))
	if c.Key == policy.KeyCPUWeight { // at once: it costs the group nothing while the others want nothing
		value = 0
	}
	if held.Given && r.Load < nearMiss {
		value = held.Prior
	}
	value = max(c.floor(), held.Floor, value)
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
		case k.Key == policy.KeyCPUWeight && r.Calm < calmWeight:
		case c.Use < usedPart*held.Value && r.Calm < idleTime:
		case c.Use < usedPart*held.Value:
			r.release(k, "there is slack, and the group does not use what it has")
			return
		case r.Now < held.Until:
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
	r.Changes[a.Knob.Group] = append(r.Changes[a.Knob.Group], r.Now)
	r.Changed, r.Load, r.Recent, r.Calm, r.Said = r.Now, 0, nil, 0, Action{}
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
