package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// DemoResult is what the demo found. Field names are stable.
type DemoResult struct {
	Server  string `json:"server"` // "10.11.19-MariaDB"
	Load    string `json:"load"`
	Machine string `json:"machine"`
	// Neighbours says what the database was set beside.
	Neighbours string `json:"neighbours"`
	Rounds     int    `json:"rounds"`
	Seconds    int    `json:"seconds_per_phase"`
	Policy     string `json:"policy"`

	Phases  []PhaseResult `json:"phases"`
	Control Spread        `json:"alone_against_alone_percent"` // the second of a round against the first
	Groups  []GroupResult `json:"groups"`
	// Notes is what the plan says this host does not hold, or not wholly.
	Notes    []Note    `json:"notes"`
	Verdicts []Verdict `json:"verdicts"`
	// Held is true when every verdict is.
	Held bool `json:"held"`
}

// PhaseResult is one arrangement over all rounds; its figures are medians of the rounds. Isolation
// and impact are against being alone in the same round, as resctl-bench defines them: throughput with
// neighbours over throughput alone, and the rise of a latency.
type PhaseResult struct {
	Name  string    `json:"name"`
	Text  string    `json:"text"`
	Rates []float64 `json:"transactions_per_second_by_round"`
	// Seconds is every round second by second.
	Seconds   [][]float64 `json:"transactions_in_each_second_by_round"`
	Rate      float64     `json:"transactions_per_second"`
	P95       float64     `json:"p95_ms"`
	P99       float64     `json:"p99_ms"`
	Isolation float64     `json:"isolation_percent"`
	Impact    float64     `json:"latency_impact_percent"` // of the p95
	// WorstSecond is the slowest second of all rounds, in percent of the rate alone in its round.
	WorstSecond float64 `json:"worst_second_percent"`
}

// Spread is the lowest and the highest of some figures.
type Spread struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// GroupResult is one group with what the policy asks and what the kernel counted.
type GroupResult struct {
	Group    string `json:"group"`
	Asked    string `json:"asked"`
	Measured string `json:"measured"`
	Usage    usage  `json:"usage"`
}

// Verdict says whether the policy protected the database from one kind of neighbour.
type Verdict struct {
	Against  string  `json:"against"`
	Without  float64 `json:"isolation_without_policy_percent"`
	With     float64 `json:"isolation_with_policy_percent"`
	Required float64 `json:"required_percent"`
	// Harmless is true where the neighbours cost the database less than half without the policy: then there
	// was nothing to protect it from, and nothing is proven.
	Harmless bool `json:"harmless"`
	Held     bool `json:"held"`
}

// quiet is how far the database alone may differ from itself before the report says that the machine was not quiet.
var quiet = Spread{Low: 90, High: 111}

// The bar of the demo, in percent: what the neighbours leave at most without the policy, and what the policy keeps.
const (
	harmful = 50
	bar     = 95
)

// required is the isolation that the policy has to reach: the bar, or what the database alone keeps of
// itself where that is less. One short round says little: the smoke run only sees that the protection works at all.
func required(smoke bool, control Spread) float64 {
	if smoke {
		return 50
	}
	return min(bar, control.Low)
}

// result puts the samples together.
func (d *demo) result() DemoResult {
	r := DemoResult{
		Server: d.server.version,
		Load: fmt.Sprintf("sysbench oltp_read_only, %d threads, %d tables of %s rows, in memory",
			d.load.threads, generatorTables, number(generatorRows)),
		Machine: fmt.Sprintf("%d CPUs, %s of memory, Linux %s, %s, disk %s (%s)", d.machine.cpus, bytesText(d.machine.facts.MemTotal),
			d.machine.facts.Kernel.Text, d.machine.cgroups(), d.machine.disk.Name, d.machine.mount.Type),
		Neighbours: fmt.Sprintf("hogs: %d busy programs, each in a session of its own; one that fills %s of memory over and over;\n"+
			"one that writes %s/s to the disk. strangers: %d more such busy programs, which match no rule of the policy",
			d.sizes.hogs, bytesText(d.sizes.memory), bytesText(defaultHogRate), d.sizes.hogs),
		Rounds: d.options.Rounds, Seconds: d.options.Seconds,
		Policy: d.policy(),
		Notes:  d.notes,
	}
	r.Phases, r.Control = summarize(d.samples)
	for _, group := range meteredGroups {
		u := overRounds(d.samples[phaseNeighboursHeld], group)
		r.Groups = append(r.Groups, GroupResult{Group: group, Asked: d.askedOf(group), Measured: measuredOf(group, u), Usage: u})
	}
	r.Verdicts, r.Held = judge(r.Phases, required(d.options.Smoke, r.Control))
	return r
}

