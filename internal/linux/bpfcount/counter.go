// Package bpfcount counts by BPF programs, for CPU groups, how long threads that could run had no CPU, and who ran
// there meanwhile, how long their requests to disks took, and whose requests the disks did meanwhile, and how long they
// were in reclaim of memory: what no file of the kernel tells, or PSI alone. It works alike with cgroup v1, hybrid and
// v2, as it goes by the directories of the CPU controller.
//
// The programs (count.bpf.c, block.bpf.c and reclaim.bpf.c, Apache-2.0 or GPL-2.0) are on the kernel's tracepoints of
// switches and moves between CPUs, of requests, and of reclaim. They send nothing; what they count is read when
// somebody wants to know it. They are neither pinned nor attached to anything that outlives the process: they end with
// it, however it ends.
//
// It takes kernel 5.5 with BTF, for disks and reclaim 5.11, and CAP_BPF and CAP_PERFMON (before 5.8 CAP_SYS_ADMIN).
// `make bpf` makes the objects.
package bpfcount

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

//go:embed count.bpf.o
var object []byte

// Most is how many groups can be counted. Others are outside.
const Most = mostSlots - 2

// count is struct count of count.bpf.c.
type count struct {
	Ran, Waited, Limited, Older, Waits, Voluntary, Involuntary, Lost uint64
}

const countSize = 8 * word

// Waits is what threads in the directories of one group did since the group was first watched.
type Waits struct {
	Ran    time.Duration // on CPUs
	Waited time.Duration // for one, also because of limits
	// Limited is the part of Waited in which limits on CPU time held back the group, or one above it.
	Limited time.Duration
	// Own is the part in which threads of the group itself ran on the CPU, Others that of other groups, Outside that of
	// what is in no group, and Idle that in which the CPU ran nothing: it was waking up.
	Own, Outside, Idle time.Duration
	Others             map[string]time.Duration
	// Gone is what other groups had that are not watched any more.
	Gone time.Duration
	// Older is the rest of Waited: too many switches ago to tell who ran.
	Older time.Duration
	// Turns are how often a thread got a CPU after it had waited. Voluntary and Involuntary are switches away from
	// threads of the group. Lost are turns whose waiting was not counted, as its begin was not seen.
	Turns, Voluntary, Involuntary, Lost uint64
	// Disk is for whom it waited at disks; nil where that is not counted.
	Disk *Disk
	// Reclaim is how long it was in reclaim of memory; nil where that is not counted, and NoReclaim says why.
	Reclaim   *Reclaim
	NoReclaim error
}

// Counter counts. It is for one goroutine at a time.
type Counter struct {
	cpu       *set
	disk      *disks
	noDisks   error // why disk is nil
	reclaim   *set
	noReclaim error // why reclaim is nil
	cpus      int
	slots     int

	names      []string          // by slot; "" of those that are no group's
	groups     map[uint64]uint32 // slot of a directory
	generation uint32            // of groups
	before     map[string]*Waits // what counters that are closed have counted
}

