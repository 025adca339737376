package transaction

import (
	"fmt"
	"slices"
	"sync"

	"bulkhead/internal/apply"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

// IsHere says whether the host is this one, and not a captured one: then its interfaces can be asked for.
func (c *Controller) IsHere() bool { return c.Root == "/" }

// keepNetwork writes down what a plan is about to change of interfaces, with what was there before.
func keepNetwork(c *Controller, v *View) error {
	if v.Network == nil || c.Scratch != nil || !changesNetwork(v.Plan.Steps) {
		return nil
	}
	record, err := state.NetworkRecord(c.Store, v.Facts.BootID)
	if err != nil {
		return err
	}
	for name, slot := range v.Plan.Slots {
		record.Slots[name] = slot
	}
	for i, w := range v.Plan.Network {
		d := v.Network.Devices[i]
		entry := record.Devices[w.Device]
		if entry.Index != d.State.Device.Index {
			entry = state.Interface{Index: d.State.Device.Index, Original: d.Original,
				Wanted: netshape.Wanted{Device: w.Device}}
		}
		foreign, err := d.State.Foreign(w)
		if err != nil {
			return err
		}
		entry.Original = merged(entry.Original, foreign)
		record.Devices[w.Device] = entry
	}
	return state.Save(c.Store, state.DocNetwork, record)
}

// merged is what was on an interface before us: what gives way now, beside what did before.
func merged(was, now *netshape.Foreign) *netshape.Foreign {
	switch {
	case was == nil:
		return now
	case now == nil:
		return was
	}
	both := *was
	if len(now.Egress) > 0 {
		both.Egress = now.Egress
	}
	if len(now.Ingress) > 0 {
		both.Ingress = now.Ingress
	}
	return &both
}

func changesNetwork(steps []plan.Step) bool {
	return slices.ContainsFunc(steps, func(s plan.Step) bool { return s.Kind == request.Kind })
}

// settleNetwork writes down what is in force once a plan is done, and forgets interfaces that were given back.
func settleNetwork(c *Controller, v *View, leftOut []plan.Step) error {
	if v.Network == nil || c.Scratch != nil {
		return nil
	}
	if len(v.Plan.Network) < len(v.Network.Devices) {
		return nil // the plan leaves interfaces as they are: this was forced past what the kernel lacks for them
	}
	record, err := state.NetworkRecord(c.Store, v.Facts.BootID)
	if err != nil {
		return err
	}
	before := fmt.Sprintf("%+v", record)
	held := changesNetwork(leftOut)
	next := state.Network{Boot: record.Boot, Slots: v.Plan.Slots, Devices: map[string]state.Interface{}}
	for i, w := range v.Plan.Network {
		d := v.Network.Devices[i]
		entry, known := record.Devices[w.Device]
		if !known || entry.Index != d.State.Device.Index {
			entry = state.Interface{Index: d.State.Device.Index, Original: d.Original}
		}
		if len(w.Groups) == 0 && !w.Keep && !held {
			continue
		}
		entry.Wanted = w
		entry.Wanted.Original = nil
		next.Devices[w.Device] = entry
	}
	if fmt.Sprintf("%+v", next) == before {
		return nil
	}
	return state.Save(c.Store, state.DocNetwork, next)
}

// network is how plans reach the network; it is opened when it is first needed.
type network struct {
	mu sync.Mutex
	k  *netshape.Kernel
}

func (d *network) open() (*netshape.Kernel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.k != nil {
		return d.k, nil
	}
	k, err := netshape.Open(netshape.Options{})
	d.k = k
	return k, err
}

// Do makes a change.
func (d *network) Do(c netshape.Change) error {
	k, err := d.open()
	if err != nil {
		return err
	}
	return k.Do(c)
}

// Undo takes one back.
func (d *network) Undo(c netshape.Change, undo []netshape.Change) (bool, error) {
	k, err := d.open()
	if err != nil {
		return false, err
	}
	return k.Undo(c, undo)
}

// Look looks at an interface.
func (d *network) Look(device string, cgroups []string) (netshape.State, error) {
	k, err := d.open()
	if err != nil {
		return netshape.State{}, err
	}
	return k.Look(device, cgroups)
}

func (d *network) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.k != nil {
		d.k.Close()
		d.k = nil
	}
}

// closeNetwork closes what a runner opened.
func closeNetwork(r *apply.Runner) {
	if d, ok := r.Network.(*network); ok {
		d.close()
	}
}
