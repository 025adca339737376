// Package probe measures what the kernel lets a process do: how much CPU it gets, how much memory it may touch, how
// fast it reads, writes, sends and receives, how many tasks it may have. It owns the loads, which run in processes of
// their own that somebody else puts where they belong, and the comparison of what was measured with what was asked. Of
// groups and policies it knows nothing.
//
// A load is the running program once more, started with arguments that lead it to Serve. It is bounded in time, bytes,
// files and tasks by its orders; it dies with the one that started it, and its files have no names.
package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// How long a load may take beyond what it was told before it counts as stuck, and how long its end is waited for.
const (
	answerTimeout = 8 * time.Second
	endTime       = 3 * time.Second
)

// ErrEnded says that the load's process ended instead of answering: it was killed.
var ErrEnded = errors.New("the load's process ended")

// Load is a running process that does as it is ordered.
type Load struct {
	ID procfs.ID

	process *os.Process
	in      *os.File
	answers chan Answer
}

// Start starts the program that runs now, with arguments that lead it to Serve. It does nothing before its first order:
// put it where it belongs first. It is killed when the thread that called Start ends, which Go does to no idle one: so
// with this process.
func Start(ctx context.Context, h *host.Host, args []string) (*Load, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a load: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		in.Close()
		return nil, fmt.Errorf("start a load: %w", err)
	}
	l := &Load{in: in, answers: make(chan Answer)}
	// A session of its own: what ends a terminal's process group ends the one that cleans up, and that one ends this.
	l.process, err = os.StartProcess(procfs.SelfExe, append([]string{"bulkhead"}, args...), &os.ProcAttr{
		Dir: "/", Files: []*os.File{theirIn, theirOut, os.Stderr},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("start a load: %w", err)
	}
	go l.listen(out)
	if _, err := l.wait(ctx, answerTimeout); err != nil { // it says that it is there
		l.Close()
		return nil, fmt.Errorf("start a load: %w", err)
	}
	procs, err := h.Proc.Processes(procfs.Options{PIDs: []int{l.process.Pid}})
	if err == nil && len(procs) != 1 {
		err = ErrEnded
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("start a load: look at process %d: %w", l.process.Pid, err)
	}
	l.ID = procs[0].ID
	return l, nil
}

func (l *Load) listen(out *os.File) {
	defer out.Close()
	defer close(l.answers)
	for in := json.NewDecoder(out); ; {
		var a Answer
		if in.Decode(&a) != nil {
			return
		}
		l.answers <- a
	}
}

// Do has an order done that takes so long, and gives its answer. The error is ErrEnded when the process was killed over
// it.
func (l *Load) Do(ctx context.Context, o Order, takes time.Duration) (Answer, error) {
	line, err := json.Marshal(o)
	if err != nil {
		return Answer{}, err
	}
	if _, err := l.in.Write(append(line, '\n')); err != nil {
		return Answer{}, ErrEnded
	}
	return l.wait(ctx, takes+answerTimeout)
}

func (l *Load) wait(ctx context.Context, within time.Duration) (Answer, error) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	select {
	case a, open := <-l.answers:
		switch {
		case !open:
			return a, ErrEnded
		case a.Error != "":
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-timeout.C:
		return Answer{}, fmt.Errorf("the load says nothing within %s", within)
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	}
}

// Close ends the process and waits for it to be gone, for a limited time.
func (l *Load) Close() {
	l.in.Close()
	_ = l.process.Kill()
	gone := make(chan struct{})
	go func() {
		for range l.answers { // let listen go
		}
		_, _ = l.process.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(endTime):
	}
}

// Serve is the load: it does what it reads from in, one order a line, and answers on out. It ends with in, whatever it
// is about.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	orders := make(chan []byte)
	go func() {
		defer stop()
		for lines := bufio.NewScanner(in); lines.Scan(); {
			orders <- append([]byte(nil), lines.Bytes()...)
		}
		stop()
		// An order that does not heed its end has no right to go on.
		time.Sleep(endTime)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
	answers := json.NewEncoder(out)
	if err := answers.Encode(Answer{}); err != nil {
		return err
	}
	s := &server{}
	defer s.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case line := <-orders:
			var o Order
			a := Answer{}
			err := json.Unmarshal(line, &o)
			if err == nil {
				a, err = s.do(ctx, o)
			}
			if err != nil {
				a.Error = err.Error()
			}
			if err := answers.Encode(a); err != nil {
				return nil // nobody listens any more
			}
		}
	}
}

// server is the state of a load between two orders.
type server struct {
	files []*os.File
	maps  [][]byte
}

func (s *server) close() {
	for _, f := range s.files {
		f.Close()
	}
}

func (s *server) do(ctx context.Context, o Order) (Answer, error) {
	switch {
	case o.Spin != nil:
		return o.Spin.run(ctx)
	case o.Touch != nil:
		return o.Touch.run(s)
	case o.Disk != nil:
		return o.Disk.run(ctx)
	case o.Dirty != nil:
		return o.Dirty.run(ctx, s)
	case o.Fork != nil:
		return o.Fork.run()
	case o.Traffic != nil:
		return o.Traffic.run(ctx)
	case o.Yield != nil:
		return o.Yield.run(ctx)
	}
	return Answer{}, errors.New("an order of nothing")
}
