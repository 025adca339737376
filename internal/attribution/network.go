package attribution

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"bulkhead/internal/observe/top"
)

// Sent is what the connections of a group sent over one interface: bytes in a second, and for which part of the time
// the connection that waited most had data that waited in queues.
type Sent struct{ Bytes, Waited float64 }

// Link is what an interface sent in a second, in bytes, and the part of looks at which packets waited in its own queue.
type Link struct{ Bytes, Queued float64 }

// network divides the part of the time in which the connection of v that waited most had data to send that waited in
// queues of the network. Only while packets waited in the interface's own queue somebody on this host can be to blame:
// then everybody has the part that his bytes are of all that it sent. A limit of its own that is used up has all of it.
func network(w *Window, v *Group) Resource {
	one := Resource{Name: "network", Source: "connections are looked at from now on only, as root; no record has them"}
	if w.Host.Links == nil {
		return one
	}
	if w.unseen(v) {
		one.Source = "its processes are in another network namespace, whose connections are not looked at"
		return one
	}
	one.Source, one.Grade = "`tcp_info` of its connections; queues of interfaces", Estimated
	held := map[string]bool{}
	for _, h := range w.holders(v) {
		if strings.HasPrefix(h.Key, "network.egress") {
			held[h.Device] = true
		}
	}
	b := &blame{others: map[string]float64{}}
	for _, name := range slices.Sorted(maps.Keys(w.Host.Links)) {
		link, waited, own, sum := w.Host.Links[name], 0.0, 0.0, 0.0
		for i := range w.Groups {
			g := &w.Groups[i]
			sent := g.Sent[name]
			sum += sent.Bytes
			if v.has(g.Name) {
				waited, own = max(waited, sent.Waited), own+sent.Bytes
			}
		}
		one.Waited += waited
		if held[name] {
			b.limit += waited
			continue
		}
		all := max(link.Bytes, sum)
		if all <= 0 {
			continue
		}
		waited *= link.Queued
		b.own += waited * own / all
		b.outside += waited * (all - sum) / all
		for i := range w.Groups {
			if g := &w.Groups[i]; !v.has(g.Name) {
				b.others[g.Name] += waited * g.Sent[name].Bytes / all
			}
		}
	}
	one.Part = min(1, one.Waited)
	return resource(one, b, func(row *Row) { w.describeNetwork(v, row) })
}

// unseen says that v has processes in another network namespace, and no connections in this one.
func (w *Window) unseen(v *Group) bool {
	away, sent := false, false
	for i := range w.Groups {
		if g := &w.Groups[i]; v.has(g.Name) {
			away, sent = away || g.Elsewhere, sent || len(g.Sent) > 0
		}
	}
	return away && !sent
}

// describeNetwork says what a row sent on the interfaces over which v sends.
func (w *Window) describeNetwork(v *Group, row *Row) {
	switch row.Who {
	case Outside:
		row.Did = "the kernel, processes of no group or of other network namespaces, and what is not TCP send over " +
			"the same interfaces"
	case OwnLimit:
		row.Did, row.Command = w.holds(v, "network.egress")
	case OwnLoad:
		row.Did, _ = v.sends()
	case Other:
		g := w.group(row.Group)
		row.Role, row.Engine = g.Role, g.Engine
		row.Did, row.Command = g.sends()
	}
}

// sends says what a group sends, and the command that would hold it to half of that where it sends most.
func (g *Group) sends() (text, command string) {
	var did []string
	most := 0.0
	for _, name := range slices.Sorted(maps.Keys(g.Sent)) {
		bytes := g.Sent[name].Bytes
		if bytes <= 0 {
			continue
		}
		did = append(did, fmt.Sprintf("sends %s/s over %s", size(bytes), name))
		if bytes > most && bytes*8 >= 2e3 && !g.Above {
			most = bytes
			command = top.Command(g.Name, "network.egress.max", name, fmt.Sprintf("%.0fkbit/s",
				math.Ceil(bytes*8/2e3)))
		}
	}
	return strings.Join(did, "; "), command
}
