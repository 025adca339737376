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

// writtenBack is the slot, in block.bpf.c, of what threads of the kernel write for nobody knows whom. That of outside
// is the same as for CPUs.
const writtenBack = 1

// Disk is how long requests of one group to disks took, as far as its threads wait for such: reads, and writes that are
// to be done at once. Several at a time count several times.
type Disk struct {
	Waited time.Duration
	// Service is the part of it in which the disk did the request itself: nobody could take that away. A request that
	// is alone there has all of it, and of several each has its part by what they cost.
	Service time.Duration
	// Own is the part that other requests of the group itself were of all that the device had meanwhile, Others that of
	// other groups, Outside that of what is in no group, and WrittenBack that of the kernel, which wrote page cache and
	// journals of nobody knows whom. They are drawn from what else the device had when a request came, and when it was
	// done.
	Own, Outside, WrittenBack time.Duration
	Others                    map[string]time.Duration
	// Gone is what other groups had that are not watched any more.
	Gone time.Duration
	// Requests are those that were done, also those that nobody waits for. Lost are those of which the end was not
	// seen, which are not among these, or not the beginning: of these nobody knows who asked, but for an owner that the
	// kernel keeps with them.
	Requests, Lost uint64
}

// device is struct device of block.bpf.c, of which nothing is known here but its size.
type device [deviceSize]byte

const (
	deviceSize    = 3*word + 4*2*(mostSlots+1) + word
	diskCountSize = 4 * word
	mostDevices   = 1024
)

// diskPrograms are attached in this order: whose end is seen is seen to begin, and else is of nobody.
var diskPrograms = []string{"count_complete", "count_insert", "count_issue"}

// disks are the programs that count for disks, and what they were told.
type disks struct {
	*set

	slots   int
	owners  map[uint64]uint32
	devices map[uint32]device
}

// openDisks loads the programs. Errors: a *MissingError.
func openDisks(slots int) (*disks, error) {
	if err := blockTracepoint(); err != nil {
		return nil, missing(err)
	}
	spec, err := diskSpec(slots)
	if err != nil {
		return nil, missing(err)
	}
	s, err := load(spec, diskPrograms)
	if err != nil {
		return nil, missing(err)
	}
	return &disks{set: s, slots: slots, owners: map[uint64]uint32{}, devices: map[uint32]device{}}, nil
}

func diskSpec(slots int) (*ebpf.CollectionSpec, error) {
	return sized(blockObject, slots, map[string]int{"groups": directoriesMost, "owners": directoriesMost,
		"counts": slots, "blame": slots * slots, "devices": mostDevices})
}

// blockTracepoint finds out whether tracepoints of requests tell these first: before 5.11 they told the queue first,
// and the programs would take that for a request.
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
		if f, is := to.Target.(*btf.FuncProto); is && len(f.Params) == 2 {
			return nil // what is registered with it, and the request
		}
	}
	return fmt.Errorf("tracepoint block_rq_issue: %w", ebpf.ErrNotSupported)
}

// watch says which devices are counted, and the slots of owners.
func (d *disks) watch(devices []uint32, owners map[uint64]uint32) error {
	if err := tell(d.loaded.Maps["owners"], d.owners, owners); err != nil {
		return fmt.Errorf("tell the kernel the owners of requests: %w", err)
	}
	d.owners = owners
	known := map[uint32]device{}
	for _, number := range devices[:min(len(devices), mostDevices)] {
		known[number] = device{}
	}
	if err := tell(d.loaded.Maps["devices"], d.devices, known); err != nil {
		return fmt.Errorf("tell the kernel the devices: %w", err)
	}
	d.devices = known
	return nil
}

// Device is the number of a block device, as Counter.WatchDisks takes it.
func Device(major, minor uint32) uint32 { return major<<20 | minor }

// add adds what was counted of the slot of a group, where names are those of all slots.
func (d *disks) add(to *Disk, slot int, names []string) error {
	counts, row := make([]byte, diskCountSize), make([]byte, word*len(names))
	if _, err := d.counts.ReadAt(counts, int64(diskCountSize*slot)); err != nil {
		return fmt.Errorf("read counts of disks: %w", err)
	}
	if _, err := d.blame.ReadAt(row, int64(word*d.slots*slot)); err != nil {
		return fmt.Errorf("read whose requests disks had: %w", err)
	}
	to.Waited += time.Duration(binary.NativeEndian.Uint64(counts))
	to.Requests += binary.NativeEndian.Uint64(counts[word:])
	to.Lost += binary.NativeEndian.Uint64(counts[2*word:])
	to.Service += time.Duration(binary.NativeEndian.Uint64(counts[3*word:]))
	for other, name := range names {
		ns := time.Duration(binary.NativeEndian.Uint64(row[word*other:]))
		switch {
		case ns == 0:
		case other == slot:
			to.Own += ns
		case other == outside:
			to.Outside += ns
		case other == writtenBack:
			to.WrittenBack += ns
		default:
			to.Others[name] += ns
		}
	}
	return nil
}
