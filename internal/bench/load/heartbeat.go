package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
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
	answer, all := make([]byte, 1), newSeries(began, live)
	for i := range number {
		if _, err := io.ReadFull(conn, answer); err != nil {
			return o, fmt.Errorf("wait for beat %d of the control connection: %w", i, err)
		}
		all.add(time.Since(due(i)))
	}
	return all.outcome(beat), nil
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
