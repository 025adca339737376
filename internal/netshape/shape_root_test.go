//go:build root

package netshape_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
)

// twoWays counts connections: one shows a long queue, many show unfairness.
var twoWays = []int{1, 32}

func TestEgressIsHeldPerGroup(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dirs := groups(t, "a", "b")
	w := netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Max: 100 * mbit}, Cgroup: dirs[0]},
	}}
	before := shown(p.look())
	p.shape(w, dirs...)
	// Nobody holds anything open: what was made stays by itself, as it has to when the agent is killed.
	p.k.Close()
	p.k = p.host.open()

	limited, free := p.peer.sink(peerAddr, 0), p.peer.sink(peerAddr, 0)
	for _, connections := range twoWays {
		stop := p.host.send(dirs[0], limited.address, connections)
		goodput := make(chan float64, 1)
		go func() { goodput <- rates(t, limited.bytes.Load)[0] }()
		holds(t, fmt.Sprintf("on the wire, %d connections", connections), 100, 5, p.classBytes(1))
		t.Logf("goodput: %.1f Mbit/s", <-goodput)
		stop()
	}
	for _, dir := range []string{dirs[1], ""} {
		stop := p.host.send(dir, free.address, 1)
		if got := rates(t, free.bytes.Load)[0]; got < 130*unit {
			t.Errorf("a sender outside of the group gets %.0f Mbit/s", got)
		}
		stop()
	}
	p.shape(netshape.Wanted{Device: device}, dirs...)
	if after := shown(p.look()); !slices.Equal(before, after) {
		t.Errorf("before: %v, after: %v", before, after)
	}
}

func TestIngressIsHeldPerPort(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	limited, free := p.host.sink(hostAddr, 3306), p.host.sink(hostAddr, 3307)
	w := netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Ingress: netshape.Share{Max: 50 * mbit}, Ports: []uint16{3306}},
	}}
	before := shown(p.look())
	p.shape(w)
	for _, connections := range twoWays {
		stop := p.peer.send("", limited.address, connections)
		goodput := make(chan float64, 1)
		go func() { goodput <- rates(t, limited.bytes.Load)[0] }()
		holds(t, fmt.Sprintf("on the wire, %d connections", connections), 50, 5, p.nicBytes(1))
		t.Logf("goodput: %.1f Mbit/s", <-goodput)
		stop()
	}
	stop := p.peer.send("", free.address, 1)
	if got := rates(t, free.bytes.Load)[0]; got < 80*unit {
		t.Errorf("another port gets %.0f Mbit/s", got)
	}
	stop()
	p.shape(netshape.Wanted{Device: device})
	if after := shown(p.look()); !slices.Equal(before, after) {
		t.Errorf("before: %v, after: %v", before, after)
	}
}

// IPv6 has filters of its own.
func TestIPv6IsSortedToo(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	to, from := p.host.sink(hostAddr6, 3306), p.host.source(hostAddr6, 3307)
	p.shape(netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Ingress: netshape.Share{Max: 50 * mbit}, Egress: netshape.Share{Max: 80 * mbit},
			Ports: []uint16{3306, 3307}},
	}})
	stop := p.peer.send("", to.address, 4)
	holds(t, "arrives", 50, 5, p.nicBytes(1))
	stop()
	p.peer.fetch(from)
	holds(t, "leaves", 80, 5, p.classBytes(1))
}

// Where no program can sort, the port that a group's packets come from does.
func TestEgressIsSortedByPort(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	limited, free := p.host.source(hostAddr, 3306), p.host.source(hostAddr, 3307)
	p.shape(netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Max: 100 * mbit}, Ports: []uint16{3306}},
	}})
	got := p.peer.fetch(limited)
	holds(t, "on the wire", 100, 5, p.classBytes(1))
	got.stop()
	got = p.peer.fetch(free)
	if rate := rates(t, got.bytes.Load)[0]; rate < 130*unit {
		t.Errorf("another port gets %.0f Mbit/s", rate)
	}
	got.stop()
}

