// Package process starts the programs of a proof and ends them all: a [Supervisor] starts them, and none outlives it.
// It also finds installed programs, names what a host lacks for a proof as a [RequirementError], and ends what an
// earlier run that was killed left.
//
// A Supervisor is safe for concurrent use.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Supervisor starts programs and ends them all. The kernel kills each one should the run itself be
// killed: the parent-death signal (prctl(2), PR_SET_PDEATHSIG) is tied to the *thread* that forked,
// so one thread, which lives as long as the supervisor, does all the forking.
//
// That thread may be in a network namespace of its own (NewIsolated), and so is all that it starts. The namespace, with
// every interface, qdisc and filter in it, is gone with the last of them, however the run ends.
type Supervisor struct {
	forks chan func()
	gone  chan struct{}
	// apart is the id of the thread, where that is in a network namespace of its own.
	NamespaceThread int

	// mark is the work directory, which every program finds in its environment: by it those that outlive a run are
	// known.
	Mark string

	mu       sync.Mutex
	closed   bool
	children map[*Child]struct{}
}

// Spec says what to start and how.
type Spec struct {
	Args []string
	Dir  string
	Env  []string // beside the run's own
	// credential is whom to run as; nil is root.
	Credential *syscall.Credential
	// session puts the program into a session of its own, and so into a scheduler autogroup of its
	// own (sched(7)); else it gets only a process group, out of reach of a Ctrl-C at the terminal.
	Session bool
	// deathSignal is what the kernel sends should we be killed; SIGKILL when it is 0.
	DeathSignal syscall.Signal
	Stdin       io.Reader // nil is empty
	Stdout      io.Writer // nil drops it
	Stderr      io.Writer // nil drops it
}

// Terminate is the DeathSignal of a program that ends by itself when it gets it.
const Terminate = syscall.SIGTERM

// Child is one program that was started.
type Child struct {
	Cmd  *exec.Cmd
	Done chan struct{}
	Err  error // valid once done is closed
}

// NewSupervisor makes one that starts programs in the network namespace of this process.
func NewSupervisor() *Supervisor {
	n := &Supervisor{forks: make(chan func()), gone: make(chan struct{}), children: map[*Child]struct{}{}}
	go n.serve()
	return n
}

// serve does what is asked of the thread until close.
func (n *Supervisor) serve() {
	runtime.LockOSThread()
	if syscall.Gettid() == syscall.Getpid() {
		// The first thread of a process does not end before the process, and /proc shows what it is in as the process's
		// own. While it is held here, the other goroutine gets another one.
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			n.serve()
		}()
		<-taken
		runtime.UnlockOSThread()
		return
	}
	// Never unlocked: the thread ends with this goroutine, when every child has been waited for.
	defer close(n.gone)
	for fork := range n.forks {
		fork()
	}
}

// NewIsolated is a supervisor in a network namespace of its own, which has nothing but a loopback interface that is
// down.
func NewIsolated() (*Supervisor, error) {
	n := NewSupervisor()
	var err error
	n.OnThread(func() {
		if err = syscall.Unshare(syscall.CLONE_NEWNET); err == nil {
			n.NamespaceThread = syscall.Gettid()
		}
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a network namespace: %w", err), n.Close())
	}
	return n, nil
}

// OnThread runs f on the thread that forks: a socket that it opens is in the supervisor's namespace.
func (n *Supervisor) OnThread(f func()) {
	done := make(chan struct{})
	n.forks <- func() { defer close(done); f() }
	<-done
}

// Start runs a program. It is killed by close at the latest.
func (n *Supervisor) Start(s Spec) (*Child, error) {
	cmd := exec.Command(s.Args[0], s.Args[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Dir, s.Stdin, s.Stdout, s.Stderr
	cmd.Env = append(os.Environ(), s.Env...)
	if n.Mark != "" {
		cmd.Env = append(cmd.Env, markName+"="+n.Mark)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: s.Credential,
		Setsid:     s.Session,
		Setpgid:    !s.Session,
		Pdeathsig:  cmp.Or(s.DeathSignal, syscall.SIGKILL),
	}
	// A grandchild that inherited the pipe must not hold up the wait.
	cmd.WaitDelay = 2 * time.Second
	c := &Child{Cmd: cmd, Done: make(chan struct{})}

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("start %q: the run is ending", s.Args[0])
	}
	started := make(chan error)
	n.forks <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %q: %w", s.Args[0], err)
	}
	n.children[c] = struct{}{}
	go func() {
		c.Err = cmd.Wait()
		n.mu.Lock()
		delete(n.children, c)
		n.mu.Unlock()
		close(c.Done)
	}()
	return c, nil
}

// Run starts a program and waits for it; a cancelled context kills it.
func (n *Supervisor) Run(ctx context.Context, s Spec) error { return n.RunWith(ctx, s, nil) }

// RunWith is run that tells which child it is.
func (n *Supervisor) RunWith(ctx context.Context, s Spec, started func(*Child)) error {
	c, err := n.Start(s)
	if err != nil {
		return err
	}
	if started != nil {
		started(c)
	}
	select {
	case <-c.Done:
		return c.Err
	case <-ctx.Done():
		c.Kill()
		return context.Cause(ctx)
	}
}

// Close kills what still runs and waits until all of it is gone.
func (n *Supervisor) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	left := make([]*Child, 0, len(n.children))
	for c := range n.children {
		left = append(left, c)
	}
	n.mu.Unlock()
	for _, c := range left {
		c.Signal(syscall.SIGKILL)
	}
	var errs []error
	for _, c := range left {
		select {
		case <-c.Done:
		case <-time.After(10 * time.Second):
			errs = append(errs, fmt.Errorf("kill process %d (%s): it is still there after 10 s", c.PID(), c.Cmd.Path))
		}
	}
	close(n.forks)
	<-n.gone
	return errors.Join(errs...)
}

// PID is that of the program.
func (c *Child) PID() int { return c.Cmd.Process.Pid }

// Signal reaches the program and what it started in its process group. One that has ended already is fine.
func (c *Child) Signal(sig syscall.Signal) {
	select {
	case <-c.Done: // waited for: its pid may belong to somebody else by now
	default:
		_ = syscall.Kill(-c.PID(), sig)
	}
}

// Kill ends the program at once and waits for it.
func (c *Child) Kill() {
	c.Signal(syscall.SIGKILL)
	<-c.Done
}

// Stop asks the program to end and kills it when it has not within the grace.
func (c *Child) Stop(grace time.Duration) {
	c.Signal(syscall.SIGTERM)
	select {
	case <-c.Done:
	case <-time.After(grace):
		c.Kill()
	}
}

// Killed says whether SIGKILL ended the program, which is how the OOM killer does it.
func (c *Child) Killed() bool {
	status, ok := c.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
