package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/term"

	"bulkhead/internal/api"
)

// OnTerminal runs this program with other arguments on a pseudo-terminal of its own, so that it never holds the
// caller's. Until it ends, bytes, signals and the window's size are carried across. It gives the exit status as a shell
// does: 128 and the number of the signal that ended it.
func OnTerminal(args []string) (status int, err error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		err := errors.New("--tty needs a terminal on standard input")
		return 0, &api.Error{Code: api.CodeUsage, Err: err, Hint: "leave --tty out"}
	}
	master, slave, err := pty.Open()
	if err != nil {
		return 0, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	defer master.Close()
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	child, err := os.StartProcess(self, args, &os.ProcAttr{
		Files: []*os.File{slave, slave, slave},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		return 0, fmt.Errorf("start the command: %w", err)
	}
	_ = slave.Close()
	state, err := relay(master, child)
	if err != nil {
		return 0, err
	}
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return 128 + int(wait.Signal()), nil
	}
	return state.ExitCode(), nil
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
