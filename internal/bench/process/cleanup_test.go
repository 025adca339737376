package process

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCleanupOrder(t *testing.T) {
	var c Cleanup
	var done []string
	c.Add("first", func(context.Context) error { done = append(done, "first"); return nil })
	c.Add("second", func(context.Context) error { done = append(done, "second"); return errors.New("no") })
	c.Add("third", func(context.Context) error { done = append(done, "third"); panic("oh") })
	err := c.Run(t.Context())
	if want := []string{"third", "second", "first"}; !slices.Equal(done, want) {
		t.Errorf("done %v, want %v", done, want)
	}
	if err == nil || !strings.Contains(err.Error(), "second: no") ||
		!strings.Contains(err.Error(), "third: panic: oh") {
		t.Errorf("error is %v, want both failures by name", err)
	}
	if err := c.Run(t.Context()); err != nil || len(done) != 3 {
		t.Errorf("a second run did %v, %v", done, err)
	}
}

func TestUntilSignal(t *testing.T) {
	again := make(chan struct{}, 8)
	ctx, stop := UntilSignal(t.Context(), func() { again <- struct{}{} })
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("SIGTERM did not end the context")
	}
	if err := context.Cause(ctx); !errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("cause is %v", err)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGPIPE} {
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again: // and we live
		case <-time.After(time.Minute):
			t.Fatalf("a later %v was not answered", s)
		}
	}
	stop()
}
