//go:build root

package netshape

import (
	"math"

	"bulkhead/internal/linux/tc"
)

// ClassStats are the counters of each group's own class, by slot.
func ClassStats(d *tc.Device) map[Slot]tc.Stats {
	all := make(map[Slot]tc.Stats)
	for _, c := range d.Classes {
		minor := c.Handle & 0xffff
		if c.Kind == "htb" && c.Handle>>16 == rootMajor && minor >= slotStep && minor%slotStep == 0 &&
			minor <= math.MaxUint16 {
			all[Slot(minor/slotStep)] = c.Stats
		}
	}
	return all
}
