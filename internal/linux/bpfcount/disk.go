package bpfcount

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

//go:embed block.bpf.o
var blockObject []byte

// writtenBack is the slot, in block.bpf.c, of what threads of the kernel write for nobody knows whom. That of outside is
// the same as for CPUs.
const writtenBack = 1

// Disk is how long requests of one group to disks took, as far as its threads wait for such: reads, and writes that are
// to be done at once. Several at a time count several times.
type Disk struct {
	Waited time.Duration
	// Own is the part of it that requests of the group itself were, by what they cost, of all that the device had
	// meanwhile, Others that of other groups, Outside that of what is in no group, and WrittenBack that of the kernel,
	// which wrote page cache and journals of nobody knows whom. They are drawn from what the device had when a request
	// came, and when it was done.
	Own, Outside, WrittenBack time.Duration
	Others                    map[string]time.Duration
	// Gone is what other groups had that are not watched any more.
	Gone time.Duration
	// Requests are those that were done, also those that nobody waits for. Lost are those of which the end was not seen,
	// which are not among these, or not the beginning: of these nobody knows who asked, but for an owner that the kernel
	// keeps with them.
	Requests, Lost uint64
}

// device is struct device of block.bpf.c, of which nothing is known here but its size.
type device [deviceSize]byte

const (
	deviceSize    = 8 + 4*2*(mostSlots+1)
	diskCountSize = 3 * word
	mostDevices   = 1024
)

// diskPrograms are attached in this order: whose end is seen is seen to begin, and else is of nobody.
var diskPrograms = []string{"count_complete", "count_insert", "count_issue"}

// openDisks loads the programs that count for disks. Errors: a *MissingError.
func openDisks(slots int) (*set, error) {
	if err := blockTracepoint(); err != nil {
		return nil, missing(err)
	}
	spec, err := diskSpec(slots)
	if err != nil {
		return nil, missing(err)
	}
	s, err := load(spec, diskPrograms)
	return s, missing(err)
}

func diskSpec(slots int) (*ebpf.CollectionSpec, error) {
	return sized(blockObject, slots, map[string]int{"groups": directoriesMost, "owners": directoriesMost,
		"counts": slots, "blame": slots * slots, "devices": mostDevices})
}

// blockTracepoint finds out whether tracepoints of requests tell these first: before 5.11 they told the queue first, and
// the programs would take that for a request.
func blockTracepoint() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	var of *btf.Typedef
	if err := kernel.TypeByName("btf_trace_block_rq_issue", &of); err != nil {
		return fmt.Errorf("tracepoint block_rq_issue: %w: %w", ebpf.ErrNotSupported, err)
	}
	if to, is := of.Type.(*btf.Pointer); is {
		if f, is := to.Target.(*btf.FuncProto); is && len(f.Params) == 2 { // what is registered with it, and the request
			return nil
		}
	}
	return fmt.Errorf("tracepoint block_rq_issue: %w", ebpf.ErrNotSupported)
}

// Disks says why it is not counted for whom groups wait at disks: a *MissingError, or nil where it is.
func (c *Counter) Disks() error { return c.noDisks }

// WatchDisks says, after Watch, which devices are counted, by their numbers (see [Device]), and by which directories of
// the controller of disks the kernel knows whom it works for itself: page cache is written by threads of the kernel, and
// on cgroup v2 with the memory controller for an owner. A device that passes on what it is asked for is not to be
// among them: it is counted below that.
func (c *Counter) WatchDisks(devices []uint32, owners map[string][]uint64) error {
	if c.disk == nil {
		return nil
	}
	next := map[uint64]uint32{}
	for name, ids := range owners {
		for _, id := range ids {
			if c.knows(name) && len(next) < directoriesMost {
				next[id] = c.slot(name)
			}
		}
	}
	known := map[uint32]device{}
	for _, number := range devices[:min(len(devices), mostDevices)] {
		known[number] = device{}
	}
	if err := tell(c.disk.loaded.Maps["owners"], c.owners, next); err != nil {
		return fmt.Errorf("tell the kernel the owners of requests: %w", err)
	}
	c.owners = next
	if err := tell(c.disk.loaded.Maps["devices"], c.devices, known); err != nil {
		return fmt.Errorf("tell the kernel the devices: %w", err)
	}
	c.devices = known
	return nil
}

// Device is the number of a block device, as WatchDisks takes it.
func Device(major, minor uint32) uint32 { return major<<20 | minor }

// readDisks fills in what was counted for disks.
func (c *Counter) readDisks(all map[string]*Waits) error {
	if c.disk == nil {
		return nil
	}
	counts, row := make([]byte, diskCountSize*c.slots), make([]byte, word*c.slots)
	if _, err := c.disk.counts.ReadAt(counts, 0); err != nil {
		return fmt.Errorf("read counts of disks: %w", err)
	}
	for slot := idle + 1; slot < len(c.names); slot++ {
		w := all[c.names[slot]]
		if w.Disk == nil {
			w.Disk = &Disk{Others: map[string]time.Duration{}}
		}
		d, n := w.Disk, counts[diskCountSize*slot:]
		d.Waited += time.Duration(binary.NativeEndian.Uint64(n))
		d.Requests += binary.NativeEndian.Uint64(n[word:])
		d.Lost += binary.NativeEndian.Uint64(n[2*word:])
		if _, err := c.disk.blame.ReadAt(row, int64(slot*len(row))); err != nil {
			return fmt.Errorf("read whose requests disks did: %w", err)
		}
		for other := range c.names {
			ns := time.Duration(binary.NativeEndian.Uint64(row[word*other:]))
			switch {
			case ns == 0:
			case other == slot:
				d.Own += ns
			case other == outside:
				d.Outside += ns
			case other == writtenBack:
				d.WrittenBack += ns
			default:
				d.Others[c.names[other]] += ns
			}
		}
	}
	return nil
}
