package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Cleanup is a stack of things to take back, the newest first.
type Cleanup struct {
	undos []undo
}

type undo struct {
	what string
	do   func(context.Context) error
}

// Add puts one more thing to take back on the stack.
func (c *Cleanup) Add(what string, do func(context.Context) error) {
	c.undos = append(c.undos, undo{what, do})
}

// Run takes everything back, whether ctx has ended or not, each within a bound of its own, and goes on when one of them
// fails or panics. Running it again does nothing.
func (c *Cleanup) Run(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	for len(c.undos) > 0 {
		last := c.undos[len(c.undos)-1]
		c.undos = c.undos[:len(c.undos)-1]
		if err := last.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", last.what, err))
		}
	}
	return errors.Join(errs...)
}

func (u undo) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return u.do(ctx)
}

// ErrInterrupted is the cause of a context that a signal ended.
var ErrInterrupted = errors.New("interrupted")

// UntilSignal returns a context that the signals which end a program end instead, so that the
// program lives on to clean up. Every further one is answered by again, and does nothing else: that
// holds for a reader of our output that went away (SIGPIPE) too. Call stop when all is cleaned up.
func UntilSignal(parent context.Context, again func()) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	quit := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if ctx.Err() != nil {
					again()
				}
				cancel(fmt.Errorf("%w by %s", ErrInterrupted, s))
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		cancel(nil)
	}
}
