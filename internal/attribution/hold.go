package attribution

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"bulkhead/internal/observe"
)

// Hold is a limit that holds a group for a short time, so that a victim shows what it gains by that.
type Hold struct {
	Resource string   `json:"resource"`       // for which the victim waits: cpu or disk
	Late     bool     `json:"late,omitempty"` // its CPU time is held, as what it writes goes to the disk later
	Assign   []string `json:"set"`            // as `bulkhead set` takes them
	On       string   `json:"on,omitempty"`
	Did      string   `json:"did"` // what the group does unheld, in words
	device   string
}

// The reasons for which a group is not held.
var (
	// ErrItself says that the group is the victim or below it, where its waiting is the victim's.
	ErrItself = errors.New("it is the victim itself, or a part of it")
	// ErrDatabase says that the group is one of a database.
	ErrDatabase = errors.New("it is a database")
	// ErrAbove says that there are groups below it.
	ErrAbove = errors.New("there are groups below it, which would be held, too")
	// ErrIdle says that it uses too little for a hold to take anything away.
	ErrIdle = errors.New("it does too little that could be held")
)

// A hold leaves heldPart of what a group uses, and leastCores at least. Below twice of that, and below leastBytes and
// leastRequests in a second on a disk, there is nothing to hold.
const (
	heldPart      = 0.1
	leastCores    = 0.05
	leastWriting  = 0.02 // of who writes page cache, which takes little CPU time
	leastBytes    = 1e6
	leastRequests = 20
)

// HoldOf is what holds a group to a tenth of what it uses: its CPU time, or what it does on one disk where more of the
// waiting of the victim is blamed on that. late says that what it writes goes into page cache: where the kernel does
// not count that as the group's when it goes to the disk (cgroup v1), no limit of a disk holds it, and its CPU time is
// held for that.
func (w *Window) HoldOf(r *Report, group string, late bool) (*Hold, error) {
	g, v := w.find(group), w.find(r.Group)
	switch {
	case g == nil || v == nil:
		return nil, fmt.Errorf("%w: %q", ErrNoGroup, group)
	case v.has(group):
		return nil, ErrItself
	case g.Role == "database":
		return nil, ErrDatabase
	case g.Above:
		return nil, ErrAbove
	}
	blamed := map[string]float64{}
	for _, one := range r.Resources {
		for _, row := range one.Rows {
			if row.Who == Other && row.Group == group {
				blamed[one.Name] = one.Part * row.Share
			}
		}
	}
	cpu := g.holdCPU(leastCores)
	if disk := w.holdDisk(v, g, late); disk != nil && (cpu == nil || blamed["disk"] > blamed["cpu"]) {
		return disk, nil
	}
	if cpu == nil {
		return nil, ErrIdle
	}
	return cpu, nil
}

func (g *Group) holdCPU(least float64) *Hold {
	if g.CPU == nil || *g.CPU < 2*least {
		return nil
	}
	limit := math.Max(least, math.Round(*g.CPU*heldPart*100)/100)
	return &Hold{Resource: "cpu", Did: fmt.Sprintf("uses %s CPUs", cores(*g.CPU)),
		Assign: []string{g.Name + ":cpu.limit=" + strconv.FormatFloat(limit, 'f', -1, 64)}}
}

// holdDisk is that of the device on which the group costs most of what the victim waits for; nil where it does too
// little. Devices that pass requests on are held below, where the kernel tells what happens there.
func (w *Window) holdDisk(v, g *Group, late bool) *Hold {
	var worst *onDevice
	devices := w.devices()
	w.weigh(v, devices)
	part := func(d *onDevice) float64 {
		if cost := d.of[g.Name].cost(); !observe.Stacked(d.name) && d.waits > 0 {
			return d.waits * cost / d.all
		}
		return 0
	}
	for _, d := range devices {
		if part(d) > 0 && (worst == nil || part(d) > part(worst)) {
			worst = d
		}
	}
	if worst == nil {
		return nil
	}
	io := worst.of[g.Name]
	h := &Hold{Resource: "disk", device: worst.name, On: "/dev/" + strings.ReplaceAll(worst.name, "!", "/")}
	for _, direction := range []string{"read", "write"} {
		if bytes := *io.bytes(direction); bytes >= leastBytes {
			h.Assign = append(h.Assign, fmt.Sprintf("%s:io.%s.bandwidth=%.0fkB/s", g.Name, direction,
				math.Ceil(bytes*heldPart/1e3)))
		}
		if requests := *io.requests(direction); requests >= leastRequests {
			h.Assign = append(h.Assign, fmt.Sprintf("%s:io.%s.iops=%.0f", g.Name, direction,
				math.Ceil(requests*heldPart)))
		}
	}
	h.Did, _ = onDisks(g, []*onDevice{worst})
	late = late && io.writes().cost() > io.cost()/2 && g.IO[worst.name].cost() < io.cost()/2
	if cpu := g.holdCPU(leastWriting); cpu != nil && late {
		h.Assign, h.On, h.Late = cpu.Assign, "", true
		h.Did = cpu.Did + " and " + h.Did
	}
	if h.Assign == nil {
		return nil
	}
	return h
}

// Used is what a group used of what a hold is about, in a second: CPU time in seconds, or what requests cost the disk.
func (w *Window) Used(group string, h *Hold) float64 {
	g := w.group(group)
	if h.Resource == "cpu" {
		if g.CPU == nil {
			return 0
		}
		return *g.CPU
	}
	for _, d := range w.devices() {
		if d.name == h.device {
			return d.of[group].cost()
		}
	}
	return 0
}

// Moved is what a group, and those below it, did on the disk that a hold is about, by what requests cost it in a
// second; nil where the hold is about no disk. Where the kernel does not count that for one of them, it is what that
// one read from any disk and wrote: its part of the disk is an estimate, which is another as soon as others do less.
func (w *Window) Moved(group string, h *Hold) *float64 {
	v := w.find(group)
	if h.Resource != "disk" || v == nil {
		return nil
	}
	sum := 0.0
	for i := range w.Groups {
		g := &w.Groups[i]
		if !v.has(g.Name) {
			continue
		}
		if len(g.IO) > 0 {
			sum += g.IO[h.device].cost()
		} else if g.Tasks != nil {
			sum += g.Tasks.atLeastSplit().cost()
		}
	}
	return &sum
}

// find is group, or nil where there is none.
func (w *Window) find(name string) *Group {
	for i := range w.Groups {
		if w.Groups[i].Name == name {
			return &w.Groups[i]
		}
	}
	return nil
}