// Open makes one that counts nothing yet. Errors: a *MissingError says why this kernel, or this process, cannot.
func Open() (*Counter, error) {
	c := &Counter{before: map[string]*Waits{}}
	if err := c.open(leastSlots); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends the programs, and frees what they counted in.
func (c *Counter) Close() error {
	err := errors.Join(c.cpu.Close(), c.reclaim.Close())
	if c.disk != nil {
		err = errors.Join(err, c.disk.Close())
	}
	c.cpu, c.disk, c.reclaim = nil, nil, nil
	return err
}

// open loads programs for a number of slots. That those of disks, or of reclaim, cannot be loaded is no error.
func (c *Counter) open(slots int) (err error) {
	defer func() {
		if err != nil {
			err = missing(errors.Join(err, c.Close()))
		}
	}()
	_ = rlimit.RemoveMemlock() // before 5.11 maps count as locked memory; if it is too little, the next lines say so
	if c.cpus, err = ebpf.PossibleCPU(); err != nil {
		return fmt.Errorf("count CPUs: %w", err)
	}
	spec, err := c.spec(slots)
	if err != nil {
		return err
	}
	if c.cpu, err = load(spec, programs); err != nil {
		return err
	}
	c.disk, c.noDisks = openDisks(slots)
	c.reclaim, c.noReclaim = openReclaim(slots)
	c.slots, c.names, c.groups, c.generation = slots, []string{outside: "", idle: ""}, map[uint64]uint32{}, 1
	return nil
}

// attach has the programs count.
func (c *Counter) attach() error {
	if err := c.cpu.attach(); err != nil {
		return missing(errors.Join(err, c.Close()))
	}
	c.attachReclaim()
	if c.disk == nil {
		return nil
	}
	if err := c.disk.attach(); err != nil {
		c.noDisks = missing(errors.Join(err, c.disk.Close()))
		c.disk = nil
	}
	return nil
}

var programs = []string{"count_switch", "count_migrate"}

// spec is the object with sizes for this host.
func (c *Counter) spec(slots int) (*ebpf.CollectionSpec, error) {
	return sized(object, slots, map[string]int{"groups": directoriesMost, "cpu_state": c.cpus, "counts": c.cpus * slots,
		"blame": c.cpus * slots * slots})
}

// Watch says which groups are counted from now on, by the numbers of their directories (see [Directory]). Threads in
// directories below these are theirs, too, as far as those are not of another group. Of more groups than Most those
// whose names come last are left out.
func (c *Counter) Watch(groups map[string][]uint64) error {
	names := slices.Sorted(maps.Keys(groups))
	names = names[:min(len(names), Most)]
	wanted := map[uint64]string{}
	fresh := 0
	for _, name := range names {
		if !c.knows(name) {
			fresh++
		}
		for _, id := range slices.Sorted(slices.Values(groups[name])) {
			if len(wanted) < directoriesMost { // always the same ones: else each call would tell the kernel of others
				wanted[id] = name
			}
		}
	}
	same := map[uint64]string{}
	for id, slot := range c.groups {
		same[id] = c.names[slot]
	}
	if maps.Equal(same, wanted) {
		return c.attach()
	}
	if err := c.room(names, fresh); err != nil {
		return err
	}
	next := map[uint64]uint32{}
	for id, name := range wanted {
		next[id] = c.slot(name)
	}
	if err := c.put(next); err != nil {
		return fmt.Errorf("tell the kernel the directories of groups: %w", err)
	}
	return c.attach()
}

func (c *Counter) knows(name string) bool { return slices.Contains(c.names[idle+1:], name) }

// slot is that of a group, a new one if it has none. There is room.
func (c *Counter) slot(name string) uint32 {
	if i := slices.Index(c.names[idle+1:], name); i >= 0 {
		return uint32(idle + 1 + i)
	}
	c.names = append(c.names, name)
	return uint32(len(c.names) - 1)
}

// room makes room for new groups, among all that are watched: where there is none the programs are loaded anew, without
// groups that are not watched any more. What these counted is forgotten.
func (c *Counter) room(names []string, fresh int) error {
	if len(c.names)+fresh <= c.slots {
		return nil
	}
	counted, err := c.all()
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	gone := func(name string) bool { return !slices.Contains(names, name) }
	maps.DeleteFunc(counted, func(name string, _ *Waits) bool { return gone(name) })
	for _, w := range counted {
		w.Gone += forget(w.Others, gone)
		if w.Disk != nil {
			w.Disk.Gone += forget(w.Disk.Others, gone)
		}
	}
	c.before = counted
	return c.open(max(1<<bits.Len(uint(len(names)+idle)), leastSlots))
}

// forget takes out what those have who are gone, and gives the sum of it.
func forget(others map[string]time.Duration, gone func(string) bool) (sum time.Duration) {
	for name, d := range others {
		if gone(name) {
			sum += d
			delete(others, name)
		}
	}
	return sum
}

// put tells the kernel the slots of directories.
func (c *Counter) put(next map[uint64]uint32) error {
	if err := tell(c.cpu.loaded.Maps["groups"], c.groups, next); err != nil {
		return err
	}
	if c.disk != nil {
		if err := tell(c.disk.loaded.Maps["groups"], c.groups, next); err != nil {
			return err
		}
	}
	if c.reclaim != nil {
		if err := tell(c.reclaim.loaded.Maps["groups"], c.groups, next); err != nil {
			return err
		}
	}
	c.groups = next
	c.generation++
	return c.cpu.loaded.Variables["generation"].Set(c.generation)
}

// WatchDisks says, after Watch, which devices are counted, by their numbers (see [Device]), and by which directories of
// the controller of disks the kernel knows whom it works for itself: page cache is written by threads of the kernel,
// and on cgroup v2 with the memory controller for an owner. A device that passes on what it is asked for is not to be
// among them: it is counted below that. The error says why nothing is counted at disks.
func (c *Counter) WatchDisks(devices []uint32, owners map[string][]uint64) error {
	if c.disk == nil {
		return c.noDisks
	}
	next := map[uint64]uint32{}
	for name, ids := range owners {
		for _, id := range ids {
			if c.knows(name) && len(next) < directoriesMost {
				next[id] = c.slot(name)
			}
		}
	}
	return c.disk.watch(devices, next)
}

// Read tells what was counted of each group that is watched now. One that is not has no figures, as they would stand
// still while it waits.
func (c *Counter) Read() (map[string]*Waits, error) {
	all, err := c.all()
	watched := map[string]bool{}
	for _, slot := range c.groups {
		watched[c.names[slot]] = true
	}
	maps.DeleteFunc(all, func(name string, _ *Waits) bool { return !watched[name] })
	return all, err
}

// all is what was counted of each group that was ever watched.
func (c *Counter) all() (map[string]*Waits, error) {
	all := map[string]*Waits{}
	for name, w := range c.before {
		one := *w
		one.Others = maps.Clone(w.Others)
		if one.Disk = nil; w.Disk != nil && c.disk != nil {
			one.Disk = new(*w.Disk)
			one.Disk.Others = maps.Clone(w.Disk.Others)
		}
		if one.Reclaim = nil; w.Reclaim != nil && c.reclaim != nil {
			one.Reclaim = new(*w.Reclaim)
		}
		all[name] = &one
	}
	row := make([]byte, word*c.slots)
	counts := make([]byte, countSize*c.slots)
	for cpu := range c.cpus {
		if _, err := c.cpu.counts.ReadAt(counts, int64(cpu*len(counts))); err != nil {
			return nil, fmt.Errorf("read counts: %w", err)
		}
		for slot := idle + 1; slot < len(c.names); slot++ {
			w := all[c.names[slot]]
			if w == nil {
				w = &Waits{Others: map[string]time.Duration{}}
				all[c.names[slot]] = w
			}
			w.add(counts[countSize*slot:])
			if _, err := c.cpu.blame.ReadAt(row, int64((cpu*c.slots+slot)*len(row))); err != nil {
				return nil, fmt.Errorf("read who ran: %w", err)
			}
			c.share(w, slot, row)
		}
	}
	for slot := idle + 1; slot < len(c.names) && c.disk != nil; slot++ {
		w := all[c.names[slot]]
		if w.Disk == nil {
			w.Disk = &Disk{Others: map[string]time.Duration{}}
		}
		if err := c.disk.add(w.Disk, slot, c.names); err != nil {
			return nil, err
		}
	}
	return all, c.addReclaim(all)
}

// add adds what was counted on a CPU.
func (w *Waits) add(data []byte) {
	n := make([]uint64, countSize/word)
	for i := range n {
		n[i] = binary.NativeEndian.Uint64(data[word*i:])
	}
	one := count{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]}
	w.Ran += time.Duration(one.Ran)
	w.Waited += time.Duration(one.Waited)
	w.Limited += time.Duration(one.Limited)
	w.Older += time.Duration(one.Older)
	w.Turns += one.Waits
	w.Voluntary += one.Voluntary
	w.Involuntary += one.Involuntary
	w.Lost += one.Lost
}

// share adds who ran on a CPU while the group of a slot waited there.
func (c *Counter) share(w *Waits, slot int, row []byte) {
	for other := range c.names {
		d := time.Duration(binary.NativeEndian.Uint64(row[word*other:]))
		switch {
		case d == 0:
		case other == slot:
			w.Own += d
		case other == outside:
			w.Outside += d
		case other == idle:
			w.Idle += d
		default:
			w.Others[c.names[other]] += d
		}
	}
}

// Cost is what the programs took of the CPUs while somebody had the kernel count that (see [CountCost]).
type Cost struct {
	Took     time.Duration
	Events   uint64 // switches and moves between CPUs
	Switches uint64
}

// Cost tells what the programs took.
func (c *Counter) Cost() (Cost, error) {
	var sum Cost
	for _, name := range programs {
		s, err := c.cpu.loaded.Programs[name].Stats()
		if err != nil {
			return sum, fmt.Errorf("what %s took: %w", name, err)
		}
		sum.Took += s.Runtime
		sum.Events += s.RunCount
		if name == "count_switch" {
			sum.Switches = s.RunCount
		}
	}
	return sum, nil
}
