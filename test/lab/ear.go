package lab

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"
)

// lockup is for how long one CPU of a machine does not move on before the machine counts as stuck for good. A busy host
// makes a kernel report half a minute once or twice.
const lockup = 140 * time.Second

// lockupReport is what the kernel says, every 28 seconds or so, of a CPU that does not move on, with its seconds.
var lockupReport = regexp.MustCompile(`BUG: soft lockup - CPU#\d+ stuck for (\d+)s!`)

// longestLine bounds what is kept of a line that does not end.
const longestLine = 4 << 10

// Ear says when something was written last by a machine that moves on. One writer at a time.
type Ear struct {
	last  atomic.Int64
	stuck atomic.Bool
	line  []byte // that has not ended; a console comes in pieces of a few bytes
}

// Write never fails.
func (e *Ear) Write(b []byte) (int, error) {
	e.last.Store(time.Now().UnixNano())
	e.line = append(e.line, b...)
	for _, found := range lockupReport.FindAllSubmatch(e.line, -1) {
		s, err := strconv.Atoi(string(found[1]))
		if err == nil && time.Duration(s)*time.Second >= lockup {
			e.stuck.Store(true)
		}
	}
	if end := bytes.LastIndexByte(e.line, '\n'); end >= 0 {
		e.line = append(e.line[:0], e.line[end+1:]...)
	}
	if len(e.line) > longestLine {
		e.line = e.line[:0]
	}
	return len(b), nil
}

// Listen calls done when nothing was written for so long, or when the machine is stuck, and ends with the context.
func (e *Ear) Listen(ctx context.Context, most time.Duration, done func()) {
	e.last.Store(time.Now().UnixNano())
	for {
		left := most - time.Since(time.Unix(0, e.last.Load()))
		if left <= 0 || e.stuck.Load() {
			done()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(left, time.Second)):
		}
	}
}
