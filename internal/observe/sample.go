// Package observe has what an agent samples, and the table of what is shown of it: one row for each metric, with its
// name, labels, unit, kind, source and help. The exposition, its documentation and its tests go by the table; a new
// metric is a new row.
//
// A Sample is not changed after it was taken, and may be read from any goroutine. Nothing here reads the kernel.
package observe

import (
	"slices"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/metrics"
)

// Sample is what an agent saw at one moment: the JSON of GET /v1/samples. Field names are stable.
type Sample struct {
	At   time.Time     `json:"at"`      // when the sample was complete
	Age  time.Duration `json:"age_ns"`  // since then, when the answer was given; by a clock that nobody sets
	Took time.Duration `json:"took_ns"` // from the begin of the readings that are new in it
	// Every is the time between two samples, and Skipped counts readings of collectors that did not begin because the
	// one before had not ended.
	Every time.Duration `json:"every_ns"`
	// Same says that who asked has it already ("unless"): all but the times above is left out.
	Same    bool  `json:"same,omitempty"`
	Skipped int64 `json:"skipped,omitempty"`
	// Revision is that of the applied policy; 0: none is, or everything is released.
	Revision int `json:"revision,omitempty"`
	// Windows are the schedules of the policy that are open.
	Windows []string `json:"windows,omitempty"`
	Groups  []Group  `json:"groups"`
	Host    Host     `json:"host"`
	Agent   Agent    `json:"agent"`
	// Devices are the kernel's names of block devices, by number.
	Devices map[string]string `json:"devices,omitempty"`
	// Collectors are those that are on. Hot says that the quick ones read every second.
	Collectors []Reading `json:"collectors"`
	Hot        bool      `json:"hot,omitempty"`
}

// Has says whether the figures of a collector are in the sample.
func (s *Sample) Has(p Part) bool {
	return slices.ContainsFunc(s.Collectors, func(r Reading) bool { return r.Name == p && r.Told })
}

// ZFS is what was seen of OpenZFS; nil before the first sample, and where it is not loaded.
func (s *Sample) ZFS() *api.ZFS {
	if s == nil {
		return nil
	}
	return s.Host.ZFS
}

// Group is what one group uses, and its limits. A group that is above others has what is below it in its figures, as in
// `status`.
type Group struct {
	Group     string `json:"group"`
	Role      string `json:"role,omitempty"`
	Engine    string `json:"engine,omitempty"` // "mysql"; "" of a group that is no instance's
	Released  bool   `json:"released,omitempty"`
	Processes int    `json:"processes"` // that belong to it, as of the agent's last look

	Usage metrics.Usage `json:"usage"`
	// Tasks are those that are runnable or blocked, and Load its load average; nil before the agent has counted.
	Tasks   *metrics.TaskStates `json:"tasks,omitempty"`
	Load    *metrics.Load       `json:"load_average,omitempty"`
	Threads *Switching          `json:"threads,omitempty"` // nil before they were counted
	Traffic *metrics.Traffic    `json:"traffic,omitempty"`
	// EachCPU is its CPU time by the numbers of CPUs; nil where the kernel does not tell. CPUs are those that it may
	// run on; nil where no cpuset says so.
	EachCPU map[int]time.Duration `json:"cpu_each_ns,omitempty"`
	CPUs    idset.Set             `json:"cpus,omitempty"`
	// Blame is whom it waited for, for a CPU and at disks, and Reclaim how long it was in reclaim of memory; nil where
	// that is not counted.
	Blame     *Blame     `json:"cpu_blame,omitempty"`
	DiskBlame *DiskBlame `json:"disk_blame,omitempty"`
	Reclaim   *Reclaim   `json:"reclaim,omitempty"`
	// Nodes is its memory in bytes by NUMA node and by the pages that it is in: PagesUsual, PagesTransparent,
	// PagesCache, and those of a pool by their size as the kernel writes it ("2MB"); nil where the kernel does not
	// tell. Pages that are not counted for the group are left out.
	Nodes  map[int]map[string]int64 `json:"nodes_bytes,omitempty"`
	Limits []Limit                  `json:"limits"`
	// Overrides counts those in force that people have set.
	Overrides int `json:"overrides,omitempty"`
	// SLO is how it goes with what its database is promised; nil where nothing is.
	SLO *api.SLO `json:"slo,omitempty"`
	// Work is what its database says that it has done; nil of a group without one that is asked.
	Work *Work `json:"work,omitempty"`
}

