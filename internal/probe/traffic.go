package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Traffic sends to, or receives from, a Sink over several connections.
type Traffic struct {
	Peer string        `json:"peer"` // ADDRESS:PORT
	Send bool          `json:"send,omitempty"`
	Most int64         `json:"most"` // bytes in all
	Warm time.Duration `json:"warm"`
	Span time.Duration `json:"span"`
}

// What a connection says first, and how many there are at a time: one alone may not fill a shaped link.
const (
	greetSend   = "bulkhead probe send\n"
	greetTake   = "bulkhead probe take\n"
	connections = 4
	dialTime    = 3 * time.Second
)

func (t *Traffic) run(ctx context.Context) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.Warm+t.Span)
	defer cancel()
	var arrived [connections]atomic.Int64 // by connection
	var total atomic.Int64
	var group sync.WaitGroup
	for i := range connections {
		c, err := (&net.Dialer{Timeout: dialTime}).DialContext(ctx, "tcp", t.Peer)
		if err != nil {
			return a, fmt.Errorf("reach the peer: %w", err)
		}
		defer c.Close()
		a.Local = c.LocalAddr().String()
		group.Go(func() { t.over(ctx, c, &arrived[i]) })
	}
	ended, begin := make(chan struct{}), time.Now()
	go t.sum(ctx, arrived[:], &total, ended)
	rate := &meter{count: &total}
	a.Took = sample(ctx, begin, ended, t.Warm, rate)
	a.Bytes = rate.samples.In(a.Took)
	cancel()
	group.Wait()
	if total.Load() == 0 {
		return a, errors.New("the peer takes or sends nothing: is it `bulkhead verify --listen`?")
	}
	return a, nil
}

// sum adds up what all connections have got through, until that is enough.
func (t *Traffic) sum(ctx context.Context, arrived []atomic.Int64, total *atomic.Int64, ended chan struct{}) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		<-tick.C
		var all int64
		for i := range arrived {
			all += arrived[i].Load()
		}
		if total.Store(all); all >= t.Most {
			close(ended)
			return
		}
	}
}

// over drives one connection: arrived is how many bytes got to its other end, or to here.
func (t *Traffic) over(ctx context.Context, c net.Conn, arrived *atomic.Int64) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if !t.Send {
		if _, err := io.WriteString(c, greetTake); err == nil {
			drain(c, arrived)
		}
		return
	}
	if _, err := io.WriteString(c, greetSend); err != nil {
		return
	}
	go flood(c)
	for { // the other end tells how far it is
		var count [8]byte
		if _, err := io.ReadFull(c, count[:]); err != nil {
			return
		}
		arrived.Store(int64(binary.BigEndian.Uint64(count[:])))
	}
}

func drain(c net.Conn, count *atomic.Int64) {
	for buf := make([]byte, 128<<10); ; {
		n, err := c.Read(buf)
		count.Add(int64(n))
		if err != nil {
			return
		}
	}
}

func flood(c net.Conn) {
	for buf := make([]byte, 128<<10); ; {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

// How many connections a Sink serves at a time, and for how long each.
const (
	mostServed = 64
	serveTime  = 30 * time.Second
)

// Sink is the other end of Traffic: it takes what is sent and sends what is taken, until the context ends.
func Sink(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	room := make(chan struct{}, mostServed)
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve probes: %w", err)
		}
		room <- struct{}{}
		go func() {
			defer func() { c.Close(); <-room }()
			_ = c.SetDeadline(time.Now().Add(serveTime))
			serve(c)
		}()
	}
}

func serve(c net.Conn) {
	greeting := make([]byte, len(greetSend))
	if _, err := io.ReadFull(c, greeting); err != nil {
		return
	}
	switch string(greeting) {
	case greetTake:
		flood(c)
	case greetSend:
		var count atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			drain(c, &count)
		}()
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
			}
			if _, err := c.Write(binary.BigEndian.AppendUint64(nil, uint64(count.Load()))); err != nil &&
				!errors.Is(err, os.ErrDeadlineExceeded) {
				tick.Stop()
				<-ended
				return
			}
		}
	}
}
