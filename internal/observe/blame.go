package observe

import (
	"regexp"
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

// DiskBlame is for whom requests of a group to disks, for which its threads wait, waited since it was first read, as
// BPF programs counted it. Several at a time count several times. Waited is the sum of all others but Requests and
// Lost.
type DiskBlame struct {
	Waited  time.Duration `json:"waited_ns"`
	Service time.Duration `json:"service_ns"` // the disk did the request itself
	Own     time.Duration `json:"own_ns"`     // the disk had other requests of the group itself
	Outside time.Duration `json:"outside_ns"` // of what is in no group
	// WrittenBack is page cache and journals that the kernel wrote for nobody knows whom.
	WrittenBack time.Duration            `json:"written_back_ns"`
	Groups      map[string]time.Duration `json:"groups_ns,omitempty"` // of other groups
	Others      time.Duration            `json:"others_ns,omitempty"` // which have too little to be listed
	// Requests are those that were done, Lost those of which only the begin or the end was seen.
	Requests uint64 `json:"requests"`
	Lost     uint64 `json:"lost,omitempty"`
}

// Reclaim is for how long threads of a group itself, without those of groups below it, that wanted memory had to take
// it from others first since it was first read, as BPF programs counted it: because of a limit on memory, of the group
// or of one above it, or because the host had too little that was free.
type Reclaim struct {
	// Limit and Host are the time in which at least one thread was in reclaim. Where threads are for both reasons at
	// once, each reason has the part that its threads are of all.
	Limit time.Duration `json:"limit_ns"`
	Host  time.Duration `json:"host_ns"`
	// LimitThreads and HostThreads are the same, summed over threads.
	LimitThreads time.Duration `json:"limit_threads_ns"`
	HostThreads  time.Duration `json:"host_threads_ns"`
	// LimitStalls and HostStalls are how often a thread was in reclaim, Lost how often that was not counted.
	LimitStalls uint64 `json:"limit_stalls"`
	HostStalls  uint64 `json:"host_stalls"`
	Lost        uint64 `json:"lost,omitempty"`
}

// together is what other groups have.
func together(groups map[string]time.Duration, others time.Duration) time.Duration {
	for _, d := range groups {
		others += d
	}
	return others
}

func (b *Blame) groups() time.Duration     { return together(b.Groups, b.Others) }
func (b *DiskBlame) groups() time.Duration { return together(b.Groups, b.Others) }

// Stacked says of a block device, by its name, that it passes on what it is asked for: it is counted below it again.
func Stacked(device string) bool { return stacked.MatchString(device) }

var stacked = regexp.MustCompile(`^(dm-|md|loop|drbd|bcache)`)

// Counting says whether BPF programs count.
type Counting struct {
	On bool `json:"on"`
	// Why they do not: a word of bpfcount, and what the kernel said.
	Why   string `json:"why,omitempty"`
	Error string `json:"error,omitempty"`
}

// tell tells it as a gauge.
func (c *Counting) tell(tell Tell) {
	switch {
	case c == nil:
	case c.On:
		tell(1, "")
	default:
		tell(0, c.Why)
	}
}

// The metrics of what BPF programs count.
const (
	BlamedSeconds  = "bulkhead_group_cpu_blamed_seconds_total"
	SuspectSeconds = "bulkhead_group_cpu_suspect_seconds_total"
	CountsWaits    = "bulkhead_host_cpu_waits_counted"

	DiskBlamedSeconds  = "bulkhead_group_disk_blamed_seconds_total"
	DiskSuspectSeconds = "bulkhead_group_disk_suspect_seconds_total"
	CountsDisks        = "bulkhead_host_disk_waits_counted"

	ReclaimSeconds = "bulkhead_group_reclaim_seconds_total"
	CountsReclaim  = "bulkhead_host_reclaim_counted"
)

// The values of the label of ReclaimSeconds.
const (
	ReclaimLimit = "limit"
	ReclaimHost  = "host"
)

// The values of the label of BlamedSeconds, and of DiskBlamedSeconds.
const (
	BlamedLimit   = "own_limit"
	BlamedOwn     = "own_load"
	BlamedOutside = "outside"
	BlamedGroups  = "groups"
	BlamedNobody  = "unexplained"
	BlamedWritten = "written_back"
	BlamedService = "service"
)

var blameRows = []Row{
	{Name: CountsWaits, Part: Blamed, Kind: metrics.Gauge, Labels: []string{"why"}, Source: "the agent",
		sample: func(s *Sample, tell Tell) { s.Host.Counting.tell(tell) },
		Help:   "1 while BPF programs count whom groups wait for, else 0 and why not."},
	{Name: CountsDisks, Part: Blamed, Kind: metrics.Gauge, Labels: []string{"why"}, Source: "the agent",
		sample: func(s *Sample, tell Tell) { s.Host.CountingDisks.tell(tell) },
		Help:   "1 while BPF programs count whom groups wait for at disks, else 0 and why not."},
	{Name: CountsReclaim, Part: Blamed, Kind: metrics.Gauge, Labels: []string{"why"}, Source: "the agent",
		sample: func(s *Sample, tell Tell) { s.Host.CountingReclaim.tell(tell) },
		Help:   "1 while BPF programs count how long groups are in reclaim of memory, else 0 and why not."},
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
	{Name: DiskBlamedSeconds, Part: Blamed, Kind: metrics.Counter, Labels: []string{"blamed"}, Recorded: true,
		Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			b := g.DiskBlame
			if b == nil {
				return
			}
			tell(b.Service.Seconds(), BlamedService)
			tell(b.Own.Seconds(), BlamedOwn)
			tell(b.groups().Seconds(), BlamedGroups)
			tell(b.Outside.Seconds(), BlamedOutside)
			tell(b.WrittenBack.Seconds(), BlamedWritten)
		}, Help: "Time that requests of the group to disks took for which its threads wait, without those of groups " +
			"below it, by whose requests the disk had meanwhile; service is the time of a request itself. Several at " +
			"a time count several times."},
	{Name: DiskSuspectSeconds, Part: Blamed, Kind: metrics.Counter, Labels: []string{"suspect"}, Recorded: true,
		FromZero: true, Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			if g.DiskBlame == nil {
				return
			}
			for name, d := range g.DiskBlame.Groups {
				tell(d.Seconds(), name)
			}
		}, Help: "Of what other groups have of that, the part of each that has more than next to nothing."},
	{Name: ReclaimSeconds, Part: Blamed, Kind: metrics.Counter, Labels: []string{"kind"}, Recorded: true,
		Source: "BPF programs", group: func(_ *Sample, g *Group, tell Tell) {
			if g.Reclaim != nil {
				tell(g.Reclaim.Limit.Seconds(), ReclaimLimit)
				tell(g.Reclaim.Host.Seconds(), ReclaimHost)
			}
		}, Help: "Time in which at least one thread of the group, without those of groups below it, that wanted " +
			"memory had to take it from others first: because of a limit on memory, of the group or of one above it, " +
			"or because the host had too little that was free."},
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
