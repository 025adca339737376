package attribution

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Outsider is what runs outside of all groups under one name: a unit of systemd, a program of a user, the kernel's own
// threads. Figures are for a second: CPU in seconds, IO by calls, Faults page faults.
type Outsider struct {
	Name   string
	CPU    float64
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

// nameOutside divides the row of what runs outside of all groups by names, as far as it is known who that is. What
// nobody is known for stays one row without a name. The sum stays what it was.
func (w *Window) nameOutside(one *Resource) {
	at := slices.IndexFunc(one.Rows, func(row Row) bool { return row.Who == Outside })
	if at < 0 || len(w.Outsiders) == 0 {
		return
	}
	cost, all, did := w.outside(one.Name)
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

// outside gives what an outsider cost a resource, what all that is outside of groups cost it, in the same unit, and
// says in words what one did; nil where that is not known.
func (w *Window) outside(resource string) (cost func(*Outsider) float64, all float64, did func(*Outsider) string) {
	switch resource {
	case "cpu":
		for _, busy := range w.Host.EachCPU {
			all += busy
		}
		for i := range w.Groups {
			if used := w.Groups[i].CPU; used != nil {
				all -= *used
			}
		}
		return func(o *Outsider) float64 { return o.CPU }, all, func(o *Outsider) string {
			return fmt.Sprintf("uses %s CPUs of the host", cores(o.CPU))
		}
	case "disk":
		for _, d := range w.devices() {
			if !stacked.MatchString(d.name) {
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
