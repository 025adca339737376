package attribution

import (
	"time"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe/top"
)

// Window is what happened in a span of time, all figures for a second of it.
type Window struct {
	From, To time.Time
	Groups   []Group
	Host     Host
	// Holders gives the limits that held a group back, or one above it; nil where no limit did.
	Holders func(group string) []top.Holder
	// Outsiders are what runs outside of all groups, by name; nil where nobody looked.
	Outsiders []Outsider
}

// Group is what one group did, without the groups below it. What is not known is nil.
type Group struct {
	Name, Role, Engine string

	CPU     *float64        // seconds
	EachCPU map[int]float64 // the same by CPU
	Seen    bool            // that is by where its threads were seen
	CPUs    idset.Set       // on which it may run; nil: on all
	Waited  *float64        // seconds of threads that could run and had no CPU, own limits included
	// Blame is whom its threads waited for, as BPF programs counted it, and DiskBlame whom its requests to disks waited
	// for; nil where none did.
	Blame     *Blame
	DiskBlame *DiskBlame
	// Reclaim is for which part of the time its threads were in reclaim of memory, as BPF programs counted it; nil
	// where none did.
	Reclaim *Reclaim
	Threads float64
	Idle    bool // cpu.idle: it runs only where no group beside it wants to
	// Throttled are seconds for which CPU limits of the group and of those above it held it back, summed over CPUs.
	Throttled float64
	// Pressure is the part of the time in which at least one task waited, by resource (PSI), groups below included.
	Pressure map[string]float64
	IO       map[string]IO // by block device, where the kernel counts that
	// Tasks is what its threads read from any disk and wrote, also into page cache that is written to a disk later; nil
	// where it is not known.
	Tasks  *IO
	Faults *float64 // page faults
	// Refaults are pages that the kernel took from it and that it soon needed again, groups below included; nil where
	// that is not counted.
	Refaults *float64
	// Sent is what its connections sent, by interface; nil where nobody looked.
	Sent map[string]Sent
	// Elsewhere says that processes of it are in another network namespace, where nobody looked.
	Elsewhere bool
	Memory    float64 // bytes charged; 0 is not known
	// HasHigh says that its memory can have a memory.high.
	HasHigh bool
	// Above says that there are groups below it: a limit of it holds those, too.
	Above bool
}

// Blame divides the time for which threads of a group could run and had no CPU, in seconds of each second, by what had
// the CPU meanwhile: a limit held them back, others of the group ran, what is in no group, other groups by their names,
// or nobody knows.
type Blame struct {
	Limited, Own, Outside, Nobody float64
	Groups                        map[string]float64
}

// DiskBlame divides the time that requests of a group to disks took, for which its threads wait, in seconds of each
// second, by whose requests the disk had meanwhile: the one that waits (service), others of the group's own, those of
// what is in no group, those by which the kernel wrote back what it cannot tell whose it is, other groups', or nobody
// knows.
type DiskBlame struct {
	Service, Own, Outside, WrittenBack, Nobody float64
	Groups                                     map[string]float64
}

// Reclaim is the time in which at least one thread of a group was in reclaim of memory, in seconds of each second:
// because of a limit on memory, of the group or of one above it, or because the host had too little that was free.
type Reclaim struct{ Limit, Host float64 }

// Host is what the machine did.
type Host struct {
	// NotCounting says why no BPF programs count, NotCountingDisks why none count at disks, and NotCountingReclaim why
	// none count in reclaim; "" where some do, and where that is not known.
	NotCounting, NotCountingDisks, NotCountingReclaim string

	CPUs    int
	EachCPU map[int]float64 // busy seconds
	Disks   map[string]Disk
	Faults  *float64
	Scanned *float64        // pages that reclaim looked at because the host was short of memory
	Links   map[string]Link // network interfaces; nil where nobody looked
}

// IO is what went to and from a block device: bytes, and requests.
type IO struct{ ReadBytes, WrittenBytes, Reads, Writes float64 }

// Disk is what a block device did, and how many seconds its requests took together, in the queue too.
type Disk struct {
	IO
	Seconds float64
}

// Grade says how much is known of a row.
type Grade string

// The grades. What is counted the kernel has seen so; what is estimated is divided by what everybody used.
const (
	Counted   Grade = "counted"
	Estimated Grade = "estimated"
)

// Who is what a row blames.
type Who string

