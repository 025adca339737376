package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"bulkhead/internal/bench/process"
)

// How often a login begins, and how long each shell stays before it is asked again: an agent has placed it by then.
const (
	loginEvery = 500 * time.Millisecond
	loginStays = 200 * time.Millisecond
)

// loginShell starts a shell in a session of its own twice a second, and asks it twice for a word: at once, and when
// it has been there for a while. A transaction is an answer; that to the first question counts from the shell's start.
// It reads no profile: what those of a machine do takes its own time.
var loginShell = &loader{
	Programs: []process.Program{{Name: "bash", Package: "bash"}},
	Native: func(ctx context.Context, d *Driver, length time.Duration, live func(float64)) (Outcome, error) {
		began := time.Now()
		all := newSeries(began, live)
		for i := 0; time.Duration(i)*loginEvery < length; i++ {
			process.Sleep(ctx, time.Until(began.Add(time.Duration(i)*loginEvery)))
			if err := d.logIn(ctx, all); err != nil {
				return Outcome{}, fmt.Errorf("log in: %w", err)
			}
		}
		return all.outcome(loginEvery / 2), nil
	},
}

// logIn is one login.
func (d *Driver) logIn(ctx context.Context, all *series) error {
	questions, ask, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ask.Close() }()
	answers, answer, err := os.Pipe()
	if err != nil {
		return errors.Join(err, questions.Close())
	}
	defer func() { _ = answers.Close() }()
	asked := time.Now()
	shell, err := d.Supervisor.Start(process.Spec{Args: []string{"bash", "--noprofile", "--norc"}, Dir: d.Dir,
		Session: true,
		Stdin:   questions, Stdout: answer})
	// The shell has its own: with these open, its end would not be seen.
	if err := errors.Join(err, questions.Close(), answer.Close()); err != nil {
		return err
	}
	defer shell.Kill()
	defer context.AfterFunc(ctx, func() { _ = answers.Close() })()
	lines := bufio.NewReader(answers)
	for range 2 {
		if _, err := io.WriteString(ask, "echo ok\n"); err != nil {
			return err
		}
		if _, err := lines.ReadString('\n'); err != nil {
			return err
		}
		all.add(time.Since(asked))
		process.Sleep(ctx, loginStays)
		asked = time.Now()
	}
	return nil
}
