package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/term"

	"bulkhead/internal/control"
)

// runOnTerminal runs the command on a pseudo-terminal of its own, so that it never holds the caller's:
// a child of this program, started by this program's own `run` without --tty, while this one carries
// bytes, signals and the window's size across.
func runOnTerminal(s *session, group string, command []string, o runFlags) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return &control.Error{Code: control.CodeUsage, Err: errors.New("--tty needs a terminal on standard input"), Hint: "leave --tty out"}
	}
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	defer master.Close()
	args := []string{"bulkhead", "--policy", s.policy, "--state", s.state, "--socket", s.socket, "run"}
	if o.user != "" {
		args = append(args, "--user", o.user)
	}
	if o.group != "" {
		args = append(args, "--unix-group", o.group)
	}
	args = append(append(args, group, "--"), command...)
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	child, err := os.StartProcess(self, args, &os.ProcAttr{
		Files: []*os.File{slave, slave, slave},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	_ = slave.Close()
	state, err := relay(master, child)
	if err != nil {
		return err
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return exit{128 + int(status.Signal())}
	}
	return exit{state.ExitCode()}
}

// relay carries the terminal across until the child ends.
func relay(master *os.File, child *os.Process) (*os.ProcessState, error) {
	old, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err == nil {
		defer term.Restore(int(os.Stdin.Fd()), old) //nolint:errcheck // nothing more can be done
	}
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	defer signal.Stop(sizes)
	_ = pty.InheritSize(os.Stdin, master)
	go func() {
		for range sizes {
			_ = pty.InheritSize(os.Stdin, master)
		}
	}()
	ends := make(chan os.Signal, 4)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(ends)
	go func() {
		for s := range ends {
			_ = child.Signal(s)
		}
	}()
	go func() { _, _ = io.Copy(master, os.Stdin) }()
	done := make(chan struct{})
	go func() { _, _ = io.Copy(os.Stdout, master); close(done) }()
	state, err := child.Wait()
	<-done // EIO once the last holder of the terminal is gone
	return state, err
}
