//go:build root

package netshape_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
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
	if !errors.Is(err, netshape.ErrNoKernel) || !strings.Contains(err.Error(), "modprobe cls_u33") {
		t.Errorf("got %v", err)
	}
	if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// Qdiscs of others are named and left alone; replaced on request, they come back with classes and filters.
func TestForeignQdiscs(t *testing.T) {
	for _, c := range []struct {
		name  string
		make  func(index int) error
		found string
	}{
		{"tbf", func(index int) error {
			return netlink.QdiscAdd(&netlink.Tbf{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(5, 0),
					Parent: netlink.HANDLE_ROOT},
				Rate: 125_000_000, Limit: 1 << 20, Buffer: 100_000,
			})
		}, "tbf 5: at root"},
		{"htb with classes, a queue and a filter", func(index int) error {
			root := netlink.MakeHandle(1, 0)
			class := func(minor, parent uint32) error {
				return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Handle: root | minor,
					Parent: parent},
					netlink.HtbClassAttrs{Rate: 1e9, Ceil: 2e9, Buffer: 200_000, Cbuffer: 200_000, Quantum: 60_000}))
			}
			return errors.Join(
				netlink.QdiscAdd(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root,
					Parent: netlink.HANDLE_ROOT})),
				class(1, root), class(0x10, root|1), class(0x11, root|1),
				netlink.QdiscAdd(&netlink.Tbf{
					QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(6, 0),
						Parent: root | 0x11},
					Rate: 125_000_000, Limit: 1 << 20, Buffer: 100_000,
				}),
				netlink.FilterAdd(&netlink.U32{
					FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: root, Priority: 7,
						Protocol: unix.ETH_P_IP},
					ClassId: root | 0x10,
					Sel: &netlink.TcU32Sel{Flags: 1, Nkeys: 1,
						Keys: []netlink.TcU32Key{{Mask: 0xff0000, Val: 0x060000, Off: 8}}},
				}))
		}, "htb 1: at root, qdisc tbf 6: at 1:11"},
		{"clsact", func(index int) error {
			return netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}})
		}, "clsact ffff:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			dirs := groups(t, "a")
			p.host.must("make what is not ours", func() error { return c.make(p.look().Device.Index) })
			before := shown(p.look(dirs...))
			w := bothWays(dirs[0])
			var foreign *netshape.ForeignError
			if _, err := netshape.Plan(w, p.look(dirs...)); !errors.As(err, &foreign) ||
				"qdisc "+c.found != strings.Join(foreign.Found, ", ") {
				t.Fatalf("got %v", err)
			}
			w.Replace = true
			s := p.look(dirs...)
			original, err := s.Foreign(w)
			if err != nil {
				t.Fatal(err)
			}
			p.shape(w, dirs...)
			p.shape(netshape.Wanted{Device: device, Original: original}, dirs...)
			if after := shown(p.look(dirs...)); !slices.Equal(before, after) {
				t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
		})
	}
}

// Filters of others come back as they were, several of one preference too, and where the kernel numbers their tables in
// another way now: by the way down, and by undoing a way up that was cut off. Hash tables of people's own do not, and
// keep an interface from being taken over.
func TestForeignFilters(t *testing.T) {
	root, class := netlink.MakeHandle(1, 0), netlink.MakeHandle(1, 0x10)
	filter := func(index int, pref uint16, port uint32) *netlink.U32 {
		return &netlink.U32{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: root, Priority: pref, Protocol: unix.ETH_P_IP},
			ClassId:     class,
			Sel: &netlink.TcU32Sel{Flags: 1, Nkeys: 1,
				Keys: []netlink.TcU32Key{{Mask: 0xffff, Val: port, Off: 20}}},
		}
	}
	for _, c := range []struct {
		name    string
		filters func(index int) error
		want    string // of the error
	}{
		{"several of one preference", func(index int) error {
			return errors.Join(netlink.FilterAdd(filter(index, 1, 1)), netlink.FilterAdd(filter(index, 2, 2)),
				netlink.FilterAdd(filter(index, 2, 3)))
		}, ""},
		{"the first one is gone", func(index int) error {
			first := filter(index, 1, 1)
			return errors.Join(netlink.FilterAdd(first), netlink.FilterAdd(filter(index, 2, 2)),
				netlink.FilterAdd(filter(index, 2, 3)), netlink.FilterDel(first))
		}, ""},
		{"a hash table", func(index int) error {
			table := filter(index, 1, 0)
			table.Sel, table.ClassId, table.Divisor, table.Handle = nil, 0, 256, 2<<20
			return netlink.FilterAdd(table)
		}, "hash tables of its u32 filters of preference 1 could not be put back"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			dirs := groups(t, "a")
			index := p.look().Device.Index
			p.host.must("make what is not ours", func() error {
				return errors.Join(netlink.QdiscAdd(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root,
					Parent: netlink.HANDLE_ROOT})),
					netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: index, Handle: class,
						Parent: root},
						netlink.HtbClassAttrs{Rate: 1e9, Ceil: 2e9, Buffer: 200_000, Cbuffer: 200_000,
							Quantum: 60_000})), c.filters(index))
			})
			// The kernel's numbers of tables are its own.
			seen := func() []string {
				var all []string
				for _, f := range p.look(dirs...).Device.Filters {
					if f.Handle&0xfff != 0 {
						all = append(all, fmt.Sprintf("%x %x %x", f.Info, f.Handle&0xfff,
							f.Options[:28])) // the selector comes first
					}
				}
				return all
			}
			before := seen()
			w := bothWays(dirs[0])
			w.Replace = true
			s := p.look(dirs...)
			original, err := s.Foreign(w)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil || len(before) == 0 {
				t.Fatal(err, before)
			}
			p.comesBack(w, original, before, seen, dirs...)
		})
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

