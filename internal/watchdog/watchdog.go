// Package watchdog is the dead-man's switch of a change that can cut its own maker off: a small process of its own that
// takes the change back unless it is told in time that all is well. It owns how that process is started, what it hears
// from the one that makes the change, and how it looks whether peers are still within reach. What is taken back, and
// how, it does not know.
//
// The change is taken back when its maker dies, gives no sign of life, or does not settle the change by a deadline, and
// when a peer gets out of reach. Who settles a change is answered only after each peer was reached once more.
package watchdog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Order is what a watchdog is told first.
type Order struct {
	// Peers are TCP services that must stay within reach, as ADDRESS:PORT.
	Peers []string `json:"peers,omitempty"`
	// Deadline is when the change is taken back if nobody has settled it; zero is never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Alone has the watchdog go on without its maker: Outlive reads it.
	Alone bool `json:"alone,omitempty"`
	// Undo is for whoever takes the change back.
	Undo json.RawMessage `json:"undo,omitempty"`
}

// How long things may take. From the moment that something is wrong to the end of the undo it is less than 10 s, unless
// the maker gives no sign of life and runs.
const (
	signEvery  = 500 * time.Millisecond // between two signs of life
	silence    = 4 * time.Second        // without one the maker counts as dead
	slowness   = 30 * time.Second       // the same for one that runs, or waits for a CPU: a busy host
	peerEvery  = 500 * time.Millisecond // between two looks at a peer
	peerWithin = time.Second            // for one look
	peerGrace  = 3 * time.Second        // for which a peer may be out of reach
	obedience  = 3 * time.Second        // within which the maker takes the change back, once it is told to
	startTime  = 10 * time.Second       // for the watchdog to be there
)

// The lines that the two say to each other.
const (
	lineAlive  = "alive"
	lineSettle = "settle" // all is well: look once more at the peers, and end
	lineDone   = "done"   // the change was taken back by its maker: end
	lineReady  = "ready"
	lineOK     = "ok"
	lineUndo   = "undo " // and why: take it back
)

// Watchdog is a running watchdog, on the side of the one that makes the change.
type Watchdog struct {
	process *os.Process
	in      *os.File // its stdin
	lines   chan string
	fired   chan struct{} // closed when it wants the change taken back
	gone    chan struct{} // closed when it says nothing any more
	why     string
	mu      sync.Mutex
	stop    chan struct{}
}

