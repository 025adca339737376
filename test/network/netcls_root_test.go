//go:build root

package network

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bulkhead/internal/host"
	"bulkhead/internal/netshape"
	"bulkhead/internal/testhost"
)

// Where there is no cgroup2, what leaves is told by net_cls: of what the group starts, of what it had open before, and
// of the groups below it.
func TestNetClsAlone(t *testing.T) {
	f, mount := netCls(t)
	if slices.ContainsFunc(f.Hierarchies, func(h host.Hierarchy) bool { return h.Version == 2 }) {
		t.Skip("this host has a cgroup2 hierarchy")
	}
	s := newSite(t)
	const in, out = netshape.Slot(1), netshape.Slot(2)
	_, port := s.traffic("", "serve", hostAddr+":0", 0)
	s.write("", "  in: {network: [{on: up0, ingress: "+rate(50)+", ports: ["+port+"]}]}\n"+
		"  out: {network: [{on: up0, egress: "+rate(50)+"}], groups: {below: {}}}\n")
	s.exits(0, []string{"told by net_cls"}, "plan", "--long")
	s.must("apply")
	s.verified()
	s.exits(0, []string{"nothing to do"}, "apply")
	sink := s.sink(peerAddr)
	s.holdsBothWays(out, in, sink, port, 50, 50)
	for _, group := range []string{"out", "out/below"} {
		p, _ := s.traffic(group, "send", sink, 4)
		s.isTold(out, group)
		p.end()
	}
	// One that was connected before it came into the group.
	p, _ := s.traffic("", "send", sink, 4)
	s.isNotTold(out, "in no group")
	dir := filepath.Join(mount, s.root, "out", "db")
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	s.isTold(out, "moved with its connections")
	p.end()
	// Somebody writes another class.
	for _, at := range []string{"out", "out/below"} {
		if err := os.WriteFile(filepath.Join(mount, s.root, at, "net_cls.classid"), []byte("65537"), 0); err != nil {
			t.Fatal(err)
		}
		s.exits(4, []string{"net_cls.classid of ", " is 1:1, and packets are told by 7fff:40"}, "verify")
		s.must("apply")
		s.verified()
	}
	s.must("release", "--all")
	if _, err := os.Stat(filepath.Join(mount, s.root)); err == nil {
		t.Error("the released group still has a directory")
	}
}

// Before kernel 5.15, unless that was mended, the first class of v1 blinds all programs on cgroup2 directories.
// Whatever the kernel does, traffic is told by what `plan` says then.
func TestNetClsBesidePrograms(t *testing.T) {
	f, mount := netCls(t)
	if !slices.ContainsFunc(f.Hierarchies, func(h host.Hierarchy) bool { return h.Version == 2 }) {
		t.Skip("this host has no cgroup2 hierarchy")
	}
	s := newSite(t)
	s.write("", "  out: {network: [{on: up0, egress: "+rate(50)+"}]}\n")
	sink := s.sink(peerAddr)
	if f.BlindedBy == "" {
		s.exits(0, []string{"told by a program on its directory"}, "plan", "--long")
	}
	s.must("apply")
	p, _ := s.traffic("out", "send", sink, 4)
	s.isTold(1, "before anybody uses net_cls")
	p.end()

	// A group takes nobody new between the moment in which the way to tell packets changes and the next apply, so this
	// one is there before. Its sockets are not.
	late, _ := s.traffic("out", "late", sink, 4)
	other := filepath.Join(mount, "other"+s.root)
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(other) })
	if err := os.WriteFile(filepath.Join(other, "net_cls.classid"), []byte("65537"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := late.in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	late.line()
	if blind := strings.Contains(s.must("plan", "--long").out, "told by net_cls"); blind {
		t.Logf("kernel %s is blinded", f.Kernel)
		s.isNotTold(1, "blinded by another's class")
		s.must("apply")
	} else {
		t.Logf("kernel %s is not blinded", f.Kernel)
		s.exits(0, []string{"told by a program on its directory"}, "plan", "--long")
		s.exits(0, []string{"nothing to do"}, "apply")
	}
	s.verified()
	s.isTold(1, "beside another's class")
	late.end()
	p, _ = s.traffic("out", "send", sink, 4)
	s.isTold(1, "made beside another's class")
	p.end()
	s.must("release", "--all")
	s.clean("released")
}

// netCls gives the host and where its v1 hierarchy with net_cls is.
func netCls(t *testing.T) (*host.Facts, string) {
	t.Helper()
	testhost.RequireRoot(t)
	f, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	h, ok := f.HierarchyOf("net_cls")
	if !ok || h.Version != 1 || h.ReadOnly {
		t.Skip("this host has no net_cls hierarchy")
	}
	return f, h.Mount
}

// passed is what the class of a group, and the interface, let through in two seconds of traffic.
func (s *site) passed(slot netshape.Slot) (class, all uint64) {
	s.t.Helper()
	of, link := s.bytes(slot, netshape.Egress), func() (sent uint64) {
		s.host.must("count what is sent", func() error {
			l, err := netlink.LinkByName(device)
			if err == nil {
				sent = l.Attrs().Statistics.TxBytes
			}
			return err
		})
		return sent
	}
	time.Sleep(500 * time.Millisecond) // connections are there, and what waited elsewhere is gone
	class, all = of(), link()
	time.Sleep(2 * time.Second)
	return of() - class, link() - all
}

func (s *site) isTold(slot netshape.Slot, what string) {
	s.t.Helper()
	class, all := s.passed(slot)
	if all == 0 || float64(class) < .9*float64(all) {
		s.t.Errorf("%s: %d of %d bytes went through the class", what, class, all)
	}
	if most := float64(50*unit()) * 1000 / 8 * 2 * 1.2; float64(class) > most {
		s.t.Errorf("%s: %d bytes in 2 s, at most %.0f asked", what, class, most)
	}
}

func (s *site) isNotTold(slot netshape.Slot, what string) {
	s.t.Helper()
	if class, all := s.passed(slot); all == 0 || float64(class) > .1*float64(all) {
		s.t.Errorf("%s: %d of %d bytes went through the class", what, class, all)
	}
}
