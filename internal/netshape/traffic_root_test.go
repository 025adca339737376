//go:build root

package netshape_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

// rates lets counters run in, and gives their growth in Mbit/s over the span.
func rates(t testing.TB, counters ...func() uint64) []float64 {
	t.Helper()
	return ratesOver(span(t), counters...)
}

// ratesOver is rates over a time.
func ratesOver(length time.Duration, counters ...func() uint64) []float64 {
	time.Sleep(settle)
	read := func() (time.Time, []uint64) {
		var all []uint64
		for _, c := range counters {
			all = append(all, c())
		}
		return time.Now(), all
	}
	began, before := read()
	time.Sleep(length)
	ended, after := read()
	var all []float64
	for i := range counters {
		all = append(all, float64(after[i]-before[i])*8/1e6/ended.Sub(began).Seconds())
	}
	return all
}

// holds checks that what counters count together is the wanted rate in units of mbit, and gives what was measured of
// each.
func holds(t testing.TB, what string, want, percent float64, counters ...func() uint64) []float64 {
	t.Helper()
	return holdsOver(t, span(t), what, want, percent, counters...)
}

// holdsOver is holds, measured over a time.
func holdsOver(t testing.TB, length time.Duration, what string, want, percent float64,
	counters ...func() uint64) []float64 {
	t.Helper()
	want *= unit
	slack := want*percent/100 + packet/length.Seconds()
	for try := 1; ; try++ {
		each, got := ratesOver(length, counters...), 0.0
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
