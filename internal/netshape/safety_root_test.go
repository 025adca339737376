//go:build root

package netshape_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/testhost"
)

// bothWays is a group with a share in each direction.
func bothWays(dir string) netshape.Wanted {
	return netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{{
		Name: "a", Slot: 1, Cgroup: dir, Ports: []uint16{3306},
		Egress: netshape.Share{Max: 100 * mbit}, Ingress: netshape.Share{Max: 50 * mbit},
	}}}
}

// maxStall is what the control connection may wait, the machine's own pauses aside.
const maxStall = 100 * time.Millisecond

// Limits come, change and go while a control connection runs through the same interface: with the qdiscs kept, no step
// loses a packet of it. A second connection over an interface that nobody touches tells how long the machine itself
// pauses; a round in which that is long proves nothing and is repeated.
func TestChangesDoNotStallOthers(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	w := bothWays(dirs[0])
	p.shape(w, dirs...)
	p.peer.send("", p.host.sink(hostAddr, 3306).address, 2)
	p.host.send(dirs[0], p.peer.sink(peerAddr, 0).address, 2)
	none := netshape.Wanted{Device: device, Keep: true}

	for round := 1; ; round++ {
		heart, control := p.heartbeat(hostAddr, peerAddr), p.heartbeat(spareHost, sparePeer)
		for range 20 {
			for _, want := range []netshape.Wanted{none, w} {
				for _, s := range p.shape(want, dirs...) {
					if s.Do.Regrafts() {
						t.Fatalf("a step that drops packets: %s", s.Do)
					}
				}
			}
		}
		resent := heart.resent()
		stall, own := heart.stop(t), control.stop(t)
		t.Logf("round %d: longest answer %v, on an untouched interface %v, %d sent again", round, stall, own, resent)
		if stall <= maxStall && resent == 0 {
			return
		}
		if round == 5 || own < maxStall/2 && round >= 3 {
			t.Fatalf("the control connection waits for %v, and %d segments were sent again", stall, resent)
		}
	}
}

// Whoever stops after any step, on the way up or down, the way down from there works, the control connection lives, and
// the interface is as it was. A regraft drops what is sent meanwhile, so here an answer may take a retransmission
// longer (docs/network.md).
func TestWayDownFromEveryStep(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	before := shown(p.look(dirs...))
	w, none := bothWays(dirs[0]), netshape.Wanted{Device: device}
	up, err := netshape.Plan(w, p.look(dirs...))
	if err != nil {
		t.Fatal(err)
	}
	heart := p.heartbeat(hostAddr, peerAddr)
	for n := range len(up) + 1 {
		if err := p.k.Run(up[:n]); err != nil {
			t.Fatalf("up to step %d: %v", n, err)
		}
		p.shape(none, dirs...)
		if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
			t.Fatalf("stopped after step %d: before %v, after %v", n, before, after)
		}
	}
	for n := 0; ; n++ { // and stopped after n steps down
		p.shape(w, dirs...)
		down, err := netshape.Plan(none, p.look(dirs...))
		if err != nil {
			t.Fatal(err)
		}
		if n > len(down) {
			p.shape(none, dirs...)
			break
		}
		if err := p.k.Run(down[:n]); err != nil {
			t.Fatalf("down to step %d: %v", n, err)
		}
	}
	resent := heart.resent()
	stall := heart.stop(t)
	t.Logf("longest answer %v, %d segments sent again", stall, resent)
	if stall > 3*time.Second {
		t.Errorf("the control connection waits for %v", stall)
	}
	if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// Who undoes does not know how far things came: all steps are taken back, whichever were made, and once more, and what
// was there before is there. The class of a/b moves, as a gets none.
func TestUndoOfAMoveFromEveryStep(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a", "a/b")
	a := netshape.Group{Name: "a", Slot: 1, Egress: netshape.Share{Max: 60 * mbit}, Ports: []uint16{3306}}
	b := netshape.Group{Name: "a/b", Parent: "a", Slot: 2, Egress: netshape.Share{Max: 20 * mbit},
		Ports: []uint16{3307}}
	p.shape(netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{a, b}}, dirs...)
	numbered := regexp.MustCompile(`^filter u32 \w+:\w* (at \S+ \w+) \w*$`) // the kernel gives the numbers
	look := func() string {
		all := shown(p.look(dirs...))
		for i := range all {
			all[i] = numbered.ReplaceAllString(all[i], "filter $1")
		}
		slices.Sort(all)
		return strings.Join(all, "\n")
	}
	before := look()
	b.Parent, b.Ports, b.Cgroup = "", nil, dirs[1]
	w := netshape.Wanted{Device: device, Leaf: leaf(), Groups: []netshape.Group{b}}
	for n := 0; ; n++ {
		steps, err := netshape.Plan(w, p.look(dirs...))
		if err != nil {
			t.Fatal(err)
		}
		if n > len(steps) {
			break
		}
		if err := p.k.Run(steps[:n]); err != nil {
			t.Fatalf("up to step %d: %v", n, err)
		}
		for range 2 {
			for _, step := range slices.Backward(steps) {
				if _, err := p.k.Undo(step.Do, step.Undo); err != nil {
					t.Fatalf("stopped after step %d: undo of %q: %v", n, step.Do, err)
				}
			}
			if after := look(); after != before {
				t.Fatalf("stopped after step %d: before\n%s\nafter\n%s", n, before, after)
			}
		}
	}
}

