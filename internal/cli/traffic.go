package cli

import (
	"fmt"

	"bulkhead/internal/control"
	"bulkhead/internal/policy"
)

// printTraffic prints what a group sends and receives.
func (a *app) printTraffic(t *control.GroupTraffic) {
	if t == nil {
		return
	}
	amount := func(c control.Counted) string {
		return fmt.Sprintf("%s in %d packets, now %s", policy.Bytes(c.Bytes).Human(), c.Packets, bits(c.Rate))
	}
	if t.Counted {
		fmt.Fprintf(a.out, "  network: out %s; in %s\n", amount(t.Out), amount(t.In))
	}
	for _, d := range t.On {
		if d.Policed {
			fmt.Fprintf(a.out, "    %s %s: policed, and not counted there\n", d.Device, d.Direction)
			continue
		}
		fmt.Fprintf(a.out, "    %s %s: %s; %d dropped, %s waiting\n", d.Device, d.Direction, amount(d.Counted), d.Drops, policy.Bytes(d.Backlog).Human())
	}
	if hint := t.OutsideHint(); hint != "" {
		fmt.Fprintf(a.out, "    %s\n", hint)
	}
}

// bits is a measured rate for people.
func bits(r policy.BitRate) string {
	switch {
	case r >= 1e9:
		return fmt.Sprintf("%.2f Gbit/s", float64(r)/1e9)
	case r >= 1e6:
		return fmt.Sprintf("%.1f Mbit/s", float64(r)/1e6)
	}
	return fmt.Sprintf("%.1f kbit/s", float64(r)/1e3)
}

// printOutside lists sockets that the limits on interfaces do not see.
func (a *app) printOutside(sockets []control.OutsideSocket) {
	if len(sockets) == 0 {
		return
	}
	fmt.Fprintln(a.out, "sockets that were opened before it came into the group; limits on interfaces do not hold what they send until they are opened anew")
	for _, s := range sockets {
		text := "with " + s.Remote
		if s.Listening {
			text = "listening; what it accepts is outside, too"
		}
		if s.ByPort {
			text += "; `by: ports` in the network entry holds it"
		}
		fmt.Fprintf(a.out, "  %s %s\n", s.Local, text)
	}
}
