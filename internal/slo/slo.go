// Package slo decides how groups beside a database are squeezed so that the database keeps its target, and how they get
// back what was taken. It is pure: Loop.Step takes what was and what is seen now, and returns what is now and what to
// do. It has no clock (a step is told what second it is, on any clock that does not go back), reads nothing and writes
// nothing. State.Next says in how many seconds the next step is due.
//
// What Step promises, whatever it is shown (its tests hold each):
//
//   - Only weights and limits of CPU, and limits of disk bandwidth and operations and of egress change; never memory,
//     never CPU sets, never a group whose role is database.
//   - A value lies between the floor and the ceiling of its knob, and never above what the policy says.
//   - A group of role helper, whose work is to end, keeps half of what it wants, unless its floor is named: of CPU
//     half of the most that it wanted since it was squeezed, of a disk half of what the policy gives. Its weight stays.
//   - A step squeezes or gives one knob at most. After either it waits until all that it is shown is of after that;
//     where a squeeze has shown no gain by then, 10 s.
//   - A group sees at most MostChanges changes in ChangeWindow, those that give everything back included.
//   - With nobody to blame it does nothing and says so. A knob that did not help is given back and barred.
//   - With slack it gives back. After MissingLimit seconds without an observation it hands back all that it holds.
//   - It looks each second for MostHot seconds at a stretch at most, and for a sixth of the time in the long run,
//     beside some seconds after each change.
//
// A Loop and a State are values: steps of different loops may run at the same time. Step changes no argument.
package slo

import (
	"math"

	"bulkhead/internal/policy"
)

// The figures of the loop. Times are seconds.
const (
	Look         = 5  // between two looks
	HotLook      = 1  // the same while a target is missed, and after a change
	MostHot      = 60 // of hot looks at a stretch
	MissingLimit = 60 // without an observation until everything is handed back
	ChangeWindow = 3600
	MostChanges  = 12 // of one group in ChangeWindow

	lowSlack    = 0.05 // below it a look is a miss
	highSlack   = 0.15 // above it a look has slack
	calmTime    = 15   // with slack until something is given
	calmWeight  = 120  // the same of a weight: the group has what others leave, and seldom gains much
	idleTime    = 60   // with slack until a limit that does not bind is handed back
	settleTime  = 2    // without a change after a change, at least
	gainTime    = 10   // after a squeeze, in which it may show a gain
	hotAgain    = 20   // of hot looks that a change may take, whatever was spent before
	smoothing   = 0.3  // weight of the newest value
	falling     = 0.85 // a load below this part of the smoothed one falls by itself
	shrink      = 0.9  // of the value, at a squeeze
	deepest     = 0.35 // the same where the target is missed by far
	aim         = 0.9  // the load that a squeeze is to bring
	heavy       = 2    // a load above it is answered at once, one below it when it was missed twice
	wideSlack   = 0.3  // slack below it is given away in smaller parts
	leastGrowth = 0.02 // of the ceiling, at such a give
	growth      = 0.1  // of the ceiling, at a give
	usedPart    = 0.9  // of a limit that is in use, for it to be raised
	leastGain   = 0.05 // part of the load that a squeeze has to take away
	mostVain    = 3    // squeezes in a row without a gain
	barTime     = 600  // that a knob is barred
	spare       = 4    // changes of a group that no give takes: a squeeze may need them
	leastRest   = 120  // without a give after one that was too much; doubled each time
	mostRest    = 1800
	nearMiss    = 1.2  // a load below it, after a give, is answered by taking that back
	usedUp      = 0.99 // of the ceiling: a value above it is the ceiling
	leastShare  = 0.05 // of the resource, for a candidate to be blamed
	floorCores  = 0.05 // the lowest floor of cpu.limit
	floorPart   = 0.05 // of the ceiling: the lowest floor of any other knob
	kept        = 0.5  // of what a helper wants: its floor
	raise       = 1.25 // of a floor that has risen above a value: what the value becomes
	highestLoad = 100  // a load above it counts as this
)

// Signal is what a target is about.
type Signal string

// The signals.
const (
	P95       Signal = "p95"       // seconds, of statements
	Heartbeat Signal = "heartbeat" // seconds, p95 of the probe
	Waits     Signal = "waits"     // part of its active time that the database waits, 0 to 1
	Work      Signal = "work"      // units of work a second; the one signal of which more is better
)

