//go:build root

package netshape_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// end opens its connections when it is told to, says so, and sends or takes until its stdin closes. Each further line
// it answers with how many bytes it took.
func end(how, address, connections string) error {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	n, err := strconv.Atoi(connections)
	if err != nil {
		return err
	}
	var taken traffic
	for range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		if how == "send" {
			go flood(c)
		} else {
			go taken.drain(c)
		}
	}
	for {
		fmt.Println(taken.bytes.Load())
		if _, err := in.ReadString('\n'); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func flood(c net.Conn) {
	block := make([]byte, 64<<10)
	for {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

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

// traffic counts bytes.
type traffic struct {
	address string
	bytes   atomic.Uint64
	stop    func()
}

// drain counts what a connection brings until it ends.
func (f *traffic) drain(c net.Conn) {
	defer c.Close()
	block := make([]byte, 1<<20)
	for {
		got, err := c.Read(block)
		f.bytes.Add(uint64(got))
		if err != nil {
			return
		}
	}
}

// serve hands every connection to a port inside to a function. Port 0 is any.
func (n *netns) serve(addr string, port int, handle func(net.Conn)) (address string) {
	n.t.Helper()
	var l net.Listener
	n.must("listen", func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(port)))
		return err
	})
	n.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c)
		}
	}()
	return l.Addr().String()
}

// sink takes what comes in at a port and counts it.
func (n *netns) sink(addr string, port int) *traffic {
	n.t.Helper()
	f := &traffic{}
	f.address = n.serve(addr, port, f.drain)
	return f
}

// source sends to whoever connects to a port.
func (n *netns) source(addr string, port int) (address string) {
	n.t.Helper()
	return n.serve(addr, port, flood)
}

// fetch connects to a source and counts what it sends.
func (n *netns) fetch(address string) *traffic {
	n.t.Helper()
	c := n.dial(address)
	f := &traffic{address: address, stop: func() { c.Close() }}
	n.t.Cleanup(f.stop)
	go f.drain(c)
	return f
}

func (n *netns) dial(address string) net.Conn {
	n.t.Helper()
	var c net.Conn
	n.must("connect to "+address, func() (err error) {
		c, err = net.Dial("tcp", address)
		return err
	})
	return c
}

// send floods an address from inside, by a process of its own, that is put into a cgroup2 directory before it opens a
// socket; "" leaves it where it is.
func (n *netns) send(dir, address string, connections int) (stop func()) {
	n.t.Helper()
	return n.start("send", dir, address, connections).stop
}

// take reads from a source in the same way.
func (n *netns) take(dir, address string, connections int) *process {
	n.t.Helper()
	return n.start("take", dir, address, connections)
}

// process is one end of traffic.
type process struct {
	count func() uint64 // bytes that it took so far
	stop  func()
}

func (n *netns) start(how, dir, address string, connections int) *process {
	n.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", childVariable, how, address, connections))
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		n.t.Fatal(err)
	}
	n.must("start a process", cmd.Start)
	var once sync.Once
	stop := func() {
		once.Do(func() {
			in.Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	n.t.Cleanup(stop)
	if dir != "" {
		f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.Itoa(cmd.Process.Pid))
			f.Close()
		}
		if err != nil {
			n.t.Fatalf("put the process into its group: %v", err)
		}
	}
	answers := bufio.NewReader(out)
	count := func() uint64 {
		n.t.Helper()
		fmt.Fprintln(in, "go")
		line, err := answers.ReadString('\n')
		if err != nil {
			n.t.Fatalf("ask the process: %q %v", line, err)
		}
		bytes, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			n.t.Fatal(err)
		}
		return bytes
	}
	count()
	return &process{count: count, stop: stop}
}

// arrived counts what an interface of the host received.
func (p *pair) arrived(name string) func() uint64 {
	return func() uint64 {
		var bytes uint64
		p.host.must("count what arrived", func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				bytes = l.Attrs().Statistics.RxBytes
			}
			return err
		})
		return bytes
	}
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

// span is how long a rate is measured: SPAN=10s is the full test.
func span(t testing.TB) time.Duration {
	if text := os.Getenv("SPAN"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("SPAN: %v", err)
		}
		return d
	}
	if testing.Short() {
		return 3 * time.Second // the rates are low
	}
	return time.Second
}

const settle = 500 * time.Millisecond

// rates lets counters run in, and gives their growth in Mbit/s over the span.
func rates(t testing.TB, counters ...func() uint64) []float64 {
	t.Helper()
	time.Sleep(settle)
	read := func() (time.Time, []uint64) {
		var all []uint64
		for _, c := range counters {
			all = append(all, c())
		}
		return time.Now(), all
	}
	began, before := read()
	time.Sleep(span(t))
	ended, after := read()
	var all []float64
	for i := range counters {
		all = append(all, float64(after[i]-before[i])*8/1e6/ended.Sub(began).Seconds())
	}
	return all
}

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

// holds checks that what counters count together is the wanted rate in units of mbit, and gives what was measured of
// each.
func holds(t testing.TB, what string, want, percent float64, counters ...func() uint64) []float64 {
	t.Helper()
	want *= unit
	slack := want*percent/100 + packet/span(t).Seconds()
	for try := 1; ; try++ {
		each, got := rates(t, counters...), 0.0
		for _, one := range each {
			got += one
		}
		t.Logf("%s: %.2f Mbit/s, asked %g", what, got, want)
		low, high := got < want-slack, got > want+slack
		if high || low && try == busyTries {
			t.Errorf("%s: %.2f Mbit/s is not within %v %% of %g", what, got, percent, want)
		}
		if high || !low || try == busyTries {
			return each
		}
	}
}

// stalls sends its clock every 50 ms over one TCP connection from the host to the peer, which sends it back, and keeps
// the longest time that took.
type stalls struct {
	conn    net.Conn
	longest atomic.Int64
	stopped chan struct{}
	done    chan error
}

const beat = 50 * time.Millisecond

func (p *pair) heartbeat(from, to string) *stalls {
	p.t.Helper()
	address := p.peer.serve(to, 0, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	c := p.host.dial(address)
	if got, _, _ := net.SplitHostPort(c.LocalAddr().String()); got != from {
		p.t.Fatalf("the connection leaves from %s, not %s", got, from)
	}
	s := &stalls{conn: c, stopped: make(chan struct{}), done: make(chan error, 1)}
	go s.receive(c)
	go s.send(c)
	return s
}

func (s *stalls) send(c net.Conn) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-s.stopped:
			c.Close()
			return
		case <-tick.C:
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
			if _, err := c.Write(b[:]); err != nil {
				return
			}
		}
	}
}

// receive times the way there and back of each beat: that of one that waits behind a lost one counts from when it was
// sent.
func (s *stalls) receive(c net.Conn) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			select {
			case <-s.stopped:
				err = nil
			default:
			}
			s.done <- err
			return
		}
		took := time.Now().UnixNano() - int64(binary.BigEndian.Uint64(b[:]))
		if took > s.longest.Load() {
			s.longest.Store(took)
		}
	}
}

func (s *stalls) stop(t testing.TB) time.Duration {
	t.Helper()
	time.Sleep(3 * beat)
	close(s.stopped)
	if err := <-s.done; err != nil {
		t.Errorf("the control connection broke: %v", err)
	}
	return time.Duration(s.longest.Load())
}

// resent is how many segments of the connection the kernel sent again.
func (s *stalls) resent() uint32 {
	raw, err := s.conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0
	}
	var n uint32
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = info.Total_retrans
		}
	})
	return n
}

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
