// Package proof owns what a run of a scenario found: the figures of every arm and round, what they say about the shape
// that was wanted, and how a person reads them: as a table, as JSON, as a page with plots, and beside another run.
package proof

import (
	"encoding/json"
	"math"
	"time"
)

// Figure is a number that may not have been measured: NaN, which JSON writes as null.
type Figure float64

// MarshalJSON writes null for what was not measured.
func (f Figure) MarshalJSON() ([]byte, error) {
	if x := float64(f); math.IsNaN(x) || math.IsInf(x, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON reads null as not measured.
func (f *Figure) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*f = Figure(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(f))
}

// Result is what one run of a scenario found. Field names are stable.
type Result struct {
	Scenario string `json:"scenario"`
	// Commit is what the program was built from that measured it; "" is not known.
	Commit string `json:"commit,omitempty"`
	// Digest tells the text of the scenario's file from every other.
	Digest   string `json:"scenario_digest"`
	Title    string `json:"title"`
	Document string `json:"document,omitempty"` // the experiment that it repeats
	Reports  string `json:"reports,omitempty"`  // what that document reports
	// Mechanism is by what the document limits, and "the same here" or what limits here and why.
	Mechanism string        `json:"mechanism,omitempty"`
	Started   time.Time     `json:"started"`
	Took      time.Duration `json:"took_ns"`
	Smoke     bool          `json:"smoke,omitempty"`

	Machine  string            `json:"machine"`
	Load     string            `json:"load_average_before"` // what else ran
	Versions map[string]string `json:"versions"`
	Settings string            `json:"server_settings,omitempty"` // of the server of a matrix
	Scale    []Scale           `json:"scale"`
	Loads    []string          `json:"loads,omitempty"` // figures of an arm without a load's name are of the first
	Rounds   int               `json:"rounds"`
	Seconds  int               `json:"seconds_per_arm"`

	Arms []Arm `json:"arms"`
	// Control is the second run of the control arm against the first, in percent, by round.
	Control Range `json:"alone_against_alone_percent"`
	// Again is how many rounds were dropped and measured again, as that was beyond a tenth in them.
	Again  int               `json:"rounds_measured_again,omitempty"`
	Shape  []Finding         `json:"shape"`
	Held   bool              `json:"held"`
	Policy map[string]string `json:"policies"`
	// Notes is what the plan says this host does not hold, or not wholly, and what was left out.
	Notes []string `json:"notes"`
}

// Scale is one quantity that was fitted to the machine.
type Scale struct {
	Name     string  `json:"name"`
	Formula  string  `json:"formula"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit,omitempty"`
	Document string  `json:"document,omitempty"`
}

// Arm is one arrangement over all rounds.
type Arm struct {
	Name   string  `json:"name"`
	Text   string  `json:"text"`
	Policy string  `json:"policy,omitempty"`
	Peer   string  `json:"peer,omitempty"`
	Rounds []Round `json:"rounds"`
	// Figures are over the rounds: medians with the lowest and the highest.
	Figures map[string]Range `json:"figures"`
	// Isolation and Impact are of every second of every round, as resctl-bench defines them: throughput over being
	// alone, and the rise of the latency over it, in percent.
	Isolation Distribution `json:"isolation_percent"`
	Impact    Distribution `json:"latency_impact_percent"`
	Histogram []Bucket     `json:"histogram"`
	Responses []Response   `json:"responses"`
	Omitted   string       `json:"omitted,omitempty"` // why the arm could not run here
	// Cell is the combination of a matrix that the arm is of, and Evidence what showed its page size in the last round.
	Cell     *Cell  `json:"cell,omitempty"`
	Evidence string `json:"evidence,omitempty"`
}

// Round is one run of an arm.
type Round struct {
	Seconds []Second          `json:"seconds"`
	Phases  []Mark            `json:"phases,omitempty"`
	Figures map[string]Figure `json:"figures"`
	// Groups is what groups and databases used, second by second, by name.
	Groups map[string][]GroupSecond `json:"groups,omitempty"`
	Host   []HostSecond             `json:"host,omitempty"`
}

// Second is what the first load did in one second.
type Second struct {
	At      float64 `json:"at"` // seconds since the load began
	TPS     float64 `json:"tps"`
	Latency Figure  `json:"latency_ms"`
}

// Mark is where a phase begins.
type Mark struct {
	At    float64 `json:"at"`
	Name  string  `json:"name"`
	Ready float64 `json:"in_force_at"` // when its policy was in force
}

// GroupSecond is what a group used in one second.
type GroupSecond struct {
	At      float64 `json:"at"`
	CPU     Figure  `json:"cpu_cores"`
	Memory  Figure  `json:"memory_bytes"`
	Swap    Figure  `json:"swap_bytes"`
	Read    Figure  `json:"read_bytes_per_second"`
	Written Figure  `json:"written_bytes_per_second"`
	// Sent and Received are over all interfaces, where the group is counted.
	Sent     Figure `json:"sent_bytes_per_second"`
	Received Figure `json:"received_bytes_per_second"`
}

// HostSecond is the machine as a whole in one second.
type HostSecond struct {
	At      float64 `json:"at"`
	Load    Figure  `json:"load_average"`
	Blocked Figure  `json:"blocked_tasks"` // in state D
	Idle    Figure  `json:"idle_cores"`
	Free    Figure  `json:"memory_free_bytes"`
}

// Range is a median with the lowest and the highest of the rounds.
type Range struct {
	Median Figure `json:"median"`
	Low    Figure `json:"low"`
	High   Figure `json:"high"`
}

// Bucket is one of a load's latencies: how many answers took up to so long.
type Bucket struct {
	MS    float64 `json:"ms"`
	Count int64   `json:"count"`
}

// Finding is one shape that was wanted, and what was measured.
type Finding struct {
	What    string `json:"what"`
	Reports string `json:"reports,omitempty"`
	// Mechanism is what limits here, where that is not the result's; "same" is the document's.
	Mechanism string `json:"mechanism,omitempty"`
	Measure   string `json:"measure"`
	Unit      string `json:"unit,omitempty"`
	Measured  Range  `json:"measured"`
	// Missing is in how many rounds it was not measured, where it was in others: it is of those alone, and decides
	// nothing.
	Missing int    `json:"rounds_not_measured,omitempty"`
	Least   Figure `json:"least"`
	Most    Figure `json:"most"`
	// Noise is what the control arm's two runs of a round are of their mean, in percent, in the shape's own terms:
	// throughput, or a latency. Nil: the bound does not give way to it.
	Noise *Range `json:"noise_percent,omitempty"`
	// Document is what a document measured; nil where it says nothing.
	Document *Claim `json:"document,omitempty"`
	Verdict  string `json:"verdict"` // one of the words below
	// Held: the bound holds, and what was measured is not the opposite of what the document says.
	Held bool `json:"held"`
}

// Claim is what a document measured, in the terms of a finding.
type Claim struct {
	Figure Figure  `json:"figure"`           // null: it says no more than the direction
	Within float64 `json:"within,omitempty"` // the factor up to which the figure is reproduced
	// None is what would be measured if the thing had no effect, and More says that the document measured more.
	None Figure `json:"none"`
	More bool   `json:"more"`
	// Noise is what the control arm's two runs of a round are of their mean, in percent.
	Noise   *Range `json:"noise_percent,omitempty"`
	Because string `json:"because,omitempty"` // why the opposite is measured here
}

// Words of a verdict.
const (
	Holds       = "holds"
	HoldsNoise  = "holds within the noise"
	DoesNotHold = "does not hold"
	NotMeasured = "not measured"
	NotJudged   = "not judged"
	Beyond      = "beyond this machine" // which is too small to judge it

	// Of what a document measured, where the bound, if there is one, holds.
	Reproduced    = "reproduced"     // the same direction, within the factor
	DirectionOnly = "direction only" // the same direction
	Contradicted  = "contradicted"   // the other direction

	// NotDecided: the difference is within the noise, the machine was too busy for any verdict, or some rounds have no
	// figure.
	NotDecided = "not decided"
)
