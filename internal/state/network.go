package state

import (
	"bulkhead/internal/netshape"
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
