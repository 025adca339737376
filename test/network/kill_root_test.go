//go:build root

package network

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
)

// heartbeat is an open connection of somebody at the peer to the host, which sends its clock every 50 ms and gets it
// back.
type heartbeat struct {
	t       testing.TB
	conn    net.Conn
	longest atomic.Int64
	stopped chan struct{}
	done    chan error
}

const beat = 50 * time.Millisecond

func (s *site) heartbeat(address string) *heartbeat {
	s.t.Helper()
	at, _ := s.host.listen(address+":0", func(c net.Conn) { defer c.Close(); _, _ = io.Copy(c, c) })
	h := &heartbeat{t: s.t, stopped: make(chan struct{}), done: make(chan error, 1)}
	s.peer.must("dial", func() (err error) { h.conn, err = net.DialTimeout("tcp", at, 5*time.Second); return err })
	go h.receive()
	go h.send()
	return h
}

func (h *heartbeat) send() {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-h.stopped:
			h.conn.Close()
			return
		case <-tick.C:
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
			if _, err := h.conn.Write(b[:]); err != nil {
				return
			}
		}
	}
}

func (h *heartbeat) receive() {
	var b [8]byte
	for {
		if _, err := io.ReadFull(h.conn, b[:]); err != nil {
			select {
			case <-h.stopped:
				err = nil
			default:
			}
			h.done <- err
			return
		}
		took := time.Now().UnixNano() - int64(binary.BigEndian.Uint64(b[:]))
		for {
			longest := h.longest.Load()
			if took <= longest || h.longest.CompareAndSwap(longest, took) {
				break
			}
		}
	}
}

// lap is the longest stall since the last lap.
func (h *heartbeat) lap() time.Duration {
	time.Sleep(2 * beat)
	return time.Duration(h.longest.Swap(0))
}

// resent is how many segments the kernel had to send again.
func (h *heartbeat) resent() uint32 {
	var n uint32
	raw, err := h.conn.(*net.TCPConn).SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				n = info.Total_retrans
			}
		})
	}
	return n
}

func (h *heartbeat) stop() {
	h.t.Helper()
	time.Sleep(2 * beat)
	close(h.stopped)
	if err := <-h.done; err != nil {
		h.t.Errorf("the control connection broke: %v", err)
	}
}

// shown is all that the kernel shows of the interface and of the groups' directories, without what changes by itself.
func (s *site) shown() string {
	state := s.look(device, s.programDirs()...)
	var b strings.Builder
	add := func(d tc.Device) {
		for _, r := range d.Qdiscs {
			if len(r.Options) >= 24 && r.Kind == "htb" {
				clear(r.Options[20:24]) // packets that passed it
			}
			fmt.Fprintf(&b, "qdisc %s at %s %x\n", r, r.Parent, r.Options)
		}
		for _, r := range d.Classes {
			fmt.Fprintf(&b, "class %s at %s %x\n", r, r.Parent, r.Options)
		}
		for _, r := range d.Filters {
			if r.Handle&0xfff != 0 {
				fmt.Fprintf(&b, "filter %s at %s %x\n", r.Kind, r.Parent, r.Info)
			}
		}
	}
	add(state.Device)
	if state.NIC != nil {
		b.WriteString("virtual NIC\n")
		add(*state.NIC)
	}
	for _, programs := range [][]bpf.Program{state.Programs, state.Policers, state.Counters} {
		for _, p := range programs {
			fmt.Fprintf(&b, "program %s %s %s\n", strings.ReplaceAll(p.Cgroup, s.root, "ROOT"), p.Name, p.Rate)
		}
	}
	return b.String()
}

// steps counts the steps that a verb would do, and those that change the network.
func (s *site) steps(verb ...string) (all, network int, regrafts bool) {
	s.t.Helper()
	var reply struct{ Steps []plan.Step }
	var wrapped struct{ Plan struct{ Steps []plan.Step } }
	out := []byte(s.must(append(verb, "--json")...).out)
	if err := json.Unmarshal(out, &reply); err != nil {
		s.t.Fatal(err)
	}
	if reply.Steps == nil && json.Unmarshal(out, &wrapped) == nil {
		reply.Steps = wrapped.Plan.Steps
	}
	for _, step := range reply.Steps {
		if step.Kind == request.Kind {
			network++
			c, _, err := request.Parse(step.Change)
			if err != nil {
				s.t.Fatal(err)
			}
			regrafts = regrafts || c.Regrafts() && c.Device == device
		}
	}
	return len(reply.Steps), network, regrafts
}

