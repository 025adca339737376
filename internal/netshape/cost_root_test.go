//go:build root

package netshape_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/netshape"
)

// arms are the arrangements whose cost is compared; each round takes one measurement of each in turn, so that what else
// the machine does hits all. The first two are the same: how far apart they are is the noise.
var arms = []string{"without", "without again", "50 classes, outside", "50 classes, inside"}

// BenchmarkCost compares a stream of one connection, and a ping-pong, without bulkhead, beside 50 classes, and inside a
// class whose ceiling it does not reach. Run it with -benchtime 1x; SPAN is how long each part takes, ten rounds of
// each.
func BenchmarkCost(b *testing.B) {
	p := newPair(b)
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("g%d", i))
	}
	dirs := groups(b, names...)
	w := netshape.Wanted{Device: device, Leaf: leaf()}
	for i, name := range names {
		w.Groups = append(w.Groups, netshape.Group{
			Name: name, Slot: netshape.Slot(i + 1), Cgroup: dirs[i], Egress: netshape.Share{Max: 100_000 * mbit},
		})
	}
	to := p.peer.sink(peerAddr, 0)
	echo := p.peer.serve(peerAddr, 0, func(c net.Conn) { _, _ = io.Copy(c, c); c.Close() })
	streams, pings := make([][]float64, len(arms)), make([][]float64, len(arms))
	for range b.N * 10 {
		for i, arm := range arms {
			want, dir := netshape.Wanted{Device: device}, ""
			if i >= 2 {
				want = w
			}
			if arm == "50 classes, inside" {
				dir = dirs[0]
			}
			p.shape(want, dirs...)
			stop := p.host.send(dir, to.address, 1)
			streams[i] = append(streams[i], rates(b, to.bytes.Load)[0])
			stop()
			if dir == "" {
				pings[i] = append(pings[i], p.pingPong(b, echo))
			}
		}
	}
	p.shape(netshape.Wanted{Device: device}, dirs...)
	for i, arm := range arms {
		slices.Sort(streams[i])
		slices.Sort(pings[i])
		n := len(streams[i])
		b.Logf("%-20s stream: median %.0f Mbit/s (%.0f … %.0f), %.3f of the first", arm, streams[i][n/2], streams[i][0],
			streams[i][n-1],
			streams[i][n/2]/streams[0][n/2])
		if m := len(pings[i]); m > 0 {
			b.Logf("%-20s ping-pong p99: median %.1f µs (%.1f … %.1f), %.2f of the first", arm, pings[i][m/2],
				pings[i][0], pings[i][m-1],
				pings[i][m/2]/pings[0][m/2])
		}
	}
}

// pingPong gives the 99th percentile of the way there and back, in µs.
func (p *pair) pingPong(b *testing.B, address string) float64 {
	b.Helper()
	c := p.host.dial(address)
	defer c.Close()
	var took []float64
	var buf [8]byte
	for end := time.Now().Add(span(b)); time.Now().Before(end); {
		began := time.Now()
		binary.NativeEndian.PutUint64(buf[:], uint64(len(took)))
		_, err := c.Write(buf[:])
		if err == nil {
			_, err = io.ReadFull(c, buf[:])
		}
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, float64(time.Since(began).Nanoseconds())/1e3)
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}
