package observe

import (
	"time"

	"bulkhead/internal/metrics"
)

// Blame is for what, and for whom, threads of a group itself, without those of groups below it, waited for a CPU since
// it was first read, as BPF programs counted it. Waited is the sum of all others but Turns and Lost.
type Blame struct {
	Waited  time.Duration `json:"waited_ns"`
	Limited time.Duration `json:"limited_ns"` // a limit on CPU time held it back
	Own     time.Duration `json:"own_ns"`     // threads of the group itself ran
	Outside time.Duration `json:"outside_ns"` // what is in no group ran, or the CPU was waking up
	Older   time.Duration `json:"older_ns"`   // too many switches ago to tell who ran
	// Groups are other groups that ran; Others those which have too little to be listed.
	Groups map[string]time.Duration `json:"groups_ns,omitempty"`
	Others time.Duration            `json:"others_ns,omitempty"`
	// Turns are how often a thread got a CPU after it had waited. Lost are those whose waiting was not counted.
	Turns uint64 `json:"turns"`
	Lost  uint64 `json:"lost,omitempty"`
	// Voluntary and Involuntary are switches away from its threads.
	Voluntary   uint64 `json:"voluntary_switches"`
	Involuntary uint64 `json:"involuntary_switches"`
}

// groups is what other groups have.
func (b *Blame) groups() time.Duration {
	sum := b.Others
	for _, d := range b.Groups {
		sum += d
	}
	return sum
}

// Counting says whether BPF programs count.
type Counting struct {
	On bool `json:"on"`
	// Why they do not: a word of bpfcount, and what the kernel said.
	Why   string `json:"why,omitempty"`
	Error string `json:"error,omitempty"`
}

// The metrics of what BPF programs count.
const (
	BlamedSeconds  = "bulkhead_group_cpu_blamed_seconds_total"
	SuspectSeconds = "bulkhead_group_cpu_suspect_seconds_total"
	CountsWaits    = "bulkhead_host_cpu_waits_counted"
)

// The values of the label of BlamedSeconds.
const (
	BlamedLimit   = "own_limit"
	BlamedOwn     = "own_load"
	BlamedOutside = "outside"
	BlamedGroups  = "groups"
	BlamedNobody  = "unexplained"
)

var blameRows = []Row{
	{Name: CountsWaits, Part: Blamed, Kind: metrics.Gauge, Labels: []string{"why"}, Source: "the agent",
		sample: func(s *Sample, tell Tell) {
			switch c := s.Host.Counting; {
			case c == nil:
			case c.On:
				tell(1, "")
			default:
				tell(0, c.Why)
			}
		}, Help: "1 while BPF programs count whom groups wait for, else 0 and why not."},
	{Name: "bulkhead_group_cpu_others_ran_seconds_total", Part: Blamed, Kind: metrics.Counter, Source: "BPF programs",
		group: func(_ *Sample, g *Group, tell Tell) {
			if g.Blame != nil {
				tell(g.Blame.groups().Seconds())
			}
		}, Help: "Time for which threads of the group, without those of groups below it, could run and had no CPU, " +
			"while other groups ran there: counted, not estimated."},
	{Name: BlamedSeconds, Part: Blamed, Kind: metrics.Counter, Labels: []string{"blamed"}, Recorded: true,
		Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			b := g.Blame
			if b == nil {
				return
			}
			tell(b.Limited.Seconds(), BlamedLimit)
			tell(b.Own.Seconds(), BlamedOwn)
			tell(b.groups().Seconds(), BlamedGroups)
			tell(b.Outside.Seconds(), BlamedOutside)
			tell(b.Older.Seconds(), BlamedNobody)
		}, Help: "Time for which threads of the group, without those of groups below it, could run and had no CPU, " +
			"by what had it meanwhile."},
	{Name: SuspectSeconds, Part: Blamed, Kind: metrics.Counter, Labels: []string{"suspect"}, Recorded: true,
		FromZero: true, Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Blame == nil {
				return
			}
			for name, d := range g.Blame.Groups {
				tell(d.Seconds(), name)
			}
		}, Help: "Of what other groups have of that, the part of each that has more than next to " +
			"nothing."},
	{Name: "bulkhead_group_cpu_turns_total", Part: Blamed, Kind: metrics.Counter, Recorded: true,
		Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Blame != nil {
				tell(float64(g.Blame.Turns))
			}
		}, Help: "How often a thread of the group got a CPU after it had waited for one."},
	{Name: "bulkhead_group_switches_counted_total", Part: Blamed, Kind: metrics.Counter, Labels: []string{"kind"},
		Recorded: true, Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Blame != nil {
				tell(float64(g.Blame.Voluntary), "voluntary")
				tell(float64(g.Blame.Involuntary), "involuntary")
			}
		}, Help: "Switches away from threads of the group, those of threads that have ended since too."},
}