// recovers waits until the watchdog has taken a change back: within 10 s.
func (s *site) recovers(what, before string) time.Duration {
	s.t.Helper()
	begin := time.Now()
	for {
		got := s.shown()
		took := time.Since(begin)
		switch {
		case got == before:
			return took
		case took > 10*time.Second:
			s.t.Fatalf("%s: not taken back within 10 s:\n%s\nbefore:\n%s", what, got, before)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// every is how many steps lie between two that something is killed after: none with KILLS=all, as in `make test-long`.
func every(steps int) int {
	if os.Getenv("KILLS") == "all" {
		return 1
	}
	if testing.Short() {
		return max(1, steps/3)
	}
	return max(1, steps/7)
}

const twoWays = "  a: {network: [{on: up0, egress: %s, ingress: %s, ports: [7001]}]}\n"

// An apply that is killed after any of its steps is taken back by its watchdog, and the control connection through the
// interface never stalls: here our qdiscs are in place, and limits come, change and go.
func TestApplyKilledAtEveryStep(t *testing.T) {
	s := newSite(t)
	s.write("", fmt.Sprintf(twoWays, rate(100), rate(50)))
	s.must("apply")
	h, aside := s.heartbeat(hostAddr), s.heartbeat(spareHost)
	h.lap()
	aside.lap()
	before := s.shown()
	next := fmt.Sprintf(twoWays, rate(80), rate(40)) +
		"  b: {network: [{on: up0, egress: " + rate(20) + ", ingress: " + rate(10) +
		", ports: [7002]}]}\n  c: {network: [{on: up0, ingress: " + rate(30) + "}]}\n"
	s.write("", next)
	all, network, regrafts := s.steps("plan")
	if network < 15 || regrafts {
		t.Fatalf("%d steps, %d of the network, regrafts %t", all, network, regrafts)
	}
	var slowest time.Duration
	for n := 0; n < all; n += every(all) {
		s.env = []string{fmt.Sprintf("BULKHEAD_TEST_CRASH=kill %d", n)}
		if r := s.run("apply"); !r.killed {
			t.Fatalf("not killed after step %d: exit %d\n%s%s", n, r.code, r.out, r.err)
		}
		s.env = nil
		slowest = max(slowest, s.recovers(fmt.Sprintf("killed after step %d", n), before))
		soon(t, "the watchdog to be done", func() bool { return !strings.Contains(s.run("status").out, "interrupted") })
	}
	t.Logf("%d steps; the slowest was taken back within %s", all, slowest)
	s.must("apply")
	s.verified()
	s.noStall(h, aside, "apply")

	// Taking limits away, killed at every step: what remains is gone on from.
	s.write("", "  a: {}\n")
	all, _, _ = s.steps("plan")
	before = s.shown()
	for n := 0; n < all; n += every(all) {
		s.env = []string{fmt.Sprintf("BULKHEAD_TEST_CRASH=kill %d", n)}
		if r := s.run("apply"); !r.killed {
			t.Fatalf("not killed after step %d: exit %d\n%s%s", n, r.code, r.out, r.err)
		}
		s.env = nil
		s.recovers(fmt.Sprintf("going down, killed after step %d", n), before)
	}
	s.must("apply")
	s.noStall(h, aside, "taking limits away")
	h.stop()
	aside.stop()
	s.must("release", "--all")
	s.clean("released")
}

// noStall wants no beat to take more than 100 ms, or not much more than on the interface that nobody touches: the
// machine's own pauses are not ours.
func (s *site) noStall(h, aside *heartbeat, what string) {
	s.t.Helper()
	got, other, resent := h.lap(), aside.lap(), h.resent()
	s.t.Logf("%s: the longest beat took %s, %s on an interface that nobody touched; %d segments were sent again", what,
		got, other, resent)
	if got > max(100*time.Millisecond, 2*other) {
		s.t.Errorf("%s: the control connection stalled for %s (on an interface that nobody touched: %s)", what, got,
			other)
	}
}

// The first set-up and the release, killed at every step: these give the interface another qdisc, in which the kernel
// drops packets for a moment. The connection survives, and every state is gone on from.
func TestFirstApplyAndReleaseKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	h := s.heartbeat(hostAddr)
	before := s.shown()
	s.write("", fmt.Sprintf(twoWays, rate(100), rate(50)))
	all, network, _ := s.steps("plan")
	var long []time.Duration
	lap := func() {
		if got := h.lap(); got > 100*time.Millisecond {
			long = append(long, got.Round(time.Millisecond))
		}
	}
	for n := all - network; n < all; n += every(network) {
		s.env = []string{fmt.Sprintf("BULKHEAD_TEST_CRASH=kill %d", n)}
		if r := s.run("apply"); !r.killed {
			t.Fatalf("not killed after step %d: exit %d\n%s%s", n, r.code, r.out, r.err)
		}
		s.env = nil
		s.recovers(fmt.Sprintf("killed after step %d", n), before)
		lap()
	}
	soon(t, "an apply that goes through", func() bool { return s.run("apply").code == 0 })
	released := 0
	for n := 0; n < 60; n += every(20) {
		s.env = []string{fmt.Sprintf("BULKHEAD_TEST_CRASH=kill %d", n)}
		r := s.run("release", "--all")
		s.env = nil
		lap()
		if !r.killed {
			break
		}
		released++
		soon(t, "an apply after a killed release", func() bool { return s.run("apply").code == 0 })
		s.verified()
	}
	if released < 20/every(20)-1 {
		t.Errorf("the release was killed %d times only", released)
	}
	s.must("release", "--all")
	s.clean("released")
	t.Logf("%d kills; beats of more than 100 ms: %v; %d segments were sent again", network+released, long, h.resent())
	for _, l := range long {
		if l > 3*time.Second {
			t.Errorf("the control connection stalled for %s", l)
		}
	}
	h.stop()
}

// The agent killed while it sets limits up: the watchdog takes its change back, and the next agent goes on.
func TestAgentKilledWhileItShapes(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	s.write("", fmt.Sprintf(twoWays, rate(100), rate(50)))
	s.must("apply")
	before := s.shown()
	for _, how := range []string{"kill 0", "stop 1"} {
		s.env = []string{"BULKHEAD_TEST_CRASH=" + how}
		agent := s.start(s.host, s.command("agent", "--full", "500ms"))
		s.env = nil
		soon(t, "the agent", func() bool { return !strings.Contains(s.run("status").out, "NOT RUNNING") })
		s.write("", fmt.Sprintf(twoWays, rate(80), rate(40)))
		_ = s.run("apply") // through the agent, which dies over it or is ended by its watchdog
		took := s.recovers("agent: "+how, before)
		t.Logf("%s: taken back within %s", how, took)
		select {
		case <-agent.gone:
		case <-time.After(10 * time.Second):
			t.Errorf("the agent that came to grief (%s) still runs", how)
		}
		agent.end()
		soon(t, "the transaction to be closed",
			func() bool { return !strings.Contains(s.run("status").out, "interrupted") })
	}
	s.verified()
	s.must("release", "--all")
	s.clean("released")
}

// A change that stands still is taken back, and so is one that cuts a named peer off.
func TestWatchdog(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	at, listener := s.peer.listen(peerAddr+":0", func(c net.Conn) { c.Close() })
	policy := func(r int) {
		s.write("network: [{on: up0, peer: \""+at+"\"}]", fmt.Sprintf(twoWays, rate(r), rate(50)))
	}
	policy(100)
	s.must("apply")
	before := s.shown()
	policy(80)
	for _, how := range []string{"stop 0", "sleep 0"} {
		s.env = []string{"BULKHEAD_TEST_CRASH=" + how}
		cmd := s.command("apply")
		var errw syncBuffer
		cmd.Stderr = &errw
		s.env = nil
		s.host.must("start", cmd.Start)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s said:\n%s", how, errw.String())
			}
		})
		soon(t, "a change of the interface", func() bool { return s.shown() != before })
		if how == "sleep 0" {
			listener.Close()
		}
		took := s.recovers(how, before)
		t.Logf("%s: taken back within %s", how, took)
		if err := cmd.Wait(); err == nil {
			t.Errorf("%s: the apply says that it is done", how)
		}
		soon(t, "the transaction to be closed",
			func() bool { return !strings.Contains(s.run("status").out, "interrupted") })
	}
	s.exits(1, []string{at + " is out of reach before anything was changed"}, "apply")
	if got := s.shown(); got != before {
		t.Errorf("after an apply without its peer\n%s\nbefore\n%s", got, before)
	}
	s.must("release", "--all") // the way out needs no peer
	s.clean("released")
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}
