package netshape

import (
	"fmt"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
)

// What is the kind of object that a change is about.
type What string

// The kinds.
const (
	Qdisc    What = "qdisc"
	ClassOf  What = "class"
	FilterOf What = "filter"
	NIC      What = "virtual NIC"
	Sorter   What = "program"
	Policer  What = "policer"
	Counter  What = "counter"
)

// Change is one request to the kernel. It holds all that is needed to make it, so that a journal can keep it.
type Change struct {
	Verb   tc.Verb `json:"verb,omitempty"`
	What   What    `json:"what,omitempty"`
	Device string  `json:"device,omitempty"`
	// Index is that of Device when it was looked at; 0 when it was not there yet. An interface of another index is
	// another one.
	Index  int       `json:"index,omitempty"`
	Record tc.Record `json:"record,omitzero"`
	// To names the interfaces that the actions of somebody else's filter send packets to, in the order of
	// tc.Record.Redirects: one that was made anew has another index.
	To []string `json:"to,omitempty"`
	// Filter is that of ours: its options are encoded when the virtual NIC is there.
	Filter  *tc.Filter   `json:"filter,omitempty"`
	For     string       `json:"for,omitempty"` // of a virtual NIC: the interface it serves
	Program *bpf.Program `json:"program,omitempty"`
}

// Regrafts says that the change gives an interface another root or ingress qdisc. The kernel switches the interface's
// queues off meanwhile (dev_deactivate): until every CPU has passed a grace period, what is sent there is dropped.
func (c Change) Regrafts() bool {
	return c.What == Qdisc && c.Record.AtHook()
}

// String gives "add class 7fff:20 to eth0".
func (c Change) String() string {
	switch c.What {
	case NIC:
		return fmt.Sprintf("%s virtual NIC %s", c.Verb, c.Device)
	case Sorter:
		class, _ := bpf.SorterClass(c.Program.Name)
		return fmt.Sprintf("%s program that sorts %q into class %s", c.Verb, c.Program.Cgroup, class)
	case Counter:
		return fmt.Sprintf("%s program %s that counts the traffic of %q", c.Verb, c.Program.Name, c.Program.Cgroup)
	case Policer:
		return fmt.Sprintf("%s program that polices what arrives at %s for %q to %s", c.Verb, c.Device,
			c.Program.Cgroup, c.Program.Rate)
	case FilterOf:
		if c.Filter != nil {
			return fmt.Sprintf("%s filter %d on %s at %s: %s", c.Verb, c.Record.Pref(), c.Device, c.Record.Parent,
				c.Filter)
		}
		return fmt.Sprintf("%s filter %s %d on %s at %s", c.Verb, c.Record.Kind, c.Record.Pref(), c.Device,
			c.Record.Parent)
	case ClassOf:
		return fmt.Sprintf("%s class %s on %s below %s", c.Verb, c.Record.Handle, c.Device, c.Record.Parent)
	}
	return fmt.Sprintf("%s qdisc %s on %s at %s", c.Verb, c.Record, c.Device, c.Record.Parent)
}

// Step is one change with its reason and the changes that take it back.
type Step struct {
	Do    Change
	Undo  []Change
	Why   string
	phase phase
}

// phase orders steps. Going down, nothing may lead packets to what is gone already: redirects go first, the virtual NIC
// last. Going up is the reverse. So every prefix of a plan leaves a host that is connected.
type phase int

const (
	unredirect phase = iota
	unsort
	removeClasses
	removeQdiscs
	removeNIC
	makeNIC
	makeRoot
	makeClasses
	makeLeaves
	sortPackets
	unsortOld // programs whose place a new one has taken
	makeIngress
	redirect
)