// Both get at least what they were promised, together all there is, and one alone gets all.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dirs := groups(t, "a", "b")
	p.shape(netshape.Wanted{Device: device, LinkRate: 100 * mbit, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Min: 70 * mbit}, Cgroup: dirs[0]},
		{Name: "b", Slot: 2, Egress: netshape.Share{Min: 20 * mbit}, Cgroup: dirs[1]},
	}}, dirs...)
	to := p.peer.sink(peerAddr, 0)
	stopA, stopB := p.host.send(dirs[0], to.address, 4), p.host.send(dirs[1], to.address, 4)
	got := holds(t, "together", 100, 5, p.classBytes(1), p.classBytes(2))
	t.Logf("each: %.1f and %.1f Mbit/s", got[0], got[1])
	if got[0] < 70*unit*0.95 || got[1] < 20*unit*0.95 {
		t.Errorf("70 and 20 Mbit/s are promised, they get %.1f and %.1f", got[0], got[1])
	}
	stopA()
	holds(t, "one alone", 100, 5, p.classBytes(2))
	stopB()
}

// The group nearest to the socket counts, within those above it: a program runs for all directories below its own, too.
func TestNestedGroups(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dirs := groups(t, "a", "a/b", "a/c")
	p.shape(netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Max: 60 * mbit}, Cgroup: dirs[0]},
		{Name: "a/b", Parent: "a", Slot: 2, Egress: netshape.Share{Max: 20 * mbit}, Cgroup: dirs[1]},
	}}, dirs...)
	to := p.peer.sink(peerAddr, 0)
	stopB := p.host.send(dirs[1], to.address, 2)
	holds(t, "child alone", 20, 5, p.classBytes(2))
	stopC := p.host.send(dirs[2], to.address, 2) // without a share of its own: counts as its parent
	holds(t, "child and parent", 60, 5, p.classBytes(1), p.classBytes(2))
	stopB()
	holds(t, "parent alone", 60, 5, p.classBytes(1))
	stopC()
}

// An administrator changes a rate under load: it holds at once, and nothing is regrafted.
func TestRateChangesInPlace(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dirs := groups(t, "a")
	w := netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{
		{Name: "a", Slot: 1, Egress: netshape.Share{Max: 100 * mbit}, Cgroup: dirs[0]},
	}}
	p.shape(w, dirs...)
	p.host.send(dirs[0], p.peer.sink(peerAddr, 0).address, 4)
	w.Groups[0].Egress.Max = 30 * mbit
	for _, s := range p.shape(w, dirs...) {
		if s.Do.Verb != tc.Alter {
			t.Errorf("not a change in place: %s", s.Do)
		}
	}
	holds(t, "after the change", 30, 5, p.classBytes(1))
}

// Where no port is known, a program drops what comes beyond the rate, at this interface alone: rougher than a queue.
func TestIngressIsPoliced(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dirs := groups(t, "a")
	limited, free := p.peer.source(peerAddr, 3306), p.peer.source(sparePeer, 3306)
	w := netshape.Wanted{Device: device, Groups: []netshape.Group{
		{Name: "a", Slot: 1, Ingress: netshape.Share{Max: 50 * mbit}, Cgroup: dirs[0]},
	}}
	p.shape(w, dirs...)
	p.k.Close() // it stays by itself
	p.k = p.host.open()
	arrived := p.arrived(device)
	// A bucket of 200 ms of the rate may be emptied or filled within the measurement, and readers get at once what came
	// before and waited for a packet that had been dropped: in one second that was a third of the rate.
	length := max(3*time.Second, span(t))
	percent := 10.0
	if s := length.Seconds(); s < 30 {
		percent += 20 / s
	}
	for _, connections := range twoWays {
		stop := p.host.take(dirs[0], limited, connections)
		// What is dropped and sent again does not count: the readers get the rate.
		before, began := arrived(), time.Now()
		holdsOver(t, length, fmt.Sprintf("%d connections", connections), 50, percent, stop.count)
		t.Logf("on the wire: %.1f Mbit/s", float64(arrived()-before)*8/1e6/time.Since(began).Seconds())
		stop.stop()
	}
	got := p.host.take(dirs[0], free, 1)
	if rate := rates(t, got.count)[0]; rate < 130*unit {
		t.Errorf("another interface brings %.0f Mbit/s", rate)
	}
	got.stop()

	w.Groups[0].Ingress.Max = 20 * mbit
	if steps := p.shape(w, dirs...); len(steps) != 1 || steps[0].Do.Verb != tc.Alter {
		t.Errorf("a new rate takes %v", steps)
	}
	got = p.host.take(dirs[0], limited, 4)
	holdsOver(t, length, "after a change", 20, percent, got.count)
	got.stop()
	p.shape(netshape.Wanted{Device: device}, dirs...)
	got = p.host.take(dirs[0], limited, 1)
	if rate := rates(t, got.count)[0]; rate < 130*unit {
		t.Errorf("without a limit %.0f Mbit/s arrive", rate)
	}
	got.stop()
}
