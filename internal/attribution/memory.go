package attribution

import (
	"fmt"
	"math"
	"strconv"
)

// memory divides the part of the time in which a thread of v waited for memory. A limit of its own that it reached has
// all of it. Else, where the host as a whole was short of memory, everybody has the part that his page faults are of
// all: who takes new pages has the kernel take back old ones. The kernel does not tell whose pages it took for whom.
func memory(w *Window, v *Group) Resource {
	one := Resource{Name: "memory", Source: "`memory.pressure` of the group", Grade: Counted}
	some, known := v.Pressure["memory"]
	if !known {
		one.Source, one.Grade = "no PSI of the group", ""
		return one
	}
	one.Waited, one.Part = some, min(1, some)
	b := &blame{others: map[string]float64{}}
	did, command := w.holds(v, "memory.")
	var all float64
	for _, g := range w.Groups {
		if g.Faults != nil {
			all += *g.Faults
		}
	}
	if w.Host.Faults != nil {
		all = max(all, *w.Host.Faults)
	}
	switch {
	case did != "":
		b.limit = some
	case w.Host.Scanned == nil || *w.Host.Scanned <= 0:
		one.Source += "; the host was not short of memory"
	case all > 0:
		one.Source += "; page faults of groups"
		left := all
		for _, g := range w.Groups {
			if g.Faults == nil {
				continue
			}
			left -= *g.Faults
			if g.Name == v.Name {
				b.own = some * *g.Faults / all
			} else {
				b.others[g.Name] = some * *g.Faults / all
			}
		}
		b.outside = some * max(0, left) / all
	}
	return resource(one, b, func(row *Row) {
		switch row.Who {
		case OwnLimit:
			row.Did, row.Command, row.Grade = did, command, Counted
		case Outside:
			row.Did = "the kernel and processes of no group take memory"
		case OwnLoad:
			row.Did = fmt.Sprintf("takes %.0f pages a second itself and has %s", *v.Faults, size(v.Memory))
		case Other:
			g := w.group(row.Group)
			row.Role, row.Engine = g.Role, g.Engine
			row.Did = fmt.Sprintf("takes %.0f pages a second and has %s", *g.Faults, size(g.Memory))
			if g.Memory > 0 {
				key := "memory.max"
				if g.HasHigh {
					key = "memory.high"
				}
				row.Command = set(g.Name, key, strconv.FormatFloat(math.Ceil(g.Memory/(1<<20)), 'f', 0, 64)+"MiB", "")
			}
		}
	})
}