// Target is what a database is to keep.
type Target struct {
	Signal Signal
	Value  float64 // above 0, in the unit of the signal
}

// Slack is how far a value is from the target, as a part of it: 0 on it, below 0 when missed.
func (t Target) Slack(value float64) float64 { return 1 - t.load(value) }

// load is 1 on the target and above it when missed.
func (t Target) load(value float64) float64 {
	if t.Signal == Work {
		return math.Min(highestLoad, t.Value/value)
	}
	return math.Min(highestLoad, value/t.Value)
}

// Mode is what a loop may do.
type Mode string

// The modes.
const (
	Off    Mode = "off"
	Advise Mode = "advise" // says what its first step would be
	Act    Mode = "act"
)

// Knob is one limit of one group.
type Knob struct {
	Group string
	Key   policy.Key
	On    string // the device, for keys that have one
}

// allowed tells whether the loop may change the knob at all.
func (k Knob) allowed() bool {
	switch k.Key {
	case policy.KeyCPUWeight, policy.KeyCPULimit, policy.KeyIOReadBandwidth, policy.KeyIOReadIOPS,
		policy.KeyIOWriteBandwidth, policy.KeyIOWriteIOPS, policy.KeyNetworkEgressMax:
		return true
	}
	return false
}

// Bounds is what a knob may be set to, in the unit of its key.
type Bounds struct {
	// Floor 0 is the least floor: 0.05 cores, a weight of 1, or 5 % of the ceiling; of a helper half of what it wants.
	Floor   float64
	Ceiling float64 // the limit of the policy, or the whole resource where the policy has none
}

// floor is the floor of a group that is no helper.
func (b Bounds) floor(k Knob) float64 {
	least := floorPart * b.Ceiling
	switch k.Key {
	case policy.KeyCPUWeight:
		least = 1
	case policy.KeyCPULimit:
		least = floorCores
	}
	return math.Max(b.Floor, least)
}

// Candidate is a knob of a group that may be what the database suffers from.
type Candidate struct {
	Knob
	Bounds
	Role  policy.Role
	Share float64 // of the resource that the database waits for, 0 to 1
	Use   float64 // in the unit of the knob; a weight is always used up
	// Wanted is what it would use without any limit, of cpu.limit; 0: it is not known.
	Wanted float64
}

// floor is the floor in force.
func (c Candidate) floor() float64 {
	least := c.Bounds.floor(c.Knob)
	if c.Role != policy.RoleHelper || c.Floor > 0 {
		return least
	}
	if c.Key == policy.KeyCPUWeight { // no weight leaves it half of what it wants for certain
		return c.Ceiling
	}
	wanted := c.Ceiling
	if c.Key == policy.KeyCPULimit {
		wanted = math.Min(c.Ceiling, math.Max(c.Use, c.Wanted))
	}
	return math.Max(least, kept*wanted)
}

// fits tells whether the candidate may be held at all.
func (c Candidate) fits() bool {
	return c.allowed() && c.Role != policy.RoleDatabase && finite(c.Ceiling) && finite(c.Use) && finite(c.Share) &&
		finite(c.Wanted) && !math.IsNaN(c.Floor) && c.Ceiling > c.floor()
}

func finite(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// Observation is what was seen at one look. Its zero value is one that is missing.
type Observation struct {
	Known      bool
	Value      float64 // of the target's signal, in its unit
	Span       float64 // seconds before the look that Value and the candidates are of
	Candidates []Candidate
}

// Verb is what an action does.
type Verb string

// The verbs. Those that change a limit are Squeeze, Give and Release.
const (
	Squeeze Verb = "squeeze" // lower the knob to Value
	Give    Verb = "give"    // raise the knob to Value
	Release Verb = "release" // take the override away: the policy's value counts
	Suggest Verb = "suggest" // in mode advise: what Squeeze would be
	Nobody  Verb = "nobody"  // missed, and no candidate to blame
	Spent   Verb = "spent"   // missed, and the group to blame has had its changes for now
)

// Action is one thing to do or to say.
type Action struct {
	Verb   Verb
	Knob   Knob
	Value  float64 // of Squeeze, Give and Suggest
	Reason string
}