// Start starts a watchdog: the program that runs now, with arguments that lead it to Watch. It is there, and every peer
// was within reach, when this returns.
func Start(ctx context.Context, args []string, o Order) (*Watchdog, error) {
	order, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	ours, theirs, err := pipes()
	if err != nil {
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	log := os.Stderr
	if o.Alone { // a pipe that somebody reads to its end would not end
		if log, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return nil, fmt.Errorf("start watchdog: %w", err)
		}
		defer log.Close()
	}
	d := &Watchdog{in: ours.w, lines: make(chan string, 4), fired: make(chan struct{}),
		gone: make(chan struct{}), stop: make(chan struct{})}
	// A session of its own: what ends a terminal, or its process group, leaves it alone.
	d.process, err = os.StartProcess(procfs.SelfExe, append([]string{"bulkhead"}, args...), &os.ProcAttr{
		Dir: "/", Files: []*os.File{theirs.r, theirs.w, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	theirs.close() // as long as an end is open here, nobody is told that the watchdog is gone
	if err != nil {
		ours.close()
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	go d.listen(ours.r)
	// An order of many changes is more than a pipe holds (64 KiB), and a watchdog that does not read it would keep its
	// maker for ever.
	_ = ours.w.SetWriteDeadline(time.Now().Add(startTime))
	if _, err := ours.w.Write(append(order, '\n')); err != nil {
		d.end()
		return nil, fmt.Errorf("start watchdog: tell it what to do: %w", err)
	}
	_ = ours.w.SetWriteDeadline(time.Time{})
	if err := d.answer(ctx, lineReady, startTime); err != nil {
		d.end()
		return nil, fmt.Errorf("start watchdog: %w", err)
	}
	go d.live()
	return d, nil
}

// ends are two ends of different pipes.
type ends struct{ r, w *os.File }

func (e ends) close() { e.r.Close(); e.w.Close() }

func pipes() (ours, theirs ends, err error) {
	if theirs.r, ours.w, err = os.Pipe(); err != nil {
		return ours, theirs, err
	}
	if ours.r, theirs.w, err = os.Pipe(); err != nil {
		theirs.r.Close()
		ours.w.Close()
	}
	return ours, theirs, err
}

// listen hears what the watchdog says.
func (d *Watchdog) listen(r *os.File) {
	defer r.Close()
	defer close(d.gone)
	defer close(d.lines)
	in := bufio.NewScanner(r)
	for in.Scan() {
		if why, undo := strings.CutPrefix(in.Text(), lineUndo); undo {
			d.mu.Lock()
			d.why = why
			d.mu.Unlock()
			close(d.fired)
			return
		}
		d.lines <- in.Text()
	}
}

// live gives signs of life until the watchdog is ended.
func (d *Watchdog) live() {
	tick := time.NewTicker(signEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
			if _, err := io.WriteString(d.in, lineAlive+"\n"); err != nil {
				return
			}
		}
	}
}

// Fired is closed when the watchdog wants the change taken back; Why says why.
func (d *Watchdog) Fired() <-chan struct{} { return d.fired }

// Gone is closed when the watchdog has ended, or is about to take the change back: nothing watches over it any more.
func (d *Watchdog) Gone() <-chan struct{} { return d.gone }

// Why is why the watchdog wants the change taken back.
func (d *Watchdog) Why() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Errorf("the watchdog says: %s", d.why)
}

// answer waits for a line.
func (d *Watchdog) answer(ctx context.Context, want string, within time.Duration) error {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case <-d.fired:
		return d.Why()
	case got, open := <-d.lines:
		switch {
		case got == want:
			return nil
		case !open:
			select {
			case <-d.fired:
				return d.Why()
			default:
				return errors.New("the watchdog ended")
			}
		}
		return fmt.Errorf("the watchdog said %q", got)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return fmt.Errorf("the watchdog says nothing within %s", within)
	}
}

// Settle says that the change stays. It fails when a peer is out of reach, or something was wrong before: then the
// change has to be taken back, and Done said.
func (d *Watchdog) Settle(ctx context.Context) error {
	if _, err := io.WriteString(d.in, lineSettle+"\n"); err != nil {
		return fmt.Errorf("settle the change with the watchdog: %w", err)
	}
	if err := d.answer(ctx, lineOK, peerGrace+peerWithin+2*time.Second); err != nil {
		return err
	}
	d.end()
	return nil
}

// Done says that the change was taken back, and ends the watchdog.
func (d *Watchdog) Done() {
	_, _ = io.WriteString(d.in, lineDone+"\n") // one that is gone needs no word
	d.end()
}

// end waits for the watchdog to be gone; one that does not go is left to itself.
func (d *Watchdog) end() {
	close(d.stop)
	d.in.Close()
	gone := make(chan struct{})
	go func() {
		_, _ = d.process.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(2 * time.Second):
	}
}

// PID is the watchdog's process.
func (d *Watchdog) PID() int { return d.process.Pid }

// Leave leaves a watchdog that was started Alone to itself: from now on it does what it is for.
func (d *Watchdog) Leave() {
	close(d.stop)
	d.in.Close()
	go func() { _, _ = d.process.Wait() }()
}

// Outlive is a watchdog that was started Alone: once its maker has left it, or is dead, it tends to what it was made
// for until that is over.
func Outlive(ctx context.Context, in io.Reader, out io.Writer, tend func(context.Context) error) error {
	lines := bufio.NewReader(in)
	if _, err := lines.ReadBytes('\n'); err != nil {
		return fmt.Errorf("read the watchdog's order: %w", err)
	}
	if _, err := io.WriteString(out, lineReady+"\n"); err != nil {
		return fmt.Errorf("tell that the watchdog is there: %w", err)
	}
	_, _ = io.Copy(io.Discard, lines) // its signs of life
	return tend(ctx)
}

// Refuse tells on out, before anything is changed, that the watchdog cannot do what it is for.
func Refuse(out io.Writer, why error) {
	line := lineUndo + strings.ReplaceAll(why.Error(), "\n", "; ") + "\n"
	_, _ = io.WriteString(out, line) // a maker that is gone does not hear it
}

// Watch is the watchdog: it reads its order and what follows from in, says what it thinks on out, and calls undo, once,
// when the change has to be taken back and its maker cannot or does not. stuck is the maker's process when it lives and
// does not react, else 0.
func Watch(ctx context.Context, in io.Reader, out io.Writer,
	undo func(ctx context.Context, o Order, why string, stuck int) error) error {
	maker := os.Getppid()
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	var o Order
	if err == nil {
		err = json.Unmarshal(first, &o)
	}
	if err != nil {
		return fmt.Errorf("read the watchdog's order: %w", err)
	}
	w := &watch{order: o, out: out, heard: make(chan string), lost: make(chan string, len(o.Peers)),
		runs: func() bool { return runs(maker) }}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for _, peer := range o.Peers {
		if err := reach(ctx, peer); err != nil {
			w.say(lineUndo + fmt.Sprintf("%s is out of reach before anything was changed: %v", peer, err))
			return nil
		}
		go w.follow(ctx, peer)
	}
	go w.hear(ctx, lines)
	w.say(lineReady)
	why, alive := w.wait(ctx)
	if why == "" {
		return nil
	}
	if !alive {
		maker = 0
	}
	return undo(ctx, o, why, maker)
}

// watch is a watchdog's own state.
type watch struct {
	order Order
	out   io.Writer
	heard chan string
	lost  chan string // peers
	runs  func() bool // whether the maker runs, or waits for a CPU
}

// runs says whether a thread of a process runs, or waits for a CPU.
func runs(pid int) bool {
	tasks, err := procfs.New(sysroot.New("/")).Tasks(pid)
	return err == nil && slices.ContainsFunc(tasks, func(t procfs.Task) bool { return t.State == 'R' })
}

// isSlow says whether the maker, last heard of at a time, is only slow.
func (w *watch) isSlow(last time.Time) bool { return time.Since(last) < slowness && w.runs() }

func (w *watch) say(line string) { _, _ = io.WriteString(w.out, line+"\n") } // who is not there does not hear it

// hear passes on the maker's lines; the channel closes with it.
func (w *watch) hear(ctx context.Context, lines *bufio.Reader) {
	defer close(w.heard)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		select {
		case w.heard <- strings.TrimSpace(line):
		case <-ctx.Done():
			return
		}
	}
}

