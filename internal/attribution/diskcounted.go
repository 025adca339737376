package attribution

// mostlyCounted is the part of a row from which on it counts as counted. The rest was divided by what everybody used.
const mostlyCounted = 0.9

// rowKey is whom a row blames.
type rowKey struct {
	who   Who
	group string
}

// countedAtDisks puts what BPF programs counted in the place of what was divided by use: but for the part of a limit of
// v's own, and for time in which v waited and had no request that they saw, as when page cache has to be written first.
// What the kernel wrote for nobody knows whom stays divided by who wrote page cache. It gives what was counted; nil
// where nothing was.
func (w *Window) countedAtDisks(v *Group, devices []*onDevice, waited float64, b *blame) map[rowKey]float64 {
	c := w.diskBlame(v)
	requests := c.Service + c.Own + c.Outside + c.WrittenBack + c.Nobody
	for _, d := range c.Groups {
		requests += d
	}
	rest := waited - b.limit
	if requests <= 0 || rest <= 0 {
		return nil
	}
	seen := min(rest, requests) // requests at a time count several times
	by := 1 - seen/rest
	b.own, b.outside = b.own*by, b.outside*by
	for name := range b.others {
		b.others[name] *= by
	}
	part := seen / requests
	counted := map[rowKey]float64{{Service, ""}: c.Service * part, {OwnLoad, ""}: c.Own * part,
		{Outside, ""}: c.Outside * part}
	b.service = c.Service * part
	b.own, b.outside = b.own+c.Own*part, b.outside+c.Outside*part
	for name, d := range c.Groups {
		counted[rowKey{Other, name}] = d * part
		b.others[name] += d * part
	}
	w.blameWriters(v, devices, c.WrittenBack*part, b)
	return counted
}

// diskBlame is what was counted of v and of groups below it, whose waiting PSI has, too.
func (w *Window) diskBlame(v *Group) DiskBlame {
	all := DiskBlame{Groups: map[string]float64{}}
	for i := range w.Groups {
		g := &w.Groups[i]
		if g.DiskBlame == nil || !v.has(g.Name) {
			continue
		}
		all.Service += g.DiskBlame.Service
		all.Own += g.DiskBlame.Own
		all.Outside += g.DiskBlame.Outside
		all.WrittenBack += g.DiskBlame.WrittenBack
		all.Nobody += g.DiskBlame.Nobody
		for name, d := range g.DiskBlame.Groups {
			if v.has(name) {
				all.Own += d
			} else {
				all.Groups[name] += d
			}
		}
	}
	return all
}

// blameWriters divides a wait because of page cache that the kernel wrote back: everybody has the part that is his of
// what was written to the disks that v waits for and was not counted for a group.
func (w *Window) blameWriters(v *Group, devices []*onDevice, waited float64, b *blame) {
	writes, outside := map[string]float64{}, 0.0
	sum := 0.0
	for _, d := range devices {
		if d.waits <= 0 {
			continue
		}
		for name, io := range d.of {
			wrote := max(0, io.WrittenBytes-w.group(name).IO[d.name].WrittenBytes)
			writes[name] += wrote
			sum += wrote
		}
		outside += d.outside.WrittenBytes
		sum += d.outside.WrittenBytes
	}
	if sum <= 0 {
		b.outside += waited
		return
	}
	b.outside += waited * outside / sum
	for name, wrote := range writes {
		if v.has(name) {
			b.own += waited * wrote / sum
		} else {
			b.others[name] += waited * wrote / sum
		}
	}
}
