//go:build root

package network

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/verify"
)

// probed measures a group against a peer on the other side of the interface.
func (s *site) probed(code int, peer, group string) (all []verify.Result) {
	s.t.Helper()
	r := s.exits(code, nil, "verify", "--probe", "--inside", "--peer", peer, "--span", "1s", "--json", group)
	if err := json.Unmarshal([]byte(r.out), &all); err != nil {
		s.t.Fatalf("%v: %s", err, r.out)
	}
	for _, p := range all {
		s.t.Logf("%s %s on %s, %s: asked %s, measured %s: %s %s", p.Group, p.Key, p.On, p.How, p.Asked, p.Measured,
			p.Verdict, p.Reason)
	}
	return all
}

// verdict finds the row of a limit; "" when there is none.
func verdict(all []verify.Result, key policy.Key, how string) probe.Verdict {
	i := slices.IndexFunc(all, func(p verify.Result) bool { return p.Key == key && p.How == how })
	if i < 0 {
		return ""
	}
	return all[i].Verdict
}

// A probe measures limits on an interface against a peer, both ways, and finds what somebody took away: the program
// that tells the group's traffic, and the class of what arrives.
func TestProbeOfTraffic(t *testing.T) {
	s := newSite(t)
	s.write("", "  out: {network: [{on: up0, egress: "+rate(80)+"}]}\n  policed: {network: [{on: up0, ingress: "+
		rate(30)+"}]}\n"+
		"  in: {network: [{on: up0, ingress: "+rate(50)+"}]}\n")
	s.must("apply")
	s.traffic("in", "serve", hostAddr+":0", 0)
	s.must("apply") // what arrives at its port goes over a virtual NIC
	peer := s.start(s.peer, s.command("verify", "--listen", peerAddr+":0"))
	address := strings.TrimSuffix(strings.Fields(peer.line())[3], ";")

	s.exits(0, []string{"is only read back: it takes a peer beyond up0", "dry run: nothing was started"}, "verify",
		"--probe", "--inside", "--dry-run")
	s.exits(0, []string{"out network.egress.max on up0 (up0), inside the group: 4 connections with " + address +
		" send, for "}, "verify", "--probe", "--inside", "--peer", address, "--dry-run")
	if got := verdict(s.probed(0, address, "out"), policy.KeyNetworkEgressMax, "sent"); got != probe.Held &&
		got != probe.NotReached {
		t.Errorf("what leaves is %q", got)
	}
	if got := verdict(s.probed(0, address, "policed"), policy.KeyNetworkIngressMax, "received"); got != probe.Held &&
		got != probe.NotReached {
		t.Errorf("what arrives and is policed is %q", got)
	}
	if got := verdict(s.probed(0, address, "in"), policy.KeyNetworkIngressMax, "read back"); got != probe.NotMeasured {
		t.Errorf("what arrives at a port, which a load has not, is %q", got)
	}

	s.unsort("out")
	all := s.probed(4, address, "out")
	if got := verdict(all, policy.KeyNetworkEgressMax, "sent"); got != probe.NotEnforced {
		t.Errorf("without the program that tells its traffic what leaves is %q", got)
	}
	if !slices.ContainsFunc(all, func(p verify.Result) bool {
		return p.How == "sent" &&
			strings.Contains(p.Reason, "program")
	}) {
		t.Error("nothing says that the program is gone")
	}
	s.must("apply")
	s.probed(0, address, "out")

	s.host.must("take the classes off the virtual NIC", func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() != "ifb" {
				continue
			}
			qdiscs, err := netlink.QdiscList(l)
			if err != nil {
				return err
			}
			for _, q := range qdiscs {
				if q.Attrs().Parent == netlink.HANDLE_ROOT && q.Type() == "htb" {
					return netlink.QdiscDel(q)
				}
			}
		}
		return fmt.Errorf("no virtual NIC has a root qdisc: %v", links)
	})
	if got := verdict(s.probed(4, address, "in"), policy.KeyNetworkIngressMax, "read back"); got != probe.NotEnforced {
		t.Errorf("with a virtual NIC without classes what arrives is %q", got)
	}
	s.must("apply")
	s.probed(0, address, "in")
	s.must("release", "--all")
	s.clean("released")
}

// unsort takes the programs off a group's directory that tell what leaves it.
func (s *site) unsort(group string) {
	s.t.Helper()
	dir, err := os.Open(s.programDir(group))
	if err != nil {
		s.t.Fatal(err)
	}
	defer dir.Close()
	on, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetEgress})
	if err != nil || len(on.Programs) == 0 {
		s.t.Fatalf("no program is on %s: %v", dir.Name(), err)
	}
	for _, p := range on.Programs {
		program, err := ebpf.NewProgramFromID(p.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		defer program.Close()
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: program,
			Attach: ebpf.AttachCGroupInetEgress}); err != nil {
			s.t.Fatal(err)
		}
	}
}