// summarize makes the figures of every phase, each round held against its own two solo runs.
func summarize(samples map[string][]sample) ([]PhaseResult, Spread) {
	first, second := samples[phaseAlone], samples[phaseAloneAgain]
	var control []float64
	soloRate, soloP95 := make([]float64, len(first)), make([]float64, len(first))
	for i := range first {
		a, b := first[i].load, second[i].load
		control = append(control, 100*b.rate()/a.rate())
		soloRate[i], soloP95[i] = (a.rate()+b.rate())/2, (a.percentile(95)+b.percentile(95))/2
	}
	results := make([]PhaseResult, 0, len(phases))
	for _, ph := range reportOrder() {
		r := PhaseResult{Name: ph.name, Text: ph.text}
		r.WorstSecond = math.Inf(1)
		var p95, p99, isolation, impacts []float64
		for i, s := range samples[ph.name] {
			r.Rates, r.Seconds = append(r.Rates, s.load.rate()), append(r.Seconds, s.load.perSecond)
			p95, p99 = append(p95, s.load.percentile(95)), append(p99, s.load.percentile(99))
			isolation = append(isolation, 100*s.load.rate()/soloRate[i])
			impacts = append(impacts, impact(s.load.percentile(95), soloP95[i]))
			for _, tps := range s.load.perSecond {
				r.WorstSecond = min(r.WorstSecond, 100*tps/soloRate[i])
			}
		}
		r.Rate, r.P95, r.P99 = median(r.Rates), median(p95), median(p99)
		r.Isolation, r.Impact = median(isolation), median(impacts)
		results = append(results, r)
	}
	return results, Spread{Low: slices.Min(control), High: slices.Max(control)}
}

// reportOrder is the phases as a reader wants them: each kind of neighbour first without the policy.
func reportOrder() []phase {
	ordered := slices.Clone(phases)
	slices.SortStableFunc(ordered, func(a, b phase) int {
		rank := func(p phase) int {
			switch {
			case p.neighbours:
				return 1
			case p.strangers:
				return 2
			case p.name == phaseAlone:
				return 0
			}
			return 3
		}
		if d := rank(a) - rank(b); d != 0 || a.governed == b.governed {
			return d
		}
		if b.governed {
			return -1
		}
		return 1
	})
	return ordered
}

// judge compares each kind of neighbour with and without the policy.
func judge(results []PhaseResult, needed float64) ([]Verdict, bool) {
	isolation := map[string]float64{}
	for _, r := range results {
		isolation[r.Name] = r.Isolation
	}
	verdicts := []Verdict{
		{Against: "hogs in limited groups", Without: isolation[phaseNeighboursFree], With: isolation[phaseNeighboursHeld]},
		{Against: "strangers that match no rule", Without: isolation[phaseStrangersFree], With: isolation[phaseStrangersHeld]},
	}
	all := true
	for i := range verdicts {
		v := &verdicts[i]
		v.Required = needed
		v.Harmless = v.Without >= harmful
		v.Held = v.With >= needed && v.Without < harmful // false for NaN
		all = all && v.Held
	}
	return verdicts, all
}

// wanted says what the verdict was held against.
func (v Verdict) wanted() string {
	switch {
	case v.Harmless:
		return "these neighbours did too little harm to prove anything"
	case v.Required < bar && v.With < bar && v.With >= v.Required:
		return fmt.Sprintf("wanted %s, or no less than alone against alone: %s", percent(bar), percent(v.Required))
	case v.With >= bar:
		return "wanted " + percent(bar)
	}
	return "wanted " + percent(v.Required)
}

// WriteText prints the result for people.
func (r DemoResult) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "MariaDB %s under %s\n%s\n%s\n\n", strings.TrimSuffix(r.Server, "-MariaDB"), r.Load, r.Machine, r.Neighbours)
	r.writePhases(&b)
	fmt.Fprintf(&b, "the policy:\n%s\n", indent(r.Policy))
	r.writeGroups(&b)
	for _, v := range r.Verdicts {
		word := "held"
		if !v.Held {
			word = "NOT HELD"
		}
		fmt.Fprintf(&b, "%-8s  %s: %s of its throughput with the policy, %s without; %s\n",
			word, v.Against, percent(v.With), percent(v.Without), v.wanted())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r DemoResult) writePhases(b *strings.Builder) {
	rows := [][]string{{"the database is", "transactions/s", "p95", "p99", "isolation", "latency impact", "worst second"}}
	for _, p := range r.Phases {
		rows = append(rows, []string{
			p.Text, number(p.Rate), milliseconds(p.P95), milliseconds(p.P99),
			percent(p.Isolation), rise(p.Impact), percent(p.WorstSecond),
		})
	}
	b.WriteString(table(rows, 1, 2, 3, 4, 5, 6))
	fmt.Fprintf(b, "\nMedians of %s of %d s a phase. Isolation is the throughput against being alone in the same round,\n"+
		"latency impact the rise of the p95. Alone against alone, which is the noise: %s to %s.\n\n",
		plural(r.Rounds, "interleaved round"), r.Seconds, percent(r.Control.Low), percent(r.Control.High))
	if r.Control.Low < quiet.Low || r.Control.High > quiet.High {
		b.WriteString("Something else was running: alone, the database differs that much from itself. Take the figures with care.\n\n")
	}
}

func (r DemoResult) writeGroups(b *strings.Builder) {
	rows := [][]string{{"group", "asked", "measured beside the hogs"}}
	for _, g := range r.Groups {
		rows = append(rows, []string{g.Group, g.Asked, g.Measured})
	}
	b.WriteString(table(rows) + "\n")
	if len(r.Notes) == 0 {
		b.WriteString("This host holds all that the policy asks.\n\n")
		return
	}
	b.WriteString("What this host does not hold, or not wholly:\n")
	for _, n := range r.Notes {
		b.WriteString(wrap(strings.TrimPrefix(n.Group+" ", " ")+n.Key+": "+n.Text, 108, "  "))
	}
	b.WriteString("\n")
}
