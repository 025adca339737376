package attribution

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

// perRequest is how many bytes cost a disk as much as one request more. No single number fits all disks: it is that of
// fast ones.
const perRequest = 128 << 10

// cost is what requests cost a disk, in requests.
func (io IO) cost() float64 {
	return io.Reads + io.Writes + (io.ReadBytes+io.WrittenBytes)/perRequest
}

// writes is the part of the cost that is writing.
func (io IO) writes() IO { return IO{WrittenBytes: io.WrittenBytes, Writes: io.Writes} }

// onDevice is what everybody does on a block device.
type onDevice struct {
	name    string
	of      map[string]IO // by group: what the kernel counted, and its part of what it did not
	outside IO
	all     float64 // cost of all
	waits   float64 // what weighs its part in what the group waited
}

// costOf is what requests of a group, and of those below it, cost the device.
func (d *onDevice) costOf(v *Group) (cost float64) {
	for name, io := range d.of {
		if v.has(name) {
			cost += io.cost()
		}
	}
	return cost
}

// disk divides the part of the time in which a thread of v waited for block devices, first among those that it uses.
// On each, everybody has the part that his requests cost. A limit of its own that is used up has all of it: without the
// others the group would get no more. Where BPF programs count, they tell whose requests disks had meanwhile.
func disk(w *Window, v *Group) Resource {
	one := Resource{Name: "disk", Source: "`io.pressure` of the group", Grade: Counted}
	devices := w.devices()
	weights, guess := w.weigh(v, devices)
	some, known := v.Pressure["io"]
	switch {
	case known:
		one.Waited = some
	case len(w.Host.Disks) > 0:
		one.Waited, one.Grade = min(1, guess), Estimated
		one.Source = "no PSI of the group: its part of the time that requests took, by `/proc/diskstats`"
	default:
		one.Source, one.Grade = "neither PSI of the group nor figures of disks are known", ""
		return one
	}
	one.Part = min(1, one.Waited)
	b := &blame{others: map[string]float64{}}
	held := map[string]bool{}
	for _, h := range w.holders(v) {
		if strings.HasPrefix(h.Key, "io.") {
			held[h.Device] = true
		}
	}
	for _, d := range devices {
		if d.waits <= 0 || weights <= 0 {
			continue
		}
		waited := one.Waited * d.waits / weights
		if held[d.name] {
			b.limit += waited
			continue
		}
		for name, io := range d.of {
			cost := io.cost()
			if v.has(name) {
				b.own += waited * cost / d.all
			} else {
				b.others[name] += waited * cost / d.all
			}
		}
		b.outside += waited * d.outside.cost() / d.all
	}
	counted := w.countedAtDisks(v, devices, one.Waited, b)
	switch {
	case counted != nil:
		one.Source += "; BPF programs on requests of disks"
	case w.Host.NotCountingDisks != "":
		one.Source += "; no BPF programs count (" + w.Host.NotCountingDisks + ")"
	}
	return resource(one, b, func(row *Row) {
		if counted[rowKey{row.Who, row.Group}] >= mostlyCounted*row.Seconds {
			row.Grade = Counted
		}
		w.describeDisk(v, row, devices)
	})
}

// weigh fills in what a device's part in the wait of v is weighed by, and gives the sum of these and the part of the
// time that requests took which is v's, in seconds of each second.
func (w *Window) weigh(v *Group, devices []*onDevice) (weights, guess float64) {
	timed := true // all disks that it uses tell how long requests took
	var below float64
	for _, d := range devices {
		host, known := w.Host.Disks[d.name]
		timed = timed && (known || d.costOf(v) == 0)
		part := host.Seconds * d.costOf(v) / d.all
		if guess += part; !observe.Stacked(d.name) {
			below += part
		}
	}
	for _, d := range devices {
		if d.waits = d.costOf(v); timed && guess > 0 {
			d.waits = w.Host.Disks[d.name].Seconds * d.costOf(v) / d.all
		}
		weights += d.waits
	}
	if below > 0 { // what stacked devices were asked for is in it
		guess = below
	}
	return weights, guess
}