// A step that fails takes those before it back.
func TestFailedRunIsUndone(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	before := shown(p.look(dirs...))
	steps, err := netshape.Plan(bothWays(dirs[0]), p.look(dirs...))
	if err != nil {
		t.Fatal(err)
	}
	steps[len(steps)-1].Do.Record.Kind = "u33"
	err = p.k.Run(steps)
	if !errors.Is(err, bpf.ErrNoKernel) || !strings.Contains(err.Error(), "modprobe cls_u33") {
		t.Errorf("got %v", err)
	}
	if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// comesBack takes an interface over twice, and wants to see what was there before once that is undone, and once it is
// taken down.
func (p *pair) comesBack(w netshape.Wanted, original *netshape.Foreign, before []string, seen func() []string,
	dirs ...string) {
	p.t.Helper()
	same := func(how string) {
		p.t.Helper()
		if after := seen(); !slices.Equal(before, after) {
			p.t.Errorf("%s: before\n%s\nafter\n%s", how, strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	}
	for _, step := range slices.Backward(p.shape(w, dirs...)) {
		p.host.must("undo", func() error { _, err := p.k.Undo(step.Do, step.Undo); return err })
	}
	same("undone")
	p.shape(w, dirs...)
	p.shape(netshape.Wanted{Device: device, Original: original}, dirs...)
	same("taken down")
}

// What was opened before a move stays outside, also what its listener accepts afterwards; what is opened afterwards is
// inside.
func TestSocketsOpenedBeforeAMove(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	id, err := bpf.CgroupID(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bpf.CgroupID("/"); err == nil {
		t.Error("/ is no directory of cgroup2")
	}
	// The test itself is outside: its sockets stand for those that were open before.
	source := p.host.source(hostAddr, 3306)
	got := p.peer.fetch(source)
	for deadline := time.Now().Add(5 * time.Second); got.bytes.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing comes")
		}
	}
	inside := p.host.take(dirs[0], p.peer.source(peerAddr, 3306), 1)
	defer inside.stop()
	inside.count()

	var all []sockets.TCPSocket
	p.host.must("list sockets", func() (err error) { all, err = sockets.TCP(); return err })
	hostSide := func(s sockets.TCPSocket) bool { return s.Local.Addr().String() == hostAddr }
	of := make(map[uint32]sockets.TCPSocket)
	for _, s := range all {
		of[s.Inode] = s
	}
	var listening, accepted int
	outside := sockets.MadeOutside(all, func(inode uint32) bool { return hostSide(of[inode]) }, id)
	for _, s := range outside {
		if s.Local.Port() != 3306 {
			t.Errorf("outside: %+v", s)
		}
		if s.Listening {
			listening++
		} else {
			accepted++
		}
	}
	if listening != 1 || accepted != 1 {
		t.Errorf("%d listen and %d are accepted outside of the group, want one of each: %+v", listening, accepted, all)
	}
	var within int
	for _, s := range all {
		if hostSide(s) && s.Cgroup == id && s.Remote.String() == peerAddr+":3306" {
			within++
		}
	}
	if within != 1 {
		t.Errorf("%d sockets are inside of the group, want one: %+v", within, all)
	}
	if nobody := sockets.MadeOutside(all, func(uint32) bool { return false }, id); len(nobody) != 0 {
		t.Errorf("of nobody's sockets %+v are outside", nobody)
	}
}

func TestBadInterfaces(t *testing.T) {
	p := newPair(t)
	if _, err := p.k.Look("nowhere0", nil); !errors.Is(err, tc.ErrNoDevice) {
		t.Errorf("one that is not there: %v", err)
	}
	dirs := groups(t, "a")
	steps, err := netshape.Plan(bothWays(dirs[0]), p.look(dirs...))
	if err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) {
		t.Helper()
		p.host.must("rename", func() error {
			l, err := netlink.LinkByName(from)
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
		})
	}
	rename(device, "away0")
	if err := p.k.Run(steps); !errors.Is(err, tc.ErrNoDevice) {
		t.Errorf("one that was renamed: %v", err)
	}
	rename("spare0", device) // another one under the name
	if err := p.k.Run(steps); !errors.Is(err, tc.ErrNoDevice) ||
		!strings.Contains(err.Error(), "is another one than before") {
		t.Errorf("another one under the name: %v", err)
	}
	rename(device, "spare0")
	rename("away0", device)

	// Renamed under load of limits: they stay, and are found under the new name.
	p.shape(bothWays(dirs[0]), dirs...)
	rename(device, "away0")
	w := bothWays(dirs[0])
	w.Device = "away0"
	s, err := p.k.Look("away0", dirs)
	if err != nil {
		t.Fatal(err)
	}
	if steps, err = netshape.Plan(w, s); err != nil || len(steps) > 0 {
		t.Errorf("renamed: %v %v", steps, err)
	}
	// Somebody else's virtual NIC of our name is none of ours.
	p.shapeOn("away0", netshape.Wanted{Device: "away0"}, dirs...)
	p.host.must("make a virtual NIC", func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("bhifb%d", s.Device.Index)
		return netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs})
	})
	if _, err := p.k.Look("away0", nil); err == nil || !strings.Contains(err.Error(), "is there and not ours") {
		t.Errorf("got %v", err)
	}
}

