// Package screen is what a terminal gets beyond text: colours, and a line that says that a verb is still at work.
//
// A colour repeats what the words of a line say already; nothing is told by a colour alone. Text that goes into a file
// or a pipe has none, nor has any where the environment has NO_COLOR (https://no-color.org) or TERM=dumb. A [Screen] is
// safe for concurrent use.
package screen

import (
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/term"
)

// Descriptor is a writer with a number, of which the kernel tells whether it is a terminal. A file is one.
type Descriptor interface{ Fd() uintptr }

// Terminal says whether a writer is one.
func Terminal(w io.Writer) bool {
	f, is := w.(Descriptor)
	return is && term.IsTerminal(int(f.Fd()))
}

// Screen keeps the line about a verb's progress out of the way of what the verb writes.
type Screen struct {
	// Out and Err are where a verb writes: stdout and stderr, with a colour where that is a terminal, and behind them
	// the line of progress, which goes before anything else is written.
	Out, Err io.Writer

	mu    sync.Mutex
	line  io.Writer // the terminal that gets the line; nil where stderr is none
	every time.Duration
	drawn bool
	steps int
}

// New gives the screen for a program's stdout and stderr. Writers that are no terminals get each byte as it is.
func New(out, errw io.Writer) *Screen {
	s := &Screen{every: time.Second}
	if Terminal(errw) {
		s.line = errw
	}
	s.Out, s.Err = s.over(out), s.over(errw)
	return s
}

// over is what stands before a writer.
func (s *Screen) over(to io.Writer) io.Writer {
	terminal := Terminal(to)
	if !terminal && s.line == nil {
		return to
	}
	w := &writer{screen: s, to: to, begun: true}
	w.colour = terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if f, is := to.(Descriptor); is {
		return &file{w, f}
	}
	return w
}

// Step notes that a verb has done so many of its steps.
func (s *Screen) Step(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps = n
}

// Wait shows, from a second on and again each second, for how long a verb has been at work; where stderr is no terminal
// it shows nothing. The function that it gives ends that and leaves the line empty.
func (s *Screen) Wait(what string) (end func()) {
	if s.line == nil {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		began, tick := time.Now(), time.NewTicker(s.every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				s.draw(what, time.Since(began))
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() {
			close(quit)
			<-gone
			s.mu.Lock()
			defer s.mu.Unlock()
			s.erase()
		})
	}
}

func (s *Screen) draw(what string, since time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	text := what + ": " + strconv.Itoa(int(since.Round(time.Second)/time.Second)) + " s"
	if s.steps > 0 {
		text += ", step " + strconv.Itoa(s.steps)
	}
	_, _ = io.WriteString(s.line, text)
	s.drawn = true
}

// erase empties the line of progress: carriage return, then "erase to the end" (ECMA-48). The caller holds the lock.
func (s *Screen) erase() {
	if s.drawn {
		_, _ = io.WriteString(s.line, "\r\x1b[K")
		s.drawn = false
	}
}

// writer is what stands before stdout or stderr.
type writer struct {
	screen *Screen
	to     io.Writer
	colour bool
	begun  bool // what is written next begins a line
}

// file is one whose columns can be asked for.
type file struct {
	*writer
	of Descriptor
}

// Fd implements what golang.org/x/term asks a file for.
func (f *file) Fd() uintptr { return f.of.Fd() }

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	w.screen.mu.Lock()
	defer w.screen.mu.Unlock()
	w.screen.erase()
	text := p
	if w.colour {
		text = coloured(p, w.begun)
	}
	if len(p) > 0 {
		w.begun = p[len(p)-1] == '\n'
	}
	if _, err := w.to.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}
