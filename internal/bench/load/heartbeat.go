package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"bulkhead/internal/proof"
)

// beat is how often a control connection asks for a sign of life; answerTime is how long the last beats may take to
// come back.
const (
	beat       = 50 * time.Millisecond
	answerTime = 30 * time.Second
)

// Heartbeat is a control connection: one TCP session from the far end to the near one, as a login over ssh is, on which
// a beat goes and comes back every 50 ms. A transaction is a beat, its latency how long after it was due it came back:
// so what is held up behind a beat that was lost counts in full.
var Heartbeat = &loader{
	Native: func(ctx context.Context, d *Driver, length time.Duration, live func(float64)) (o Outcome, err error) {
		var listener net.Listener
		// A socket stays in the namespace in which it was made.
		d.Supervisor.OnThread(func() {
			listener,
				err = net.Listen("tcp", net.JoinHostPort(NearAddr, strconv.Itoa(d.Port)))
		})
		if err != nil {
			return o, fmt.Errorf("listen for the control connection: %w", err)
		}
		echoed := make(chan struct{})
		go func() {
			defer close(echoed)
			echo(listener)
		}()
		defer func() { // the listener goes last, and the echo with the connection
			_ = listener.Close()
			<-echoed
		}()
		var conn net.Conn
		d.Far.OnThread(func() { conn, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second) })
		if err != nil {
			return o, fmt.Errorf("open the control connection: %w", err)
		}
		defer func() { _ = conn.Close() }()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		return beats(conn, length, live)
	},
}

// echo gives the first connection back what it sends, until either end is closed.
func echo(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_, _ = io.Copy(c, c) // the other end tells what is wrong
}

// beats sends beats for a time and measures when each came back.
func beats(conn net.Conn, length time.Duration, live func(float64)) (o Outcome, err error) {
	began, number := time.Now(), max(int(length/beat), 1)
	due := func(i int) time.Time { return began.Add(time.Duration(i) * beat) }
	if err := conn.SetDeadline(began.Add(length + answerTime)); err != nil {
		return o, err
	}
	sent := make(chan error, 1)
	go func() { sent <- sendBeats(conn, number, due) }()
	defer func() {
		if err != nil {
			_ = conn.Close() // and the sender ends
		}
		err = errors.Join(err, <-sent)
	}()
	t := tally{}
	answer := make([]byte, 1)
	var second struct {
		beats int
		sum   float64
	}
	// A second in which nothing came back has no beats.
	end := func(at, span float64) {
		s := proof.Second{At: at, TPS: float64(second.beats) / span,
			Latency: proof.Figure(second.sum / float64(second.beats))}
		o.Seconds = append(o.Seconds, s)
		second.beats, second.sum = 0, 0
		live(s.TPS)
	}
	for i := range number {
		if _, err := io.ReadFull(conn, answer); err != nil {
			return o, fmt.Errorf("wait for beat %d of the control connection: %w", i, err)
		}
		ms := float64(time.Since(due(i))) / float64(time.Millisecond)
		t.add(ms, 1)
		for at := time.Since(began); at >= time.Duration(len(o.Seconds)+1)*time.Second; {
			end(float64(len(o.Seconds)+1), 1)
		}
		second.beats, second.sum = second.beats+1, second.sum+ms
	}
	// What came in a small part of a second says nothing of a second.
	if at := time.Since(began).Seconds(); at-float64(len(o.Seconds)) >= 0.5 || len(o.Seconds) == 0 {
		end(at, at-float64(len(o.Seconds))+beat.Seconds()) // each beat stands for the time to the next
	}
	o.Transactions, o.elapsed, o.Histogram = int64(number), time.Since(began), t.buckets()
	return o, nil
}

// sendBeats sends each beat when it is due, whether the ones before it came back or not.
func sendBeats(conn net.Conn, number int, due func(int) time.Time) error {
	for i := range number {
		time.Sleep(time.Until(due(i)))
		if _, err := conn.Write([]byte{byte(i)}); err != nil {
			return fmt.Errorf("send beat %d of the control connection: %w", i, err)
		}
	}
	return nil
}
