//go:build root

package network

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/internal/netshape"
)

// Limits in both directions, held for real traffic: by the group's sockets, by the port that it listens on, and policed
// where no port is known. They stay when the agent is killed, change in place, and go with their group.
func TestShares(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const in, out = netshape.Slot(1), netshape.Slot(2)
	s.write("", "  in: {network: [{on: up0, ingress: "+rate(50)+"}]}\n"+
		"  out: {network: [{on: up0, egress: "+rate(100)+"}]}\n"+
		"  policed: {network: [{on: up0, ingress: "+rate(30)+"}]}\n  without: {}\n")
	s.exits(0, []string{"told by a program on its directory", "is policed", "drops packets for a moment"}, "plan",
		"--long")
	s.must("apply")
	s.exits(0, []string{"nothing to do"}, "apply")

	sink := s.sink(peerAddr)
	_, port := s.traffic("in", "serve", hostAddr+":0", 0)
	s.exits(0, []string{"what arrives for TCP port " + port + " is led to a virtual NIC"}, "plan", "--long")
	s.must("apply")
	s.verified()

	s.holdsBothWays(out, in, sink, port, 100, 50)
	source, _ := s.peer.listen(peerAddr+":0", flood)
	p, _ := s.traffic("policed", "take", source, 4)
	time.Sleep(time.Second) // the bucket is empty
	holdsOver(t, 5*span(), "what is let through", 30, 10, p.taken)
	if g := s.status("policed").Traffic; g == nil || !g.Counted || g.In.Rate == 0 || len(g.On) != 1 ||
		!g.On[0].Policed {
		t.Errorf("status of what is policed: %+v", g)
	}
	p.end()
	other, _ := s.traffic("without", "send", sink, 1)
	soon(t, "traffic of a group without limits in status", func() bool {
		g := s.status("without").Traffic
		return g != nil && g.Counted && g.Out.Rate > 0 && g.Out.Packets > 0 && len(g.On) == 0
	})
	other.end()

	agent := s.start(s.host, s.command("agent"))
	soon(t, "the agent", func() bool { return !strings.Contains(s.run("status").out, "NOT RUNNING") })
	s.traffic("out", "send", sink, 4)
	soon(t, "what leaves in status", func() bool {
		g := s.status("out").Traffic
		return g != nil && len(g.On) == 1 && g.On[0].Rate > 0 && g.On[0].Packets > 0 && g.Out.Rate > 0
	})
	agent.end()
	holds(t, "what leaves with the agent killed", 100, 5, s.bytes(out, netshape.Egress))
	s.must("set", "out:network.egress.max="+rate(40), "--on", "up0")
	time.Sleep(time.Second) // what waits was let in by the old rate
	holds(t, "what leaves after a set", 40, 5, s.bytes(out, netshape.Egress))
	s.must("unset", "out:network.egress.max", "--on", "up0")

	s.must("release", "out")
	state := s.look(device)
	if _, held := state.Held(out, netshape.Egress); held {
		t.Error("the released group is held")
	}
	if _, held := state.Held(in, netshape.Ingress); !held {
		t.Error("the other group was released, too")
	}
	s.verified()
	s.must("release", "--all")
	s.clean("released")
	if state := s.look(device); len(state.Device.Qdiscs) != 1 || state.Device.Qdiscs[0].Kind != "noqueue" {
		t.Errorf("the interface has %+v", state.Device.Qdiscs)
	}
}

// Two groups with guarantees get them under full load, and a lone one gets all.
func TestGuaranteesThroughTheVerbs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write("network: [{on: up0, rate: "+rate(100)+"}], reserve: {network: "+rate(5)+"}",
		"  large: {network: [{on: up0, egress: {min: "+rate(70)+"}}]}\n  small: {network: [{on: up0, egress: {min: "+
			rate(20)+"}}]}\n")
	s.must("apply")
	sink := s.sink(peerAddr)
	large, _ := s.traffic("large", "send", sink, 4)
	small, _ := s.traffic("small", "send", sink, 4)
	time.Sleep(500 * time.Millisecond)
	for try := 0; ; try++ {
		got := measure(span(), s.bytes(1, netshape.Egress), s.bytes(2, netshape.Egress))
		if got[0] >= 70*.95 && got[1] >= 20*.95 && got[0]+got[1] <= 105 {
			t.Logf("together %.1f and %.1f", got[0], got[1])
			break
		}
		if try == 6 {
			t.Fatalf("together %.1f and %.1f, want 70 and 20 at least", got[0], got[1])
		}
	}
	large.end()
	holds(t, "alone", 100, 5, s.bytes(2, netshape.Egress))
	small.end()
	s.must("release", "--all")
	s.clean("released")
}

