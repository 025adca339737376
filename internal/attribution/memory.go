package attribution

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

// memory divides the part of the time in which a thread of v waited for memory. A limit of its own that it reached has
// all of it. One of a group above it that was reached is shared by all groups below that: they have it. Else, where the
// host as a whole was short of memory, all have it. Everybody then has the part that his page faults and the pages that
// he had read from disks are of those of all: who takes new pages has the kernel take back old ones. The kernel does
// not tell whose pages it took for whom.
//
// Where BPF programs count, they tell for which part of that the threads were in reclaim, and whether because of a
// limit or of the host. The rest, as waits for pages that were taken before, is divided as without them.
func memory(w *Window, v *Group) Resource {
	one := Resource{Name: "memory", Source: "`memory.pressure` of the group", Grade: Counted}
	some, known := v.Pressure["memory"]
	c := w.reclaim(v)
	switch {
	case known && c != nil:
		one.Source += "; BPF programs on reclaim"
	case c != nil:
		some = min(1, c.Limit+c.Host)
		one.Source = "no PSI of the group: time of its threads in reclaim, counted by BPF programs"
	default:
		if !known {
			one.Source, one.Grade = "no PSI of the group", ""
		}
		if w.Host.NotCountingReclaim != "" {
			one.Source += "; no BPF programs count (" + w.Host.NotCountingReclaim + ")"
		}
		if !known {
			return one
		}
	}
	one.Waited, one.Part = some, min(1, some)
	limit, host := c.within(some)
	b := &blame{others: map[string]float64{}}
	var did, command string
	above, own := w.short(v)
	rest := some - limit - host
	switch {
	case own:
		did, command = w.holds(v, "memory.")
		b.limit = limit + rest
	case above != nil:
		one.Source += "; page faults and reads of groups below " + above.Name + ", whose limit they share"
		w.divideMemory(v, above, limit+rest, b)
	default:
		if limit > 0 {
			one.Source += "; of no group's limit it is known that it was reached"
		}
		if w.Host.Scanned != nil && *w.Host.Scanned > 0 {
			host += rest
		} else if host <= 0 {
			one.Source += "; the host was not short of memory"
		}
	}
	if host > 0 {
		one.Source += "; page faults and reads of groups"
		w.divideMemory(v, nil, host, b)
	}
	return resource(one, b, func(row *Row) {
		if row.Who == OwnLimit {
			row.Did, row.Command = did, command
			if c == nil || limit >= mostlyCounted*row.Seconds {
				row.Grade = Counted
			}
			return
		}
		w.describeMemory(v, row)
	})
}

// describeMemory says what a row other than that of a limit of its own did.
func (w *Window) describeMemory(v *Group, row *Row) {
	switch row.Who {
	case Outside:
		row.Did = "the kernel and processes of no group take memory"
	case OwnLoad:
		row.Did = fmt.Sprintf("takes %.0f pages a second itself and has %s", v.taken(), size(v.Memory))
	case Other:
		g := w.group(row.Group)
		row.Role, row.Engine = g.Role, g.Engine
		row.Did = fmt.Sprintf("takes %.0f pages a second and has %s", g.taken(), size(g.Memory))
		if g.Memory > 0 && g.HasHigh && !g.Above { // a memory.max would kill it
			row.Command = top.Command(g.Name, "memory.high", "",
				strconv.FormatFloat(math.Ceil(g.Memory/(1<<20)), 'f', 0, 64)+"MiB")
		}
	}
}

// reclaim is for how long v and groups below it, whose waiting PSI has, too, were in reclaim: as a sum, as it is not
// known which of that was at the same time. nil: that was not counted.
func (w *Window) reclaim(v *Group) *Reclaim {
	if v.Reclaim == nil {
		return nil
	}
	all := &Reclaim{}
	for i := range w.Groups {
		if g := &w.Groups[i]; g.Reclaim != nil && v.has(g.Name) {
			all.Limit += g.Reclaim.Limit
			all.Host += g.Reclaim.Host
		}
	}
	return all
}

// within is what of a wait was reclaim, by why: at most all of it.
func (r *Reclaim) within(waited float64) (limit, host float64) {
	if r == nil || r.Limit+r.Host <= 0 {
		return 0, 0
	}
	seen := min(waited, r.Limit+r.Host)
	limit = seen * r.Limit / (r.Limit + r.Host)
	return limit, seen - limit
}

// short finds out whose limit on memory v has reached: its own, or that of the nearest group above it that has others
// below it, too; nil and false for none.
func (w *Window) short(v *Group) (above *Group, own bool) {
	for _, h := range w.holders(v) {
		if !strings.HasPrefix(h.Key, "memory.") {
			continue
		}
		g := w.find(h.Group)
		if h.Group == v.Name || g == nil || !w.shares(v, g) {
			return nil, true
		}
		if above == nil {
			above = g
		}
	}
	return above, false
}

// shares says whether below a group there is any that is neither v nor below v, nor above it.
func (w *Window) shares(v, above *Group) bool {
	for i := range w.Groups {
		g := &w.Groups[i]
		if above.has(g.Name) && !v.has(g.Name) && !g.has(v.Name) {
			return true
		}
	}
	return false
}

// divideMemory divides a wait because of a limit that groups share, or, where above is nil, because of the host:
// everybody below it, or on the host, has the part of the pages that he took.
func (w *Window) divideMemory(v, above *Group, waited float64, b *blame) {
	all := 0.0
	for i := range w.Groups {
		if g := &w.Groups[i]; above == nil || above.has(g.Name) {
			all += g.taken()
		}
	}
	groups := all
	if above == nil {
		all = w.taken()
	}
	if all <= 0 {
		return
	}
	for i := range w.Groups {
		switch g := &w.Groups[i]; {
		case above != nil && !above.has(g.Name) || g.taken() < 1e-6*all: // rounding
		case v.has(g.Name):
			b.own += waited * g.taken() / all
		default:
			b.others[g.Name] += waited * g.taken() / all
		}
	}
	b.outside += waited * (all - groups) / all
}

// pageSize is that of the pages that the kernel counts in page faults, in bytes.
const pageSize = 4096

// taken is how many pages a group took in a second, by page faults and by reading from disks into page cache.
func (g *Group) taken() (pages float64) {
	if g.Faults != nil {
		pages = *g.Faults
	}
	if g.Tasks != nil {
		pages += g.Tasks.ReadBytes / pageSize
	}
	return pages
}

// has says whether a name is that of g or of a group below it, whose waiting for disks and memory it has.
func (g *Group) has(name string) bool { return name == g.Name || strings.HasPrefix(name, g.Name+"/") }

// taken is how many pages all took, those outside of all groups too.
func (w *Window) taken() float64 {
	var groups, host float64
	for i := range w.Groups {
		groups += w.Groups[i].taken()
	}
	if w.Host.Faults != nil {
		host = *w.Host.Faults
		for name, d := range w.Host.Disks {
			if !observe.Stacked(name) {
				host += d.ReadBytes / pageSize
			}
		}
	}
	return max(groups, host)
}
