//go:build root

package network

import (
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// paced sends so many bytes per second from the host, in pieces of 10 ms, until it is stopped.
func (s *site) paced(address string, perSecond int) (stop func()) {
	var c net.Conn
	s.host.must("dial", func() (err error) { c, err = net.Dial("tcp", address); return err })
	go func() {
		piece := make([]byte, perSecond/100)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}()
	return func() { c.Close() }
}

// pingPong gives the 99th percentile of 2,000 round trips from the peer to the host.
func (s *site) pingPong(address string) float64 {
	s.t.Helper()
	var c net.Conn
	s.peer.must("dial", func() (err error) { c, err = net.Dial("tcp", address); return err })
	defer c.Close()
	const rounds = 2000
	took := make([]time.Duration, rounds)
	b := make([]byte, 64)
	for i := range took {
		begin := time.Now()
		if _, err := c.Write(b); err != nil {
			s.t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil {
			s.t.Fatal(err)
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return float64(took[rounds*99/100].Nanoseconds()) / 1000
}

// stream is what an ungoverned sender on the host gets to the peer within a second, Gbit/s.
func (s *site) stream(taken *atomic.Int64, group, address string) float64 {
	p, _ := s.traffic(group, "send", address, 1)
	defer p.end()
	time.Sleep(200 * time.Millisecond)
	before, begin := taken.Load(), time.Now()
	time.Sleep(time.Second)
	return float64(taken.Load()-before) * 8 / time.Since(begin).Seconds() / 1e9
}

// What a limit costs those whom it is not for: a stream of a group without limits, one of no group, and a ping-pong of
// no group, each beside a load of 50 Mbit/s which is under a limit of 100; and 50 classes. The first two arrangements
// are the same: their difference is that of the machine. All are interleaved.
func BenchmarkNeighbours(b *testing.B) {
	s := newSite(b)
	var taken, load atomic.Int64
	sink, _ := s.peer.listen(peerAddr+":0", func(c net.Conn) { drain(c, &taken) })
	other, _ := s.peer.listen(peerAddr+":0", func(c net.Conn) { drain(c, &load) })
	echo, _ := s.host.listen(hostAddr+":0", func(c net.Conn) { defer c.Close(); _, _ = io.Copy(c, c) })
	without := "  load: {}\n  second: {}\n"
	limited := "  load: {network: [{on: up0, egress: 100Mbit/s}]}\n  second: {}\n"
	many := limited
	for i := range 50 {
		many += fmt.Sprintf("  g%d: {network: [{on: up0, egress: 100Gbit/s}]}\n", i)
	}
	arrangements := []struct {
		name, policy, group string
	}{
		{"without", without, ""}, {"without, again", without, ""},
		{"limit on the load, sender in no group", limited, ""},
		{"without, sender in the second group", without, "second"},
		{"limit on the load, sender in the second group", limited, "second"},
		{"50 classes, sender in no group", many, ""}, {"50 classes, sender in one", many, "g7"},
	}
	rates, delays := make([][]float64, len(arrangements)), make([][]float64, len(arrangements))
	for range b.N {
		for range 7 {
			for i, a := range arrangements {
				s.write("", a.policy)
				s.must("apply")
				stop := s.paced(other, 50e6/8)
				rates[i] = append(rates[i], s.stream(&taken, a.group, sink))
				delays[i] = append(delays[i], s.pingPong(echo))
				stop()
			}
		}
	}
	median := func(all []float64) float64 { slices.Sort(all); return all[len(all)/2] }
	b.ReportMetric(0, "ns/op")
	for i, a := range arrangements {
		base := 0
		if a.group == "second" {
			base = 3
		}
		r, d := median(rates[i]), median(delays[i])
		b.Logf("%-46s %6.2f Gbit/s (%.2f … %.2f), ratio %.3f; ping-pong p99 %5.0f µs (%.0f … %.0f), ratio %.3f", a.name,
			r, rates[i][0], rates[i][len(rates[i])-1], r/median(rates[base]), d, delays[i][0],
			delays[i][len(delays[i])-1], d/median(delays[base]))
	}
}