// devices are the block devices that somebody uses. What groups did on each is counted where they have a directory that
// counts it. Of the rest of each device everybody has the part that is his of all that threads read and wrote beside
// that: groups without such a directory, and what the kernel writes back of their page cache.
func (w *Window) devices() []*onDevice {
	names := map[string]bool{}
	counted, beside := map[string]IO{}, map[string]IO{}
	var wanted IO
	for _, g := range w.Groups {
		var own IO
		for name, io := range g.IO {
			names[name] = true
			counted[name] = counted[name].plus(io)
			if !observe.Stacked(name) {
				own = own.plus(io)
			}
		}
		if g.Tasks != nil {
			beside[g.Name] = g.Tasks.atLeastSplit().less(own)
			wanted = wanted.plus(beside[g.Name])
		}
	}
	var rest IO // of all disks
	for name, host := range w.Host.Disks {
		names[name] = true
		if !observe.Stacked(name) {
			rest = rest.plus(host.less(counted[name]))
		}
	}
	var all []*onDevice
	for _, name := range slices.Sorted(maps.Keys(names)) {
		d := &onDevice{name: name, of: map[string]IO{}, outside: w.Host.Disks[name].less(counted[name])}
		left := d.outside
		for _, g := range w.Groups {
			part := left.part(beside[g.Name], wanted, rest)
			d.outside = d.outside.less(part)
			if io := g.IO[name].plus(part); io.cost() > 0 {
				d.of[g.Name] = io
				d.all += io.cost()
			}
		}
		if d.all += d.outside.cost(); d.all > 0 {
			all = append(all, d)
		}
	}
	return all
}

// part is what somebody has of what happened on one device, who did his of all on all devices, where rest is what
// happened on all of them. Bytes tell how much of that nobody did. As calls of tasks are not requests of disks,
// requests are divided by calls only among tasks.
func (io IO) part(his, all, rest IO) IO {
	of := func(n, his, all float64) float64 {
		if all <= 0 {
			return 0
		}
		return n * his / all
	}
	reads, writes := max(rest.ReadBytes, all.ReadBytes), max(rest.WrittenBytes, all.WrittenBytes)
	return IO{of(io.ReadBytes, his.ReadBytes, reads), of(io.WrittenBytes, his.WrittenBytes, writes),
		of(io.Reads, his.Reads, all.Reads) * of(1, all.ReadBytes, reads),
		of(io.Writes, his.Writes, all.Writes) * of(1, all.WrittenBytes, writes)}
}

// split is the size from which on one call becomes several requests.
const split = 512 << 10

// atLeastSplit is io of tasks with at least so many calls.
func (io IO) atLeastSplit() IO {
	io.Reads, io.Writes = max(io.Reads, io.ReadBytes/split), max(io.Writes, io.WrittenBytes/split)
	return io
}

// describeDisk says what a row did on the disks that v waits for.
func (w *Window) describeDisk(v *Group, row *Row, devices []*onDevice) {
	switch row.Who {
	case Outside:
		row.Did = "the kernel and processes of no group use the same disks"
	case OwnLimit:
		row.Did, row.Command = w.holds(v, "io.")
	case OwnLoad:
		row.Did, _ = onDisks(v, devices)
	case Service:
		did, _ := onDisks(v, devices)
		row.Did = "takes so long for a request with nothing in its way; " + v.Name + " " + did
	case Other:
		g := w.group(row.Group)
		row.Role, row.Engine = g.Role, g.Engine
		row.Did, row.Command = onDisks(g, devices)
	}
}

// onDisks says what a group did on the devices that somebody waits for, and the command that would hold it to half of
// that, on the device and in the direction where it costs most.
func onDisks(g *Group, devices []*onDevice) (text, command string) {
	var did []string
	worst := 0.0
	for _, d := range devices {
		io := d.of[g.Name]
		if d.waits <= 0 || io.cost() <= 0 {
			continue
		}
		about := ""
		if _, counted := g.IO[d.name]; !counted {
			about = "about "
		}
		did = append(did, fmt.Sprintf("%sreads %s/s (%.0f requests) and writes %s/s (%.0f) on %s", about,
			size(io.ReadBytes), io.Reads, size(io.WrittenBytes), io.Writes, d.name))
		part := io.cost()
		if observe.Stacked(d.name) { // it is held below, where that is told
			part = math.SmallestNonzeroFloat64
		}
		if part <= worst || g.Above {
			continue
		}
		worst = part
		command = half(g.Name, io, d.name)
	}
	return strings.Join(did, "; "), command
}

// half is the command that holds a group to half of what it does on a device, in the direction and by what costs most.
func half(group string, io IO, device string) string {
	direction, bytes, requests := "read", io.ReadBytes, io.Reads
	if io.writes().cost() > io.cost()/2 {
		direction, bytes, requests = "write", io.WrittenBytes, io.Writes
	}
	switch {
	case requests >= 2 && requests > bytes/perRequest:
		return top.Command(group, "io."+direction+".iops", device, fmt.Sprintf("%.0f", math.Ceil(requests/2)))
	case bytes >= 2e6:
		return top.Command(group, "io."+direction+".bandwidth", device, fmt.Sprintf("%.0fMB/s", math.Ceil(bytes/2e6)))
	case bytes >= 2e3:
		return top.Command(group, "io."+direction+".bandwidth", device, fmt.Sprintf("%.0fkB/s", math.Ceil(bytes/2e3)))
	}
	return ""
}
