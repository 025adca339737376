//go:build root

package netshape_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
)

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

// Actions of others' filters come back with what they do; those that could not keep an interface from being taken over.
func TestForeignActions(t *testing.T) {
	root := netlink.MakeHandle(1, 0)
	number := uint32(7)
	redirect := func(to int) *netlink.MirredAction {
		return &netlink.MirredAction{ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to}
	}
	for name, action := range map[string]func() netlink.Action{
		"mirred": func() netlink.Action { return redirect(1) },
		"mirred, numbered": func() netlink.Action {
			a := redirect(1)
			a.Index = 77
			return a
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
			if name == "police" {
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

// What people type after published instructions, an HTB that net_cls sorts for and a redirect of all that arrives to a
// virtual NIC with another, makes room and comes back as tc(8) showed it. The redirect works again, under another
// number of its action where somebody has taken the old one, and to a virtual NIC that was made anew.
func TestHandMadeSetUpComesBack(t *testing.T) {
	p := newPair(t)
	dirs := groups(t, "a")
	nic := []string{
		"ip link add ifb0 type ifb",
		"ip link set dev ifb0 up",
		"tc qdisc add dev ifb0 root handle 10: htb default 1",
		"tc class add dev ifb0 parent 10: classid 10:1 htb rate 50mbit ceil 50mbit",
	}
	sorts := "tc filter add dev up0 parent 10: protocol ip prio 10 handle 1: cgroup"
	if netshape.Probe().Lacks(netshape.HasNetCls) {
		t.Log("this kernel has no cls_cgroup: what leaves is sorted by a port")
		sorts = "tc filter add dev up0 parent 10: protocol ip prio 10 u32 match ip sport 3306 0xffff classid 10:1"
	}
	for _, line := range append(nic,
		"tc qdisc add dev up0 root handle 10: htb",
		"tc class add dev up0 parent 10: classid 10:1 htb rate 100mbit ceil 100mbit",
		sorts,
		"tc qdisc add dev up0 handle ffff: ingress",
		"tc filter add dev up0 parent ffff: protocol ip u32 match u32 0 0"+
			" action mirred egress redirect dev ifb0 index 7",
	) {
		p.host.types(line)
	}
	changes := regexp.MustCompile(`index \d+ ref \d+ bind \d+|fh [0-9a-f:]+|direct_packets_stat \d+`)
	seen := func() (all []string) {
		t.Helper()
		for _, what := range []string{"qdisc show dev up0", "class show dev up0", "filter show dev up0 parent 10:",
			"filter show dev up0 parent ffff:"} {
			all = append(all, changes.ReplaceAllString(string(p.host.types("tc "+what)), ""))
		}
		return all
	}
	before := seen()
	w := bothWays(dirs[0])
	if _, err := netshape.Plan(w, p.look(dirs...)); err == nil || !strings.Contains(err.Error(), "replace: true") {
		t.Fatalf("without leave: %v", err)
	}
	w.Replace = true
	s := p.look(dirs...)
	original, err := s.Foreign(w)
	if err != nil {
		t.Fatal(err)
	}
	p.comesBack(w, original, before, seen, dirs...)

	p.shape(w, dirs...)
	p.host.types("tc actions add action mirred egress redirect dev lo index 7")
	p.host.types("ip link del ifb0")
	for _, line := range nic {
		p.host.types(line)
	}
	p.shape(netshape.Wanted{Device: device, Original: original}, dirs...)
	if after := seen(); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	p.host.send(dirs[0], p.peer.sink(peerAddr, 0).address, 1)
	arrives := func() bool {
		var n uint64
		p.host.must("look at ifb0", func() error {
			l, err := netlink.LinkByName("ifb0")
			if err == nil {
				n = l.Attrs().Statistics.TxBytes
			}
			return err
		})
		return n > 0
	}
	for deadline := time.Now().Add(5 * time.Second); !arrives(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing arrives by way of ifb0")
		}
	}

	// A virtual NIC that is gone is nothing to come back to, and is said.
	p.shape(w, dirs...)
	p.host.types("ip link del ifb0")
	steps, err := netshape.Plan(netshape.Wanted{Device: device, Original: original}, p.look(dirs...))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.k.Run(steps); !errors.Is(err, tc.ErrNoDevice) || !strings.Contains(err.Error(), "leads to ifb0") {
		t.Errorf("got %v", err)
	}
}

// An action that several filters share, and one that leads nowhere any more, cannot be made anew.
func TestSharedRedirectIsNotReplaced(t *testing.T) {
	for name, after := range map[string]string{
		"shared":  "tc filter add dev up0 parent ffff: protocol ip prio 2 u32 match u32 1 1 action mirred index 5",
		"nowhere": "ip link del ifb0",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			dirs := groups(t, "a")
			for _, line := range []string{
				"ip link add ifb0 type ifb",
				"tc qdisc add dev up0 handle ffff: ingress",
				"tc filter add dev up0 parent ffff: protocol ip prio 1 u32 match u32 0 0" +
					" action mirred egress redirect dev ifb0 index 5",
				after,
			} {
				p.host.types(line)
			}
			w := bothWays(dirs[0])
			w.Replace = true
			s := p.look(dirs...)
			if _, err := s.Foreign(w); err == nil || !strings.Contains(err.Error(), "could not be put back") {
				t.Errorf("got %v", err)
			}
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