// Names of pages in Group.Nodes.
const (
	PagesUsual       = "usual" // where the kernel does not tell transparent ones apart, these too
	PagesTransparent = "transparent"
	PagesCache       = "cache" // page cache; shared memory is none
)

// Work is what a database has done since it started.
type Work struct {
	Counter string `json:"counter,omitempty"` // what it counts: "Questions"; "" when it did not answer
	Done    int64  `json:"done"`
	// Statements are how long statements took, the quickest first; nil where the server does not count that.
	Statements []Statements `json:"statements,omitempty"`
	// Error says why nothing is known of the database, or why there are no Statements.
	Error string `json:"error,omitempty"`
}

// Statements are those that took no longer than UpTo, and longer than those before.
type Statements struct {
	UpTo  time.Duration `json:"up_to_ns"` // 0: no bound
	Calls uint64        `json:"calls"`
	Took  time.Duration `json:"took_ns"` // all of them together
}

// Switching is what threads of a group did since its figures were first read, as far as they lived at the end of an
// interval of the collector.
type Switching struct {
	Living int `json:"living"` // threads that there were
	// Waited is how long they could run and had no CPU, also because of the group's own limit; nil where the kernel
	// does not count it.
	Waited *time.Duration `json:"waited_ns,omitempty"`
	// Voluntary are switches because a thread waited for something, Involuntary those because another was to run.
	Voluntary   uint64 `json:"voluntary_switches"`
	Involuntary uint64 `json:"involuntary_switches"`
	// RanOn is how long they ran, by the number of the CPU on which each was at the end of an interval.
	RanOn  map[int]time.Duration `json:"ran_on_ns,omitempty"`
	Faults uint64                `json:"faults"` // page faults
	// ReadBytes were read from disks, and WrittenBytes written, also into page cache; Reads and Writes are calls for
	// that, at most one for each 4 KiB.
	ReadBytes    uint64 `json:"read_bytes"`
	WrittenBytes uint64 `json:"written_bytes"`
	Reads        uint64 `json:"reads"`
	Writes       uint64 `json:"writes"`
}

// Limit is one limit of a group as numbers in base units.
type Limit struct {
	Key    string `json:"key"`              // "memory.max"
	Device string `json:"device,omitempty"` // block device, interface or page size
	// Asked and Held are nil for no limit, and for what is no number.
	Asked *float64 `json:"asked,omitempty"`
	Held  *float64 `json:"held,omitempty"`
	// InForce says that the host holds what was asked; Void that the limit has no effect beside others.
	InForce bool `json:"in_force"`
	Void    bool `json:"void,omitempty"`
}

// Host is what the machine as a whole has and does.
type Host struct {
	CPUs     int                         `json:"cpus"`
	Busy     time.Duration               `json:"busy_ns"` // of all CPUs together, since boot
	Idle     time.Duration               `json:"idle_ns"`
	Load     float64                     `json:"load"` // average over a minute
	Blocked  int                         `json:"blocked"`
	Memory   map[string]int64            `json:"memory,omitempty"` // of /proc/meminfo, by its names, bytes
	Pressure map[string]metrics.Pressure `json:"pressure,omitempty"`
	// Figures are those of the host's collectors that are shown as they are read.
	Figures []Figure `json:"figures,omitempty"`
	// ZFS is nil where OpenZFS is not loaded.
	ZFS *api.ZFS `json:"zfs,omitempty"`
	// EachCPU is for how long each CPU was busy, by its number.
	EachCPU map[int]time.Duration `json:"cpu_each_ns,omitempty"`
	// Counting says whether it is counted whom groups wait for, CountingDisks whether at disks, too, and
	// CountingReclaim whether reclaim of memory is; nil before that is known.
	Counting        *Counting `json:"counting,omitempty"`
	CountingDisks   *Counting `json:"counting_disks,omitempty"`
	CountingReclaim *Counting `json:"counting_reclaim,omitempty"`
}

// Figure is one figure of the host: it is shown by the row bulkhead_host_NAME, or bulkhead_host_NAME_total.
type Figure struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels,omitempty"` // values, in the order of the row
	Value  float64  `json:"value"`
}

// Agent is the agent itself, and what it costs.
type Agent struct {
	api.AgentStatus

	CPU    time.Duration `json:"cpu_ns"`         // user and system time so far
	Memory int64         `json:"resident_bytes"` // resident set
	// Guarded says that the policy's guard watches a change now, Confirms that one waits to be confirmed. Undone counts
	// changes on trial that were undone.
	Guarded  bool  `json:"guarded,omitempty"`
	Confirms bool  `json:"confirms,omitempty"`
	Undone   int64 `json:"undone,omitempty"`
}
