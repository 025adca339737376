//go:build root

package netshape_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/testhost"
)

// childVariable makes a copy of the test binary one end of traffic: "send ADDRESS CONNECTIONS", or "take".
const childVariable = "BULKHEAD_NETSHAPE_CHILD"

func TestMain(m *testing.M) {
	if how := strings.Fields(os.Getenv(childVariable)); len(how) == 3 {
		if err := end(how[0], how[1], how[2]); err != nil {
			fmt.Fprintln(os.Stderr, how, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if testing.Short() {
		unit = 0.1
	}
	mbit = tc.Rate(unit * float64(tc.Mbit))
	os.Exit(m.Run())
}

// unit is what the tests call 1 Mbit/s. An emulated machine carries 100 Mbit/s in all, and runs short tests: there it
// is a tenth.
var (
	unit = 1.0
	mbit tc.Rate
)

// netns is a network namespace that a test made. It lives as long as its file is open and a process is inside.
type netns struct {
	t    testing.TB
	file *os.File
}

func newNamespace(t testing.TB) *netns {
	t.Helper()
	type made struct {
		file *os.File
		err  error
	}
	ch := make(chan made)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ch <- made{nil, err}
			return
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		ch <- made{f, err}
	}()
	m := <-ch
	if m.err != nil {
		t.Fatalf("make a network namespace: %v", m.err)
	}
	t.Cleanup(func() { m.file.Close() })
	return &netns{t, m.file}
}

// do runs f on a thread inside. What f opens stays inside; goroutines that it starts do not.
func (n *netns) do(f func() error) error {
	ch := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			ch <- err
			return
		}
		ch <- f()
	}()
	return <-ch
}

func (n *netns) must(what string, f func() error) {
	n.t.Helper()
	if err := n.do(f); err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// pair is a host and its peer, joined by a veth pair.
type pair struct {
	t          testing.TB
	host, peer *netns
	k          *netshape.Kernel
}

// The interface that the tests shape, and one that they leave alone.
const (
	device    = "up0"
	hostAddr  = "10.77.0.1"
	peerAddr  = "10.77.0.2"
	hostAddr6 = "fd77::1"
	spareHost = "10.78.0.1"
	sparePeer = "10.78.0.2"
)

func newPair(t testing.TB) *pair {
	t.Helper()
	testhost.RequireRoot(t)
	p := &pair{t: t, host: newNamespace(t), peer: newNamespace(t)}
	veth := func(name, peer string) {
		p.host.must("make a veth pair", func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer,
				PeerNamespace: netlink.NsFd(p.peer.file.Fd())})
		})
	}
	veth(device, "down0")
	veth("spare0", "spare1")
	p.host.setUp("lo")
	p.peer.setUp("lo")
	p.host.setUp(device, hostAddr+"/24", hostAddr6+"/64")
	p.peer.setUp("down0", peerAddr+"/24", "fd77::2/64")
	p.host.setUp("spare0", spareHost+"/24")
	p.peer.setUp("spare1", sparePeer+"/24")
	p.k = p.host.open()
	t.Cleanup(func() { p.k.Close() })
	return p
}

func (n *netns) setUp(name string, addresses ...string) {
	n.t.Helper()
	n.must("set up "+name, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD // usable at once
			}
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
		return err
	})
}

func (n *netns) open() *netshape.Kernel {
	n.t.Helper()
	k, err := netshape.Open(netshape.Options{Namespace: n.file})
	if err != nil {
		n.t.Fatal(err)
	}
	return k
}

func (p *pair) look(cgroups ...string) netshape.State {
	p.t.Helper()
	s, err := p.k.Look(device, cgroups)
	if err != nil {
		p.t.Fatalf("look: %v", err)
	}
	return s
}

// shape plans and runs, and checks that then nothing is left to do.
func (p *pair) shape(w netshape.Wanted, cgroups ...string) []netshape.Step {
	p.t.Helper()
	return p.shapeOn(device, w, cgroups...)
}

func (p *pair) shapeOn(device string, w netshape.Wanted, cgroups ...string) []netshape.Step {
	p.t.Helper()
	look := func() netshape.State {
		s, err := p.k.Look(device, cgroups)
		if err != nil {
			p.t.Fatalf("look: %v", err)
		}
		return s
	}
	steps, err := netshape.Plan(w, look())
	if err != nil {
		p.t.Fatalf("plan: %v", err)
	}
	if err := p.k.Run(steps); err != nil {
		p.t.Fatalf("run: %v", err)
	}
	again, err := netshape.Plan(w, look())
	if err != nil || len(again) > 0 {
		p.t.Errorf("a second plan: %v %v", again, err)
	}
	return steps
}

// types runs a command inside, and gives what it printed.
func (n *netns) types(line string) (out []byte) {
	n.t.Helper()
	words := strings.Fields(line)
	n.must(line, func() (err error) {
		if out, err = exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	return out
}

// groups makes cgroup2 directories below a test root and gives their paths.
func groups(t testing.TB, names ...string) []string {
	t.Helper()
	root := testhost.Root(t)
	tree := testhost.Tree(t)
	var paths []string
	for _, h := range testhost.Hierarchies(t) {
		if h.Version != 2 {
			continue
		}
		top := cgroup.Dir{Hierarchy: h.ID, Path: "/" + root}
		if err := tree.Make(top); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			d := cgroup.Dir{Hierarchy: h.ID, Path: top.Path + "/" + name}
			if err := tree.Make(d); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, tree.Abs(d))
		}
		return paths
	}
	t.Fatal("this machine has no cgroup2 hierarchy")
	return nil
}

const settle = 500 * time.Millisecond

func (p *pair) classBytes(slot netshape.Slot) func() uint64 {
	return func() uint64 { d := p.look().Device; return netshape.ClassStats(&d)[slot].Bytes }
}

func (p *pair) nicBytes(slot netshape.Slot) func() uint64 {
	return func() uint64 { return netshape.ClassStats(p.look().NIC)[slot].Bytes }
}

// busyTries is how often a rate is measured that comes out too low: a machine that is busy with other things sends less
// than it may. One that is too high is wrong at once.
const busyTries = 3

// packet is the largest packet in Mbit: a counter that is read just before or after one has that much less or more.
const packet = 65536 * 8 / 1e6

const beat = 50 * time.Millisecond

// leaf is the best queue for classes that this kernel has.
var leaf = sync.OnceValue(func() string { return netshape.Probe().Leaf() })

// shown is all that the kernel shows of an interface, without what changes by itself: counters, and the number of
// packets that an HTB let past its classes.
func shown(s netshape.State) []string {
	var all []string
	add := func(d tc.Device) {
		all = append(all, d.Name)
		for _, r := range d.Qdiscs {
			if len(r.Options) >= 24 && r.Kind == "htb" {
				clear(r.Options[20:24])
			}
			all = append(all, fmt.Sprintf("qdisc %s at %s %x", r, r.Parent, r.Options))
		}
		for _, r := range d.Classes {
			all = append(all, fmt.Sprintf("class %s at %s %x", r, r.Parent, r.Options))
		}
		for _, r := range d.Filters {
			all = append(all, fmt.Sprintf("filter %s at %s %x %x", r, r.Parent, r.Info, r.Options))
		}
	}
	add(s.Device)
	if s.NIC != nil {
		add(*s.NIC)
	}
	for _, p := range slices.Concat(s.Programs, s.Policers) {
		all = append(all, p.Cgroup+" "+p.Name)
	}
	slices.Sort(all)
	return all
}
