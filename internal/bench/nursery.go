package bench

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

// nursery starts programs and ends them all. The kernel kills each one should the run itself be
// killed: the parent-death signal (prctl(2), PR_SET_PDEATHSIG) is tied to the *thread* that forked,
// so one thread, which lives as long as the nursery, does all the forking.
//
// That thread may be in a network namespace of its own (newApart), and so is all that it starts. The namespace, with every
// interface, qdisc and filter in it, is gone with the last of them, however the run ends.
type nursery struct {
	forks chan func()
	gone  chan struct{}
	// apart is the id of the thread, where that is in a network namespace of its own.
	apart int

	// mark is the work directory, which every program finds in its environment: by it those that outlive a run are known.
	mark string

	mu       sync.Mutex
	closed   bool
	children map[*child]struct{}
}

// spec says what to start and how.
type spec struct {
	args []string
	dir  string
	env  []string // beside the run's own
	// credential is whom to run as; nil is root.
	credential *syscall.Credential
	// session puts the program into a session of its own, and so into a scheduler autogroup of its
	// own (sched(7)); else it gets only a process group, out of reach of a Ctrl-C at the terminal.
	session bool
	// deathSignal is what the kernel sends should we be killed; SIGKILL when it is 0.
	deathSignal syscall.Signal
	stdout      io.Writer // nil drops it
	stderr      io.Writer // nil drops it
}

// child is one program that was started.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

func newNursery() *nursery {
	n := &nursery{forks: make(chan func()), gone: make(chan struct{}), children: map[*child]struct{}{}}
	go n.serve()
	return n
}

// serve does what is asked of the thread until close.
func (n *nursery) serve() {
	runtime.LockOSThread()
	if syscall.Gettid() == syscall.Getpid() {
		// The first thread of a process does not end before the process, and /proc shows what it is in as the process's own. While it is
		// held here, the other goroutine gets another one.
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

// newApart is a nursery in a network namespace of its own, which has nothing but a loopback interface that is down.
func newApart() (*nursery, error) {
	n := newNursery()
	var err error
	n.do(func() {
		if err = syscall.Unshare(syscall.CLONE_NEWNET); err == nil {
			n.apart = syscall.Gettid()
		}
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a network namespace: %w", err), n.close())
	}
	return n, nil
}

// do runs f on the thread that forks: a socket that it opens is in the nursery's namespace.
func (n *nursery) do(f func()) {
	done := make(chan struct{})
	n.forks <- func() { defer close(done); f() }
	<-done
}

// start runs a program. It is killed by close at the latest.
func (n *nursery) start(s spec) (*child, error) {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, s.stdout, s.stderr
	cmd.Env = append(os.Environ(), s.env...)
	if n.mark != "" {
		cmd.Env = append(cmd.Env, markName+"="+n.mark)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: s.credential,
		Setsid:     s.session,
		Setpgid:    !s.session,
		Pdeathsig:  cmp.Or(s.deathSignal, syscall.SIGKILL),
	}
	// A grandchild that inherited the pipe must not hold up the wait.
	cmd.WaitDelay = 2 * time.Second
	c := &child{cmd: cmd, done: make(chan struct{})}

	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("start %q: the run is ending", s.args[0])
	}
	started := make(chan error)
	n.forks <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %q: %w", s.args[0], err)
	}
	n.children[c] = struct{}{}
	go func() {
		c.err = cmd.Wait()
		n.mu.Lock()
		delete(n.children, c)
		n.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

// run starts a program and waits for it; a cancelled context kills it.
func (n *nursery) run(ctx context.Context, s spec) error { return n.runWith(ctx, s, nil) }

// runWith is run that tells which child it is.
func (n *nursery) runWith(ctx context.Context, s spec, started func(*child)) error {
	c, err := n.start(s)
	if err != nil {
		return err
	}
	if started != nil {
		started(c)
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		c.kill()
		return context.Cause(ctx)
	}
}

// close kills what still runs and waits until all of it is gone.
func (n *nursery) close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	left := make([]*child, 0, len(n.children))
	for c := range n.children {
		left = append(left, c)
	}
	n.mu.Unlock()
	for _, c := range left {
		c.signal(syscall.SIGKILL)
	}
	var errs []error
	for _, c := range left {
		select {
		case <-c.done:
		case <-time.After(10 * time.Second):
			errs = append(errs, fmt.Errorf("kill process %d (%s): it is still there after 10 s", c.pid(), c.cmd.Path))
		}
	}
	close(n.forks)
	<-n.gone
	return errors.Join(errs...)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// signal reaches the program and what it started in its process group. One that has ended already is fine.
func (c *child) signal(sig syscall.Signal) {
	select {
	case <-c.done: // waited for: its pid may belong to somebody else by now
	default:
		_ = syscall.Kill(-c.pid(), sig)
	}
}

// kill ends the program at once and waits for it.
func (c *child) kill() {
	c.signal(syscall.SIGKILL)
	<-c.done
}

// stop asks the program to end and kills it when it has not within the grace.
func (c *child) stop(grace time.Duration) {
	c.signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(grace):
		c.kill()
	}
}

// killed says whether SIGKILL ended the program, which is how the OOM killer does it.
func (c *child) killed() bool {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
