package closelook

import (
	"net"
	"net/netip"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
)

// connection is a TCP connection of a group; "" of none.
type connection struct {
	sockets.Sender

	group string
}

// connections lists those of this network namespace by their inodes; members are groups by the numbers of processes.
// known is false where the kernel does not tell.
func connections(h *host.Host, members map[int]string) (all map[uint32]connection, known bool) {
	list, err := sockets.Senders()
	if err != nil {
		return nil, false
	}
	owners := map[uint32]string{}
	for pid, group := range members {
		inodes, _ := h.Proc.SocketInodes(pid) // one that is gone has none
		for _, inode := range inodes {
			owners[inode] = group
		}
	}
	all = map[uint32]connection{}
	for _, s := range list {
		all[s.Inode] = connection{s, owners[s.Inode]}
	}
	return all, true
}

// elsewhere marks groups of which processes are in another network namespace: the connections there are not listed.
func elsewhere(h *host.Host, w *attribution.Window, members map[int]string) {
	away := map[string]bool{}
	for pid, group := range members {
		away[group] = away[group] || sockets.Elsewhere(h.Root, pid)
	}
	for i := range w.Groups {
		w.Groups[i].Elsewhere = away[w.Groups[i].Name]
	}
}

// every is the time between two looks at queues.
const every = 100 * time.Millisecond

// queues watches interfaces: what they sent, and at how many looks packets waited in their queues.
type queues struct {
	links       []tc.Link
	of          map[netip.Addr]string // interfaces by their addresses, loopback left out
	first, last []tc.Stats            // of links; nil before the first look
	looks       int
	waiting     []int // of links: looks at which packets waited
	stop        chan struct{}
	stopped     chan struct{}
}

// watchQueues begins to watch; nil where that cannot be.
func watchQueues() *queues {
	conn, err := tc.Dial(nil)
	if err != nil {
		return nil
	}
	q := &queues{of: addresses(), stop: make(chan struct{}), stopped: make(chan struct{})}
	links, err := conn.Links()
	if err != nil {
		_ = conn.Close() // nothing was written
		return nil
	}
	used := map[string]bool{}
	for _, name := range q.of {
		used[name] = true
	}
	for _, one := range links {
		if used[one.Name] {
			q.links = append(q.links, one)
		}
	}
	q.waiting = make([]int, len(q.links))
	go func() {
		defer close(q.stopped)
		defer conn.Close()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			if now, err := conn.Queues(q.links); err == nil {
				q.see(now)
			}
			select {
			case <-q.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return q
}

// see takes in what a look saw.
func (q *queues) see(now []tc.Stats) {
	if q.first == nil {
		q.first = now
	}
	q.last = now
	q.looks++
	for i := range now {
		if now[i].Backlog > 0 {
			q.waiting[i]++
		}
	}
}

// end ends the watching. What was seen may be read then.
func (q *queues) end() {
	close(q.stop)
	<-q.stopped
}

// did is what links did in a second.
func (q *queues) did(seconds float64) map[string]attribution.Link {
	all := make(map[string]attribution.Link, len(q.links))
	for i, one := range q.links {
		if q.looks == 0 {
			continue
		}
		all[one.Name] = attribution.Link{Bytes: max(0, float64(q.last[i].Bytes)-float64(q.first[i].Bytes)) / seconds,
			Queued: float64(q.waiting[i]) / float64(q.looks)}
	}
	return all
}

// addresses are the interfaces of this network namespace by their addresses.
func addresses() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	list, _ := net.Interfaces()
	for _, one := range list {
		if one.Flags&net.FlagLoopback != 0 {
			continue
		}
		own, _ := one.Addrs()
		for _, a := range own {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				all[p.Addr().Unmap().WithZone("")] = one.Name
			}
		}
	}
	return all
}

// addSent adds to a window what groups sent between two lists of their connections, and how long they waited for that.
func addSent(w *attribution.Window, before, now map[uint32]connection, q *queues, seconds float64) {
	if seconds <= 0 {
		return
	}
	w.Host.Links = q.did(seconds)
	of := sums(before, now, q.of, seconds)
	for i := range w.Groups {
		w.Groups[i].Sent = of[w.Groups[i].Name]
	}
}

// sums is what groups sent by interface, of connections that there still are: one that is new counts as a whole, but
// not one that was there and whose process came into the group meanwhile.
func sums(before, now map[uint32]connection, interfaces map[netip.Addr]string, seconds float64,
) map[string]map[string]attribution.Sent {
	least := map[netip.Addr]time.Duration{} // the shortest round trip to each address
	for _, c := range now {
		to := c.Remote.Addr()
		if c.Least > 0 && (least[to] == 0 || c.Least < least[to]) {
			least[to] = c.Least
		}
	}
	all := map[string]map[string]attribution.Sent{}
	for inode, c := range now {
		name := interfaces[c.Local.Addr().WithZone("")]
		if name == "" || c.group == "" {
			continue
		}
		was := before[inode]
		if was.Local != c.Local || was.Remote != c.Remote || was.Sent > c.Sent {
			was = connection{}
		}
		if all[c.group] == nil {
			all[c.group] = map[string]attribution.Sent{}
		}
		s := all[c.group][name]
		s.Bytes += float64(c.Sent-was.Sent) / seconds
		s.Waited = max(s.Waited, min(1, waited(&was.Sender, &c.Sender, least[c.Remote.Addr()]).Seconds()/seconds))
		all[c.group][name] = s
	}
	return all
}

// waited is for how long a connection had data that waited in queues: it was busy, its other end had room, and of the
// round trip only what is beyond the shortest one is queueing.
func waited(was, now *sockets.Sender, least time.Duration) time.Duration {
	busy := (now.Busy - was.Busy) - (now.PeerFull - was.PeerFull)
	trip := now.RoundTrip
	if was.RoundTrip > 0 {
		trip = (trip + was.RoundTrip) / 2
	}
	if busy <= 0 || trip <= least {
		return 0
	}
	return time.Duration(float64(busy) * (1 - float64(least)/float64(trip)))
}
