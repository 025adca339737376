package policy

import (
	"fmt"
	"slices"

	"bulkhead/internal/linux/blockdev"
)

// Ceiling is what a device, or several together, can do at most in each direction, as the policy knows it.
type Ceiling struct {
	On        string
	Bandwidth Rate // 0: not known
	IOPS      IOPS // 0: not known
	Model     *Model
	Pos       Pos
	// Devices are the numbers of all devices that lie on nothing but what On means; set by Resolve.
	Devices []string
}

// Model is what a disk can do, as iocost wants to know it.
type Model struct {
	Read, Write ModelRates
	Pos         Pos
}

// Parameters is the model in the words of io.cost.model.
func (m *Model) Parameters() string {
	return fmt.Sprintf("ctrl=user model=linear rbps=%d rseqiops=%d rrandiops=%d wbps=%d wseqiops=%d wrandiops=%d",
		m.Read.Bandwidth, m.Read.Sequential, m.Read.Random, m.Write.Bandwidth, m.Write.Sequential, m.Write.Random)
}

// ModelRates are the rates of one direction.
type ModelRates struct {
	Bandwidth  Rate
	Sequential IOPS // operations of 4 KiB in a row
	Random     IOPS // at random
}

// What holds a weight on a disk.
const (
	ViaIOCost = "iocost" // by a model of the disk; cgroup v2, kernel 5.4
	ViaBFQ    = "bfq"    // the scheduler; 4.12, for a device of its own 5.4
	ViaCFQ    = "cfq"    // the scheduler of kernels before 5.0; cgroup v1
)

// DiskGroup says which disks an Oracle ASM disk group has, for a host on which their headers cannot tell.
type DiskGroup struct {
	Name string
	blockdev.Members
	Pos Pos
}

// Members says how the disks of an ASM disk group are found.
func (h *HostPart) Members(group string) blockdev.Members {
	if h != nil {
		for _, g := range h.ASM {
			if g.Name == group {
				return g.Members
			}
		}
	}
	return blockdev.Members{}
}

// NetworkLink is what the policy says of an interface.
type NetworkLink struct {
	On   string
	Rate BitRate // what the link carries; 0: as the interface says
	// Peer is an address and port ("192.0.2.1:22") that must stay within reach while limits on the interface change.
	Peer string
	Pos  Pos
	Dev  string // the interface's name; set by Resolve

	OnPos Pos
}

// LinkRate is what the policy says that an interface carries, 0 when it does not.
func (h HostPart) LinkRate(dev string) BitRate {
	for _, l := range h.Network {
		if l.Rate > 0 && (l.Dev == dev || l.On == dev) {
			return l.Rate
		}
	}
	return 0
}

// Peers are the peers that the policy names, each once, of all interfaces that are there. Two entries may mean one
// interface, by its name and as that of the default route.
func (h HostPart) Peers() []string {
	var peers []string
	for _, l := range h.Network {
		if l.Peer != "" && l.Dev != "" {
			peers = append(peers, l.Peer)
		}
	}
	slices.Sort(peers)
	return slices.Compact(peers)
}

// Interface is what a host says of a network interface.
type Interface struct {
	Name string
	Rate BitRate // what its link carries, 0 when it does not say
	Up   bool
	// Control is whose way in the interface is: "sshd's connection from 192.0.2.7"; "" is nobody's.
	Control string
}

// ErrNoInterface says that there is no such interface, or no route to such a network; Others names those there are.
type ErrNoInterface struct {
	Err    error
	Others []string
}

// Error gives the cause.
func (e *ErrNoInterface) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ErrNoInterface) Unwrap() error { return e.Err }
