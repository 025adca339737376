package attribution

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe"
)

// Outsider is what runs outside of all groups under one name: a unit of systemd, a program of a user, the kernel's own
// threads. Figures are for a second: CPU in seconds, IO by calls, Faults page faults.
type Outsider struct {
	Name   string
	CPU    float64
	CPUs   idset.Set // on which it may run; nil: on all
	IO     IO
	Faults float64
}

// taken is how many pages it took.
func (o *Outsider) taken() float64 { return o.Faults + o.IO.ReadBytes/pageSize }

// A row of what runs outside of all groups is divided among at most mostNamed names that have leastNamed of it each.
const (
	mostNamed  = 4
	leastNamed = 0.1
)

// nameOutside divides what is outside of all groups and has a part in v's wait for a resource by names, as far as it is
// known who that is. What nobody is known for stays one row without a name. The sum stays what it was.
func (w *Window) nameOutside(v *Group, one *Resource) {
	at := slices.IndexFunc(one.Rows, func(row Row) bool { return row.Who == Outside })
	if at < 0 || len(w.Outsiders) == 0 {
		return
	}
	cost, all, did := w.outside(v, one.Name)
	if cost == nil {
		return
	}
	type part struct {
		*Outsider

		cost float64
	}
	var parts []part
	sum := 0.0
	for i := range w.Outsiders {
		o := &w.Outsiders[i]
		if c := cost(o); c > 0 {
			parts = append(parts, part{o, c})
			sum += c
		}
	}
	all = max(all, sum)
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.cost, a.cost), strings.Compare(a.Name, b.Name))
	})
	whole := one.Rows[at]
	left := whole
	var named []Row
	for _, p := range parts[:min(len(parts), mostNamed)] {
		if p.cost < leastNamed*all {
			break
		}
		row := whole
		row.Name, row.Grade, row.Did = p.Name, Estimated, did(p.Outsider)
		row.Seconds, row.Share = whole.Seconds*p.cost/all, whole.Share*p.cost/all
		left.Seconds, left.Share = left.Seconds-row.Seconds, left.Share-row.Share
		named = append(named, row)
	}
	if left.Share > 1e-9 && left.Seconds > 0 || named == nil {
		named = append(named, left)
	} else { // rounding
		named[0].Seconds, named[0].Share = named[0].Seconds+left.Seconds, named[0].Share+left.Share
	}
	last := len(one.Rows) - 1 // unexplained
	rows := slices.Concat(one.Rows[:at], named, one.Rows[at+1:last])
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.Seconds, a.Seconds) })
	one.Rows = append(rows, one.Rows[last])
}

// runsOn are the CPUs on which a group ran; where that is not known, those on which it may.
func (w *Window) runsOn(v *Group) idset.Set {
	sum := 0.0
	for _, ran := range v.EachCPU {
		sum += ran
	}
	var ids []int
	for id := range w.cpus() {
		if sum > 0 && v.EachCPU[id] >= rare*sum || sum <= 0 && (len(v.CPUs) == 0 || v.CPUs.Contains(id)) {
			ids = append(ids, id)
		}
	}
	return idset.New(ids...)
}

// outside gives what an outsider cost a resource for which v waited, what all that is outside of groups cost it, in the
// same unit, and says in words what one did; nil where that is not known. Of an outsider who may run on some CPUs alone
// only those count on which v runs.
func (w *Window) outside(v *Group, resource string) (cost func(*Outsider) float64, all float64,
	did func(*Outsider) string) {
	switch resource {
	case "cpu":
		on := w.runsOn(v)
		for _, id := range on {
			all += w.Host.EachCPU[id]
			for i := range w.Groups {
				all -= w.Groups[i].spread(w)[id]
			}
		}
		return func(o *Outsider) float64 {
				if len(o.CPUs) == 0 {
					return o.CPU
				}
				return o.CPU * float64(len(o.CPUs.Intersect(on))) / float64(len(o.CPUs))
			}, all, func(o *Outsider) string {
				return fmt.Sprintf("uses %s CPUs of the host", cores(o.CPU))
			}
	case "disk":
		for _, d := range w.devices() {
			if !observe.Stacked(d.name) {
				all += d.outside.cost()
			}
		}
		return func(o *Outsider) float64 { return o.IO.atLeastSplit().cost() }, all, func(o *Outsider) string {
			return fmt.Sprintf("about reads %s/s and writes %s/s", size(o.IO.ReadBytes), size(o.IO.WrittenBytes))
		}
	case "memory":
		all = w.taken()
		for i := range w.Groups {
			all -= w.Groups[i].taken()
		}
		return (*Outsider).taken, all, func(o *Outsider) string {
			return fmt.Sprintf("takes %.0f pages a second", o.taken())
		}
	}
	return nil, 0, nil
}
