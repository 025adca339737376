package testhost

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
)

// childVariable makes a test binary the helper process that its value describes.
const childVariable = "BULKHEAD_TESTHOST_CHILD"

// init turns a copy of the test binary into a helper process before any test runs.
func init() {
	how := strings.Fields(os.Getenv(childVariable))
	if len(how) == 0 {
		return
	}
	var err error
	switch {
	case how[0] == "hold":
		err = hold(os.Stdin, os.Stdout)
	case len(how) == 2:
		err = generate(how[0], how[1], os.Stdin, os.Stdout)
	default:
		err = fmt.Errorf("unknown: %q", how)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "helper process %q: %v\n", how, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a running copy of the test binary. It reads a command a line and answers each with one.
type child struct {
	ID procfs.ID

	t        testing.TB
	commands io.Writer
	answers  *bufio.Reader
}

// copyOfSelf starts a helper process; it waits for its first command.
func copyOfSelf(t testing.TB, how string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	stdin, commands, err1 := os.Pipe()
	answers, stdout, err2 := os.Pipe()
	if err1 != nil || err2 != nil {
		t.Fatalf("make a pipe: %v %v", err1, err2)
	}
	t.Cleanup(func() { commands.Close(); answers.Close() })
	defer stdin.Close()
	defer stdout.Close()
	id := start(t, self, []string{self}, append(os.Environ(), childVariable+"="+how), stdin, stdout)
	return &child{ID: id, t: t, commands: commands, answers: bufio.NewReader(answers)}
}

// errEnded says that the helper process ended instead of answering.
var errEnded = errors.New("the helper process ended")

// ask sends a command and waits for its answer.
func (c *child) ask(command string, limit time.Duration) (string, error) {
	if _, err := fmt.Fprintln(c.commands, command); err != nil {
		return "", errEnded
	}
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		line, err := c.answers.ReadString('\n')
		got <- answer{strings.TrimSpace(line), err}
	}()
	select {
	case a := <-got:
		if a.err != nil {
			return "", errEnded
		}
		return a.line, nil
	case <-time.After(limit):
		return "", fmt.Errorf("no answer to %q within %v", command, limit)
	}
}