// wait waits until the change is settled, and then gives "", or has to be taken back, and gives why. alive says that
// its maker still holds the line.
func (w *watch) wait(ctx context.Context) (why string, alive bool) {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	last := time.Now()
	late := false // the watchdog itself may have had no CPU, and signs of life wait to be heard
	var deadline, told <-chan time.Time
	if !w.order.Deadline.IsZero() {
		deadline = time.After(time.Until(w.order.Deadline))
	}
	bark := func(reason string) {
		if why == "" {
			why = reason
			w.say(lineUndo + why)
			told = time.After(obedience)
		}
	}
	for {
		select {
		case line, open := <-w.heard:
			switch {
			case !open && why == "":
				return "whoever made the change is gone", false
			case !open:
				return why, false
			case line == lineDone:
				return "", true
			case line == lineSettle && why == "":
				lost := w.allThere(ctx)
				if lost == "" {
					w.say(lineOK)
					return "", true
				}
				bark(lost) // and what the maker said meanwhile was not listened to
			}
			late, last = false, time.Now()
			quiet.Reset(silence)
		case peer := <-w.lost:
			bark(peer + " is out of reach")
		case <-deadline:
			bark("the change was not confirmed in time")
		case <-quiet.C:
			if !late || w.isSlow(last) {
				late = true
				quiet.Reset(signEvery)
				continue
			}
			return "whoever made the change gives no sign of life", true
		case <-told:
			return why, true
		}
	}
}

// allThere reaches every peer once more, each within the time that one may be out of reach.
func (w *watch) allThere(ctx context.Context) (lost string) {
	for _, peer := range w.order.Peers {
		var err error
		for end := time.Now().Add(peerGrace); ; {
			if err = reach(ctx, peer); err == nil || time.Now().After(end) {
				break
			}
			pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return fmt.Sprintf("%s is out of reach: %v", peer, err)
		}
	}
	return ""
}

// follow looks at a peer again and again.
func (w *watch) follow(ctx context.Context, peer string) {
	seen := time.Now()
	for pause(ctx, peerEvery) {
		if reach(ctx, peer) == nil {
			seen = time.Now()
		} else if time.Since(seen) > peerGrace {
			w.lost <- peer
			return
		}
	}
}

// reach opens a connection to a peer and closes it.
func reach(ctx context.Context, peer string) error {
	c, err := (&net.Dialer{Timeout: peerWithin}).DialContext(ctx, "tcp", peer)
	if err != nil {
		return err
	}
	return c.Close()
}

// pause waits, and says whether it was to the end.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
