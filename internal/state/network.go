package state

import (
	"bulkhead/internal/journal"
	"bulkhead/internal/netshape"
	"bulkhead/internal/plan/layout"
)

// Network is what bulkhead did to interfaces since the boot. It is on disk before the first change of one: nothing else
// knows what was there before.
type Network struct {
	Boot  string                   `json:"boot"`
	Slots map[string]netshape.Slot `json:"slots,omitempty"`
	// Devices are the governed interfaces, by name.
	Devices map[string]Interface `json:"devices,omitempty"`
}

// Interface is a governed interface.
type Interface struct {
	Index    int               `json:"index"` // an interface of another one is another interface
	Original *netshape.Foreign `json:"original,omitempty"`
	Wanted   netshape.Wanted   `json:"wanted"` // as it was put in force last
}

// NetworkRecord reads what is recorded of interfaces in this boot; s may be nil. On an error it is empty.
func NetworkRecord(s *journal.Store, boot string) (Network, error) {
	d, err := &Documents{}, error(nil)
	if s != nil {
		if d, err = Load(s, DocNetwork); err != nil {
			d = &Documents{}
		}
	}
	r := d.Prune(Moment{Boot: boot}).Network
	if r.Slots == nil {
		r.Slots = map[string]netshape.Slot{}
	}
	if r.Devices == nil {
		r.Devices = map[string]Interface{}
	}
	return r, err
}

// UnitRecords reads what systemd was told of units before bulkhead first set a property of them.
func UnitRecords(s *journal.Store) (map[string]layout.Kept, error) {
	d, err := Load(s, DocUnits)
	if err != nil {
		return nil, err
	}
	if d.Units == nil {
		d.Units = map[string]layout.Kept{}
	}
	return d.Units, nil
}