// Somebody takes the virtual NIC away: the kernel then drops what is led there. The next pass makes it good, on the way
// up and down.
func TestLostVirtualNIC(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	before := shown(p.look(dirs...))
	at := p.host.sink(hostAddr, 3306)
	w := bothWays(dirs[0])
	p.shape(w, dirs...)
	lose := func() {
		t.Helper()
		name := p.look().NIC.Name
		p.host.must("take the virtual NIC away", func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkDel(l)
			}
			return err
		})
	}
	lose()
	steps := p.shape(w, dirs...)
	if len(steps) == 0 || steps[0].Do.Verb != tc.Delete || steps[0].Do.What != netshape.FilterOf {
		t.Errorf("the first step is not the filters that lead nowhere: %v", steps)
	}
	stop := p.peer.send("", at.address, 1)
	holds(t, "healed", 50, 5, p.nicBytes(1))
	stop()
	lose()
	p.shape(netshape.Wanted{Device: device}, dirs...)
	if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// The virtual NIC of an interface that vanished is found and taken away; that of one that is there is not.
func TestStrays(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	p.shape(bothWays(dirs[0]), dirs...)
	strays := func() []netshape.Change {
		t.Helper()
		found, err := p.k.Strays()
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := strays(); len(found) != 0 {
		t.Errorf("before: %v", found)
	}
	p.host.must("take the interface away", func() error {
		l, err := netlink.LinkByName(device)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	})
	found := strays()
	if len(found) != 1 {
		t.Fatalf("after: %v", found)
	}
	if err := p.k.Do(found[0]); err != nil {
		t.Error(err)
	}
	if found := strays(); len(found) != 0 {
		t.Errorf("in the end: %v", found)
	}
}

func TestResolve(t *testing.T) {
	p := newPair(t)
	route := func(cidr, via string) {
		t.Helper()
		p.host.must("add a route to "+cidr, func() error {
			l, err := netlink.LinkByName(via)
			if err != nil {
				return err
			}
			dst, err := netlink.ParseIPNet(cidr)
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Scope: unix.RT_SCOPE_LINK})
		})
	}
	if _, err := p.k.Resolve(tc.Default); !errors.Is(err, tc.ErrNoDevice) {
		t.Errorf("no default route: %v", err)
	}
	route("0.0.0.0/0", device)
	route("10.99.0.0/16", "spare0")
	for on, want := range map[string]string{
		device: device, "lo": "lo", tc.Default: device, "10.77.0.0/24": device, "10.99.3.0/24": "spare0",
		"10.98.0.0/16": device,
	} {
		if l, err := p.k.Resolve(on); err != nil || l.Name != want {
			t.Errorf("%s: %s %v, want %s", on, l.Name, err, want)
		}
	}
	for _, on := range []string{"nowhere0", "fd00::/8"} {
		if l, err := p.k.Resolve(on); !errors.Is(err, tc.ErrNoDevice) {
			t.Errorf("%s: %s %v", on, l.Name, err)
		}
	}
}

// What this machine has, it has: the other tests here need the first of these.
func TestProbe(t *testing.T) {
	testhost.RequireRoot(t)
	have := netshape.Probe()
	for _, c := range have {
		t.Logf("%-14s %-14s %s %s", c.Name, c.Verdict, c.What, c.Why)
	}
	for _, name := range []string{netshape.HasHTB, "bfifo", "cls_u32", netshape.HasIFB, "ingress", netshape.HasMirred,
		netshape.HasProgram} {
		if !have.Has(name) {
			t.Errorf("no %s", name)
		}
	}
}
