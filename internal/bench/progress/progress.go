// Package progress shows how far a proof is: on a terminal in one line that is rewritten, elsewhere in lines every few
// seconds. A [Progress] is safe for concurrent use.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/proof"
)

// Progress says what happens while it happens. On a terminal one line is rewritten every second;
// elsewhere a new line comes at each phase and every five seconds. Notes stay. It is safe for concurrent use.
type Progress struct {
	out      io.Writer
	terminal bool
	every    time.Duration
	quit     chan struct{}
	gone     chan struct{}

	mu      sync.Mutex
	started time.Time
	about   time.Duration // of the whole run; 0 when not known yet
	current string
	tps     float64 // live rate; negative when nothing runs
	printed time.Time
	drawn   bool // the terminal's line holds something
	done    int  // arms
	arms    int
}

// New begins to show progress; Close ends it.
func New(out io.Writer, terminal bool) *Progress {
	p := &Progress{
		out: out, terminal: terminal, every: 5 * time.Second,
		quit: make(chan struct{}), gone: make(chan struct{}), started: time.Now(), tps: -1,
	}
	if terminal {
		p.every = time.Second
	}
	go p.tick()
	return p
}

func (p *Progress) tick() {
	defer close(p.gone)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-t.C:
			p.mu.Lock()
			if p.current != "" && time.Since(p.printed) >= p.every {
				p.print()
			}
			p.mu.Unlock()
		}
	}
}

// Begin says how long the run will take.
func (p *Progress) Begin(about time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.about = time.Since(p.started) + about
}

// Phase says what happens from now on.
func (p *Progress) Phase(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.tps = text, -1
	p.print()
}

// Arm says how many arms are done, and of how many.
func (p *Progress) Arm(done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.arms = done, of
}

// bar shows how far it is.
func (p *Progress) bar() string {
	const width = 20
	if p.arms == 0 {
		return ""
	}
	full := width * p.done / p.arms
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]  "
}

// Rate says how many transactions the load did in the last second.
func (p *Progress) Rate(tps float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tps = tps
}

// Note prints a line that stays.
func (p *Progress) Note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprintln(p.out, text)
	if p.terminal && p.current != "" {
		p.print()
	}
}

// Close ends it and leaves a clean line.
func (p *Progress) Close() {
	close(p.quit)
	<-p.gone
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

// print writes the current line. The caller holds the lock. A progress that cannot be written is no
// reason to stop: the answer goes elsewhere.
func (p *Progress) print() {
	line := proof.Clock(time.Since(p.started))
	if p.about > 0 {
		line += " of about " + proof.Clock(p.about)
	}
	line += "  " + p.bar() + p.current
	if p.tps >= 0 {
		line += fmt.Sprintf(": %s transactions/s", proof.Number(p.tps))
	}
	p.printed = time.Now()
	if !p.terminal {
		fmt.Fprintln(p.out, line)
		return
	}
	p.erase()
	fmt.Fprint(p.out, line)
	p.drawn = true
}

// erase clears the terminal's line: carriage return, then "erase to the end" (ECMA-48).
func (p *Progress) erase() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}