// What somebody else gave an interface is named and left alone; with replace it makes room and comes back exactly.
func TestForeignQdiscThroughTheVerbs(t *testing.T) {
	s := newSite(t)
	s.host.must("give the interface a qdisc", func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT,
				Handle: netlink.MakeHandle(0x42, 0)},
			Rate: 500e6 / 8, Limit: 1 << 20, Buffer: 1 << 20,
		})
	})
	before := records(s)
	s.write("", "  a: {network: [{on: up0, egress: "+rate(100)+"}]}\n  b: {cpu: {limit: 1}}\n")
	s.exits(5, []string{"tbf 42:", "left alone", "replace: true"}, "apply")
	if got := records(s); got != before {
		t.Fatalf("after a refused apply\n%s\nbefore\n%s", got, before)
	}
	s.write("", "  a: {network: [{on: up0, egress: "+rate(100)+", replace: true}]}\n  b: {cpu: {limit: 1}}\n")
	s.exits(0, []string{"takes the place of tbf 42:"}, "plan", "--long")
	s.must("apply")
	s.verified()
	if got := records(s); strings.Contains(got, "tbf") {
		t.Errorf("it is still there:\n%s", got)
	}
	// A policy without the interface gives it back what it had.
	s.write("", "  a: {}\n  b: {cpu: {limit: 1}}\n")
	s.must("apply")
	if got := records(s); got != before {
		t.Errorf("without limits\n%s\nbefore\n%s", got, before)
	}
	s.write("", "  a: {network: [{on: up0, egress: "+rate(100)+", replace: true}]}\n")
	s.must("apply")
	s.must("release", "--all")
	if got := records(s); got != before {
		t.Errorf("released\n%s\nbefore\n%s", got, before)
	}
}

// records is the qdiscs of the interface with their options.
func records(s *site) string {
	state := s.look(device)
	var b strings.Builder
	for _, q := range state.Device.Qdiscs {
		b.WriteString(q.String() + " at " + q.Parent.String() + " ")
		for _, o := range q.Options {
			b.WriteByte("0123456789abcdef"[o>>4])
			b.WriteByte("0123456789abcdef"[o&15])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// What cannot be is said with its place, before anything is changed; interfaces that go, and come under another name,
// hold up nobody.
func TestBadInterfaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, c := range []struct{ group, want string }{
		{"{on: nosuch0, egress: 10Mbit/s}", "policy.yaml:4:22: network.on nosuch0: there is no such interface"},
		{"{on: 203.0.113.0/24, egress: 10Mbit/s}", "no route leads there"},
		{"{on: up0, egress: 0}", "would stop the group"},
		{"{on: up0, egress: 10MB/s}", "write 80Mbit/s, if bytes are meant"},
		{"{on: up0, egress: {min: 10Mbit/s}}", "does not say what its link carries"},
	} {
		s.write("", "  a: {network: ["+c.group+"]}\n")
		s.exits(2, []string{c.want}, "check")
		s.exits(2, []string{c.want}, "apply")
	}
	s.write("network: [{on: up0, rate: 100Mbit/s}]", "  a: {network: [{on: up0, egress: 101Mbit/s}]}\n")
	s.exits(2, []string{"network.egress.max 101Mbit/s is above the 100Mbit/s that up0 has by host.network"}, "check")
	s.clean("refused")

	// Somebody is logged in through it.
	var held []net.Conn
	at, _ := s.host.listen(hostAddr+":0", func(c net.Conn) { held = append(held, c) })
	_ = at
	source, _ := s.peer.listen(peerAddr+":0", func(c net.Conn) { held = append(held, c) })
	cmd := exec.Command(filepath.Join(s.dir, "sshd"), "take", source, "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	login := s.start(s.host, cmd)
	login.line()
	s.write("", "  a: {network: [{on: up0, egress: 10Mbit/s}]}\n")
	s.exits(2, []string{"your way in leads through this interface (a connection of sshd with " + peerAddr + ")",
		"reserve: {network: 1Mbit/s}"}, "apply")
	s.write("reserve: {network: 1Mbit/s}", "  a: {network: [{on: up0, egress: 10Mbit/s}]}\n  b: {cpu: {limit: 1}}\n")
	s.must("apply")
	login.end()

	agent := s.start(s.host, s.command("agent", "--full", "1s"))
	defer agent.end()
	rename := func(from, to string) {
		s.host.must("rename", func() error {
			l, err := netlink.LinkByName(from)
			if err == nil {
				err = netlink.LinkSetDown(l)
			}
			if err == nil {
				err = netlink.LinkSetName(l, to)
			}
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			return err
		})
	}
	rename(device, "other0")
	soon(t, "the limit on an interface of another name to go", func() bool {
		state := s.look("other0")
		_, held := state.Held(1, netshape.Egress)
		return !held
	})
	s.exits(0, []string{"there is no such interface"}, "status", "a")
	rename("other0", device)
	soon(t, "the limit to come back with the name", func() bool {
		state := s.look(device)
		_, held := state.Held(1, netshape.Egress)
		return held
	})
	s.host.must("take the interface away", func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	})
	s.exits(0, []string{"there is no such interface"}, "status", "a")
	s.veth(device, "down0", hostAddr, peerAddr)
	soon(t, "the limit on a new interface of that name", func() bool {
		state := s.look(device)
		_, held := state.Held(1, netshape.Egress)
		return held
	})
	agent.end()
	s.must("release", "--all")
	s.clean("released")
}