// The kinds of rows.
const (
	Other       Who = "group"
	OwnLoad     Who = "own load"
	OwnLimit    Who = "own limit"
	Outside     Who = "outside"
	Unexplained Who = "unexplained"
	// Service is the time that a disk takes for a request when nothing is in its way. It is never a suspect.
	Service Who = "disk itself"
)

// Row is one of those that are blamed for a wait.
type Row struct {
	Who   Who    `json:"who"`
	Group string `json:"group,omitempty"` // of Other
	// Name is who it is of those outside all groups: a unit, a program of a user; "" of those that are not told apart.
	Name   string `json:"name,omitempty"`
	Role   string `json:"role,omitempty"`
	Engine string `json:"engine,omitempty"`
	// Seconds are of each second, in the unit of the resource; Share is the part of all that was waited.
	Seconds float64 `json:"seconds_per_second"`
	Share   float64 `json:"share"`
	Grade   Grade   `json:"grade,omitempty"`   // "" of Unexplained
	Did     string  `json:"did,omitempty"`     // in words
	Command string  `json:"command,omitempty"` // that would hold it
}

// Resource is what was waited for.
type Resource struct {
	Name string `json:"resource"` // cpu, disk, memory or network
	// Known is false where nothing tells how long the group waited; Source says why, or which files tell it.
	Known  bool   `json:"known"`
	Source string `json:"source"`
	Grade  Grade  `json:"grade,omitempty"`
	// Waited is in seconds of each second: for a CPU summed over threads, else of the time in which any thread waited.
	Waited float64 `json:"waited_seconds_per_second"`
	// Part is the part of its time: for a CPU that of threads which could run, else of the clock.
	Part float64 `json:"part"`
	Rows []Row   `json:"rows"`
}

// Suspect is a row over all resources. Part is the part of the group's time.
type Suspect struct {
	Who       Who      `json:"who"`
	Group     string   `json:"group,omitempty"`
	Name      string   `json:"name,omitempty"` // of Outside
	Role      string   `json:"role,omitempty"`
	Part      float64  `json:"part"`
	Resources []string `json:"resources"`
}

// Report is who is to blame for the waiting of one group.
type Report struct {
	Group     string     `json:"group"`
	From      time.Time  `json:"from"`
	To        time.Time  `json:"to"`
	Resources []Resource `json:"resources"`
	// Suspects are those who have a part in waiting that is worth an explanation, the largest first.
	Suspects []Suspect `json:"suspects"`
	// Nothing says that there is nothing to explain, and Verdict what there is, in words.
	Nothing bool     `json:"nothing_to_explain"`
	Verdict string   `json:"verdict"`
	Notes   []string `json:"notes"`
}

// Below Harm of its time waiting is not worth an explanation. From Named on somebody is named.
const (
	Harm  = 0.02
	Named = 0.05
)

func (io IO) plus(o IO) IO {
	return IO{io.ReadBytes + o.ReadBytes, io.WrittenBytes + o.WrittenBytes, io.Reads + o.Reads, io.Writes + o.Writes}
}

// less takes off what was counted elsewhere; a figure is at least zero. Requests that the block layer has put together
// are counted once here and several times there.
func (io IO) less(o IO) IO {
	return IO{max(0, io.ReadBytes-o.ReadBytes), max(0, io.WrittenBytes-o.WrittenBytes), max(0, io.Reads-o.Reads),
		max(0, io.Writes-o.Writes)}
}

func (io *IO) bytes(direction string) *float64 {
	if direction == "read" {
		return &io.ReadBytes
	}
	return &io.WrittenBytes
}

func (io *IO) requests(direction string) *float64 {
	if direction == "read" {
		return &io.Reads
	}
	return &io.Writes
}

// without takes off what a group below it did: the figures of a group have those below it in them.
func (g *Group) without(below *Group) {
	less := func(a, b *float64) *float64 {
		if a == nil || b == nil {
			return a
		}
		return new(max(0, *a-*b))
	}
	g.CPU, g.Waited, g.Faults = less(g.CPU, below.CPU), less(g.Waited, below.Waited), less(g.Faults, below.Faults)
	g.Threads, g.Memory = max(0, g.Threads-below.Threads), max(0, g.Memory-below.Memory)
	if g.Tasks != nil && below.Tasks != nil {
		g.Tasks = new(g.Tasks.less(*below.Tasks))
	}
	for id, used := range below.EachCPU {
		if own, known := g.EachCPU[id]; known {
			g.EachCPU[id] = max(0, own-used)
		}
	}
	for device, io := range below.IO {
		if own, known := g.IO[device]; known {
			g.IO[device] = own.less(io)
		}
	}
}