// Actions of others' filters come back with what they do; those that could not keep an interface from being taken over.
func TestForeignActions(t *testing.T) {
	root := netlink.MakeHandle(1, 0)
	number := uint32(7)
	for name, action := range map[string]func() netlink.Action{
		"mirred": func() netlink.Action {
			return &netlink.MirredAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
				MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: 1}
		},
		"gact": func() netlink.Action {
			return &netlink.GenericAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_SHOT}}
		},
		"skbedit": func() netlink.Action {
			a := netlink.NewSkbEditAction()
			a.Mark = &number
			return a
		},
		"police": func() netlink.Action {
			a := netlink.NewPoliceAction()
			a.Rate, a.Burst, a.Mtu = 1_000_000, 10_000, 2000
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			dirs := groups(t, "a")
			index := p.look().Device.Index
			p.host.must("make what is not ours", func() error {
				return netlink.QdiscAdd(netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Handle: root,
					Parent: netlink.HANDLE_ROOT}))
			})
			err := p.host.do(func() error {
				return netlink.FilterAdd(&netlink.U32{
					FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: root, Priority: 3,
						Protocol: unix.ETH_P_IP},
					Sel: &netlink.TcU32Sel{Flags: 1, Nkeys: 1,
						Keys: []netlink.TcU32Key{{Mask: 0xffff, Val: 9, Off: 20}}},
					Actions: []netlink.Action{action()},
				})
			})
			if errors.Is(err, unix.ENOENT) {
				t.Skipf("this kernel has no act_%s", name)
			}
			if err != nil {
				t.Fatal(err)
			}
			seen := func() (all []string) {
				t.Helper()
				p.host.must("list the filters", func() error {
					link, err := netlink.LinkByIndex(index)
					if err != nil {
						return err
					}
					filters, err := netlink.FilterList(link, root)
					for _, f := range filters {
						u, ok := f.(*netlink.U32)
						if !ok || len(u.Actions) == 0 {
							continue
						}
						for _, a := range u.Actions {
							attrs := *a.Attrs()
							attrs.Index, attrs.Statistics, attrs.Timestamp, attrs.Refcnt, attrs.Bindcnt = 0, nil, nil,
								0, 0
							shown := fmt.Sprintf("%d %s %+v", f.Attrs().Priority, a.Type(), attrs)
							if a, ok := a.(*netlink.SkbEditAction); ok {
								shown += fmt.Sprint(*a.Mark)
							}
							all = append(all, shown)
						}
					}
					return err
				})
				return all
			}
			before := seen()
			w := bothWays(dirs[0])
			w.Replace = true
			s := p.look(dirs...)
			original, err := s.Foreign(w)
			if name == "police" || name == "mirred" {
				if err == nil || !strings.Contains(err.Error(), "filter u32 3 on up0 at 1: could not be put back") {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil || len(before) != 1 {
				t.Fatal(err, before)
			}
			p.comesBack(w, original, before, seen, dirs...)
		})
	}
}

// Programs of others on a group's directory, such as systemd's, stay and keep working.
func TestOtherProgramsStay(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	dir, err := os.Open(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sd_fw_egress", Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	const multi = 2
	at := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: other, Attach: ebpf.AttachCGroupInetEgress,
		Flags: multi}
	if err := link.RawAttachProgram(at); err != nil {
		t.Fatal(err)
	}
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: at.Target, Program: other, Attach: at.Attach})
	count := func() int {
		t.Helper()
		all, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetEgress})
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Programs)
	}
	p.shape(bothWays(dirs[0]), dirs...)
	if n := count(); n != 2 {
		t.Errorf("%d programs beside each other, want 2", n)
	}
	p.host.send(dirs[0], p.peer.sink(peerAddr, 0).address, 2)
	holds(t, "beside another program", 100, 5, p.classBytes(1))
	p.shape(netshape.Wanted{Device: device}, dirs...)
	if n := count(); n != 1 {
		t.Errorf("%d programs are left, want the other's", n)
	}
}

// What was opened before a move stays outside, also what its listener accepts afterwards; what is opened afterwards is
// inside.
func TestSocketsOpenedBeforeAMove(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	id, err := netshape.CgroupID(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netshape.CgroupID("/"); err == nil {
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
